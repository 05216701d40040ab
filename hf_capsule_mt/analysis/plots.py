"""The figures of a report, from its numbers; needs the extra `plots`.

Each function takes a part of the report (or arrays) and gives a matplotlib Figure; `draw_figures` gives all that a
report has numbers for, one at a time, and `save` writes one. Shapes: S source tokens, T target tokens, R routing
iterations, L layers, N capsules of an aggregation, M capsules of the source memory, G groups of guided routing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import captions
from .agreement_figure import (
    DPI,
    available_fonts,
    check_matplotlib,
    draw_layer_maps,
    group_bar,
    group_map,
    label_tokens,
    save_figure,
)
from .alignment_part import alignment_figures
from .report_page import span_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart; without its yellow, too light
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
LINES = ("-", "--", "-.", ":")
GROUP_COLOURS = {"PAST": "#0072B2", "FUTURE": "#E69F00", "REDUNDANT": "#777777"}
# of `guided_maps`: to be seen on dark red, dark blue and white
FRAME = "#00A651"
# inches
WIDTH, HEIGHT = 6.4, 2.6
LAYER, HEATMAP_MARGIN = 0.22, 0.55
TOKEN, MAP_COLUMN = 0.2, 0.13
# target words beside each other in one row of `guided_maps`
WORDS_PER_ROW = 14
LONGEST_TOKEN = 20
# A word is framed as moved to PAST if its probability rises by at least this much in one step
LEAST_RISE = 0.2


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of a report.

    Attributes:
        id: unique in the report; the name of its files.
        title, caption: plain text.
        system: the name of the system that it is about, or None.
    """

    id: str
    title: str
    caption: str
    system: str | None
    figure: Figure


