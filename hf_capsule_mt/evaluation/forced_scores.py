"""The scores of given translations, by the definition of `generate`'s beam search.

The score of a translation is the sum of the log-probabilities of its tokens, the end of the sentence included, divided
by their number to the power of the length penalty. Tokens that were forced as a prefix count in neither. As in beam
search, the log-probabilities are those of the model's softmax, on which the generation config's rules work afterwards,
without normalising again (unless it has `renormalize_logits`): a token that it forbids (`bad_words_ids`) has minus
infinity, one that it forces (`forced_bos_token_id`, `forced_eos_token_id` at the maximum length) has zero. For greedy
search, which has no score of its own in transformers, it is the same: that of a beam of one.

Shapes: B pairs, S source tokens, P tokens of a prompt, T target tokens, V vocabulary, L layers, N capsules of an
aggregation, M capsules of the source memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..models.pipeline_translation import evaluation_mode, generation_value, max_positions, with_parameters

# Logits of one batch, T * V for each pair: 256 MB in float32
MAX_LOGITS = 2**26
DECIMALS = 4


@dataclass(frozen=True)
class ForcedPair:
    """
    Token ids of a source and a translation of it.

    Attributes:
        source: [S], the end of the sentence included.
        prompt: [P] that the decoder begins with and that are not scored; the first is the start token.
        target: [T] that follow, at least one; the end of the sentence included if the translation has one.
    """

    source: list[int]
    prompt: list[int]
    target: list[int]


@dataclass(frozen=True)
class ForcedScores:
    """
    What a model says to a pair.

    Attributes:
        log_probs: of each target token, [T]; minus infinity for tokens that generation could not have chosen.
        agreements: see `agreement_summary`; None unless asked for.
    """

    log_probs: list[float]
    agreements: dict[str, Any] | None = None

    def score(self, length_penalty: float) -> float:
        """Sum of the log-probabilities over T ** length_penalty; minus infinity if there is no token."""
        if not self.log_probs:
            return float("-inf")
        return sum(self.log_probs) / len(self.log_probs) ** length_penalty


def length_penalty_of(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> float:
    """The exponent of the length that `generate` uses."""
    penalty = generation_value(model, generate_kwargs, "length_penalty")
    return 1.0 if penalty is None else float(penalty)


def score_tokens(
    model: PreTrainedModel,
    pairs: Sequence[ForcedPair],
    *,
    max_tokens: int = 4096,
    output_agreements: bool = False,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[ForcedScores]]]:
    """
    Score pairs in one forward pass each, batches of similar length, longest first. The model's mode is kept.

    Args:
        model: any encoder-decoder model.
        pairs: what to score.
        max_tokens: bound on the tokens of a batch on either side, padding included; the logits bound it as well.
        output_agreements: summarise the routing too; capsule models only.
        generate_kwargs: generation parameters; they win over the model's generation config. Only its rules on tokens
            and its maximum length matter here.

    Returns:
        An iterator over the batches: the positions of their pairs and what the model says to these.
    """
    for rows in _batches(pairs, max_tokens, MAX_LOGITS // _vocabulary(model)):
        yield rows, _score_batch(model, [pairs[row] for row in rows], output_agreements, generate_kwargs)


def _vocabulary(model: PreTrainedModel) -> int:
    return getattr(model.config, "decoder_vocab_size", None) or model.config.get_text_config().vocab_size


def _batches(pairs: Sequence[ForcedPair], max_tokens: int, max_positions: int) -> Iterator[list[int]]:
    """Rows of batches with prompts of the same length, which processors that count new tokens rely on."""
    sizes = [(len(pair.prompt), len(pair.source), len(pair.prompt) + len(pair.target)) for pair in pairs]
    batch: list[int] = []
    longest = (0, 0)
    for row in sorted(range(len(pairs)), key=lambda row: sizes[row], reverse=True):
        prompt, source, target = sizes[row]
        grown = (max(source, longest[0]), max(target, longest[1]))
        rows = len(batch) + 1
        full = rows * max(grown) > max_tokens or rows * grown[1] > max_positions
        if batch and (full or sizes[batch[0]][0] != prompt):
            yield batch
            batch, grown = [], (source, target)
        batch.append(row)
        longest = grown
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, pairs: list[ForcedPair], output_agreements: bool, generate_kwargs: dict[str, Any]
) -> list[ForcedScores]:
    def padded(rows: list[list[int]]) -> Tensor:
        value = model.config.pad_token_id or 0
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value).to(
            model.device
        )

    input_ids = padded([pair.source for pair in pairs])
    sequences = padded([pair.prompt + pair.target for pair in pairs])
    source_lengths = torch.tensor([len(pair.source) for pair in pairs], device=model.device)
    mask = (torch.arange(input_ids.shape[1], device=model.device) < source_lengths.unsqueeze(1)).long()
    prompt_length = len(pairs[0].prompt)

    def forced_decoding(model: Any, _: Tensor, logits_processor: Any, **prepared: Any) -> tuple[Tensor, Any]:
        """In the place of generate's loop: one pass over what it would have chosen; log-probabilities [B, T]."""
        source = {"encoder_outputs": prepared["encoder_outputs"]}
        if output_agreements:
            # generate's encoder output is without agreements
            source = {"input_ids": input_ids, "output_agreements": True}
        output = model(**source, attention_mask=mask, decoder_input_ids=sequences[:, :-1], use_cache=False)
        # One step at a time, as the processors want it, so that no second [B, T, V] is held
        steps = []
        for step in range(prompt_length, sequences.shape[1]):
            scores = output.logits[:, step - 1].float().log_softmax(dim=-1)
            scores = logits_processor(sequences[:, :step], scores)
            steps.append(scores.gather(1, sequences[:, step : step + 1]))
        return torch.cat(steps, dim=1), output

    with evaluation_mode(model), torch.no_grad():
        generate: Any = model.generate
        log_probs, output = generate(
            input_ids=input_ids,
            attention_mask=mask,
            decoder_input_ids=sequences[:, :prompt_length],
            custom_generate=forced_decoding,
            **_one_sequence(model, sequences.shape[1], generate_kwargs),
        )
    return [
        ForcedScores(
            log_probs[row, : len(pair.target)].tolist(),
            agreement_summary(output, row, pair) if output_agreements else None,
        )
        for row, pair in enumerate(pairs)
    ]


