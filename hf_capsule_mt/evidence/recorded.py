"""The records, JSON files under `records/`, which are in a checkout but not in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import read_json

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).parent / "records"


def load(name: str) -> Any:
    """A record by its path in `records/`, or None if there is none yet."""
    path = RECORDS / name
    return read_json(path) if path.exists() else None


def shown_path(name: str) -> str:
    """What documents call a record: its path in the repository."""
    return (RECORDS / name).relative_to(ROOT).as_posix()
