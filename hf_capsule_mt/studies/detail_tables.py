"""Tables of what a study has asked for beside its scores, from its record alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..analysis.report_page import span_label
from ..analysis.tables import MISSING, Cell, Table, mark_of
from .study_file import ADEQUACY, LENGTH, TITLES


def detail_tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """For each test set: differences to further baselines, BLEU by source length, words left out or repeated."""
    for name, test_set in record["test_sets"].items():
        for baseline, comparisons in test_set.get("baselines", {}).items():
            yield _baseline_table(record, name, baseline, comparisons)
        if LENGTH in test_set:
            yield _length_table(record, name, test_set[LENGTH])
        if ADEQUACY in test_set:
            yield _adequacy_table(record, name, test_set[ADEQUACY])


def _baseline_table(
    record: Mapping[str, Any], name: str, baseline: str, comparisons: Mapping[str, Mapping[str, Any]]
) -> Table:
    title = TITLES[record["score"]]
    rows = []
    for system, found in comparisons.items():
        low, high = found["interval"]
        difference = Cell(f"{found['difference']:+.2f}", mark_of(found["p_holm"]))
        cells = [f"{low:+.2f} to {high:+.2f}", probability(found["p"]), probability(found["p_holm"])]
        rows.append([Cell(system), Cell(str(found["seeds"])), difference, *map(Cell, cells)])
    header = ["System", "Seeds", f"Difference in {title}", "95 % interval", "p", "p (Holm)"]
    caption = (
        f"{record['title']}: {name}. Differences to {baseline}: * p < 0.05, ** p < 0.01 after Holm's correction over "
        "the systems; test as above."
    )
    return Table(header, rows, caption, f"tab:{record['study']}:{name}:{baseline}")


def _length_table(record: Mapping[str, Any], name: str, systems: Mapping[str, Any]) -> Table:
    spans = {(bucket["low"], bucket["high"]): bucket["sentences"] for found in systems.values() for bucket in found}
    rows = [
        [Cell(system), *(Cell(f"{bucket['bleu']:.1f} ({_shown(bucket['ratio'])})") for bucket in found)]
        for system, found in systems.items()
    ]
    header = [
        "System",
        *(span_label(low, high) for low, high in spans),
    ]
    counts = ", ".join(f"{count:,}" for count in spans.values())
    caption = (
        f"{record['title']}: {name}. BLEU by source length in words (characters of Chinese and Japanese), mean over "
        f"the seeds, and in parentheses the length of the translations to that of the references; {counts} sentences."
    )
    return Table(header, rows, caption, f"tab:{record['study']}:{name}:length")


def _adequacy_table(record: Mapping[str, Any], name: str, systems: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        [
            Cell(system),
            *(_percent(found[f"{kind}_translated_share"]) for kind in ("under", "over")),
            Cell(_shown(found["cdr"], 3)),
        ]
        for system, found in systems.items()
    ]
    caption = (
        f"{record['title']}: {name}. Source words that the reference covers and the translation does not "
        "(under-translated), those that it translates too often, and the coverage difference ratio (Kong et al. "
        "2019), means over the seeds; word alignments by one aligner, fitted on this test set and its translations."
    )
    return Table(
        ["System", "Under-translated", "Over-translated", "CDR"], rows, caption, f"tab:{record['study']}:{name}:words"
    )


def _percent(share: float | None) -> Cell:
    return Cell(MISSING if share is None else f"{100 * share:.1f} %")


def _shown(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def probability(p: float) -> str:
    """A p value as tables show it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
