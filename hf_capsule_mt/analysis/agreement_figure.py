"""What the routing of one translation looks like, as arrays and as a picture; the picture needs the extra `plots`.

Shapes: S source tokens, T target tokens, R routing iterations, L layers, N capsules of an aggregation, M capsules of
the source memory, G groups of guided routing.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..files import write_whole
from ..models.capsule_operators import routes_layers
from ..models.configuration_capsule_rnn import CAPSULE_MEMORIES
from ..models.pipeline_translation import encode_truncated, evaluation_mode, limit_length, max_source_length
from .sentence_routing import by_preferred_layer, shown_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

logger = logging.getLogger(__name__)

# The first that are installed are asked in this order for a character that the one before does not have
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Arial Unicode MS",
)
# inches: one token or memory capsule, one layer, and what a row of panels needs for titles and labels
TOKEN, LAYER, MARGIN = 0.24, 0.3, 1.3
WIDTH, MEMORY_WIDTH = 9.0, 4.5
DPI = 150
# Probabilities of layers are drawn from this times less to this times more than uniform
LARGEST_RATIO = 8


@dataclass(frozen=True)
class AgreementArrays:
    """
    The routing of one translation; None where the model has no such routing.

    Attributes:
        source_tokens, target_tokens: the S and T pieces as they are shown, ends of sentences included; a piece that
            continues a word has a hyphen before it.
        encoder_agreements, decoder_agreements: probability of each capsule in the vote of each layer, mean over the
            positions, one for each iteration, [R, L, N].
        source_agreements: probability of each memory capsule for each source token, last iteration, [S, M].
        guided_assignment: probability of each source token in the groups PAST, FUTURE and REDUNDANT (if there is one)
            at the step that produced each target token, [T, S, G].
    """

    source_tokens: list[str]
    target_tokens: list[str]
    encoder_agreements: np.ndarray | None = None
    decoder_agreements: np.ndarray | None = None
    source_agreements: np.ndarray | None = None
    guided_assignment: np.ndarray | None = None


def has_routing(config: PreTrainedConfig) -> bool:
    """Whether models of this config have agreements to show."""
    aggregates = routes_layers(getattr(config, "aggregation", "none"))
    return (
        (aggregates and (config.aggregate_encoder or config.aggregate_decoder))
        or getattr(config, "guided_routing", "none") != "none"
        or getattr(config, "source_memory", "none") in CAPSULE_MEMORIES
    )


def agreement_arrays(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    num_beams: int = 5,
    **generation: Any,
) -> AgreementArrays:
    """
    Translate a sentence and collect how it was routed. The model's mode (training or evaluation) is kept.

    Args:
        model: a capsule model; one without routing gives arrays that are all None.
        tokenizer: its tokenizer.
        sentence: raw text; what exceeds the model's positions is cut off.
        num_beams: beam size of the translation.
        generation: more parameters of `model.generate`.

    Raises:
        ValueError: a blank sentence, or more than one translation of it.
    """
    if not sentence.strip():
        raise ValueError("there is nothing to translate: the sentence is blank")
    if generation.get("num_return_sequences", 1) != 1:
        raise ValueError("the agreements are those of one translation: leave num_return_sequences at 1")
    encoded, _ = encode_truncated(tokenizer, [sentence], max_source_length(tokenizer, model.config))
    source = torch.tensor(encoded["input_ids"], device=model.device)
    generation = {**generation, "num_beams": num_beams, "return_dict_in_generate": True, "num_return_sequences": 1}
    if has_routing(model.config):
        generation["output_agreements"] = True
    generation = limit_length(model, torch.tensor([source.shape[1]], device=model.device), generation)
    generate: Any = model.generate
    with evaluation_mode(model), torch.no_grad():
        output = generate(input_ids=source, attention_mask=torch.ones_like(source), **generation)
    # the first token starts the decoder
    target = output.sequences[0, 1:]
    source_agreements, assignment = output.get("source_agreements"), output.get("guided_assignment")
    return AgreementArrays(
        source_tokens=shown_tokens(tokenizer, source[0]),
        target_tokens=shown_tokens(tokenizer, target),
        encoder_agreements=_mean_over_positions(output.get("encoder_agreements")),
        decoder_agreements=_mean_over_positions(output.get("decoder_agreements")),
        source_agreements=None if source_agreements is None else _numpy(source_agreements[-1][0]),
        guided_assignment=None if assignment is None else _numpy(assignment[0]),
    )


def agreement_figure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    path: str | Path,
    **generation: Any,
) -> Path | None:
    """
    Draw how a sentence is routed while it is translated.

    Layer aggregation: for each stack and iteration a map of layers x capsules, in relation to the uniform probability
    1/N; the capsules are in the order of the layer they prefer. Capsule memory: words x capsules. Guided routing: the
    probability of PAST and of FUTURE, source words x target words. A model with several has them below each other.

    Args:
        model, tokenizer, sentence, generation: as in `agreement_arrays`; short sentences are the readable ones.
        path: file to write; its ending says the format (.png, .svg, .pdf).

    Returns:
        The path, or None for a model without routing, for which nothing is written.

    Raises:
        ValueError: as `agreement_arrays`.
        ImportError: matplotlib is not installed.
    """
    if not has_routing(model.config):
        return None
    check_matplotlib()
    return draw(agreement_arrays(model, tokenizer, sentence, **generation), path)


def draw(arrays: AgreementArrays, path: str | Path) -> Path:
    """
    Write the picture of these arrays.

    Raises:
        ValueError: all of the arrays are None.
        ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    parts = _parts(arrays)
    if not parts:
        raise ValueError("there is nothing to draw: the model has no routing")
    heights = [height for height, _ in parts]
    figure = Figure(figsize=(_width(arrays), sum(heights)), dpi=DPI, layout="constrained")
    rows = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for row, (_, draw_part) in zip(rows, parts, strict=True):
        draw_part(row)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)
    return path


