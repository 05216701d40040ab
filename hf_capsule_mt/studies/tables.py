"""Tables and the figure of a study, from its record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..analysis.tables import MISSING, Cell, Table, mark_of
from ..files import json_text, write_whole
from ..markup import markdown_text
from .curves import curve_figure, plain
from .detail_tables import detail_tables, probability
from .record import SENTENCES_ALONE, of_runs
from .study_file import LENGTH, SCORES, TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPERATIONS = "Operations/token, M"
RECORD, MARKDOWN, LATEX, FIGURE, CURVE = "record.json", "table.md", "table.tex", "intervals", "curve"
# inches
WIDTH, ROW, MARGIN = 6.4, 0.28, 0.9
# in rows
BELOW = 0.25
# of all that an axis shows
EDGE, LEAST_PART = 0.04, 0.15
# numbers on the axes of all test sets together
TICKS = 9


def check_record(record: Any, name: str) -> None:
    """Raises a ValueError, with the file's name, for JSON that is no record of a study."""
    parts = ("title", "date", "version", "compare_with", "score", "method", "signatures", "systems", "test_sets")
    missing = [part for part in parts if not isinstance(record, dict) or part not in record]
    if missing:
        raise ValueError(f"{name} is no record of a study: it has no {', '.join(missing)}")


def score_tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each test set: means and standard deviations, and the differences to the compared system."""
    primary, baseline = record["score"], record["compare_with"]
    for name, test_set in record["test_sets"].items():
        header = ["System", "Runs", *(TITLES[score] for score in SCORES)]
        header += [f"Difference in {TITLES[primary]}", "95 % interval", "p", "p (Holm)"]
        rows = [_row(system, test_set, primary) for system in record["systems"] if _is_scored(test_set, system)]
        yield Table(header, rows, _caption(record, name, test_set, baseline), f"tab:{record['study']}:{name}")


def overview_tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """The tables of `score_tables` for a page that has no other: with sizes and operations, and one p, Holm's."""
    for table in score_tables(record):
        p = table.header.index("p")
        kept = [column for column in range(len(table.header)) if column != p]
        rows = []
        for row in table.rows:
            size = _number(of_runs(record, row[0].text, "parameters"), 0)
            rows.append([*(row[column] for column in kept), Cell(size), Cell(_operations(record, row[0].text))])
        header = [*(table.header[column] for column in kept), "Parameters", OPERATIONS]
        seeds = sorted({int(seed) for part in record["systems"].values() for seed in part["runs"]})
        caption = f"{table.caption} Seeds: {', '.join(map(str, seeds))}.{_counted(record)}"
        yield Table(header, rows, caption, table.label)


def run_table(record: Mapping[str, Any]) -> Table:
    """Sizes and times of the systems."""
    rows = []
    for system, part in record["systems"].items():
        if part["runs"]:
            time = of_runs(record, system, "train_seconds")
            cells = [
                _number(of_runs(record, system, "parameters"), 0),
                _operations(record, system),
                _number(of_runs(record, system, "steps"), 0),
                ", ".join(part["runs"]),
                MISSING if time is None else f"{time / 60:,.1f}",
                _number(of_runs(record, system, "tokens_per_second"), 0),
            ]
            rows.append([Cell(system), *map(Cell, cells)])
    header = ["System", "Parameters", OPERATIONS, "Updates", "Seeds", "Training, minutes", "Target tokens/s"]
    devices = {
        f"{r['device']}, {r['threads']} threads" for p in record["systems"].values() for r in p["runs"].values()
    }
    caption = f"Means over the runs ({'; '.join(sorted(devices))}).{_counted(record)} {_origin(record)}"
    return Table(header, rows, caption, f"tab:{record['study']}:runs")


def _row(system: str, test_set: Mapping[str, Any], primary: str) -> list[Cell]:
    scores = [test_set["scores"][score][system] for score in SCORES]
    cells = [Cell(system), Cell(str(scores[0]["runs"]))]
    found = test_set["comparisons"][primary].get(system)
    for score, value in zip(SCORES, scores, strict=True):
        comparison = test_set["comparisons"][score].get(system)
        mark = "" if comparison is None else mark_of(comparison["p_holm"])
        spread = "" if value["sd"] is None else f" ± {value['sd']:.1f}"
        cells.append(Cell(f"{value['mean']:.1f}{spread}", mark))
    if found is None:
        return [*cells, *[Cell(MISSING)] * 4]
    low, high = found["interval"]
    cells += [Cell(f"{found['difference']:+.2f}"), Cell(f"{low:+.2f} to {high:+.2f}")]
    return [*cells, Cell(probability(found["p"])), Cell(probability(found["p_holm"]))]


