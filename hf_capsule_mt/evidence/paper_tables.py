"""A table for each paper: what it reports, what the studies have found of it, and what the systems cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ..analysis.tables import MISSING, mark_of
from ..recipe_files import read_yaml
from ..studies.record import of_runs
from ..studies.study_file import find_study
from .differences import NOT_RUN, SO_FAR, compared, first_test_set, is_finished, seeds_text, study_record
from .recorded import load, shown_path
from .systems import GUIDED_RNMT, GUIDED_SYSTEMS, JOBS, LAYER_SYSTEMS, RECURRENT_SYSTEMS, System


class Place(NamedTuple):
    """A column of differences: its title, and the studies that are looked into, one after the other."""

    title: str
    studies: tuple[str, ...]


MULTI30K = Place("Multi30k", ("multi30k", "guided_parts", "capsnmt_parts", "students"))
DEEP = Place("Multi30k, six layers", ("deep",))
THREE_AM = Place("3AM, Zh-En", ("three_am",))


class Paper(NamedTuple):
    """
    The tables of a paper.

    Attributes:
        head, reported: what the columns of configurations and of the paper's own results are called.
        name: for the column of its results where papers stand below each other.
        places: where the systems were trained.
        parts: systems by recipe, and what they are compared with.
        decoding: what its column of decoding times is called.
    """

    head: str
    reported: str
    name: str
    places: tuple[Place, ...]
    parts: tuple[tuple[dict[str, System], str], ...]
    decoding: str

    def rows(self) -> Iterator[Row]:
        """What is known of each of its systems."""
        # parameters and times are of models of one size
        studies = list(dict.fromkeys(study for place in (MULTI30K, *self.places) for study in place.studies))
        for systems, baseline in self.parts:
            for system in systems.values():
                yield Row(
                    system,
                    [gain_cell(system.studied, baseline, place.studies) for place in self.places],
                    size_cell(system.studied, baseline, studies),
                    _time(system, TRAINING, with_operations=True),
                )


class Gain(NamedTuple):
    """A cell of a system's row, and whether a finished study has found it."""

    text: str
    decided: bool


class Row(NamedTuple):
    """A system's row: its gain in each place, its size and its training time."""

    system: System
    found: list[Gain]
    size: str
    training: str


TRAINING, *DECODING = JOBS
BY_BASELINE = "decoding time, greedy / beam 5"
PAPERS = (
    Paper("configuration", "WMT14 En-De", "Dou et al.", (DEEP, MULTI30K), ((LAYER_SYSTEMS, "none"),), BY_BASELINE),
    Paper(
        "configuration",
        "NIST Zh-En",
        "Zheng et al.",
        (MULTI30K, THREE_AM),
        ((GUIDED_SYSTEMS, "none"), (GUIDED_RNMT, "RNMT")),
        BY_BASELINE,
    ),
    Paper(
        "`CapsuleRNNConfig(...)`",
        "WMT14 En-De, over simple",
        "Wang et al.",
        (MULTI30K,),
        ((RECURRENT_SYSTEMS, "simple"),),
        "latency, greedy / beam 5",
    ),
)


def systems_table() -> str:
    """How each system is asked for, what its paper reports and what it is and costs here: a table for each paper."""
    lines = []
    for paper in PAPERS:
        titles = [place.title for place in paper.places]
        lines += _table(
            [paper.head, "system", f"paper, {paper.reported}", *titles, "parameters", *TIMES, paper.decoding],
            [
                [
                    _configuration(row.system),
                    row.system.name,
                    row.system.paper,
                    *(gain.text for gain in row.found),
                    row.size,
                    row.training,
                    _latency(row.system) if paper.decoding != BY_BASELINE else _decoding(row.system),
                ]
                for row in paper.rows()
            ],
        )
    return "\n".join([*lines, notes(_unfinished(lines))])


def gains_table() -> str:
    """What each paper reports and what finished studies have found of its systems: a table for each paper."""
    lines = []
    for paper in PAPERS:
        rows = [row for row in paper.rows() if any(gain.decided for gain in row.found)]
        kept = [place for place in range(len(paper.places)) if any(row.found[place].decided for row in rows)]
        titles = [paper.places[place].title for place in kept]
        lines += _table(
            ["system", f"{paper.name}, {paper.reported}", *titles, "parameters", *TIMES],
            [
                [
                    row.system.name,
                    row.system.paper,
                    *(row.found[place].text if row.found[place].decided else MISSING for place in kept),
                    row.size,
                    row.training,
                ]
                for row in rows
            ],
        )
    return "\n".join([*lines, f"{DIFFERENCES} {TRAINING_TIMES}"])


TIMES = ("training time (operations)",)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _configuration(system: System) -> str:
    same, comma, own = system.configuration.partition("the same, ")
    # of the row above
    return f"{comma}`{own}`" if comma and "=" in own else f"`{same}`" if not comma else system.configuration


