"""The tables of README: a row for every system of the papers, with what the studies have found."""

import pytest
from test_claims import study

from hf_capsule_mt.evidence import differences, paper_tables, translation_tables
from hf_capsule_mt.evidence.recorded import load


@pytest.fixture
def records(monkeypatch):
    found = {}
    monkeypatch.setattr(
        paper_tables, "load", lambda path: load(path) if path.startswith("speed/") else found.get(path)
    )
    monkeypatch.setattr(differences, "load", found.get)
    return found


def cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]


def row(name):
    return next(line for line in cells(paper_tables.systems_table()) if line[1] == name)


def with_runs(record):
    for name, part in record["systems"].items():
        run = {"parameters": 2_000_000 if name in ("none", "simple") else 3_000_000}
        part["runs"] = {"1": run, "2": run, "3": run}
    return {**record, "version": "0.9.0", "date": "2026-11-30"}


def test_without_records_rows_say_that_they_are_not_run(records):
    table = paper_tables.systems_table()
    assert table.count("| configuration |") == 2 and table.count("| system |") == 3
    assert row("EM routing")[2:6] == ["+1.50", "not run yet", "not run yet", "-"]
    # no study of three_am has it
    assert row("GDR + BOW")[2:6] == ["+1.42", "not run yet", "-", "-"]
    studies = ("deep", "multi30k", "guided_parts", "capsnmt_parts", "students", "three_am")
    assert f"Without a record yet: {', '.join(f'`{study}`' for study in studies)}." in table


def test_differences_sizes_and_times(records):
    found = {"em_routing": (0.8, 0.004), "GDR": (-0.25, 0.4)}
    means = {"none": 37.0, "em_routing": 37.8, "GDR": 36.75, "simple": 25.0, "CapsNMT": 26.0}
    record = study(means, found, {"simple": {"CapsNMT": (1.0, 0.03), "none": (12.0, 0.001)}})
    records["studies/multi30k.json"] = with_runs(record)
    assert row("EM routing")[3:6] == ["not run yet", r"+0.80\*\* [+0.30, +1.30]", "3.00M (1.50x)"]
    assert row("GDR")[3] == "-0.25 [-0.75, +0.25]"
    assert row("CapsNMT (+ separable scoring)")[2:5] == ["+4.4", r"+1.00\* [+0.50, +1.50]", "3.00M (1.50x)"]
    assert row("simple aggregation")[2:5] == ["21.3", "25.0 ± 0.2", "2.00M"]
    assert row("GDR + BCA")[3] == "not run yet"
    table = paper_tables.systems_table()
    assert "`multi30k`: version 0.9.0, 2026-11-30, seeds 1, 2, 3, 10 systems not run yet." in table
    assert row("Transformer")[4] == "37.0 ± 0.2"


def test_times_are_those_measured_beside_the_baseline(records, monkeypatch):
    job = {"time_ratio": 1.5, "operation_ratio": 1.25}
    jobs = ("training step", "greedy, 1 sentence", "beam 5, 16 sentences")
    half = {"milliseconds": 20.4, "ratio": 0.5}
    measured = {
        "speed/speed_yardstick.json": {
            "results": {"em_routing": dict.fromkeys(jobs, job), "rnn_capsule": {jobs[0]: job}}
        },
        "speed/latency_multi30k.json": {"results": {"1": {"CapsNMT": half}, "5": {"CapsNMT": half}}},
    }
    monkeypatch.setattr(paper_tables, "load", measured.get)
    assert row("EM routing")[-2:] == ["1.50x (1.25x)", "1.50x / 1.50x"]
    assert row("CapsNMT (+ separable scoring)")[-2:] == ["1.50x (1.25x)", "20 ms (0.50x) / 20 ms (0.50x)"]
    assert row("linear combination")[-2:] == row("hybrid")[-2:] == ["-", "-"]