def agreement_heatmaps(statistics: Mapping[str, Any], stack: str = "") -> Figure:
    """
    Mean agreement of layers (y) and capsules (x), a heatmap for each iteration from top to bottom (Dou et al. 2019,
    Figure 4), in relation to the uniform probability 1/N. The capsules are in the order of the layer they prefer in
    the last iteration, the same in all heatmaps.

    Args:
        statistics: of one stack: "iterations", R entries whose "mean" is [L][N].
        stack: "encoder" or "decoder", for the title.
    """
    from matplotlib.ticker import MaxNLocator

    agreements = np.array([iteration["mean"] for iteration in statistics["iterations"]], dtype=np.float64)
    iterations, layers, _ = agreements.shape
    figure = _figure(iterations * (HEATMAP_MARGIN + LAYER * layers) + 0.5)
    panels = figure.subplots(iterations, 1, sharex=True, squeeze=False)[:, 0]
    draw_layer_maps(figure, list(panels), agreements)
    panels[-1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panels[-1].set_xlabel("capsule, by preferred layer", fontsize=8)
    figure.suptitle(f"{stack} agreement, relative to uniform".strip().capitalize(), fontsize=10)
    return figure


def entropy_diversity(stacks: Mapping[str, Mapping[str, Any]]) -> Figure:
    """
    Entropy (nats) and diversity of the agreements by iteration (Dou et al. 2019, Eq. 17 and 18), a line for each
    stack. Thin grey lines: log N, the entropy of the uniform distribution.

    Args:
        stacks: name -> statistics with "uniform_entropy" and R "iterations" of "entropy" and "diversity".
    """
    figure = _figure(HEIGHT)
    entropy, diversity = figure.subplots(1, 2)
    for index, (name, statistics) in enumerate(stacks.items()):
        steps = np.arange(len(statistics["iterations"])) + 1
        entropy.axhline(statistics["uniform_entropy"], color="0.7", linewidth=0.8, zorder=0)
        _line(entropy, index, steps, [step["entropy"] for step in statistics["iterations"]], name)
        _line(diversity, index, steps, [step["diversity"] for step in statistics["iterations"]], name)
    for panel, title in ((entropy, "entropy (nats)"), (diversity, "diversity")):
        _style(panel, "iteration", title)
        panel.set_xticks(range(1, 1 + max(len(statistics["iterations"]) for statistics in stacks.values())))
        # equal values differ by floating-point noise, which must not fill the axis
        low, high = panel.get_ylim()
        panel.set_ylim(low, max(high, low + 0.05))
    _legend(diversity, len(stacks))
    return figure


def length_buckets(systems: Mapping[str, Sequence[Mapping[str, Any]]], unit: str = "words") -> Figure:
    """
    BLEU and length of the translations in relation to the references' by source length, a line for each system, with
    the number of sentences below each length.

    Args:
        systems: name -> its buckets as `buckets.by_source_length` gives them, with "low", "high" (None or infinite for
            the last), "sentences", "bleu" and "ratio"; in ascending order.
        unit: of the lengths, "words" or "characters".
    """
    spans = sorted({_span(bucket) for buckets in systems.values() for bucket in buckets})
    positions = {span: index for index, span in enumerate(spans)}
    counts = {_span(bucket): bucket["sentences"] for buckets in systems.values() for bucket in buckets}
    labels = [f"{span_label(*span)}\n({counts[span]:,})" for span in spans]
    figure = _figure(HEIGHT + 0.35 + 0.16 * ((len(systems) + 2) // 3))
    bleu, ratio = figure.subplots(1, 2)
    ratio.axhline(1, color="0.7", linewidth=0.8, zorder=0)
    for index, (name, buckets) in enumerate(systems.items()):
        x = [positions[_span(bucket)] for bucket in buckets]
        _line(bleu, index, x, [bucket["bleu"] for bucket in buckets], name)
        _line(ratio, index, x, [bucket["ratio"] for bucket in buckets], name)
    for panel, title in ((bleu, "BLEU"), (ratio, "length / reference length")):
        _style(panel, f"source length, {unit} (sentences)", title)
        panel.set_xticks(range(len(spans)), labels)
    if len(systems) > 1:
        handles, names = bleu.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def guided_progress(statistics: Mapping[str, Any]) -> Figure:
    """
    Mean probability of each group over the course of a translation (Zheng et al. 2019). Grey line: uniform, 1/G.

    Args:
        statistics: "groups", G names, and "by_progress", means by tenths of the target length, [10][G]; NaN or None
            where no step falls.
    """
    progress = np.array(statistics["by_progress"], dtype=np.float64)
    middles = (np.arange(len(progress)) + 0.5) / len(progress) * 100
    figure = _figure(HEIGHT, WIDTH * 0.75)
    panel = figure.subplots()
    # what a model gives that is undecided
    panel.axhline(1 / progress.shape[1], color="0.7", linewidth=0.8, zorder=0)
    for index, name in enumerate(statistics["groups"]):
        colour = GROUP_COLOURS.get(name, COLOURS[index % len(COLOURS)])
        _line(panel, index, middles, progress[:, index], name, colour)
    panel.set_xlim(0, 100)
    panel.set_ylim(bottom=0)
    _style(panel, "translated so far, % of the target length", "mean probability of a source word")
    _legend(panel, len(statistics["groups"]))
    return figure


def memory_shares(statistics: Mapping[str, Any]) -> Figure:
    """
    Share of the source words that each capsule of the memory receives, bars for each iteration (Wang et al. 2019,
    Eq. 11). Grey line: the even share 1/M.

    Args:
        statistics: R "iterations" whose "shares" are [M].
    """
    shares = np.array([iteration["shares"] for iteration in statistics["iterations"]], dtype=np.float64)
    iterations, capsules = shares.shape
    figure = _figure(HEIGHT, WIDTH * 0.75)
    panel = figure.subplots()
    width = 0.8 / iterations
    for index, row in enumerate(shares):
        offset = (index - (iterations - 1) / 2) * width
        # later iterations are darker
        colour = (0.0, 0.447, 0.698, (index + 1) / iterations)
        panel.bar(np.arange(capsules) + offset, row * 100, width, color=colour, label=f"iteration {index + 1}")
    panel.axhline(100 / capsules, color="0.4", linewidth=0.8)
    panel.set_xticks(range(capsules), [str(capsule + 1) for capsule in range(capsules)])
    _style(panel, "capsule of the memory", "% of the source words")
    # bars leave no room within
    panel.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=iterations)
    return figure


def moves_to_past(assignment: Any, least_rise: float = LEAST_RISE) -> list[tuple[int, int]]:
    """
    The source token that each step moves to PAST, where there is one.

    Args:
        assignment: [T, S, G], PAST first; row t is the state before target token t is produced.
        least_rise: smallest rise of the PAST probability that counts.

    Returns:
        Pairs (source, target): producing the target token raised this source token's PAST probability more than any
        other's, by at least `least_rise`. The state after the last token is not known.
    """
    past = np.asarray(assignment, dtype=np.float64)[:, :, 0]
    rises = np.diff(past, axis=0)
    return [(int(row.argmax()), step) for step, row in enumerate(rises) if row.max() >= least_rise]


def guided_maps(example: Mapping[str, Any], alignment: Sequence[tuple[int, int]] | None = None) -> Figure:
    """
    Assignment to PAST (left column) and FUTURE (right column) of the source words, one small heatmap for each target
    word (Zheng et al. 2019, Figure 4), on a scale that is white at the uniform probability. Green frames show the
    change between before and after a target word is produced.

    Args:
        example: "source_tokens" [S], "target_tokens" [T] and "guided", whose "assignment" is [T][S][G], the state
            before each target token is produced.
        alignment: pairs (source, target) of positions to frame, for example of a word aligner; by default what
            `moves_to_past` finds.
    """
    from matplotlib.patches import Rectangle

    source, target = ([_short(token) for token in example[f"{side}_tokens"]] for side in ("source", "target"))
    assignment = np.array(example["guided"]["assignment"], dtype=np.float64)
    frames = moves_to_past(assignment) if alignment is None else alignment
    starts = range(0, len(target), WORDS_PER_ROW)
    columns = min(len(target), WORDS_PER_ROW)
    size = (2.6 + 3 * MAP_COLUMN * columns, len(starts) * (1.1 + TOKEN * len(source)))
    figure = _figure(size[1], size[0])
    panels = figure.subplots(len(starts), 1, squeeze=False)[:, 0]
    for start, panel in zip(starts, panels, strict=True):
        words = target[start : start + WORDS_PER_ROW]
        # PAST, FUTURE and an empty column for each target word
        cells = np.full((len(source), 3 * columns - 1), np.nan)
        for index in range(len(words)):
            cells[:, 3 * index : 3 * index + 2] = assignment[start + index, :, :2]
        image, middle = group_map(panel, cells, assignment)
        panel.set_xticks([3 * index + 0.5 for index in range(len(words))])
        label_tokens(panel.yaxis, source)
        panel.set_xticklabels(words, rotation=90, fontsize=8, parse_math=False, family=available_fonts())
        panel.xaxis.tick_top()
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        for word, step in frames:
            # what hangs over is cut off, and drawn in the row of the next word
            panel.add_patch(
                Rectangle((3 * (step - start) - 0.5, word - 0.5), 5, 1, fill=False, edgecolor=FRAME, linewidth=1.6)
            )
        panel.set_xlim(-0.6, 3 * columns - 1.4)
    group_bar(figure, image, list(panels), middle)
    return figure


def draw_figures(report: Mapping[str, Any]) -> Iterator[DrawnFigure]:
    """
    All figures that the numbers of a report give, one at a time: nothing is kept.

    Raises:
        ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    taken: set[str] = set()
    for title, caption, system, figure in _all_figures(report):
        name = re.sub(r"[^a-z0-9]+", "_", f"{system or ''} {title}".lower()).strip("_")
        identifier = next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        taken.add(identifier)
        yield DrawnFigure(identifier, title, caption, system, figure)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the ending of the path says the format (.svg, .png, .pdf)."""
    import matplotlib

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # without it the names inside an SVG file are random
    with matplotlib.rc_context({"svg.hashsalt": "hf_capsule_mt"}):
        save_figure(figure, path)
    return path


def _all_figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None, Figure]]:
    """Title, caption, system and figure of each."""
    buckets = {system["name"]: system["buckets"] for system in report["systems"] if len(system.get("buckets", ())) > 1}
    if buckets:
        unit = (report.get("test_set") or {}).get("length_unit", "words")
        labels = [span_label(*_span(bucket)) for bucket in next(iter(buckets.values()))]
        caption = (
            f"BLEU of the sentences of each source length in {unit}, with their number, and the length of the"
            " translations divided by that of the references; below 1 the translations are too short."
            f" {captions.of_buckets(buckets, labels, unit)}"
        )
        yield "Source length", caption, None, length_buckets(buckets, unit)
    for system in report["systems"]:
        for title, caption, figure in _routing_figures(system):
            yield title, caption, system["name"], figure