def _one_sequence(model: PreTrainedModel, width: int, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same rules on tokens, without a search: nothing that only concerns beams or the end of a sentence."""
    search = ("stopping_criteria", "early_stopping", "length_penalty")
    parameters = {name: value for name, value in generate_kwargs.items() if name not in search}
    if not any(generation_value(model, parameters, name) for name in ("max_length", "max_new_tokens")):
        # As in `limit_length`: only the positions end a sentence by force
        parameters = with_parameters(parameters, max_length=max_positions(model.config, "decoder") or width + 1)
    return with_parameters(parameters, num_beams=1, num_return_sequences=1, do_sample=False)


def agreement_summary(outputs: Any, row: int, pair: ForcedPair) -> dict[str, Any]:
    """
    The routing of one pair in a few numbers, from a model's output with agreements.

    Returns:
        As far as the model has them: "past" [P - 1 + T][S], the probability of PAST for each source token at the step
        that produced each target token (prefix included); "decoder_entropy" and "encoder_entropy" [L], how undecided
        each layer's votes are between the capsules, in nats (log N is uniform), mean over the positions; "memory"
        [S][M], the assignment of the source tokens to the capsules of the memory. All of the last iteration.
    """
    source, target = len(pair.source), len(pair.prompt) - 1 + len(pair.target)
    summary: dict[str, Any] = {}

    def rounded(values: Tensor) -> Any:
        return [[round(x, DECIMALS) for x in line] for line in values.tolist()]

    if outputs.guided_assignment is not None:
        summary["past"] = rounded(outputs.guided_assignment[row, :target, :source, 0])
    for name, agreements, length in (
        ("encoder_entropy", outputs.encoder_agreements, source),
        ("decoder_entropy", outputs.decoder_agreements, target),
    ):
        if agreements is not None:
            entropies = torch.special.entr(agreements[-1][row, :length].double()).sum(dim=-1).mean(dim=0)
            summary[name] = [round(value, DECIMALS) for value in entropies.tolist()]
    if outputs.source_agreements is not None:
        summary["memory"] = rounded(outputs.source_agreements[-1][row, :source])
    return summary
