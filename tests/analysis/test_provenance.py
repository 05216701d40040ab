"""Where a checkpoint comes from."""

import json

import pytest

from hf_capsule_mt.analysis.provenance import provenance

WEIGHTS = "sha256:0123456789abcdef0123"


def test_what_a_run_has_recorded(tmp_path):
    versions = {"python": "3.11", "hf_capsule_mt": "0.8.0", "torch": "2.13", "transformers": "5.23"}
    results = {
        "seed": 3,
        "steps": 1200,
        "date": "2026-11-22T20:00:00+00:00",
        "recipe": "grammar",
        "versions": versions,
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = provenance(str(tmp_path), WEIGHTS)
    assert found == {
        "checkpoint": tmp_path.name,
        "weights": "0123456789ab",
        "revision": None,
        "record": True,
        **results,
        "versions": {name: versions[name] for name in ("hf_capsule_mt", "torch", "transformers")},
    }


def test_older_records_and_none(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"seed": 3}))
    found = provenance(str(tmp_path), WEIGHTS)
    assert (found["seed"], found["steps"], found["date"], found["versions"]["torch"]) == (3, None, None, None)
    other = provenance("someone/model", WEIGHTS, "c0ffee")
    assert other == {"checkpoint": "someone/model", "weights": "0123456789ab", "revision": "c0ffee", "record": False}


def test_what_is_no_record(tmp_path):
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(ValueError, match=r"results\.json is no record of a run"):
        provenance(str(tmp_path), WEIGHTS)
