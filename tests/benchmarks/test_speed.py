"""The benchmark of speed: turns, ratios, operations, and a record that can be continued."""

import json
import sys

import pytest

import speed
import timing
from hf_capsule_mt.models.capsule_kernels import is_plain
from registry import JOBS

GREEN = {"revision": "0123456789ab", "dirty": False, "passed": {"tests/test_x.py": 3}}


@pytest.fixture(scope="module")
def rows(setting):
    return speed.measure_group(["marian", "none", "em_routing"], setting, list(JOBS), 2)


def test_group_has_a_cell_for_every_system_and_job(rows):
    assert list(rows) == ["marian", "none", "em_routing"]
    for row in rows.values():
        assert row["parent"] == "marian" and row["parameters"] > 0
        for job, in_a_round in JOBS.items():
            cell = row[job]
            low, high = cell["time_ratio_quartiles"]
            assert 0 < low <= cell["time_ratio"] <= high
            assert cell["turns"] == 2 * in_a_round and cell["median_seconds"] > 0
            assert cell["time_over_operations"] == pytest.approx(cell["time_ratio"] / cell["operation_ratio"])


def test_operations_are_the_parents_where_nothing_is_added(rows):
    for job in JOBS:
        assert rows["marian"][job]["time_ratio"] == 1
        assert rows["em_routing"][job]["operation_ratio"] > 1.05
    ratio = {job: rows["none"][job]["operation_ratio"] for job in JOBS}
    # the normalisation of the loss is written differently
    assert ratio["training step"] == pytest.approx(1, rel=2e-3)
    assert ratio["greedy, 1 sentence"] == 1
    # beam search does not copy the keys of the source at every step
    assert 0.98 < ratio["beam 5, 16 sentences"] < 1


def test_operations_are_counted_with_the_plain_functions():
    seen = []
    speed.count_operations(lambda: seen.append(is_plain()))
    assert seen == [True] and not is_plain()


def test_operator_is_compared_with_its_plain_self(setting):
    cell = speed.measure_operator("guided_dynamic_routing", setting, 2)
    assert cell["shapes"][0] == (11, 6, 6, 32)
    assert cell["turns"] == 2 * speed.OPERATOR_TURNS and cell["operations"] > 0 and cell["time_ratio"] > 0


def test_turns_rotate():
    order = []
    runs = {name: {"job": lambda name=name: order.append(name)} for name in "abc"}
    times = speed.take_turns(runs, {"job": 2}, 2, "test")
    assert "".join(order) == "abcbcacababc"
    assert {name: len(taken) for name, taken in times["job"].items()} == {"a": 4, "b": 4, "c": 4}


def test_ratios_are_of_the_same_turn():
    found = timing.ratios([2.0, 6.0, 20.0], [1.0, 2.0, 4.0])
    assert found == {"time_ratio": 3.0, "time_ratio_quartiles": [2.5, 4.0], "turns": 3}


def test_groups_share_a_parent_and_have_a_size():
    names = ["marian", "none", "rnn_hybrid", "linear", "dynamic", "bart"]
    assert list(speed.groups(names, 2)) == [
        ["marian", "none", "linear"],
        ["marian", "dynamic"],
        ["rnn_simple", "rnn_hybrid"],
    ]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """speed.py at the tiny size with green tests; what it measures is listed instead of being measured twice."""
    measured = []

    def run(*arguments):
        measured.clear()
        options = ["--size", "tiny", "--rounds", "2", "--output", str(tmp_path / "speed.json"), *arguments]
        monkeypatch.setattr(sys, "argv", ["speed.py", *options])
        speed.main()
        return list(measured)

    def group(names, *_):
        measured.extend(names[1:])
        return {name: {"parent": names[0], "parameters": 1, **{job: cell() for job in JOBS}} for name in names}

    def cell():
        return {"time_ratio": 2.0, "operation_ratio": 1.0}

    monkeypatch.setattr(speed.verify, "verify", lambda files, gpu: GREEN)
    monkeypatch.setattr(speed, "measure_group", group)
    monkeypatch.setattr(speed, "measure_operator", lambda name, *_: measured.append(name) or {"time_ratio": 0.5})
    monkeypatch.setattr(speed.memory, "peak_bytes", lambda name, *_: {"rnn_simple": 10}.get(name, 15))
    return run