def _caption(record: Mapping[str, Any], name: str, test_set: Mapping[str, Any], baseline: str) -> str:
    alone = any(c["method"] == SENTENCES_ALONE for c in test_set["comparisons"][record["score"]].values())
    sentences = [
        f"{record['title']}: {name}, {test_set['sentences']:,} sentences. Mean ± standard deviation over the runs.",
        f"Differences to {baseline}: * p < 0.05, ** p < 0.01 after Holm's correction over the systems.",
        f"Test: {record['method']}.",
        *([f"With {SENTENCES_ALONE}."] if alone else []),
        "sacreBLEU: " + "; ".join(f"{TITLES[score]} {text}" for score, text in record["signatures"].items()) + ".",
        _origin(record),
    ]
    return " ".join(sentences)


def _origin(record: Mapping[str, Any]) -> str:
    return f"hf_capsule_mt {record['version']}, {record['date']}."


def _operations(record: Mapping[str, Any], system: str) -> str:
    """Millions for each target token, and how many times those of the compared system."""
    ours, theirs = (record["systems"][name].get("operations_per_token") for name in (system, record["compare_with"]))
    if ours is None:
        return MISSING
    return f"{ours / 1e6:,.2f}" + (f" ({ours / theirs:.2f}x)" if theirs else "")


def _counted(record: Mapping[str, Any]) -> str:
    if all(part.get("operations_per_token") is None for part in record["systems"].values()):
        return ""
    batch = record["operations"]
    return (
        f" Operations: millions for each target token, forward and backward, of {batch['sentences']} sentences of "
        f"{batch['length']} tokens, counted; in parentheses how many times those of {record['compare_with']}."
    )


def _is_scored(test_set: Mapping[str, Any], system: str) -> bool:
    return system in test_set["scores"][SCORES[0]]


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def all_tables(record: Mapping[str, Any]) -> list[Table]:
    """Scores, what else the study has asked for, sizes and times."""
    return [*score_tables(record), *detail_tables(record), run_table(record)]


def markdown(record: Mapping[str, Any]) -> str:
    """All tables of a record."""
    return f"## {markdown_text(record['title'])}\n\n" + "\n".join(table.to_markdown() for table in all_tables(record))


def latex(record: Mapping[str, Any]) -> str:
    """All tables of a record."""
    return "\n".join(table.to_latex() for table in all_tables(record))