def _width(arrays: AgreementArrays) -> float:
    """In inches: room for the target tokens of two panels."""
    if arrays.guided_assignment is not None:
        return max(WIDTH, MARGIN + 2 * TOKEN * len(arrays.target_tokens))
    only_memory = arrays.encoder_agreements is None and arrays.decoder_agreements is None
    return MEMORY_WIDTH if only_memory else WIDTH


def _parts(arrays: AgreementArrays) -> list[tuple[float, Callable[[SubFigure], None]]]:
    """Height in inches and drawing function of each row of panels."""
    parts: list[tuple[float, Callable[[SubFigure], None]]] = []
    for stack, agreements in (("Encoder", arrays.encoder_agreements), ("Decoder", arrays.decoder_agreements)):
        if agreements is not None:
            height = MARGIN + LAYER * agreements.shape[1]
            parts.append((height, partial(_draw_layers, stack=stack, agreements=agreements)))
    if arrays.source_agreements is not None:
        height = MARGIN + TOKEN * len(arrays.source_tokens)
        draw_memory = partial(_draw_memory, agreements=arrays.source_agreements, tokens=arrays.source_tokens)
        parts.append((height, draw_memory))
    if arrays.guided_assignment is not None:
        height = MARGIN + 0.6 + TOKEN * len(arrays.source_tokens)
        source, target = arrays.source_tokens, arrays.target_tokens
        parts.append(
            (height, partial(_draw_guided, assignment=arrays.guided_assignment, source=source, target=target))
        )
    return parts


