"""Tables of recorded studies: a document has one where it has the marker `<!-- table: study NAME -->`."""

from __future__ import annotations

import re

from ..studies.tables import check_record, overview_tables
from .agreement import STUDY
from .recorded import load, shown_path

_MARKER = re.compile(rf"^<!-- table: ({STUDY}([\w-]+)) -->$", re.M)


def study_tables(text: str) -> dict[str, str]:
    """The tables that a document asks for, by marker; see `study_table`."""
    return {marker: study_table(name) for marker, name in _MARKER.findall(text)}


def study_table(name: str) -> str:
    """
    What a study has found, in Markdown; or how it is run and recorded, where there is no record of it yet.

    Raises:
        ValueError: the file is no record of a study.
    """
    path = f"studies/{name}.json"
    record = load(path)
    if record is None:
        return (
            f"Not recorded yet: `hf-capsule-mt study run {name}`, then `hf-capsule-mt study table {name}`, whose "
            f"`record.json` becomes `{shown_path(path)}`."
        )
    check_record(record, path)
    tables = "\n".join(table.to_markdown() for table in overview_tables(record))
    return f"{tables}\nRecord: `{shown_path(path)}`."
