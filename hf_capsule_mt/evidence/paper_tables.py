"""A table for each paper: what it reports, what the studies have found of it, and what the systems cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ..analysis.tables import MISSING, mark_of
from ..recipe_files import read_yaml
from ..studies.record import of_runs
from ..studies.study_file import find_study
from .differences import compared, first_test_set
from .recorded import load, shown_path
from .systems import GUIDED_RNMT, GUIDED_SYSTEMS, JOBS, LAYER_SYSTEMS, RECURRENT_SYSTEMS, System

IN_PROGRESS = "in progress"


class Place(NamedTuple):
    """A column of differences: its title, and the studies that are looked into, one after the other."""

    title: str
    studies: tuple[str, ...]


MULTI30K = Place("Multi30k", ("multi30k", "multi30k_rows"))
DEEP = Place("Multi30k, six layers", ("deep",))
THREE_AM = Place("3AM, Zh-En", ("three_am",))


def systems_table() -> str:
    """How each system is asked for, what its paper reports and what it is and costs here: a table for each paper."""
    layers = _head("configuration", "paper, WMT14 En-De", (DEEP, MULTI30K), *TIMES)
    layers += [_row(system, "none", (DEEP, MULTI30K), _times(system)) for system in LAYER_SYSTEMS.values()]
    guided = _head("configuration", "paper, NIST Zh-En", (MULTI30K, THREE_AM), *TIMES)
    for systems, baseline in ((GUIDED_SYSTEMS, "none"), (GUIDED_RNMT, "RNMT")):
        rows = systems.values()
        guided += [_row(system, baseline, (MULTI30K, THREE_AM), _times(system)) for system in rows]
    recurrent = _head(
        "`CapsuleRNNConfig(...)`",
        "paper, WMT14 En-De, over simple",
        (MULTI30K,),
        "training time",
        "latency, greedy / beam 5",
    )
    recurrent += [
        _row(system, "simple", (MULTI30K,), [_minutes(system), _latency(recipe)])
        for recipe, system in RECURRENT_SYSTEMS.items()
    ]
    return "\n".join([*layers, "", *guided, "", *recurrent, "", notes()])


TIMES = ("training time (operations)", "decoding time, greedy / beam 5")


def _head(first: str, paper: str, places: tuple[Place, ...], *times: str) -> list[str]:
    header = [first, "system", paper, *(place.title for place in places), "parameters", *times]
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]


def _row(system: System, baseline: str, places: tuple[Place, ...], times: list[str]) -> str:
    same, comma, own = system.configuration.partition("the same, ")
    # of the row above
    configuration = f"{comma}`{own}`" if comma and "=" in own else f"`{same}`" if not comma else system.configuration
    found = [gain_cell(system.studied, baseline, place.studies) for place in places]
    size = size_cell(system.studied, baseline, [study for place in places for study in place.studies])
    return "| " + " | ".join([configuration, system.name, system.paper, *found, size, *times]) + " |"


def gain_cell(system: str, baseline: str, studies: tuple[str, ...]) -> str:
    """
    The difference in BLEU to a baseline with its interval, of the first study that has it; the baseline's own BLEU.

    "in progress" is what a study of the package trains and no record has yet; "-" is in none of these studies.
    """
    for study in studies:
        record = load(f"studies/{study}.json")
        found = None if record is None else compared(record, system, baseline)
        if found is not None:
            low, high = found["interval"]
            seeds = "" if found["seeds"] > 2 else f" ({found['seeds']} seed{'s' if found['seeds'] > 1 else ''})"
            mark = mark_of(found["p_holm"]).replace("*", r"\*")
            return f"{found['difference']:+.2f}{mark} [{low:+.2f}, {high:+.2f}]{seeds}"
        if record is not None and system == baseline:
            own = first_test_set(record)["scores"][record["score"]].get(system)
            if own is not None:
                return f"{own['mean']:.1f}" + ("" if own["sd"] is None else f" ± {own['sd']:.1f}")
    return IN_PROGRESS if any(system in systems_of(study) for study in studies) else MISSING


@cache
def systems_of(study: str) -> frozenset[str]:
    """The names of the systems that a study of the package trains."""
    return frozenset(read_yaml(find_study(study))["systems"])


def size_cell(system: str, baseline: str, studies: list[str]) -> str:
    """Millions of parameters, and how many times the baseline's."""
    for study in studies:
        ours, theirs = (_of_runs(study, name, "parameters") for name in (system, baseline))
        if ours is not None:
            return f"{ours / 1e6:.2f}M" + (f" ({ours / theirs:.2f}x)" if theirs and system != baseline else "")
    return MISSING


