"""The tables of docs/reliability.md."""

import pytest

from hf_capsule_mt.evidence import reliability_tables as tables

ENVIRONMENT = {
    "date": "2026-01-02",
    "machine": "x86_64",
    "instruction_set": "AVX2",
    "versions": {"python": "3.11.1", "hf_capsule_mt": "0.12.0", "torch": "2.9.0", "transformers": "5.17.0"},
}
FIGURES = {
    "kills": {
        "train": {"file_events": 24, "moments": 9, "requests": 0, "tried": 34, "failed": 1, "files_compared": 70},
        "publish": {"file_events": 6, "moments": 4, "requests": 8, "tried": 18, "failed": 0, "files_compared": 40},
    },
    "full disk": {"convert": {"limits": 4, "failed": 0}},
    "properties": {"recipes: a | b": {"tried": 1000, "refused": 7}},
    "numerics": {
        "squash, float32": {"cases": 20000, "failed": 0},
        "squash, float16": {"cases": 20000, "failed": 2},
    },
}
RECORD = {part: {"environment": ENVIRONMENT, "figures": figures} for part, figures in FIGURES.items()}


def test_kills_and_their_sum():
    assert tables.kills_table(RECORD["kills"]).splitlines()[2:] == [
        "| train | 24 | 9 | - | 70 | 1 |",
        "| publish | 6 | 4 | 8 | 40 | 0 |",
        "| together | 30 | 13 | 8 | | 1 |",
        "",
        "2026-01-02, x86_64 (AVX2), Python 3.11.1, hf_capsule_mt 0.12.0, torch 2.9.0, transformers 5.17.0.",
    ]


def test_each_part_has_its_own_conditions():
    later = {**RECORD["full disk"], "environment": {**ENVIRONMENT, "date": "2026-03-04"}}
    assert tables.full_disk_table(later).endswith(tables.conditions(later))
    assert "2026-03-04" in tables.full_disk_table(later)
    makers = {"kills": tables.kills_table, "properties": tables.properties_table, "numerics": tables.numerics_table}
    for part, make in makers.items():
        assert make(RECORD[part]).splitlines()[-1].startswith("2026-01-02, ")


def test_the_other_tables():
    assert tables.full_disk_table(RECORD["full disk"]).splitlines()[2] == "| convert | 4 | 0 |"
    assert tables.properties_table(RECORD["properties"]).splitlines()[2] == "| recipes: a \\| b | 1,000 | 7 |"
    lines = tables.numerics_table(RECORD["numerics"]).splitlines()
    assert lines[0] == "| function | float32 | float16 |"
    assert lines[2] == "| `squash` | 20,000 cases, 0 not finite | 20,000 cases, 2 not finite |"


@pytest.mark.parametrize("part", [None, {}], ids=["none", "empty"])
def test_what_was_not_run_is_said_to_be_so(part):
    makers = (tables.kills_table, tables.full_disk_table, tables.properties_table, tables.numerics_table)
    assert {make(part) for make in makers} == {"not run"}