def _routing_figures(system: Mapping[str, Any]) -> Iterator[tuple[str, str, Figure]]:
    routing = system.get("routing") or {}
    stacks = {name: routing[name] for name in ("encoder", "decoder") if name in routing}
    if stacks:
        caption = (
            f"{captions.of_entropy(stacks)} Entropy says how undecided the layers are (grey: log N, a uniform choice),"
            " diversity how differently they choose; Dou et al. 2019, Eq. 17 and 18."
        )
        yield "Entropy and diversity", caption, entropy_diversity(stacks)
    for name, statistics in stacks.items():
        caption = (
            f"{captions.of_agreement(statistics)} Shown: probability of each capsule for the vote of each layer, mean"
            " over the test set, relative to the uniform probability 1/N (white); Dou et al. 2019, Figure 4."
        )
        yield f"Agreement of the {name}", caption, agreement_heatmaps(statistics, name)
    if "memory" in routing:
        caption = (
            f"{captions.of_memory(routing['memory'])} Shown: share of the source words in each capsule by routing"
            " iteration; the line is an even share."
        )
        yield "Capsules of the source memory", caption, memory_shares(routing["memory"])
    if "guided" in routing:
        caption = (
            f"{captions.of_progress(routing['guided'])} Shown: mean over the source words and the sentences, at each"
            " tenth of the translation."
        )
        yield "Groups over the translation", caption, guided_progress(routing["guided"])
    example = next((example for example in system.get("examples", ()) if "guided" in example), None)
    if example is not None:
        assignment = example["guided"]["assignment"]
        moves = len(moves_to_past(assignment))
        caption = (
            f"{captions.of_assignment(moves, len(assignment) - 1, LEAST_RISE)} Shown: for each target word (above)"
            " the probability that a source word is PAST (left column) or FUTURE (right) before the target word is"
            " produced; white is uniform. Framed, before and after: the word that moves to PAST most; Zheng et al."
            " 2019, Figure 4."
        )
        yield "Assignment word by word", caption, guided_maps(example)
    yield from alignment_figures(system)


