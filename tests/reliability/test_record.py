"""What the thorough run writes down."""

import json

import pytest

import record as module
from record import VARIABLE, note


@pytest.fixture
def conditions(monkeypatch, tmp_path):
    """A record, and when and where it is written, which a test may change."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "records/reliability.json"))
    found = {"date": "2026-01-02", "machine": "x86_64", "instruction_set": "AVX2", "versions": {"torch": "2.9.0"}}
    monkeypatch.setattr(module, "environment", lambda: dict(found))
    return found


def written(tmp_path):
    return json.loads((tmp_path / "records/reliability.json").read_text())


def test_figures_of_a_part_come_together(conditions, tmp_path):
    note("numerics", "squash", {"failed": 2})
    conditions["date"] = "2026-01-03"
    note("numerics", "em_routing", {"failed": 0})
    note("numerics", "squash", {"failed": 1})
    assert written(tmp_path) == {
        "numerics": {"environment": conditions, "figures": {"squash": {"failed": 1}, "em_routing": {"failed": 0}}}
    }


@pytest.mark.parametrize("changed", [{"versions": {"torch": "2.10.0"}}, {"instruction_set": "AVX512"}])
def test_figures_of_other_conditions_leave_their_part_alone(conditions, changed, tmp_path):
    before = dict(conditions)
    for part in ("kills", "numerics"):
        note(part, "first", {"failed": 2})
    conditions.update(changed)
    note("numerics", "second", {"failed": 0})
    assert written(tmp_path) == {
        "kills": {"environment": before, "figures": {"first": {"failed": 2}}},
        "numerics": {"environment": conditions, "figures": {"second": {"failed": 0}}},
    }


def test_nothing_is_written_unasked(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    note("numerics", "squash", {"failed": 0})
    assert not list(tmp_path.iterdir())
