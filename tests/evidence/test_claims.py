"""What the records say of the papers' claims."""

import pytest

from hf_capsule_mt.evidence import claims


def study(p_holm, **systems):
    comparisons = {"GDR": {"difference": 0.75, "interval": [0.1, 1.4], "p_holm": p_holm}}
    scores = {name: {"mean": value, "runs": 3} for name, value in {"GDR": 31.0, **systems}.items()}
    return {"score": "bleu", "test_sets": {"test": {"comparisons": {"bleu": comparisons}, "scores": {"bleu": scores}}}}


@pytest.fixture
def records(monkeypatch):
    found = {}
    monkeypatch.setattr(claims, "load", found.get)
    return found


def row(start):
    return next(line for line in claims.claims_table().splitlines() if line.startswith(f"| {start}"))


def test_differences_say_whether_they_are_established(records):
    records["studies/grammar.json"] = study(0.04)
    records["studies/multi30k.json"] = study(0.06)
    assert row("Zheng et al.: GDR, +0.75").endswith(
        "| +0.75 [+0.10, +1.40] (embedded corpus, 2 layers, 3 seeds); "
        "+0.75 [+0.10, +1.40], not established (Multi30k, 2 layers, 3 seeds) |"
    )


def test_without_records_nothing_is_said(records):
    assert all(line.endswith("| not run yet |") for line in claims.claims_table().splitlines()[2:])


def test_capsules_are_compared_with_simple_aggregation(records):
    records["studies/multi30k.json"] = study(0.5, simple=20.0, CapsNMT=18.5, **{"CapsNMT calibrated": 22.25})
    assert "| printed -1.50, calibrated +2.25 (Multi30k, 2 layers, 3 seeds) |" in row("Wang et al.: CapsNMT above")
