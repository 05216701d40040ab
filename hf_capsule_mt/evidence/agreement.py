"""One number, one value: every score that the tables of the documents show, and where two pages differ on one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# tables of other corpora and settings than Multi30k's, by marker; each study is one of its own
SETTINGS = {"past_future": "past and future", "capsule_parts": "study grammar_recurrent"}
MULTI30K = "Multi30k"
STUDY = "study "
_BLOCK = re.compile(r"<!-- table: (.+?) -->\n(.*?)<!-- end -->", re.S)
_COLUMN = re.compile(
    r"(?:(?P<score>BLEU|chrF|TER)(?:, |$))?(?P<test_set>val|test\w*)?(?: (?P<decoding>greedy|beam \d+))?"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?![\d,]*[MGx%])")


class Score(NamedTuple):
    """What a reader takes a number for: the same on two pages has to be the same number."""

    setting: str
    system: str
    test_set: str
    score: str
    decoding: str


class Shown(NamedTuple):
    """A number as a page shows it, and its digits behind the point."""

    page: str
    value: float
    digits: int


def shown_scores(page: str, text: str) -> Iterator[tuple[Score, Shown]]:
    """
    Every score in the tables of a document.

    Args:
        page: the document's name.
        text: in Markdown, with the markers of its tables.
    """
    for marker, block in _BLOCK.findall(text):
        setting = marker if marker.startswith(STUDY) else SETTINGS.get(marker, MULTI30K)
        for number, table in enumerate(re.findall(r"(?:^\|.*\n)+", block, re.M)):
            # the tables of a study are of one test set each
            where = f"table {number + 1}" if setting.startswith(STUDY) else "test"
            yield from _of_table(page, setting, where, table)


def _of_table(page: str, setting: str, where: str, table: str) -> Iterator[tuple[Score, Shown]]:
    header, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines())
    named = next((index for index, cell in enumerate(header) if cell.lower() == "system"), 0)
    for index, cell in enumerate(header):
        column = _COLUMN.fullmatch(cell)
        if column and cell:
            for row in rows:
                if _NUMBER.match(row[index]):
                    score = column["score"] or "BLEU"
                    test_set = column["test_set"] or where
                    key = Score(setting, row[named], test_set, score, column["decoding"] or "")
                    yield key, _shown(page, row[index])


def _shown(page: str, text: str) -> Shown:
    number = re.split(r"[^-.\d]", text)[0]
    return Shown(page, float(number), len(number.partition(".")[2]))


def disagreements(pages: Mapping[str, str]) -> list[str]:
    """
    What two tables give different values for, a line for each.

    Args:
        pages: documents by name.
    """
    first: dict[Score, Shown] = {}
    lines = []
    for page, text in pages.items():
        for key, shown in shown_scores(page, text):
            known = first.setdefault(key, shown)
            digits = min(known.digits, shown.digits)
            # of two that were rounded from one, the finer may be half a unit of the coarser away
            if abs(known.value - shown.value) > (0.5 * 10**-digits + 1e-9 if known.digits != shown.digits else 1e-9):
                lines.append(
                    f"{' '.join(filter(None, key))}: {known.value} in {known.page}, {shown.value} in {shown.page}"
                )
    return lines
