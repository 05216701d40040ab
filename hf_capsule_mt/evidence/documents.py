"""Which documents have which tables, between which markers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..files import write_whole
from .agreement import disagreements
from .claims import claims_table
from .paper_tables import gains_table, systems_table
from .recorded import ROOT, load
from .reliability_tables import full_disk_table, kills_table, numerics_table, properties_table
from .speed_tables import (
    allocator_table,
    cold_start_table,
    comparison_table,
    gpu_table,
    large_memory_table,
    loader_table,
    operators_table,
    revisions_table,
    serving_table,
    speed_summary,
    speed_table,
)
from .study_tables import figures_of_studies, study_tables
from .systems import CTRANSLATE2, GPU, SERVING
from .translation_tables import (
    analysis_table,
    capsule_figures,
    capsule_links,
    capsule_parts_table,
    capsule_usage_table,
    contributions_table,
    linear_time_table,
    past_future_table,
    past_future_text_table,
)

Tables = dict[str, dict[str, str]]


def all_tables() -> Tables:
    """Every table in Markdown, by document and marker."""
    reliability = load("reliability.json") or {}
    made = {
        "README.md": {
            "gains": gains_table(),
            "speed_summary": speed_summary(
                load("speed/speed_base.json"),
                load("speed/memory_base.json"),
                load("speed/serving_base.json"),
                load(GPU),
            ),
        },
        "docs/systems.md": {"systems": systems_table()},
        "docs/results.md": {
            "claims": claims_table(),
            "capsules": capsule_links(),
            "contributions": contributions_table(),
        },
        "docs/speed.md": {
            "speed": speed_table(load("speed/speed_base.json"), load("speed/memory_base.json")),
            "gpu": gpu_table(load(GPU)),
            "allocator": allocator_table(load("speed/speed_base.json"), load("speed/speed_base_kept_pages.json")),
            "operators": operators_table(load("speed/speed_yardstick.json")),
            "revisions": revisions_table(load("speed/revisions_yardstick.json")),
            "loader": loader_table(load("speed/loader_multi30k.json")),
            "ctranslate2": comparison_table([load(f"speed/{name}.json") for name in CTRANSLATE2]),
            "serving": serving_table([load(f"speed/{name}.json") for name in SERVING]),
        },
        "docs/multilingual.md": {"nllb_memory": large_memory_table(load("speed/nllb_memory.json"))},
        "docs/serving.md": {"cold_start": cold_start_table(load("speed/cold_start.json"))},
        "docs/paper_index.md": {
            "linear_time": linear_time_table(),
            "capsule_usage": capsule_usage_table(),
            "capsule_parts": capsule_parts_table(),
        },
        "docs/analysis.md": {
            "analysis": analysis_table(),
            "past_future": past_future_table(),
            "past_future_text": past_future_text_table(),
        },
        "docs/reliability.md": {
            "kills": kills_table(reliability.get("kills")),
            "full_disk": full_disk_table(reliability.get("full disk")),
            "properties": properties_table(reliability.get("properties")),
            "numerics": numerics_table(reliability.get("numerics")),
        },
    }
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        found = study_tables(path.read_text(encoding="utf-8"))
        if found:
            made.setdefault(path.relative_to(ROOT).as_posix(), {}).update(found)
    return made


def fill(text: str, name: str, table: str) -> str:
    """
    The text with a table between the markers of its name.

    Raises:
        ValueError: there is not one such place.
    """
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    found = len(pattern.findall(text))
    if found != 1:
        raise ValueError(f"there must be exactly one table marked {name}, but there are {found}")
    return pattern.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def draw_figures(pages: Mapping[str, str], folder: Path, *, write: bool) -> list[str]:
    """
    Draw the figures of the documents.

    Args:
        pages: the documents by name.
        folder: gets them.
        write: draw all of them; otherwise only look which are missing.

    Returns:
        The files that are drawn, or missing.
    """
    from ..analysis.plots import save

    figures = capsule_figures()
    for text in pages.values():
        figures |= figures_of_studies(text)
    files = []
    for file, draw in figures.items():
        if write:
            save(draw(), folder / file)
        if write or not (folder / file).is_file():
            files.append(f"docs/{file}")
    return files


def update(root: Path = ROOT, *, write: bool) -> tuple[list[str], list[str]]:
    """
    Put the tables into the documents and draw their figures, or only look whether they are there.

    Returns:
        The documents that were not what the records give, and figures that are drawn, or missing; and numbers on which
        their tables, as the records give them, do not agree, see `agreement.disagreements`.

    Raises:
        ValueError: a document lacks a table's place.
        OSError: a document is not there, or cannot be written.
    """
    stale, pages = [], {}
    for document, tables in all_tables().items():
        before = text = (root / document).read_text(encoding="utf-8")
        for name, table in tables.items():
            try:
                text = fill(text, name, table)
            except ValueError as error:
                raise ValueError(f"{document}: {error}") from None
        if text != before:
            stale.append(document)
            if write:
                write_whole(root / document, text)
        pages[document] = text
    stale += draw_figures(pages, root / "docs", write=write)
    return stale, disagreements(pages)
