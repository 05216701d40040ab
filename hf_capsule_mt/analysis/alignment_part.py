"""PAST and FUTURE beside gold word alignments, a part of a report: numbers, figure, and what is said of them."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pipeline_translation import max_source_length
from .aligned_text import UNITS, AlignedPair, AlignedText, AlignmentFile
from .alignment_files import BASES, ORDERS
from .examples import example
from .gold import piece_links
from .past_future import past_future_probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# of a system's entry in a report
PART = "alignments"
DRAWS = 500
# source words of the sentence that is drawn
SHOWN_WORDS = range(4, 15)
FIGURE_TITLE = "PAST and FUTURE of one sentence beside its alignment"
FIGURE_CAPTION = (
    "For each word of the reference (above) the probability that a source word is PAST (left column) or FUTURE (right)"
    " before it is produced. Framed, before and after: the source words that the gold alignment links it with."
)
BETWEEN = "PAST or FUTURE"


def add_alignment_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a command the options of `alignment_file`."""
    parser.add_argument(
        "--alignments",
        "--alignment",
        type=Path,
        metavar="FILE",
        help="gold word alignments of source and reference: a line for each sentence ('0-0 1-2 3?4' or 3p4), or for "
        "each link ('1 3 4 S'). What the three options below say is found out where only one reading fits the text",
    )
    parser.add_argument(
        "--alignment_words",
        choices=list(UNITS),
        help="what the links count: words between spaces, or words and punctuation marks",
    )
    parser.add_argument("--alignment_base", type=int, choices=BASES, help="number of a sentence's first word")
    parser.add_argument("--alignment_order", choices=ORDERS, help="which side a link names first")


def alignment_file(arguments: argparse.Namespace) -> AlignmentFile | None:
    """
    The file that the options of a command name.

    Raises:
        ValueError: there is an option of it, but no file.
    """
    said = {name: getattr(arguments, f"alignment_{name}") for name in ("words", "base", "order")}
    if arguments.alignments is not None:
        return AlignmentFile(arguments.alignments, **said)
    without = [f"--alignment_{name}" for name, value in said.items() if value is not None]
    if without:
        raise ValueError(f"{' and '.join(without)} says how to read alignments: give their file, --alignments FILE")
    return None


def check_can_probe(config: Any) -> None:
    """
    Check that what probes is there, before any work.

    Args:
        config: of a model.

    Raises:
        ValueError: the model has PAST and FUTURE, and scikit-learn is not installed.
    """
    if getattr(config, "guided_routing", "none") != "none" and find_spec("sklearn") is None:
        raise ValueError('--alignments needs scikit-learn: pip install "hf_capsule_mt[analysis]"')


def alignment_part(
    model: Any, tokenizer: PreTrainedTokenizerBase, aligned: AlignedText, *, draws: int = DRAWS
) -> dict[str, Any] | None:
    """
    What `past_future.past_future_probe` finds for a model of a report.

    Args:
        aligned: the test set with its alignments.
        draws: for the intervals.

    Returns:
        For JSON: the fields of `past_future.ProbeResult`, "draws", "left_out", the number of sentences that the
        tokenizer cannot take or the model has no positions for, and "examples", one sentence with "frames" [(source
        piece, target piece)] of its links. Only "not_probed", the reason, where there is nothing to probe; None for
        models without PAST and FUTURE.
    """
    if getattr(model.config, "guided_routing", "none") == "none":
        return None
    if not tokenizer.is_fast:
        return {"not_probed": "its tokenizer does not say where in the text its pieces are"}
    longest = max_source_length(tokenizer, model.config)
    pairs = [pair for pair in aligned.pairs if _can_be_probed(pair, tokenizer, longest)]
    left_out = len(aligned.pairs) - len(pairs)
    try:
        result = past_future_probe(model, tokenizer, pairs, progress=False, draws=draws)
    except ValueError as error:
        # no pair is left, or none of their words is aligned
        return {"not_probed": str(error), "left_out": left_out}
    return {**result.to_dict(), "draws": draws, "left_out": left_out, "examples": _shown(model, tokenizer, pairs)}


def _can_be_probed(pair: AlignedPair, tokenizer: PreTrainedTokenizerBase, longest: int) -> bool:
    # verbose: it would warn of long sentences, which are left out
    source = tokenizer(pair.source, verbose=False)["input_ids"]
    target = tokenizer(text_target=pair.target, verbose=False)["input_ids"]
    if not pair.source.strip() or not pair.target.strip() or max(len(source), len(target)) > longest:
        return False
    try:
        piece_links(pair, tokenizer)
    except ValueError as error:
        logger.warning(f"a sentence is not probed: {error}")
        return False
    return True