def interval_figure(record: Mapping[str, Any]) -> Figure:
    """
    The difference of each system to the compared one with its 95 % interval, and the runs that it is the mean of, for
    each test set, by the primary score. The primary score of the compared system is 0.

    Where some systems are far from all others, the axis is broken between them, and both parts have one scale.
    """
    from ..analysis.agreement_figure import DPI, check_matplotlib

    check_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    primary, baseline = record["score"], record["compare_with"]
    sets = record["test_sets"]
    systems = [s for s in record["systems"] if any(s in t["comparisons"][primary] for t in sets.values())]
    shown = {name: list(_shown(test_set, primary, baseline)) for name, test_set in sets.items()}
    parts = {name: _axis_parts(marks) for name, marks in shown.items()}
    # test sets are as wide as each other
    spans = {name: [high - low for low, high in of_set] for name, of_set in parts.items()}
    shares = {name: [span / sum(of_set) for span in of_set] for name, of_set in spans.items()}
    widths = [share for of_set in shares.values() for share in of_set]
    figure = Figure(figsize=(WIDTH, ROW * len(systems) + MARGIN), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    rest = iter(panels)
    for name, of_set in parts.items():
        drawn = [next(rest) for _ in of_set]
        for panel, (low, high), share in zip(drawn, of_set, shares[name], strict=True):
            _draw_differences(panel, [mark for mark in shown[name] if low <= mark.difference <= high], systems)
            panel.set_xlim(low, high)
            numbers = max(1, round(TICKS * share / len(sets)))
            panel.xaxis.set_major_locator(MaxNLocator(numbers, steps=[1, 2, 5, 10], min_n_ticks=min(numbers, 2)))
        # where there is room for it
        widest = drawn[shares[name].index(max(shares[name]))]
        widest.set_title(plain(name), fontsize=9)
        widest.set_xlabel(plain(f"{TITLES[primary]}, difference to {baseline}"), fontsize=8)
        for left, right in pairwise(drawn):
            _mark_break(left, right)
    panels[0].set_yticks(range(len(systems)), [plain(system) for system in systems])
    panels[0].set_ylim(len(systems) - 0.5, -0.5)
    return figure


class _Difference(NamedTuple):
    """What a figure shows of a system: difference and interval, and the differences of its runs."""

    system: str
    difference: float
    interval: list[float]
    runs: list[float]


def _shown(test_set: Mapping[str, Any], primary: str, baseline: str) -> Iterator[_Difference]:
    runs = {system: scores["by_seed"] for system, scores in test_set["scores"][primary].items()}
    for system, found in test_set["comparisons"][primary].items():
        pairs = [value - runs[baseline][seed] for seed, value in runs[system].items() if seed in runs[baseline]]
        yield _Difference(system, found["difference"], found["interval"], pairs)


def _axis_parts(shown: list[_Difference]) -> list[tuple[float, float]]:
    """The parts of the axis that something is drawn on, 0 among it; a third of the axis that is empty parts them."""
    spans = sorted(
        [(0.0, 0.0), *((min(*mark.interval, *mark.runs), max(*mark.interval, *mark.runs)) for mark in shown)]
    )
    empty = (max(high for _, high in spans) - spans[0][0]) / 3
    parts = [spans[0]]
    for low, high in spans[1:]:
        if low - parts[-1][1] > empty:
            parts.append((low, high))
        else:
            parts[-1] = (parts[-1][0], max(parts[-1][1], high))
    drawn = sum(high - low for low, high in parts) or 1.0
    # a mark alone needs the room of its number
    room = [max(EDGE * drawn, (LEAST_PART * drawn - (high - low)) / 2) for low, high in parts]
    return [(low - edge, high + edge) for (low, high), edge in zip(parts, room, strict=True)]


def _draw_differences(panel: Axes, shown: list[_Difference], systems: list[str]) -> None:
    from ..analysis.plots import COLOURS

    panel.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    for mark in shown:
        row = systems.index(mark.system)
        # below the interval, whose mark would hide them
        panel.plot(mark.runs, [row + BELOW] * len(mark.runs), "o", color="0.45", markersize=2.5, zorder=1)
        panel.plot(mark.interval, [row, row], "-", color=COLOURS[0], linewidth=1.6, zorder=2)
        panel.plot([mark.difference], [row], "s", color=COLOURS[0], markersize=5, zorder=3)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _mark_break(left: Axes, right: Axes) -> None:
    """Two strokes across the axis where it is broken."""
    for panel, end in ((left, 1), (right, 0)):
        panel.plot(
            [end], [0], marker=[(-1, -2), (1, 2)], markersize=8, color="0.2", transform=panel.transAxes, clip_on=False
        )
    right.spines["left"].set_visible(False)
    right.tick_params(left=False)


def study_figures(record: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """
    The figures of a record, by the names of their files: the intervals of the differences, BLEU by source length where
    the study has measured it, and the curves that it asks for. Drawing them needs matplotlib.
    """
    from ..analysis.plots import length_buckets

    figures: dict[str, Callable[[], Figure]] = {}
    if any(test_set["comparisons"][record["score"]] for test_set in record["test_sets"].values()):
        figures[FIGURE] = partial(interval_figure, record)
    for name, test_set in record["test_sets"].items():
        if LENGTH in test_set:
            figures[f"{LENGTH}_{name.replace(' ', '_')}"] = partial(length_buckets, test_set[LENGTH])
    for argument in record.get("curves", ()):
        figures[f"{CURVE}_{argument}"] = partial(curve_figure, record, argument)
    return figures


def write_tables(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """
    Write record, tables and figure of a study.

    Returns:
        The files. There is no figure without matplotlib (the extra `plots`) or without a comparison.
    """
    texts = {RECORD: json_text(record, indent=2) + "\n", MARKDOWN: markdown(record), LATEX: latex(record)}
    for name, text in texts.items():
        write_whole(folder / name, text)
    files = [folder / name for name in texts]
    try:
        from ..analysis.plots import save

        for name, draw in study_figures(record).items():
            figure = draw()
            files += [save(figure, folder / f"{name}.{ending}") for ending in ("svg", "png")]
    except ImportError:
        pass
    return files
