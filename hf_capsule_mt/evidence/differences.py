"""Differences between systems of a recorded study: those that it compares itself, all others over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from ..studies.statistics import LEVEL, SeedVariance, add_variances, seed_variances, t_quantile
from .recorded import load

Record = dict[str, Any]
# of what has no record, and of what a study that does not have all its runs has seen
NOT_RUN, SO_FAR = "not run yet", "so far"
# by study, as tables call its setting
SETTINGS = {
    "grammar": "embedded corpus",
    "grammar_capsules": "embedded corpus",
    "grammar_iterations": "embedded corpus",
    "grammar_recurrent": "embedded corpus",
    "multi30k": "Multi30k",
    "guided_parts": "Multi30k",
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
        finished: the study has all its runs; before, nothing is established.
    """

    difference: float
    interval: tuple[float, float] | None
    established: bool
    seeds: int
    setting: str
    of_seeds: bool
    finished: bool = True

    @property
    def sign(self) -> int:
        """1 and -1 for an established difference, else 0."""
        return 0 if not self.established else 1 if self.difference > 0 else -1

    def text(self) -> str:
        """For a cell of a table."""
        bounds = "" if self.interval is None else f" [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"
        words = "" if self.established else ", not established" if self.finished else f" {SO_FAR}"
        seeds = seeds_text(self.seeds) + (" alone" if self.of_seeds else "")
        return f"{self.difference:+.2f}{bounds}{words} ({self.setting}, {seeds})"


def seeds_text(count: int) -> str:
    """A number of seeds, in words."""
    return f"{count} seed{'s' if count > 1 else ''}"


def study_record(study: str) -> Record | None:
    """The record of a study, or None."""
    record: Record | None = load(f"studies/{study}.json")
    return record


def is_finished(record: Mapping[str, Any]) -> bool:
    """Does the record have all runs of its study? Before, nothing is decided: the next seed takes much back."""
    seeds = {str(seed) for seed in record["seeds"]}
    return all(seeds <= part["runs"].keys() for part in record["systems"].values())


def finished_record(study: str) -> Record | None:
    """The record of a study that has all its runs, or None."""
    record = study_record(study)
    return record if record is not None and is_finished(record) else None


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
    """A difference as the record of a study compares it over seeds and sentences, or None where it does not."""
    record = study_record(study)
    found = None if record is None else compared(record, system, baseline)
    if record is None or found is None:
        return None
    low, high = found["interval"]
    finished = is_finished(record)
    established = finished and found["p_holm"] < LEVEL
    return Found(found["difference"], (low, high), established, found["seeds"], SETTINGS[study], False, finished)


def over_seeds(study: str, system: str, baseline: str) -> Found | None:
    """
    A difference of two systems over the seeds that both have, with Student's interval over the seeds alone, whose
    variances are moderated over the systems of the study (`studies.statistics`). None where they have none.
    """
    record = study_record(study)
    if record is None:
        return None
    scores = first_test_set(record)["scores"][record["score"]]
    by_seed = {name: entry["by_seed"] for name, entry in scores.items()}
    ours, theirs = (by_seed.get(name, {}) for name in (system, baseline))
    values = paired_differences(ours, theirs)
    if len(values) < 2:
        found = of_values(values, SETTINGS[study])
    else:
        variances = seed_variances({name: [*runs.values()] for name, runs in by_seed.items()})
        between = add_variances([variances[system], variances[baseline]])
        found = _with_interval(fmean(values), between, len(values), SETTINGS[study])
    if found is None or is_finished(record):
        return found
    return found._replace(established=False, finished=False)


def paired_differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    """Of values by seed, for the seeds that both have."""
    return [value - theirs[seed] for seed, value in ours.items() if seed in theirs]


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
