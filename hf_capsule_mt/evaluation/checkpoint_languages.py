"""Languages of the lines that are read, for the tokenizer of a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..models.tokenizer_languages import (
    LanguagePair,
    check_language,
    choose_languages,
    is_multilingual,
    saved_languages,
)
from .line_languages import SIDES, group_rows, refuse_language_fields


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
        refuse_language_fields(arguments)
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
