"""The record of a study: everything that its tables and its figure are made from, in JSON's types."""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..data.corpus import load_split
from ..files import read_json, read_lines
from ..records import public_record
from .details import measure
from .runner import RESULTS, translation_file
from .statistics import (
    SCORERS,
    Floats,
    ScoredRuns,
    as_record,
    holm,
    prepared_texts,
    score_runs,
    sentence_counts,
    study_metrics,
)
from .study_file import SCORES, Study

METHOD = (
    "over seeds and sentences; two-level resampling, Owen 2007, with the variance of a system's seeds moderated over "
    "all systems, Smyth 2004, and at least its own, the interaction of seeds and sentences counted once, and "
    "Student's t for few seeds"
)
SENTENCES_ALONE = "one seed: sentences resampled alone, so that it holds for these models and not for their systems"
SEED = 12345
# of the batch whose operations are counted
OPERATION_SENTENCES, OPERATION_LENGTH = 16, 24
# What a run's results say of it; all of them numbers but for the last.
OF_RUNS = ("steps", "parameters", "train_seconds", "tokens_per_second", "target_tokens", "threads", "device")


def make_record(study: Study, resolved: Mapping[str, Mapping[str, Any]], *, draws: int) -> dict[str, Any]:
    """
    Compare the finished runs of a study.

    Args:
        resolved: the systems' arguments, from `resolve_arguments`.
        draws: test sets to draw with replacement.

    Returns:
        "study", "title", "date", "version", "versions" of the libraries, "compare_with", "score", "method", "draws",
        "signatures"; "systems": of each its "arguments", "operations_per_token" and "runs" by seed; "test_sets": of
        each the number of "sentences" and the digest of its "references", "scores" (by score and system "mean", "sd",
        "runs", "interval" of 95 %, "by_seed") and "comparisons" (by score and system, see `statistics.Comparison`,
        with "p_holm", corrected over the systems), "baselines" (the comparisons by the primary score with the study's
        further baselines, by baseline and system), and what `details.measure` finds, where the study asks for it.

    Raises:
        ValueError: nothing is finished, or translations do not fit their references.
        OSError: a file is missing or cannot be read.
    """
    results = {}
    for system in study.systems:
        files = {seed: study.folder(system, seed) / RESULTS for seed in study.seeds}
        results[system] = {seed: read_json(path) for seed, path in files.items() if path.is_file()}
    if not any(results.values()):
        raise ValueError(f"no run of {study.path} is finished in {study.output}; begin with study run")
    conventions = {str(arguments.get("score_convention", "cased")) for arguments in resolved.values()}
    if len(conventions) > 1:
        raise ValueError(f"{study.path}: the systems must have one score_convention, got {sorted(conventions)}")
    convention = conventions.pop()
    record: dict[str, Any] = {
        "study": study.path.stem,
        "title": study.title,
        "date": datetime.date.today().isoformat(),
        "version": __version__,
        "versions": _versions(results),
        "compare_with": study.compare_with,
        "score": study.score,
        "seeds": study.seeds,
        "method": METHOD,
        "draws": draws,
        "draw_seed": SEED,
        "curves": study.curves,
        "operations": {"sentences": OPERATION_SENTENCES, "length": OPERATION_LENGTH},
        "signatures": {},
        "systems": {
            system: {
                "arguments": dict(resolved[system]),
                "operations_per_token": _operations(study, system, runs),
                "runs": {str(seed): {key: found.get(key) for key in OF_RUNS} for seed, found in runs.items()},
            }
            for system, runs in results.items()
        },
        "test_sets": {},
    }
    for name in study.test_sets:
        part = _test_set(study, name, resolved, results, convention, draws)
        record["signatures"] = part.pop("signatures")
        record["test_sets"][name] = part
    return public_record(record)


def _operations(study: Study, system: str, runs: Mapping[int, Any]) -> float | None:
    """Forward and backward for each target token; None where no run has left its model's configuration."""
    from transformers import AutoConfig
    from transformers.utils import CONFIG_NAME

    from ..analysis.efficiency import training_operations
    from ..loading import from_checkpoint
    from ..models.pipeline_translation import max_positions

    folder = next((f for f in (study.folder(system, seed) for seed in runs) if (f / CONFIG_NAME).is_file()), None)
    if folder is None:
        return None
    config = from_checkpoint(AutoConfig, folder)
    longest = max_positions(config, "encoder")
    length = OPERATION_LENGTH if longest is None else min(OPERATION_LENGTH, longest)
    return training_operations(config, OPERATION_SENTENCES, length)