def _span(bucket: Mapping[str, Any]) -> tuple[float, float]:
    return bucket["low"], np.inf if bucket["high"] is None else bucket["high"]


def _figure(height: float, width: float = WIDTH) -> Figure:
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _line(panel: Axes, index: int, x: Any, y: Any, name: str, colour: str | None = None) -> None:
    # where colours repeat, markers and dashes do not: seven of the one, four of the other
    panel.plot(
        x,
        y,
        color=colour or COLOURS[index % len(COLOURS)],
        marker=MARKERS[index % len(MARKERS)],
        linestyle=LINES[index % len(LINES)],
        linewidth=1.4,
        markersize=4.5,
        # a leading underscore would hide the name from the legend, dollar signs would begin a formula
        label=re.sub(r"^_", " _", name).replace("$", r"\$"),
    )


def _short(token: str) -> str:
    """A token that leaves room for the figure beside it."""
    return token if len(token) <= LONGEST_TOKEN else f"{token[: LONGEST_TOKEN - 1]}…"


def _style(panel: Axes, x: str, y: str) -> None:
    panel.set_xlabel(x, fontsize=8)
    panel.set_ylabel(y, fontsize=8)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(panel: Axes, entries: int) -> None:
    if entries > 1:
        panel.legend(fontsize=8, frameon=False)
