"""
Tables and figures of recorded studies. A document has them where it has the markers

    <!-- table: study NAME -->      scores and differences
    <!-- table: details NAME -->    what the study has asked for beside them, and the figures, drawn into docs/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..analysis.tables import Cell, Table
from ..studies.detail_tables import detail_tables
from ..studies.tables import FIGURE, check_record, overview_tables, study_figures
from .agreement import STUDY
from .differences import is_finished
from .recorded import load, shown_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DETAILS = "details "
UNFINISHED = (
    "Not all runs of this study are in: the next seed takes many differences back, and nothing is established yet. "
    "Of one seed, intervals are of these models alone."
)
_MARKER = re.compile(rf"^<!-- table: ((?:{STUDY}|{DETAILS})([\w-]+)) -->$", re.M)
WORDS = {FIGURE: "Differences with 95 % intervals", "length": "BLEU and length by source length", "curve": "Scores"}


def study_tables(text: str) -> dict[str, str]:
    """The tables that a document asks for, by marker; see `study_table` and `details_table`."""
    makers = {STUDY: study_table, DETAILS: details_table}
    return {marker: makers[marker.removesuffix(name)](name) for marker, name in _MARKER.findall(text)}


def study_table(name: str) -> str:
    """
    What a study has found, in Markdown; or how it is run, where there is no record of it yet.

    Raises:
        ValueError: the file is no record of a study.
    """
    path = f"studies/{name}.json"
    record = study_record(name)
    if record is None:
        return _not_recorded(name)
    tables = "\n".join(_shown(record, overview_tables(record)))
    note = "" if is_finished(record) else f"{UNFINISHED}\n\n"
    return f"{note}{tables}\nRecord: `{shown_path(path)}`."


def _not_recorded(name: str) -> str:
    return f"Not run yet; `hf-capsule-mt study run {name}` runs it, `hf-capsule-mt study table {name}` compares."


def details_table(name: str) -> str:
    """The tables of `detail_tables` and links to the figures of a study; nothing where there is no record of it."""
    record = study_record(name)
    if record is None:
        return ""
    parts = [*_shown(record, detail_tables(record))]
    parts += [
        f"![{WORDS[stem.partition('_')[0]]}: {record['title']}]({file})\n"
        for stem, file in figure_files(name, record).items()
    ]
    return "\n".join(parts)


def _shown(record: Mapping[str, Any], tables: Iterable[Table]) -> Iterator[str]:
    """In Markdown; without stars before all runs of the study are in."""
    for table in tables:
        if not is_finished(record):
            table = replace(table, rows=[[Cell(cell.text) for cell in row] for row in table.rows])
        yield table.to_markdown()


def study_record(name: str) -> dict[str, Any] | None:
    """
    The record of a study, or None.

    Raises:
        ValueError: the file is no record of a study.
    """
    path = f"studies/{name}.json"
    record: dict[str, Any] | None = load(path)
    if record is not None:
        check_record(record, path)
    return record


def figure_files(name: str, record: Mapping[str, Any]) -> dict[str, str]:
    """The files of a study's figures in the folder of the documents, by the names of the figures."""
    return {stem: f"study_{name}{'' if stem == FIGURE else f'_{stem}'}.svg" for stem in study_figures(record)}


def figures_of_studies(text: str) -> dict[str, Callable[[], Figure]]:
    """The figures that a document's tables link to, by file; drawing them needs matplotlib."""
    found: dict[str, Callable[[], Figure]] = {}
    for marker, name in _MARKER.findall(text):
        record = study_record(name) if marker.startswith(DETAILS) else None
        if record is not None:
            figures = study_figures(record)
            found |= {file: figures[stem] for stem, file in figure_files(name, record).items()}
    return found
