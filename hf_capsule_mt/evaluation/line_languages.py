"""Languages of the lines that the commands translate and score read: the same for all, or each line's own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

SIDES = ("source_lang", "target_lang")
Pair = TypeVar("Pair")


def add_language_arguments(parser: argparse.ArgumentParser) -> None:
    """What says the languages."""
    for side in SIDES:
        parser.add_argument(f"--{side}", help="code of the language, for multilingual checkpoints (the one saved)")
    for side in SIDES:
        parser.add_argument(
            f"--{side}_field", metavar="FIELD", help="with --jsonl, the field with the language of each line"
        )


def check_language_arguments(arguments: argparse.Namespace) -> None:
    """
    Check the arguments by themselves.

    Raises:
        ValueError: they exclude or need each other.
    """
    for side in SIDES:
        if getattr(arguments, f"{side}_field") is None:
            continue
        if not arguments.jsonl:
            raise ValueError(f"--{side}_field needs --jsonl; --{side} gives all lines the same language")
        if getattr(arguments, side) is not None:
            raise ValueError(f"give either --{side}_field or --{side}, and not both")


def language_fields(arguments: argparse.Namespace) -> list[str]:
    """The fields of JSON lines that say their languages."""
    return [field for side in SIDES if (field := getattr(arguments, f"{side}_field")) is not None]


def refuse_language_fields(arguments: argparse.Namespace) -> None:
    """
    For a model of one pair of languages.

    Raises:
        ValueError: lines are to say their languages.
    """
    for side in SIDES:
        if getattr(arguments, f"{side}_field") is not None:
            raise ValueError(f"the model is one of a single pair of languages: leave out --{side}_field")


def group_rows(
    arguments: argparse.Namespace,
    choose: Callable[[str | None, str | None], Pair],
    records: Sequence[Mapping[str, Any]],
    places: Sequence[str],
) -> dict[Pair, list[int]]:
    """
    The rows of records by what their languages are to the model, in the order in which they come first.

    Args:
        choose: what a source and a target language are, None being what was saved; ValueError for unknown ones.
        places: of the records, for messages.

    Raises:
        ValueError: what `choose` raises, with the place of the record.
    """
    rows: dict[Pair, list[int]] = {}
    chosen: dict[tuple[str | None, ...], Pair] = {}
    for row, (record, place) in enumerate(zip(records, places, strict=True)):
        codes = tuple(
            getattr(arguments, side) if (field := getattr(arguments, f"{side}_field")) is None else record[field]
            for side in SIDES
        )
        if codes not in chosen:
            try:
                chosen[codes] = choose(codes[0], codes[1])
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
        rows.setdefault(chosen[codes], []).append(row)
    return rows
