"""What the command `translate` asks of whatever translates, PyTorch or ONNX Runtime. Imports neither."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..serving.onnx_translator import Hypothesis, Progress
from .line_languages import Pair

DTYPES = ("float32", "bfloat16", "float16")


class Backend(NamedTuple):
    """
    What translates.

    Attributes:
        translate: from records, what messages call these, and what to call after every batch to hypotheses.
        fingerprint: digests of all that the translations depend on.
    """

    translate: Callable[[list[dict[str, Any]], list[str], Progress], list[list[Hypothesis]]]
    fingerprint: Callable[[], dict[str, str]]


def prefixes_of(arguments: argparse.Namespace, records: Sequence[dict[str, Any]]) -> list[str] | None:
    """The forced prefix of each line; None where there are none."""
    if arguments.prefix_field is not None:
        return [record[arguments.prefix_field] for record in records]
    return None if arguments.target_prefix is None else [arguments.target_prefix] * len(records)


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the search and its batches are told; what is not given, the model says."""
    names = ("max_tokens", "num_beams", "num_return_sequences", "length_penalty", "max_new_tokens")
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def is_detailed(arguments: argparse.Namespace) -> bool:
    """Whether more than one text is asked for of each line."""
    return arguments.scores or arguments.agreements or arguments.num_return_sequences > 1


def by_pair(
    rows_of: Mapping[Pair, list[int]],
    run_pair: Callable[[Pair, list[dict[str, Any]], Progress], list[list[Hypothesis]]],
    records: list[dict[str, Any]],
    progress: Progress,
) -> list[list[Hypothesis]]:
    """Translates the records of one pair of languages after the other; results are in the order of the records."""
    found: dict[int, list[Hypothesis]] = {}
    for pair, rows in rows_of.items():

        def show(done: int, _: int, before: int = len(found)) -> None:
            progress(before + done, len(records))

        found.update(zip(rows, run_pair(pair, [records[row] for row in rows], show), strict=True))
    return [found[row] for row in range(len(records))]
