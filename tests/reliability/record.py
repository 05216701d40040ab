"""The record of the thorough run: every test that counts something adds its figures; docs/reliability.md shows them.

    RELIABILITY_RECORD=hf_capsule_mt/evidence/records/reliability.json python -m pytest -m slow tests/reliability

Without the variable nothing is recorded. A part that is run again replaces its own figures only. A part never has
figures of two versions or machines.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from hf_capsule_mt.files import write_whole
from hf_capsule_mt.training.report import versions

VARIABLE = "RELIABILITY_RECORD"


def environment() -> dict[str, Any]:
    """When and where."""
    return {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "versions": versions(),
    }


def note(part: str, name: str, figures: dict[str, Any]) -> None:
    """
    Put the figures of a finished test into the record, if one is asked for.

    Args:
        part: "kills", "full disk", "properties" or "numerics".
        name: what was tried.
    """
    if not os.environ.get(VARIABLE):
        return
    path = Path(os.environ[VARIABLE]).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    # several processes of a test run may add to it
    with FileLock(Path(tempfile.gettempdir()) / "reliability_record.lock"):
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = environment()
        earlier = record.get(part, {"environment": {}})
        same = earlier["environment"] | {"date": found["date"]} == found
        record[part] = {"environment": found, "figures": {**(earlier["figures"] if same else {}), name: figures}}
        write_whole(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