def _shown(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[AlignedPair]
) -> list[dict[str, Any]]:
    """The middle one, by length, of the sentences that a figure has room for."""
    usable = [pair for pair in pairs if len(pair.source_tokens) in SHOWN_WORDS and pair.alignment]
    if not usable:
        return []
    pair = sorted(usable, key=lambda pair: len(pair.source_tokens))[len(usable) // 2]
    shown = example(model, tokenizer, pair.source, pair.target, pair.target)
    kept = {key: shown[key] for key in ("source", "reference", "source_tokens", "target_tokens", "guided")}
    return [{**kept, "frames": [list(link) for link in piece_links(pair, tokenizer)]}]


def alignment_figures(system: Mapping[str, Any]) -> Iterator[tuple[str, str, Figure]]:
    """Title, caption and figure of a system's sentence, if it has one."""
    from .plots import guided_maps

    for shown in (system.get(PART) or {}).get("examples", ()):
        yield FIGURE_TITLE, FIGURE_CAPTION, guided_maps(shown, alignment=[(i, j) for i, j in shown["frames"]])


def alignment_section(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    What the page shows: "reading", a sentence on the alignments; "systems", for each "name", "rows", "says" and
    "notes". None if nothing was probed.
    """
    systems = [
        {"name": system["name"], **_shown_numbers(system[PART])} for system in report["systems"] if system.get(PART)
    ]
    if not systems:
        return None
    return {"reading": _reading(report.get("test_set", {}).get(PART, {})), "systems": systems}


def _reading(read: Mapping[str, Any]) -> str:
    if not read:
        return ""
    return f"{read['file']}, links read as {read['order']}, {UNITS[read['words']]} counted from {read['base']}"


def _shown_numbers(part: Mapping[str, Any]) -> dict[str, Any]:
    notes = [f"{part['left_out']:,} sentences could not be probed."] if part.get("left_out") else []
    if "not_probed" in part:
        return {"rows": [], "says": f"Not probed: {part['not_probed']}.", "notes": notes}
    between = {key: part[key] for key in ("accuracy", "auc", "diagonal_accuracy", "diagonal_auc", "majority_accuracy")}
    rows = [_row(BETWEEN, {**between, "decisions": part["decisions"], "intervals": part.get("intervals", {})})]
    rows += [_row(group, scores) for group, scores in part["groups"].items() if scores.get("accuracy") is not None]
    return {"rows": rows, "says": says(part), "notes": notes}


def _row(label: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    intervals = scores.get("intervals", {})
    row: dict[str, Any] = {"label": label, "decisions": scores["decisions"]}
    for name in ("auc", "accuracy"):
        controls = {"diagonal": scores.get(f"diagonal_{name}"), "constant": scores.get(f"majority_{name}")}
        row[name], row[f"{name}_interval"] = scores.get(name), intervals.get(name)
        row[f"{name}_controls"] = {control: value for control, value in controls.items() if value is not None}
    return row


def says(part: Mapping[str, Any]) -> str:
    """What the numbers of a system say, as sentences: of PAST and FUTURE together, of each, and of REDUNDANT."""
    sentences = [_says_of_choice(part)]
    weaker = [
        group
        for group, scores in part["groups"].items()
        if scores.get("intervals", {}).get("auc_above_diagonal", (0, 0))[1] < 0
    ]
    if weaker and _above_diagonal(part)[1] >= 0:
        sentences.append(f"The probability of {' and of '.join(weaker)} by itself says less than the diagonal.")
    redundant = part["groups"].get("REDUNDANT", {})
    if redundant.get("auc") is not None:
        low, high = redundant.get("intervals", {}).get("auc", [redundant["auc"]] * 2)
        if low > 0.5:
            sentences.append("REDUNDANT is likelier for words without a link.")
        elif high < 0.5:
            sentences.append("REDUNDANT is less likely for words without a link than for the others.")
        else:
            sentences.append("REDUNDANT does not tell words without a link from the others.")
    return " ".join(sentences)


def _above_diagonal(part: Mapping[str, Any]) -> Sequence[float]:
    """How far the area of the choice is above the diagonal's: its interval, or the difference twice."""
    difference = part["auc"] - part["diagonal_auc"]
    return part.get("intervals", {}).get("auc_above_diagonal", (difference, difference))


def _says_of_choice(part: Mapping[str, Any]) -> str:
    intervals = part.get("intervals", {})
    low, high = intervals.get("auc", (part["auc"], part["auc"]))
    less, more = _above_diagonal(part)
    if high < 0.5:
        return "The two groups have changed places: words that are translated are rather in FUTURE."
    if low <= 0.5:
        return "PAST and FUTURE do not tell translated words from untranslated ones: the area may as well be 0.5."
    if less > 0:
        return "PAST and FUTURE tell translated words from untranslated ones, and better than the diagonal does."
    if more < 0:
        return (
            "PAST and FUTURE tell translated words from untranslated ones, but less well than the diagonal, which"
            " looks at no word."
        )
    return "PAST and FUTURE tell translated words from untranslated ones, not measurably better than the diagonal."
