"""What a study measures on its translations beside the scores, where its file asks for it: `details`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..evaluation.adequacy import evaluate_adequacy
from ..evaluation.buckets import ENOUGH_SENTENCES, by_source_length
from .study_file import ADEQUACY, LENGTH

SHARES = ("under_translated_share", "over_translated_share", "cdr")


def measure(
    wanted: Sequence[str],
    sources: Sequence[str],
    references: Sequence[str],
    translations: Mapping[tuple[str, int], Sequence[str]],
    arguments: Mapping[str, Any],
    convention: str,
) -> dict[str, Any]:
    """
    BLEU by source length, and words left out or translated too often, of one test set.

    Args:
        wanted: names of `study_file.DETAILS`.
        translations: by system and seed, in the order of the sources.
        arguments: of a system, for the languages.
        convention: of the scores.

    Returns:
        Only what is wanted. "length": by system the buckets of `buckets.by_source_length`, BLEU and ratio being means
        over the seeds, with BLEU "by_seed". "adequacy": by system the shares of `adequacy.evaluate_adequacy`, means
        over the seeds, with all of them "by_seed"; without systran-align it is left out, with a line on standard
        error.
    """
    source_lang, target_lang = str(arguments["source_lang"]), str(arguments["target_lang"])
    found: dict[str, Any] = {}
    if LENGTH in wanted:
        buckets = {
            run: by_source_length(
                sources,
                texts,
                references,
                min_sentences=ENOUGH_SENTENCES,
                source_lang=source_lang,
                target_lang=target_lang,
                convention=convention,
            )
            for run, texts in translations.items()
        }
        found[LENGTH] = {system: _mean_buckets(runs) for system, runs in _by_system(buckets).items()}
    if ADEQUACY in wanted:
        # one aligner for all runs, so that their figures compare
        names = {f"{system} {seed}": (system, seed) for system, seed in translations}
        texts_of = {name: translations[run] for name, run in names.items()}
        try:
            shares = evaluate_adequacy(sources, references, texts_of, source_lang=source_lang, target_lang=target_lang)
        except ImportError as error:
            print(f"without adequacy: {error}", file=sys.stderr)
            return found
        by_run = {names[name]: {key: values[key] for key in SHARES} for name, values in shares.items()}
        found[ADEQUACY] = {system: _mean_shares(runs) for system, runs in _by_system(by_run).items()}
    return found


def _by_system(values: Mapping[tuple[str, int], Any]) -> dict[str, dict[int, Any]]:
    found: dict[str, dict[int, Any]] = {}
    for (system, seed), value in values.items():
        found.setdefault(system, {})[seed] = value
    return found


def _mean_buckets(runs: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Means over the seeds; all have the same buckets, which are those of the sources."""
    return [
        {
            **{key: same[0][key] for key in ("low", "high", "sentences")},
            "bleu": fmean(bucket["bleu"] for bucket in same),
            "ratio": _mean([bucket["ratio"] for bucket in same]),
            "by_seed": {str(seed): bucket["bleu"] for seed, bucket in zip(runs, same, strict=True)},
        }
        for same in zip(*runs.values(), strict=True)
    ]


def _mean_shares(runs: Mapping[int, Mapping[str, float | None]]) -> dict[str, Any]:
    means: dict[str, Any] = {key: _mean([shares[key] for shares in runs.values()]) for key in SHARES}
    return {**means, "by_seed": {str(seed): dict(shares) for seed, shares in runs.items()}}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