SOME = ("--systems", "none", "rnn_capsule", "--operators", "additive_scores")


def test_repeated_command_measures_what_is_missing(command, tmp_path, monkeypatch, capsys):
    assert command(*SOME) == ["none", "rnn_capsule", "additive_scores"]
    assert "| rnn_capsule | 2.00x (1.00x) | 2.00x (1.00x) | 2.00x (1.00x) | - |" in capsys.readouterr().out
    assert command(*SOME) == []
    assert command("--systems", "linear", "none", "--operators", "--memory") == ["linear"]
    record = json.loads((tmp_path / "speed.json").read_text())
    assert record["size"] == "tiny" and record["vocab_size"] == 500 and record["lengths"] == [6] * 16
    assert set(record["results"]) == {"marian", "none", "rnn_simple", "rnn_capsule", "linear"}
    assert set(record["operators"]) == {"additive_scores"}
    assert list(record["tests"].values()) == [GREEN]


def test_other_code_is_measured_again_and_keeps_the_rest(command, tmp_path, monkeypatch):
    command(*SOME)
    monkeypatch.setattr(speed.verify, "digest", lambda *_: "other")
    assert command("--systems", "none", "--operators") == ["none"]
    record = json.loads((tmp_path / "speed.json").read_text())
    assert record["results"]["none"]["training step"]["code"] == "other"
    assert record["results"]["rnn_capsule"]["training step"]["code"] != "other"
    assert len(record["tests"]) == 2
    assert command(*SOME) == ["rnn_capsule", "additive_scores"]
    assert list(json.loads((tmp_path / "speed.json").read_text())["tests"]) == ["other"]


def test_memory_is_a_ratio_to_the_parents(command, tmp_path):
    command("--systems", "rnn_capsule", "--operators", "--memory")
    results = json.loads((tmp_path / "speed.json").read_text())["results"]
    assert results["rnn_simple"]["memory"]["memory_ratio"] == 1
    assert results["rnn_capsule"]["memory"]["memory_ratio"] == 1.5


def test_other_conditions_are_refused(command, tmp_path):
    command(*SOME)
    before = (tmp_path / "speed.json").read_text()
    with pytest.raises(SystemExit, match=r"speed.json was measured with another tokens: choose another --output"):
        command("--tokens", "30", *SOME)
    assert (tmp_path / "speed.json").read_text() == before


def test_nothing_is_measured_when_tests_are_red(command, tmp_path, monkeypatch):
    def red(files, gpu):
        raise SystemExit("red tests")

    monkeypatch.setattr(speed.verify, "verify", red)
    monkeypatch.setattr(speed, "measure_group", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit, match="red tests"):
        command(*SOME)
    assert not (tmp_path / "speed.json").exists()


def test_a_kill_between_groups_loses_no_group(command, tmp_path, monkeypatch):
    group = speed.measure_group

    def killed(names, *rest):
        if "rnn_capsule" in names:
            raise KeyboardInterrupt
        return group(names, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(speed, "measure_group", killed)
        with pytest.raises(KeyboardInterrupt):
            command(*SOME)
    assert command(*SOME) == ["rnn_capsule", "additive_scores"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "1"], "--rounds must be at least 2, not 1"),
        (["--group", "0"], "--group must be at least 1, not 0"),
        (["--source", "no/such/file"], "there is no file no/such/file"),
    ],
)
def test_bad_options_are_named(options, message, capsys):
    with pytest.raises(SystemExit):
        speed.parse(options)
    assert message in capsys.readouterr().err


def test_settings_of_the_allocator_are_conditions(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    assert timing.environment()["MALLOC_MMAP_MAX_"] == "0"
    monkeypatch.delenv("MALLOC_MMAP_MAX_")
    assert not [name for name in timing.environment() if name.startswith("MALLOC_")]
