"""Scores against a number that systems differ in: lines of a study's systems, and the figure of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import json_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "num_capsules": "number of capsules N",
    "num_source_capsules": "source capsules M",
    "routing_iterations": "routing iterations R",
}
# inches, of a panel
WIDTH, HEIGHT = 4.2, 3.2
# between the lines at one value, in the distance of two values
APART = 0.12


class Point(NamedTuple):
    """The value of the argument, and the system that has it."""

    value: float
    system: str


def curve_lines(systems: Mapping[str, Mapping[str, Any]], argument: str) -> dict[str, list[Point]]:
    """
    Systems that differ in one argument alone.

    Args:
        systems: name -> arguments; those that do not say the argument, or say no number, are on no line.
        argument: the name of the argument.

    Returns:
        For each line its points in the order of their values, at least two, by what it has that other lines have not.
    """
    groups: dict[str, list[Point]] = {}
    others: dict[str, dict[str, Any]] = {}
    for system, arguments in systems.items():
        value = arguments.get(argument)
        if isinstance(value, int | float) and not isinstance(value, bool):
            rest = {name: arguments[name] for name in sorted(arguments) if name != argument}
            key = json_text(rest)
            others[key] = rest
            groups.setdefault(key, []).append(Point(value, system))
    groups = {key: points for key, points in groups.items() if len({point.value for point in points}) > 1}
    names = sorted({name for key in groups for name in others[key]})
    telling = [name for name in names if len({json_text(others[key].get(name)) for key in groups}) > 1]
    # what some lines do not say
    partial = {name for name in telling if any(name not in others[key] for key in groups)}
    lines = {}
    for key, points in groups.items():
        told = {name: others[key][name] for name in telling if name in others[key]}
        lines[", ".join(_described(name, value, name in partial) for name, value in told.items())] = sorted(points)
    return lines


def _described(name: str, value: Any, named: bool) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return f"{name}={text}" if named or text is not value else text


def curve_figure(record: Mapping[str, Any], argument: str) -> Figure:
    """
    The primary score against an argument: a panel for each test set, a line for each other way in which systems
    differ, its points the means over the runs with their 95 % intervals, and the runs beside them. A grey line is the
    compared system, where it is on none of the lines.
    """
    from ..analysis.agreement_figure import DPI, check_matplotlib

    check_matplotlib()
    from matplotlib.figure import Figure

    lines = curve_lines({name: part["arguments"] for name, part in record["systems"].items()}, argument)
    test_sets = record["test_sets"]
    figure = Figure(figsize=(WIDTH * len(test_sets), HEIGHT), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, len(test_sets), squeeze=False)[0]
    for panel, (name, test_set) in zip(panels, test_sets.items(), strict=True):
        _draw(panel, lines, test_set["scores"][record["score"]], record["compare_with"])
        panel.set_title(plain(name), fontsize=9)
        panel.set_xlabel(AXES.get(argument, argument.replace("_", " ")), fontsize=8)
        panel.set_ylabel(record["score"].upper().replace("CHRF", "chrF"), fontsize=8)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    handles, names = panels[0].get_legend_handles_labels()
    if handles:
        # below, where it hides no interval
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return figure


def _draw(panel: Axes, lines: Mapping[str, list[Point]], scores: Mapping[str, Any], baseline: str) -> None:
    from ..analysis.plots import COLOURS, LINES, MARKERS

    # evenly spaced: capsules are doubled rather than added
    values = sorted({point.value for points in lines.values() for point in points})
    for number, (label, points) in enumerate(lines.items()):
        there = [point for point in points if point.system in scores]
        shift = (number - (len(lines) - 1) / 2) * APART
        x = [values.index(point.value) + shift for point in there]
        colour = COLOURS[number % len(COLOURS)]
        for position, point in zip(x, there, strict=True):
            found = scores[point.system]
            panel.plot([position, position], found["interval"], "-", color=colour, linewidth=1.2, zorder=2)
            runs = list(found["by_seed"].values())
            # beside the interval, which would hide them
            panel.plot([position + APART / 4] * len(runs), runs, "o", color="0.55", markersize=2, zorder=1)
        panel.plot(
            x,
            [scores[point.system]["mean"] for point in there],
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
            linewidth=1.4,
            markersize=4.5,
            label=plain(label) or None,
            zorder=3,
        )
    if baseline in scores and not any(point.system == baseline for points in lines.values() for point in points):
        panel.axhline(scores[baseline]["mean"], color="0.6", linewidth=0.9, zorder=0, label=plain(baseline))
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])


def plain(text: str) -> str:
    """Dollar signs would begin a formula."""
    return text.replace("$", r"\$")
