"""Translate many sentences: sorted by length, in batches bounded by their tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.capsule_configuration import CapsuleConfigMixin
from ..models.pipeline_translation import end_token_ids, generate_translations, generation_value
from ..serving.onnx_translator import Hypothesis, Progress, batches_by_tokens
from .encoding import (
    check_parallel,
    encode_prompts,
    encode_sources,
    limit_given_length,
    limit_own_length,
    warn_of_limit,
    with_languages,
)
from .forced_scores import ForcedPair, ForcedScores, length_penalty_of, score_tokens

Result = TypeVar("Result")


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    max_tokens: int = 4096,
    progress: Progress | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """
    Translate sentences, in their order, with `model.generate`.

    Blank sentences translate to the empty string. Sentences longer than the tokenizer's limit or the model's positions
    are truncated; a warning says how many and by how much. The model's mode (training or evaluation) is kept.

    The result does not depend on `max_tokens`: padding is masked, and unless `generate_kwargs` sets `max_length` or
    `max_new_tokens`, every sentence has the limit of its own length (twice its tokens plus ten, at most what the
    model's generation config or its positions allow), enforced sentence by sentence, not batch by batch. What remains
    is floating-point noise of differently shaped batches, which can decide between two exactly equal candidates.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer; languages of a multilingual one are set on it beforehand (`set_languages`).
        sentences: raw text as the model was trained on, one sentence each.
        max_tokens: bound on sentences * longest source * beams of a batch, in tokens; a sentence that exceeds it alone
            is a batch of its own.
        progress: called after every batch with the number of sentences done and the number in all.
        generate_kwargs: for `model.generate`, e.g. `num_beams=5`; they win over the model's generation config.

    Raises:
        ValueError: `max_tokens` below one, a single string for `sentences`, more than one translation a sentence, or a
            multilingual tokenizer without languages.
    """
    batches = translate_batches(model, tokenizer, sentences, max_tokens=max_tokens, **generate_kwargs)
    return in_order(batches, [None if sentence.strip() else "" for sentence in sentences], progress)


def translate_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    max_tokens: int = 4096,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[str]]]:
    """
    The work of `translate`, whose arguments and promises it shares, batch by batch.

    Returns:
        An iterator over the batches, longest sentences first: the positions of their sentences and the translations of
        these. Blank sentences are in none.

    Raises:
        ValueError: as `translate`; at the call, not at the first batch.
    """
    generate_kwargs = with_languages(tokenizer, generate_kwargs)
    num_sequences = generation_value(model, generate_kwargs, "num_return_sequences") or 1
    if num_sequences > 1:
        raise ValueError(
            f"translate gives one translation a sentence, got num_return_sequences={num_sequences};"
            " use translate_nbest for several"
        )
    check_parallel(sentences, max_tokens)
    batches = _generated_batches(model, tokenizer, sentences, None, max_tokens, generate_kwargs)

    def texts(pairs: list[ForcedPair]) -> list[str]:
        tokens = [pair.target for pair in pairs]
        return tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    return ((rows, texts(pairs)) for rows, pairs in batches)


def translate_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    prefixes: Sequence[str] | None = None,
    agreements: bool = False,
    max_tokens: int = 4096,
    progress: Progress | None = None,
    **generate_kwargs: Any,
) -> list[list[Hypothesis]]:
    """
    The best translations of each sentence with their scores, best first, as many as `num_return_sequences` says.

    As `translate` in everything else. The scores are those by which the beam search chose, up to floating-point noise:
    transformers gives its own only along with the scores of the whole vocabulary at every step, so they are computed
    by one more pass over the finished translations, the same one that the agreements come from.

    Args:
        prefixes: what the translation of each sentence begins with, whole words; blank for no constraint. Tokens of a
            prefix count for the length limit of a sentence, but not for its score.
        agreements: summarise the routing of each translation.

    Returns:
        For each sentence its hypotheses; for a blank sentence blank ones.

    Raises:
        ValueError: as `translate`; as many prefixes as sentences are missing, a prefix is longer than the model can
            write, or agreements are asked of a model that has none.
    """
    generate_kwargs = with_languages(tokenizer, generate_kwargs)
    check_parallel(sentences, max_tokens, prefixes=prefixes)
    if agreements and not isinstance(model.config, CapsuleConfigMixin):
        raise ValueError(f"agreements are those of capsule models, and this is a {type(model).__name__}")
    batches = _generated_batches(model, tokenizer, sentences, prefixes, max_tokens, generate_kwargs)
    num_sequences = generation_value(model, generate_kwargs, "num_return_sequences") or 1

    def scored() -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        for rows, pairs in batches:
            # Where a beam found fewer translations than it was asked for, there is nothing to score
            scores: list[Any] = [ForcedScores([])] * len(pairs)
            found = [index for index, pair in enumerate(pairs) if pair.target]
            prompt = len(pairs[0].prompt)
            options = limit_given_length(model, tokenizer, generate_kwargs, prompt)
            options = {**options, "max_tokens": max_tokens, "output_agreements": agreements}
            # With the limits of the search, at which an end may have been forced
            with limit_own_length(model, tokenizer, prompt):
                for indices, results in score_tokens(model, [pairs[index] for index in found], **options):
                    for index, result in zip(indices, results, strict=True):
                        scores[found[index]] = result
            flat = _hypotheses(model, tokenizer, pairs, scores, generate_kwargs)
            yield rows, [flat[start : start + num_sequences] for start in range(0, len(flat), num_sequences)]

    blank = [Hypothesis("", [])] * num_sequences
    return in_order(scored(), [None if sentence.strip() else blank for sentence in sentences], progress)


def in_order(
    batches: Iterator[tuple[list[int], list[Result]]], results: list[Result | None], progress: Progress | None
) -> list[Any]:
    """
    Put the results of batches into their places.

    Args:
        batches: positions, and what belongs there.
        results: filled in place; not None where no batch has anything.
        progress: as in `translate`.
    """
    done = sum(result is not None for result in results)
    if progress is not None and done == len(results):
        progress(done, len(results))
    for positions, values in batches:
        for position, value in zip(positions, values, strict=True):
            results[position] = value
        done += len(positions)
        if progress is not None:
            progress(done, len(results))
    return results


def _hypotheses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: list[ForcedPair],
    scores: list[ForcedScores],
    generate_kwargs: dict[str, Any],
) -> list[Hypothesis]:
    penalty = length_penalty_of(model, generate_kwargs)
    ends = end_token_ids(model, generate_kwargs)
    tokens = [pair.prompt[1:] + pair.target for pair in pairs]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    hypotheses = []
    for pair, target, text, forced in zip(pairs, tokens, texts, scores, strict=True):
        agreements = forced.agreements
        if agreements is not None:
            pieces = tokenizer.convert_ids_to_tokens
            agreements = {"source_tokens": pieces(pair.source), "target_tokens": pieces(target), **agreements}
        ended = bool(pair.target) and target[-1] in ends
        hypotheses.append(Hypothesis(text, target, ended, forced.score(penalty), agreements))
    return hypotheses


def _generated_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    prefixes: Sequence[str] | None,
    max_tokens: int,
    generate_kwargs: dict[str, Any],
) -> Iterator[tuple[list[int], list[ForcedPair]]]:
    """Positions of the sentences of each batch, and what was generated: all translations of one after another."""
    num_beams = generation_value(model, generate_kwargs, "num_beams") or 1
    positions = [position for position, sentence in enumerate(sentences) if sentence.strip()]
    sources = encode_sources(model, tokenizer, [sentences[position] for position in positions])
    given = [prefixes[position] if prefixes else "" for position in positions]
    prompts = encode_prompts(model, tokenizer, given, generate_kwargs)
    warn_of_limit(model, tokenizer, generate_kwargs)

    def batches() -> Iterator[tuple[list[int], list[ForcedPair]]]:
        sizes = [(len(prompt), len(source)) for prompt, source in zip(prompts, sources, strict=True)]
        for batch in batches_by_tokens(sizes, max_tokens // num_beams):
            rows = [(sources[row], prompts[row]) for row in batch]
            yield [positions[row] for row in batch], _generate(model, tokenizer, rows, generate_kwargs)

    # What is wrong has been found by now: at the call, not at the first batch
    return batches()


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[tuple[list[int], list[int]]],
    generate_kwargs: dict[str, Any],
) -> list[ForcedPair]:
    """The translations of a batch of sources and prompts."""
    sources = [torch.tensor(source) for source, _ in rows]
    masks = [torch.ones_like(source) for source in sources]
    input_ids = pad_sequence(sources, batch_first=True, padding_value=tokenizer.pad_token_id or 0).to(model.device)
    attention_mask = pad_sequence(masks, batch_first=True).to(model.device)
    prompts = torch.tensor([prompt for _, prompt in rows], device=model.device)
    generate_kwargs = limit_given_length(model, tokenizer, generate_kwargs, prompts.shape[1])
    if prompts.shape[1] > 1:
        generate_kwargs = {**generate_kwargs, "decoder_input_ids": prompts}
    with limit_own_length(model, tokenizer, prompts.shape[1]):
        sequences, lengths = generate_translations(model, input_ids, attention_mask, generate_kwargs)
    pairs = []
    for (source, prompt), several, ends in zip(rows, sequences.tolist(), lengths.tolist(), strict=True):
        pairs += [
            ForcedPair(source, prompt, tokens[len(prompt) : end]) for tokens, end in zip(several, ends, strict=True)
        ]
    return pairs