def _versions(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Of the libraries that the runs were made with; several where these differ."""
    found: dict[str, set[str]] = {}
    for runs in results.values():
        for run in runs.values():
            for package, version in run.get("versions", {}).items():
                found.setdefault(package, set()).add(version)
    return {package: sorted(versions) for package, versions in sorted(found.items())}


def _test_set(
    study: Study,
    name: str,
    resolved: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Mapping[int, Mapping[str, Any]]],
    convention: str,
    draws: int,
) -> dict[str, Any]:
    """The part of a record on one test set."""
    arguments = resolved[study.compare_with]
    target_lang = str(arguments["target_lang"])
    sources, references = _test_pairs(study, name, arguments)
    prepared = prepared_texts(references, convention, target_lang)
    metrics = study_metrics(convention, target_lang)
    counts: dict[str, dict[tuple[str, int], Floats]] = {score: {} for score in SCORES}
    translations: dict[tuple[str, int], list[str]] = {}
    for system, runs in results.items():
        for seed, found in runs.items():
            path, expected = _translations(study.folder(system, seed), name, study.test_sets[name], found, target_lang)
            print(f"counting {path}", file=sys.stderr)
            texts = read_lines(path)
            if len(texts) != len(references):
                raise ValueError(f"{path} has {len(texts)} lines, but there are {len(references)} references")
            translations[system, seed] = texts
            texts = prepared_texts(texts, convention, target_lang)
            for score in SCORES:
                counts[score][system, seed] = sentence_counts(texts, prepared, metrics[score])
                _check(path, score, counts[score][system, seed], expected)
    scores, comparisons = {}, {}
    baselines: dict[str, Any] = {}
    for score in SCORES:
        scores[score], comparisons[score], others = _compare_all(study, counts[score], score, draws)
        baselines |= others
    return {
        "file": study.test_sets[name],
        "sentences": len(references),
        "references": hashlib.sha256("\n".join(references).encode()).hexdigest(),
        "scores": scores,
        "comparisons": comparisons,
        "baselines": baselines,
        **measure(study.details, sources, references, translations, arguments, convention),
        "signatures": {score: str(metric.get_signature()) for score, metric in metrics.items()},
    }


def _check(path: Path, score: str, counts: Floats, expected: Mapping[str, Any]) -> None:
    """What a run has reported must come out of its translations and these references."""
    again = float(SCORERS[score](counts.sum(axis=0)))
    if score in expected and abs(again - expected[score]) > 1e-6:
        raise ValueError(
            f"{path} has {score} {again:.3f} with these references, but its run has reported {expected[score]:.3f}: "
            "the translations, or the test set, have changed"
        )


def _test_pairs(study: Study, name: str, arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Sources and references of a test set."""
    prefix = study.test_sets[name]
    own = prefix is None
    split = "test" if arguments.get("dataset_name") or arguments.get("test_file") else "validation"
    data = load_split(
        split if own else "test",
        source_lang=str(arguments["source_lang"]),
        target_lang=str(arguments["target_lang"]),
        source_column=arguments.get("source_column"),
        target_column=arguments.get("target_column"),
        file=arguments.get(f"{split}_file") if own else prefix,
        dataset_name=arguments.get("dataset_name") if own else None,
        dataset_config_name=arguments.get("dataset_config_name") if own else None,
        data_dir=arguments.get("data_dir"),
        max_samples=arguments.get("max_test_samples" if split == "test" else "max_eval_samples") if own else None,
    )
    return list(data["source"]), list(data["target"])


def _translations(
    folder: Path, name: str, prefix: str | None, results: Mapping[str, Any], target_lang: str
) -> tuple[Path, Mapping[str, Any]]:
    """The file with a run's translations, and the scores that it has reported of them: those of its last beam size."""
    if prefix is not None:
        return translation_file(folder, name, target_lang), {}
    row = results["scores"][-1]
    return folder / row["file"], row


def _compare_all(
    study: Study, counts: Mapping[tuple[str, int], Floats], score: str, draws: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Scores of all systems by one score, their comparisons, and by the primary one those with further baselines."""
    seeds = {system: [seed for seed in study.seeds if (system, seed) in counts] for system in study.systems}
    seeds = {system: numbers for system, numbers in seeds.items() if numbers}
    by_system = {system: np.stack([counts[system, seed] for seed in own]) for system, own in seeds.items()}
    scored = score_runs(by_system, SCORERS[score], draws, SEED)
    means = {
        system: {
            "mean": float(np.mean(own)),
            "sd": float(np.std(own, ddof=1)) if len(own) > 1 else None,
            "runs": len(own),
            "interval": list(scored.compare((system, range(len(own)))).interval),
            "by_seed": {str(seed): float(value) for seed, value in zip(seeds[system], own, strict=True)},
        }
        for system, own in scored.values.items()
    }
    compared = {
        baseline: _comparisons(baseline, seeds, scored)
        for baseline in (study.compare_with, *(study.baselines if score == study.score else ()))
    }
    return means, compared.pop(study.compare_with), compared


def _comparisons(baseline: str, seeds: Mapping[str, Sequence[int]], scored: ScoredRuns) -> dict[str, Any]:
    """Comparisons of all systems with one of them, seed by seed, corrected over the systems."""
    comparisons: dict[str, Any] = {}
    for system in seeds:
        both = [seed for seed in seeds[system] if seed in seeds.get(baseline, ())]
        if both and system != baseline:
            ours, theirs = ((side, [seeds[side].index(seed) for seed in both]) for side in (system, baseline))
            found = scored.compare(ours, theirs)
            comparisons[system] = {**as_record(found), "method": SENTENCES_ALONE if len(both) == 1 else METHOD}
    corrected = holm({system: found["p"] for system, found in comparisons.items()})
    for system, p in corrected.items():
        comparisons[system]["p_holm"] = p
    return comparisons


def of_runs(record: Mapping[str, Any], system: str, key: str) -> float | None:
    """The mean of a number over the runs of a system, or None."""
    values: Sequence[Any] = [run.get(key) for run in record["systems"][system]["runs"].values()]
    numbers = [value for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None