def gain_cell(system: str, baseline: str, studies: tuple[str, ...]) -> Gain:
    """
    The difference in BLEU to a baseline with its interval, of the first study that has it; the baseline's own BLEU.

    "not run yet" is what a study of the package trains and no record has yet; "-" is in none of these studies.
    """
    for study in studies:
        record = study_record(study)
        if record is None:
            continue
        so_far = "" if is_finished(record) else f" {SO_FAR}"
        found = compared(record, system, baseline)
        if found is not None:
            low, high = found["interval"]
            mark = "" if so_far else mark_of(found["p_holm"]).replace("*", r"\*")
            few = found["seeds"] < 3 or so_far
            seeds = f" ({seeds_text(found['seeds'])}{so_far})" if few else ""
            return Gain(f"{found['difference']:+.2f}{mark} [{low:+.2f}, {high:+.2f}]{seeds}", not so_far)
        own = first_test_set(record)["scores"][record["score"]].get(system) if system == baseline else None
        if own is not None:
            spread = "" if own["sd"] is None else f" ± {own['sd']:.1f}"
            seeds = f" ({seeds_text(own['runs'])}{so_far})" if so_far else ""
            return Gain(f"{own['mean']:.1f}{spread}{seeds}", not so_far)
    return Gain(NOT_RUN if any(system in systems_of(study) for study in studies) else MISSING, False)


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
    record = study_record(study)
    return of_runs(record, system, key) if record is not None and system in record["systems"] else None


def _time(system: System, job: str, *, with_operations: bool = False) -> str:
    """Ratio of time to the model that the system is measured beside, see `TRAINING_TIMES`."""
    speed = load("speed/speed_yardstick.json")
    found = speed["results"].get(system.speed, {}).get(job) if speed else None
    if found is None:
        return MISSING
    return f"{found['time_ratio']:.2f}x" + (f" ({found['operation_ratio']:.2f}x)" if with_operations else "")


def _decoding(system: System) -> str:
    """Ratios of time, greedy and with beam 5."""
    cells = [_time(system, job) for job in DECODING]
    return MISSING if MISSING in cells else " / ".join(cells)


def _latency(system: System) -> str:
    """Milliseconds per sentence and the ratio to the Transformer, greedy and with beam 5."""
    latency = load("speed/latency_multi30k.json")
    rows = [latency["results"][beams].get(system.studied) for beams in ("1", "5")] if latency else []
    cells = [f"{row['milliseconds']:.0f} ms ({row['ratio']:.2f}x)" for row in rows if row]
    return " / ".join(cells) or MISSING


DIFFERENCES = (
    "Differences are in BLEU on the test set, beam 5, cased and detokenised: to the Transformer, to RNMT in rows "
    "on it, and to simple aggregation in the last table, with 95 % intervals over seeds and sentences; rows of these "
    "three have their own BLEU. \\* and \\*\\* are established (p < 0.05 and p < 0.01 after Holm's correction). The "
    "papers' are of their own test sets, tokenised; Zheng et al. report means over MT04 to MT06, case-insensitive."
)
TRAINING_TIMES = (
    "Parameters and times are those of the small models of the column Multi30k: times as medians of ratios to "
    "transformers' own `MarianMTModel` of the same size, those of recurrent systems to simple aggregation, measured "
    "side by side."
)


def _unfinished(lines: list[str]) -> str:
    """What "so far" means, where it is said."""
    words = f'"{SO_FAR[0].upper()}{SO_FAR[1:]}": not all runs are in, and nothing is established yet. '
    return words if any(f" {SO_FAR})" in line for line in lines) else ""


def notes(unfinished: str = "") -> str:
    """What the columns are."""
    return (
        f"{DIFFERENCES} {unfinished}{' '.join(_of_studies())} {TRAINING_TIMES} Their record, of one run of "
        f"`benchmarks/speed.py`, with quartiles: `{shown_path('speed/speed_yardstick.json')}`. "
        "Latencies are means per sentence of the trained models over the first sentences of test2016, one at a time, "
        f"also in one run (`benchmarks/latency.py`, with intervals: `{shown_path('speed/latency_multi30k.json')}`); "
        "the paper reports 225 ms for the Transformer and 153 ms (0.68x) for CapsNMT."
    )


def _of_studies() -> Iterator[str]:
    """Which studies the differences are from, and which are still running."""
    missing = []
    for study in dict.fromkeys(study for place in (DEEP, MULTI30K, THREE_AM) for study in place.studies):
        record = study_record(study)
        if record is None:
            missing.append(f"`{study}`")
            continue
        seeds = sorted({int(seed) for part in record["systems"].values() for seed in part["runs"]})
        known = {name for name, part in record["systems"].items() if part["runs"]}
        left = len(systems_of(study) - known)
        yield (
            f"`{study}`: version {record['version']}, {record['date']}, seeds {', '.join(map(str, seeds))}"
            + (f", {left} systems {NOT_RUN}." if left else ".")
        )
    if missing:
        yield f"Without a record yet: {', '.join(missing)}."