def _draw_layers(row: SubFigure, stack: str, agreements: np.ndarray) -> None:
    """A panel for each iteration of one stack: layers x capsules, [R, L, N]."""
    from matplotlib.ticker import MaxNLocator

    panels = row.subplots(1, len(agreements), sharey=True, squeeze=False)[0]
    draw_layer_maps(row, list(panels), agreements)
    for panel in panels:
        panel.set_xlabel("capsule, by preferred layer", fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    row.suptitle(f"{stack}: probability of each capsule for a layer's vote, relative to uniform", fontsize=10)


def draw_layer_maps(figure: Figure | SubFigure, panels: list[Axes], agreements: np.ndarray) -> None:
    """
    Layers x capsules in a panel for each iteration, relative to the uniform probability 1/N, and their colour bar.

    Args:
        panels: of the figure, R of them.
        agreements: [R, L, N]; the capsules are drawn in the order of the layer they prefer in the last iteration.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    _, layers, capsules = agreements.shape
    ratios = np.clip(agreements * capsules, 1 / LARGEST_RATIO, LARGEST_RATIO)
    ratios = ratios[:, :, by_preferred_layer(agreements[-1])]
    norm = LogNorm(1 / LARGEST_RATIO, LARGEST_RATIO)
    for index, panel in enumerate(panels):
        image = panel.imshow(ratios[index], aspect="auto", cmap="RdBu_r", norm=norm, interpolation="nearest")
        panel.set_title(f"iteration {index + 1}", fontsize=9)
        panel.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)])
        panel.tick_params(labelsize=8)
    bar = figure.colorbar(image, ax=panels, pad=0.01)
    bar.ax.yaxis.set_major_locator(FixedLocator([1 / LARGEST_RATIO, 1, LARGEST_RATIO]))
    bar.ax.yaxis.set_major_formatter(
        FuncFormatter(lambda ratio, _: f"{ratio:.0f}x" if ratio >= 1 else f"1/{1 / ratio:.0f}")
    )
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.tick_params(labelsize=8)


def _draw_memory(row: SubFigure, agreements: np.ndarray, tokens: list[str]) -> None:
    """Source words x capsules of the memory, [S, M]."""
    capsules = agreements.shape[1]
    panel = row.subplots()
    image = probability_map(panel, agreements)
    panel.set_xticks(range(capsules), [str(capsule + 1) for capsule in range(capsules)])
    panel.set_xlabel("capsule of the memory", fontsize=8)
    panel.tick_params(labelsize=8)
    label_tokens(panel.yaxis, tokens)
    colour_bar(row, image, [panel])
    row.suptitle("Source memory: probability of each capsule", fontsize=10)


def _draw_guided(row: SubFigure, assignment: np.ndarray, source: list[str], target: list[str]) -> None:
    """PAST and FUTURE beside each other: source x target, from [T, S, G]."""
    panels = row.subplots(1, 2, sharey=True)
    for group, (panel, name) in enumerate(zip(panels, ("PAST (translated)", "FUTURE (untranslated)"), strict=True)):
        image, middle = group_map(panel, assignment[:, :, group].T, assignment)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("at the step that produced this token", fontsize=8)
        label_tokens(panel.xaxis, target, rotation=90)
        label_tokens(panel.yaxis, source)
    group_bar(row, image, list(panels), middle)
    row.suptitle("Guided routing: probability that a source word is in the group", fontsize=10)


def probability_map(panel: Axes, values: np.ndarray) -> Any:
    return panel.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")


def group_map(panel: Axes, values: np.ndarray, assignment: np.ndarray) -> tuple[Any, float]:
    """
    Probabilities of a group on a scale whose white middle is what an undecided model gives.

    Args:
        values: what is drawn, [rows, columns].
        assignment: all of it, [T, S, G]: its groups share each word (the middle is 1/G), or its words each group's
            attention (1/S).

    Returns:
        The image and its middle.
    """
    from matplotlib.colors import TwoSlopeNorm

    _, words, groups = assignment.shape
    shared = bool(np.allclose(assignment.sum(axis=-1), 1, atol=0.02))
    middle = 1 / groups if shared else 1 / max(2, words)
    norm = TwoSlopeNorm(middle, 0, 1)
    return panel.imshow(values, aspect="auto", cmap="RdBu_r", norm=norm, interpolation="nearest"), middle


def group_bar(row: Figure | SubFigure, image: Any, panels: list[Axes], middle: float) -> None:
    """The scale of `group_map`."""
    bar = row.colorbar(image, ax=panels, pad=0.01, ticks=[0, middle, 1])
    bar.ax.set_yticklabels(["0", f"{middle:.2f}, uniform", "1"])
    bar.ax.tick_params(labelsize=8)
    bar.set_label("probability", fontsize=8)


def colour_bar(row: SubFigure, image: Any, panels: list[Axes]) -> None:
    row.colorbar(image, ax=panels, pad=0.01, ticks=[0, 0.5, 1]).ax.tick_params(labelsize=8)


def label_tokens(axis: Any, tokens: list[str], rotation: int = 0) -> None:
    # parse_math: a token may contain dollar signs, which would otherwise begin a formula
    axis.set_ticks(
        range(len(tokens)), tokens, rotation=rotation, fontsize=8, parse_math=False, family=available_fonts()
    )


def available_fonts() -> list[str]:
    from matplotlib import font_manager

    installed = set(font_manager.fontManager.get_font_names())
    return [font for font in FONTS if font in installed]


def save_figure(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # the default metadata names the version of matplotlib and, in some formats, the time
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}}.get(path.suffix)
        drawn = BytesIO()
        figure.savefig(drawn, format=path.suffix.removeprefix(".") or "png", metadata=metadata)
    write_whole(path, drawn.getvalue())
    missing = [warning for warning in caught if "missing from" in str(warning.message)]
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        logger.warning(
            f"{path} shows boxes in the place of characters that no installed font has; install one that has them"
            " (for Chinese and Japanese, Noto Sans CJK)"
        )


def _mean_over_positions(agreements: tuple[Tensor, ...] | None) -> np.ndarray | None:
    """R tensors [1, positions, L, N] -> [R, L, N]."""
    if agreements is None:
        return None
    return np.stack([_numpy(iteration[0]).mean(axis=0) for iteration in agreements])


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


def check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('figures need matplotlib: pip install "hf_capsule_mt[plots]"') from error
