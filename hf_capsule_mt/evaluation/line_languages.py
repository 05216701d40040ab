"""Languages of the lines that the commands translate and score read: the same for all, or each line's own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from ..models.tokenizer_languages import (
    LanguagePair,
    check_language,
    choose_languages,
    is_multilingual,
    saved_languages,
)

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


def check_languages(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Check the languages of all lines for a tokenizer, before the first line is read.

    Raises:
        ValueError: see `choose_languages`; or lines have languages of their own, and the tokenizer is of one pair.
    """
    named = [side for side in SIDES if getattr(arguments, f"{side}_field") is not None]
    if not named:
        choose_languages(tokenizer, arguments.source_lang, arguments.target_lang, saved_languages(tokenizer))
        return
    if not is_multilingual(tokenizer):
        raise ValueError(f"the model is one of a single pair of languages: leave out --{named[0]}_field")
    for side in SIDES:
        code = getattr(arguments, side)
        if code is not None:
            try:
                check_language(tokenizer, code)
            except ValueError as error:
                raise ValueError(f"{side}: {error}") from None
        elif side not in named and saved_languages(tokenizer) is None:
            raise ValueError(f"the model is multilingual: give --{side} or --{side}_field too")


def rows_by_languages(
    arguments: argparse.Namespace,
    tokenizer: PreTrainedTokenizerBase,
    records: Sequence[Mapping[str, Any]],
    places: Sequence[str],
) -> dict[LanguagePair | None, list[int]]:
    """
    The rows of records that have the same languages; None is the pair of a tokenizer that knows but one.

    Args:
        places: of the records, for messages.

    Raises:
        ValueError: a record's language is none of the tokenizer's.
    """
    saved = saved_languages(tokenizer)

    def choose(source: str | None, target: str | None) -> LanguagePair | None:
        return choose_languages(tokenizer, source, target, saved)

    return group_rows(arguments, choose, records, places)


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
