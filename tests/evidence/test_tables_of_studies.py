"""The table of a study on a page: drawn from its record, and a note where there is none."""

import json

import pytest

from hf_capsule_mt.evidence import documents, recorded, study_tables

COLUMNS = [
    "System",
    "Runs",
    "BLEU",
    "chrF",
    "TER",
    "Difference in BLEU",
    "95 % interval",
    "p (Holm)",
    "Parameters",
    "Operations/token, M",
]


@pytest.fixture
def record():
    means = {
        name: {"mean": mean, "sd": 0.25, "runs": 3, "by_seed": {str(seed): mean for seed in (1, 2, 3)}}
        for name, mean in (("none", 30), ("routed", 32.5))
    }
    found = {"difference": 2.5, "interval": [1.25, 3.75], "p": 0.004, "p_holm": 0.008, "method": "m"}
    run = {"parameters": 2_550_000, "steps": 9, "train_seconds": 60, "device": "cpu", "threads": 1}
    part = {
        "sentences": 1000,
        "scores": {score: means for score in ("bleu", "chrf", "ter")},
        "comparisons": {score: {"routed": found} for score in ("bleu", "chrf", "ter")},
    }
    return {
        "study": "mine",
        "title": "My systems",
        "date": "2026-01-02",
        "version": "0.7.0",
        "compare_with": "none",
        "score": "bleu",
        "seeds": [1, 2],
        "method": "paired by seed",
        "signatures": {"bleu": "tok:13a", "chrf": "nc:6", "ter": "case:lc"},
        "operations": {"sentences": 16, "length": 24},
        "systems": {
            "none": {"arguments": {}, "operations_per_token": 5e6, "runs": {"1": run, "2": run}},
            "routed": {"arguments": {}, "operations_per_token": 6e6, "runs": {"1": run, "2": run}},
        },
        "test_sets": {"test": part, "other": part},
    }


@pytest.fixture
def records(tmp_path, monkeypatch):
    """The folder of the records, an empty one."""
    (tmp_path / "studies").mkdir()
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    monkeypatch.setattr(recorded, "RECORDS", tmp_path)
    return tmp_path


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_a_page_has_a_table_for_each_test_set(record, records):
    (records / "studies" / "mine.json").write_text(json.dumps(record))
    tables = study_tables.study_tables(
        "such as `<!-- table: study NAME -->`\n<!-- table: study mine -->\nold\n<!-- end -->"
    )
    assert list(tables) == ["study mine"]
    text = tables["study mine"]
    lines = text.splitlines()
    assert cells(lines[0]) == COLUMNS
    assert cells(lines[3])[:3] == ["routed", "3", r"32.5 ± 0.2\*\*"]
    assert cells(lines[3])[5:] == ["+2.50", "+1.25 to +3.75", "0.008", "2,550,000", "6.00 (1.20x)"]
    assert text.count("| routed ") == 2
    for said in ("2026-01-02", "0.7.0", "Seeds: 1, 2.", "tok:13a", "`studies/mine.json`", "16 sentences of 24"):
        assert said in text.replace("\\", ""), said


def test_before_all_runs_are_in_it_has_no_stars(record, records):
    record["seeds"].append(3)
    (records / "studies" / "mine.json").write_text(json.dumps(record))
    text = study_tables.study_table("mine")
    assert text.startswith("Not all runs of this study are in")
    assert cells(text.splitlines()[5])[:3] == ["routed", "3", "32.5 ± 0.2"]


def test_without_a_record_the_page_says_so(records):
    assert study_tables.study_table("mine").startswith("Not run yet; `hf-capsule-mt study run mine`")


def test_a_file_that_is_no_record_is_named(records):
    (records / "studies" / "mine.json").write_text("{}")
    with pytest.raises(ValueError, match=r"studies/mine\.json is no record of a study"):
        study_tables.study_table("mine")


def test_details_and_figures_of_a_study(record, records, monkeypatch):
    bucket = {"low": 0, "high": 10, "sentences": 5, "bleu": 31.25, "ratio": 1.0, "by_seed": {"1": 31.25}}
    shares = {"under_translated_share": 0.05, "over_translated_share": 0.01, "cdr": 0.95}
    part = record["test_sets"]["test"]
    part |= {"length": {"none": [bucket]}, "adequacy": {"none": shares}}
    part["baselines"] = {"routed": {"none": {**part["comparisons"]["bleu"]["routed"], "seeds": 3}}}
    (records / "studies" / "mine.json").write_text(json.dumps(record))
    page = "<!-- table: details mine -->\n<!-- end -->"
    text = study_tables.study_tables(page)["details mine"]
    for said in (
        "Differences to routed",
        "31.2 (1.00)",
        "5.0 %",
        "](study_mine.svg)",
        "](study_mine_length_test.svg)",
    ):
        assert said in text
    # both test sets are the same here
    names = ["study_mine.svg", "study_mine_length_test.svg", "study_mine_length_other.svg"]
    monkeypatch.setattr(documents, "capsule_figures", dict)
    paths = [f"docs/{name}" for name in names]
    assert documents.draw_figures({"docs/page.md": page}, records, write=False) == paths
    assert documents.draw_figures({"docs/page.md": page}, records, write=True) == paths
    assert all((records / name).is_file() for name in names)
    assert documents.draw_figures({"docs/page.md": page}, records, write=False) == []


def test_details_without_a_record_are_empty(records):
    assert study_tables.details_table("mine") == ""
    assert study_tables.figures_of_studies("<!-- table: details mine -->") == {}