def test_of_gains_there_are_those_that_were_found(records):
    means = {"none": 37.0, "em_routing": 37.8, "simple": 25.0, "CapsNMT": 26.0}
    record = study(means, {"em_routing": (0.8, 0.004)}, {"simple": {"CapsNMT": (1.0, 0.03), "none": (12.0, 0.001)}})
    records["studies/multi30k.json"] = with_runs(record)
    table = cells(paper_tables.gains_table())
    # neither rows nor columns of which nothing is known
    assert [line[0] for line in table] == [
        *("system", "---", "Transformer", "EM routing"),
        *("system", "---", "Transformer"),
        *("system", "---", "Transformer", "simple aggregation", "CapsNMT (+ separable scoring)"),
    ]
    assert table[0][:4] == ["system", "Dou et al., WMT14 En-De", "Multi30k", "parameters"]
    assert table[3][:4] == ["EM routing", "+1.50", r"+0.80\*\* [+0.30, +1.30]", "3.00M (1.50x)"]
    assert table[-1][:4] == ["CapsNMT (+ separable scoring)", "+4.4", r"+1.00\* [+0.50, +1.50]", "3.00M (1.50x)"]
    records["studies/deep.json"] = with_runs(study({"none": 38.0}, {}))
    table = cells(paper_tables.gains_table())
    assert table[0][:4] == ["system", "Dou et al., WMT14 En-De", "Multi30k, six layers", "Multi30k"]
    assert table[3][2] == "-"


def test_few_seeds_are_said(records):
    record = study({"none": 37.0, "em_routing": 37.8}, {"em_routing": (0.8, 0.004)})
    record["test_sets"]["test"]["comparisons"]["bleu"]["em_routing"]["seeds"] = 1
    records["studies/deep.json"] = with_runs(record)
    assert row("EM routing")[3] == r"+0.80\*\* [+0.30, +1.30] (1 seed)"
    assert "So far" not in paper_tables.systems_table()


def test_an_unfinished_study_has_no_stars(records):
    record = with_runs(study({"none": 37.0, "em_routing": 37.8}, {"em_routing": (0.8, 0.004)}))
    record["test_sets"]["test"]["comparisons"]["bleu"]["em_routing"]["seeds"] = 1
    for seed in ("2", "3"):
        del record["systems"]["em_routing"]["runs"][seed]
    records["studies/deep.json"] = record
    assert row("EM routing")[3] == "+0.80 [+0.30, +1.30] (1 seed so far)"
    assert row("Transformer")[3] == "37.0 ± 0.2 (3 seeds so far)"
    assert '"So far": not all runs are in' in paper_tables.systems_table()
    # the README has what is established, or not
    assert "so far" not in paper_tables.gains_table()


def test_every_studied_name_is_a_system_of_a_study(records):
    known = frozenset().union(*(paper_tables.systems_of(study) for study in paper_tables.MULTI30K.studies))
    for systems in (paper_tables.LAYER_SYSTEMS, paper_tables.GUIDED_SYSTEMS, paper_tables.GUIDED_RNMT):
        assert {system.studied for system in systems.values()} <= known
    assert {system.studied for system in paper_tables.RECURRENT_SYSTEMS.values()} <= known


def test_contributions_are_changes_of_the_loss(monkeypatch):
    whole = {"name": "em", "contributions": {"loss": 1.5, "without_encoder": 1.4996, "without_decoder": 2.25}}
    guided = {"name": "GDR", "contributions": {"loss": 1.75, "without_guided": 2.0}}
    plain = [{"name": "none", "contributions": {}}, {"name": "of an earlier version"}]
    found = {"deep/analysis.json": {"systems": [*plain, whole]}, "guided_parts/analysis.json": {"systems": [guided]}}
    found["multi30k/analysis.json"] = {"systems": plain}
    monkeypatch.setattr(translation_tables, "load", found.get)
    table = translation_tables.contributions_table()
    assert cells(table)[2:] == [
        ["Multi30k, 6 layers", "em", "1.500", "-0.000", "+0.750", "-"],
        ["Multi30k", "GDR", "1.750", "-", "-", "+0.250"],
    ]
    assert "deep/analysis.json" in table and "guided_parts/analysis.json" in table
    assert "multi30k/analysis.json" not in table
    monkeypatch.setattr(translation_tables, "load", {}.get)
    assert translation_tables.contributions_table() == "not run"
