"""Differences between systems of a recorded study: those that it compares itself, all others over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from ..studies.statistics import LEVEL, SeedVariance, add_variances, seed_variances, t_quantile
from .recorded import load

Record = dict[str, Any]
# by study, as tables call its setting
SETTINGS = {
    "grammar": "embedded corpus, 2 layers",
    "grammar_capsules": "embedded corpus",
    "grammar_iterations": "embedded corpus",
    "grammar_recurrent": "embedded corpus",
    "multi30k": "Multi30k, 2 layers",
    "guided_parts": "Multi30k, 2 layers",
    "capsnmt_parts": "Multi30k",
    "students": "Multi30k",
    "multi30k_continued": "Multi30k, from the trained model",
    "capsnmt_size": "Multi30k",
    "deep": "Multi30k, 6 layers",
    "deep_parts": "Multi30k, 6 layers",
    "ende": "mixed corpus, news",
    "three_am": "3AM, Zh-En",
}


class Found(NamedTuple):
    """
    A difference as the records have it.

    Attributes:
        difference, interval: of 95 %; the interval is None with one seed and no comparison in a record.
        established: the comparison holds after Holm's correction; over seeds alone, the interval is on one side of 0.
        seeds: how many went in.
        setting: what was trained on.
        of_seeds: the interval is over the seeds alone.
    """

    difference: float
    interval: tuple[float, float] | None
    established: bool
    seeds: int
    setting: str
    of_seeds: bool

    @property
    def sign(self) -> int:
        """1 and -1 for an established difference, else 0."""
        return 0 if not self.established else 1 if self.difference > 0 else -1

    def text(self) -> str:
        """For a cell of a table."""
        bounds = "" if self.interval is None else f" [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"
        words = "" if self.established else ", not established"
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}" + (" alone" if self.of_seeds else "")
        return f"{self.difference:+.2f}{bounds}{words} ({self.setting}, {seeds})"


def study_record(study: str) -> Record | None:
    """The record of a study, or None."""
    record: Record | None = load(f"studies/{study}.json")
    return record


def finished_record(study: str) -> Record | None:
    """The record of a study that has all its runs, or None: what is seen half-way decides nothing."""
    record = study_record(study)
    if record is None:
        return None
    seeds = {str(seed) for seed in record["seeds"]}
    return record if all(seeds <= part["runs"].keys() for part in record["systems"].values()) else None


def first_test_set(record: Mapping[str, Any]) -> Record:
    """The part of a record on the test set that its study names first."""
    found: Record = next(iter(record["test_sets"].values()))
    return found


def compared(record: Mapping[str, Any], system: str, baseline: str) -> Record | None:
    """What a record says of a system against a baseline by the primary score, on its first test set, or None."""
    test_set = first_test_set(record)
    if baseline == record["compare_with"]:
        found: Record | None = test_set["comparisons"][record["score"]].get(system)
    else:
        found = test_set.get("baselines", {}).get(baseline, {}).get(system)
    return found


def in_study(study: str, system: str, baseline: str) -> Found | None:
    """A difference as the record of a study compares it over seeds and sentences, or None before it has all runs."""
    record = finished_record(study)
    found = None if record is None else compared(record, system, baseline)
    if found is None:
        return None
    low, high = found["interval"]
    established = found["p_holm"] < LEVEL
    return Found(found["difference"], (low, high), established, found["seeds"], SETTINGS[study], False)


def over_seeds(study: str, system: str, baseline: str) -> Found | None:
    """
    A difference of two systems over the seeds that both have, with Student's interval over the seeds alone, whose
    variances are moderated over the systems of the study (`studies.statistics`). None before it has all runs.
    """
    record = finished_record(study)
    if record is None:
        return None
    scores = first_test_set(record)["scores"][record["score"]]
    by_seed = {name: entry["by_seed"] for name, entry in scores.items()}
    ours, theirs = (by_seed.get(name, {}) for name in (system, baseline))
    values = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if len(values) < 2:
        return of_values(values, SETTINGS[study])
    variances = seed_variances({name: [*runs.values()] for name, runs in by_seed.items()})
    found = add_variances([variances[system], variances[baseline]])
    return _with_interval(fmean(values), found, len(values), SETTINGS[study])


def of_values(values: Sequence[float], setting: str) -> Found | None:
    """A mean over seeds with Student's interval; None of nothing."""
    if not values:
        return None
    if len(values) == 1:
        return Found(values[0], None, False, 1, setting, True)
    return _with_interval(fmean(values), SeedVariance(variance(values), len(values) - 1), len(values), setting)


def _with_interval(mean: float, between: SeedVariance, count: int, setting: str) -> Found:
    """A mean over several seeds with Student's interval."""
    half = t_quantile(LEVEL, between.degrees) * math.sqrt(between.variance / count)
    low, high = mean - half, mean + half
    return Found(mean, (low, high), low > 0 or high < 0, count, setting, True)


def difference(study: str, system: str, baseline: str) -> Found | None:
    """A study's own comparison of two systems, or else their difference over seeds."""
    return in_study(study, system, baseline) or over_seeds(study, system, baseline)
