"""Score given translations of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .encoding import check_parallel, encode_prompts, encode_sources, encode_translations, with_languages
from .forced_scores import ForcedPair, ForcedScores, length_penalty_of, score_tokens
from .translate import Progress, in_order


@dataclass(frozen=True)
class ScoredTranslation:
    """
    A given translation and what a model says to it.

    Attributes:
        tokens: ids, without the start token; those of the prefix and the end of the sentence included.
        log_probs: of the tokens behind the prefix; minus infinity for what generation could not have written.
        score: see `forced_scores`; 0 for a blank translation of a blank sentence, which the model is not asked about,
            and minus infinity for given tokens that are none, see `translate.Hypothesis`.
    """

    tokens: list[int]
    log_probs: list[float]
    score: float


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    translations: Sequence[str],
    *,
    tokens: Sequence[list[int]] | None = None,
    prefixes: Sequence[str] | None = None,
    max_tokens: int = 4096,
    progress: Progress | None = None,
    numbers: Sequence[int] | None = None,
    **generate_kwargs: Any,
) -> list[ScoredTranslation]:
    """
    Score given translations by one forced pass; see `forced_scores` for what a score is.

    The score of a translation equals the one that it was generated with, under the same generation parameters, if the
    tokenizer cuts its text into the tokens that were generated (a model can produce other cuts of the same text) and
    it was not cut off by a length limit: a given text always has its end. With `tokens` there are no such conditions.
    Sources that are too long are truncated as in `translate`, translations to what generation could have
    written, with a warning.

    Args:
        tokens: ids of the translations as they were generated, in the place of what the tokenizer makes of the texts.
        prefixes: what of each translation was forced; it is not scored.
        numbers: of the translations, for messages; by default they are counted from 1.
        generate_kwargs: only `length_penalty` and what forbids or forces tokens matter here.

    Returns:
        The translations with tokens, scores and log-probabilities. A pair of blanks is not shown to the model.

    Raises:
        ValueError: as many translations or prefixes as sentences are missing, or a translation does not begin with
            its prefix, token by token.
    """
    generate_kwargs = with_languages(tokenizer, generate_kwargs)
    check_parallel(sentences, max_tokens, translations=translations, tokens=tokens, prefixes=prefixes)
    rows = [row for row, both in enumerate(zip(sentences, translations, strict=True)) if "".join(both).strip()]
    targets = [tokens[row] for row in rows] if tokens is not None else None
    if targets is None:
        targets = encode_translations(model, tokenizer, [translations[row] for row in rows], generate_kwargs)
    sources = encode_sources(model, tokenizer, [sentences[row] for row in rows])
    prompts = encode_prompts(model, tokenizer, [prefixes[row] if prefixes else "" for row in rows], generate_kwargs)
    pairs = [
        ForcedPair(source, prompt, target[len(prompt) - 1 :])
        for source, prompt, target in zip(sources, prompts, targets, strict=True)
    ]
    for row, pair, target in zip(rows, pairs, targets, strict=True):
        # Of given tokens there may be none, of a text there is always the end
        if target != pair.prompt[1:] + pair.target or not (pair.target or tokens is not None):
            number = numbers[row] if numbers else row + 1
            raise ValueError(
                f"translation {number} does not begin with the tokens of its prefix: {translations[row][:60]!r}"
            )
    blank = ScoredTranslation([], [], 0.0)
    seen = set(rows)
    results = [None if row in seen else blank for row in range(len(sentences))]
    scored = _scored(model, pairs, max_tokens, generate_kwargs)
    return in_order((([rows[index] for index in indices], found) for indices, found in scored), results, progress)


def _scored(
    model: PreTrainedModel, pairs: Sequence[ForcedPair], max_tokens: int, generate_kwargs: dict[str, Any]
) -> Iterator[tuple[list[int], list[ScoredTranslation]]]:
    """Batches of pairs: their positions, and the translations; first those without tokens, which no model is shown."""
    penalty = length_penalty_of(model, generate_kwargs)
    empty = [index for index, pair in enumerate(pairs) if not pair.target]
    full = [index for index, pair in enumerate(pairs) if pair.target]
    batches = score_tokens(model, [pairs[index] for index in full], max_tokens=max_tokens, **generate_kwargs)
    found = (([full[position] for position in batch], scores) for batch, scores in batches)
    for indices, several in chain([(empty, [ForcedScores([])] * len(empty))], found):
        yield (
            indices,
            [
                ScoredTranslation(pairs[index].prompt[1:] + pairs[index].target, one.log_probs, one.score(penalty))
                for index, one in zip(indices, several, strict=True)
            ],
        )