def _of_runs(study: str, system: str, key: str) -> float | None:
    record = load(f"studies/{study}.json")
    return of_runs(record, system, key) if record is not None and system in record["systems"] else None


def _times(system: System) -> list[str]:
    """Ratios of time to transformers' own model of the same size."""
    speed = load("speed/speed_yardstick.json")
    if not speed or system.speed not in speed["results"]:
        return [MISSING, MISSING]
    train, greedy, beam = (speed["results"][system.speed][job] for job in JOBS)
    return [
        f"{train['time_ratio']:.2f}x ({train['operation_ratio']:.2f}x)",
        f"{greedy['time_ratio']:.2f}x / {beam['time_ratio']:.2f}x",
    ]


def _minutes(system: System) -> str:
    """Minutes of training in the study, and how many times simple aggregation's."""
    for study in MULTI30K.studies:
        ours, theirs = (_of_runs(study, name, "train_seconds") for name in (system.studied, "simple"))
        if ours is not None:
            return f"{ours / 60:.0f} min" + (f" ({ours / theirs:.2f}x)" if theirs else "")
    return MISSING


def _latency(recipe: str) -> str:
    """Milliseconds per sentence and the ratio to the Transformer, greedy and with beam 5."""
    latency = load("speed/latency_multi30k.json")
    rows = [latency["results"][beams].get(recipe) for beams in ("1", "5")] if latency else []
    cells = [f"{row['milliseconds']:.0f} ms ({row['ratio']:.2f}x)" for row in rows if row]
    return " / ".join(cells) or MISSING


def notes() -> str:
    """What the columns are."""
    return (
        "Differences are in BLEU on the test set, beam 5, cased and detokenised: to the Transformer, to RNMT in rows "
        "on it, and to simple aggregation in the last table, with 95 % intervals over seeds and sentences. \\* and "
        "\\*\\* are established (p < 0.05 and p < 0.01 after Holm's correction). "
        f"{' '.join(_of_studies())} "
        "Times are medians of ratios to transformers' own `MarianMTModel` of the same size, measured side by side in "
        f"one run of `benchmarks/speed.py` (its results, with quartiles: "
        f"`{shown_path('speed/speed_yardstick.json')}`); training times of the last table are those of the study. "
        "Latencies are means per sentence of the trained models over the first sentences of test2016, one at a time, "
        f"also in one run (`benchmarks/latency.py`, with intervals: `{shown_path('speed/latency_multi30k.json')}`); "
        "the paper reports 225 ms for the Transformer and 153 ms (0.68x) for CapsNMT."
    )


def _of_studies() -> Iterator[str]:
    """Which studies the differences are from, and which are still running."""
    missing = []
    for study in dict.fromkeys(study for place in (DEEP, MULTI30K, THREE_AM) for study in place.studies):
        record = load(f"studies/{study}.json")
        if record is None:
            missing.append(f"`{study}`")
            continue
        seeds = sorted({int(seed) for part in record["systems"].values() for seed in part["runs"]})
        known = {name for name, part in record["systems"].items() if part["runs"]}
        left = len(systems_of(study) - known)
        yield (
            f"`{study}`: version {record['version']}, {record['date']}, seeds {', '.join(map(str, seeds))}"
            + (f", {left} systems in progress." if left else ".")
        )
    if missing:
        yield f"Without a record yet: {', '.join(missing)}."
