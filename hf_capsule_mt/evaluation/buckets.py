"""Scores and lengths of translations by the length of the source (Figure 5 of each paper)."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

from sacrebleu.metrics import BLEU

from .scores import UNSPACED_LANGUAGES, as_prepared, base_language, metrics_of, refuse_single_strings

DEFAULT_EDGES = (10, 20, 30, 40, 50)
# of which BLEU says something
ENOUGH_SENTENCES = 30


def by_source_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    edges: Sequence[int] | None = None,
    min_sentences: int = 1,
    source_lang: str = "",
    target_lang: str = "",
    convention: str = "cased",
) -> list[dict[str, Any]]:
    """
    BLEU and length of the translations in buckets of source length.

    Lengths are words between spaces; for Chinese and Japanese, characters other than spaces.

    Args:
        sources, hypotheses, references: one sentence each, in the same order.
        edges: rising upper edges of the buckets, by default 10, 20, ..., 50. A bucket (low, high] holds the lengths
            from low + 1 to high; blank sources are in the first, and all above the last edge in one more bucket.
        min_sentences: of a bucket; one with fewer is joined to the next shorter one, the shortest to the next longer.
        source_lang, target_lang: ISO codes ("zh", "pt-BR"); needed for Chinese and Japanese.
        convention: as in `scores.score`.

    Returns:
        For each bucket that is not empty, from short to long: "low" and "high" (None without an upper edge),
        "sentences", corpus "bleu", "hypothesis_length" and "reference_length" (means a sentence), and "ratio",
        the length of all hypotheses to that of all references (None if the references are blank).

    Raises:
        ValueError: empty or unequally long lists, a single string, or edges that are not positive and rising.
    """
    edges = DEFAULT_EDGES if edges is None else edges
    _check(sources, hypotheses, references, edges)
    language = base_language(target_lang)
    if convention == "lc_norm_tok":
        hypotheses, references = as_prepared(hypotheses, language), as_prepared(references, language)
    bleu = cast(BLEU, metrics_of(convention, language)["bleu"])
    lengths = [_length(source, base_language(source_lang)) for source in sources]
    buckets = []
    for low, high, indices in _members(lengths, edges, min_sentences):
        translated, expected = [hypotheses[i] for i in indices], [references[i] for i in indices]
        hypothesis_length, reference_length = (
            sum(_length(text, language) for text in texts) for texts in (translated, expected)
        )
        buckets.append(
            {
                "low": low,
                "high": high,
                "sentences": len(indices),
                "bleu": bleu.corpus_score(translated, [expected]).score,
                "hypothesis_length": hypothesis_length / len(indices),
                "reference_length": reference_length / len(indices),
                "ratio": hypothesis_length / reference_length if reference_length else None,
            }
        )
    return buckets


def _members(
    lengths: Sequence[int], edges: Sequence[int], min_sentences: int
) -> list[tuple[int, int | None, list[int]]]:
    """Edges and sentences of the buckets that are not empty, from short to long."""
    members: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for index, length in enumerate(lengths):
        members[bisect_left(edges, length)].append(index)
    found: list[tuple[int, int | None, list[int]]] = []
    for low, high, indices in zip([0, *edges], [*edges, None], members, strict=True):
        if not indices:
            continue
        joined = low, high, indices
        if found and min(len(indices), len(found[-1][2])) < min_sentences:
            start, _, shorter = found.pop()
            joined = start, high, [*shorter, *indices]
        found.append(joined)
    return found


def _length(text: str, language: str) -> int:
    words = text.split()
    return sum(map(len, words)) if language in UNSPACED_LANGUAGES else len(words)


def _check(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], edges: Sequence[int]) -> None:
    lists = {"sources": sources, "hypotheses": hypotheses, "references": references}
    refuse_single_strings(lists)
    if len({len(sentences) for sentences in lists.values()}) > 1:
        lengths = ", ".join(f"{len(sentences)} {name}" for name, sentences in lists.items())
        raise ValueError(f"every source needs its hypothesis and its reference, got {lengths}")
    if not sources:
        raise ValueError("nothing to score: there are no sentences")
    if any(low >= high for low, high in pairwise([0, *edges])):
        raise ValueError(f"edges must be positive and rising, got {list(edges)}")
