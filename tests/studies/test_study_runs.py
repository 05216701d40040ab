"""Studies as they run: order, resumption, failures, changes, and how they share a machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hf_capsule_mt.studies.runner as runner
from hf_capsule_mt.files import only_writer
from hf_capsule_mt.studies.command import main
from hf_capsule_mt.studies.study_file import PACKAGED, read_study, resolve_arguments
from pages import Page


def order(folder: Path) -> list[str]:
    path = folder / "order"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def states(tmp_path: Path) -> dict[str, str]:
    runs = json.loads((tmp_path / "runs" / "runs.json").read_text())
    return {f"{run['system']}-{run['seed']}": run["state"] for run in runs}


def test_example_of_the_documentation_is_a_study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(Page("docs/studies.md").files["study.yaml"], encoding="utf-8")
    study = read_study(path)
    resolved = resolve_arguments(study)
    assert study.teachers == {"student": "em_routing"} and resolved["student"]["teacher"] == "em_routing"
    # all are on one corpus, so that their scores can be compared
    assert {arguments["test_file"] for arguments in resolved.values()} == {"multi30k/test2016"}


def test_first_seed_of_all_systems_first_and_finished_runs_are_passed_over(write_study, stand_in, tmp_path, capsys):
    study = str(write_study())
    assert main(["run", study, "--jobs", "1", "--threads", "3"]) == 0
    assert order(stand_in) == ["plain-1", "linear-1", "plain-2", "linear-2"]
    assert (stand_in / "order").read_text().splitlines()[0].split()[1] == "3"
    assert set(states(tmp_path).values()) == {"finished"}
    error = capsys.readouterr().err
    assert "[4/4] linear, seed 2: finished 12.5" in error and "about" in error
    (tmp_path / "runs" / "linear" / "seed-1" / "results.json").unlink()
    assert main(["run", study]) == 0
    assert order(stand_in)[4:] == ["linear-1"]


def test_some_seeds_alone(write_study, stand_in, tmp_path):
    study = str(write_study())
    assert main(["run", study, "--seeds", "2", "--jobs", "1"]) == 0
    assert order(stand_in) == ["plain-2", "linear-2"]
    # all of them are the study's
    assert json.loads((tmp_path / "runs" / "study.json").read_text())["seeds"] == [1, 2]
    assert main(["run", study, "--jobs", "1"]) == 0
    assert order(stand_in)[2:] == ["plain-1", "linear-1"]


@pytest.mark.parametrize(
    ("seeds", "words"), [(["1", "3", "4"], "study.yaml has no seed 3, 4, but 1, 2"), (["1", "1"], "given twice")]
)
def test_seeds_that_the_study_does_not_have(write_study, stand_in, tmp_path, capsys, seeds, words):
    assert main(["run", str(write_study()), "--seeds", *seeds]) == 2
    assert words in capsys.readouterr().err and not order(stand_in) and not (tmp_path / "runs").exists()


def test_runs_start_from_those_of_their_own_seed(write_study, stand_in, tmp_path):
    systems = {"plain": {}, "linear": {"model_name_or_path": "runs/first/seed-{seed}"}}
    study = read_study(write_study(systems=systems))
    runs = {(run.system, run.seed): run.commands[0] for run in runner.plan(study, {}, resolve_arguments(study))}
    for seed in (1, 2):
        assert f"--model_name_or_path=runs/first/seed-{seed}" in runs["linear", seed]
        assert not any("seed-{seed}" in word for word in runs["plain", seed])


def test_several_runs_at_a_time(write_study, stand_in):
    # each waits for another one
    (stand_in / "meet").touch()
    assert main(["run", str(write_study(seeds=[1])), "--jobs", "2"]) == 0
    assert sorted(order(stand_in)) == ["linear-1", "plain-1"]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the scheduler does not group sessions here")
def test_runs_are_as_nice_as_the_study(monkeypatch):
    monkeypatch.setattr(os, "getpriority", lambda which, who: 7)
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        runner.keep_niceness(process.pid)
        assert Path(f"/proc/{process.pid}/autogroup").read_text().split()[-1] == "7"
    finally:
        process.communicate(b"\n")


def test_gpus_are_used_in_turn(write_study, stand_in, monkeypatch):
    monkeypatch.setattr(runner, "available_devices", lambda: ("4", "7"))
    (stand_in / "hold").touch()
    waiter = threading.Thread(target=lambda: wait_for(lambda: len(order(stand_in)) == 4, (stand_in / "hold").unlink))
    waiter.start()
    assert main(["run", str(write_study()), "--jobs_per_device", "2"]) == 0
    waiter.join()
    lines = (stand_in / "order").read_text().splitlines()
    assert sorted(line.split()[2] for line in lines) == ["4", "4", "7", "7"]


def wait_for(condition, then) -> None:
    for _ in range(6000):
        if condition():
            break
        time.sleep(0.01)
    then()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_study_ends_its_runs_and_goes_on(write_study, stand_in, tmp_path, capsys, number):
    (stand_in / "hold").touch()
    study = str(write_study())
    kept = [tmp_path / "runs" / system / "seed-1" / "steps" for system in ("plain", "linear")]
    before = signal.getsignal(number)

    def held() -> bool:
        return all(path.exists() and len(path.read_text()) == 3 for path in kept)

    stopper = threading.Thread(target=wait_for, args=(held, lambda: os.kill(os.getpid(), number)))
    stopper.start()
    assert main(["run", study, "--jobs", "2"]) == 130
    stopper.join()
    assert "interrupted; nothing that is finished is lost" in capsys.readouterr().err
    assert signal.getsignal(number) == before
    expected = {"plain-1": "interrupted", "linear-1": "interrupted", "plain-2": "waiting", "linear-2": "waiting"}
    assert states(tmp_path) == expected
    (stand_in / "hold").unlink()
    assert main(["run", study, "--jobs", "2"]) == 0
    assert set(states(tmp_path).values()) == {"finished"}
    log = (tmp_path / "runs" / "plain" / "seed-1.log").read_text()
    assert log == "from step 0\nfrom step 3\n"


def test_failing_system_is_recorded_with_its_log_and_others_go_on(write_study, stand_in, tmp_path, capsys):
    (stand_in / "fail-linear").touch()
    study = str(write_study())
    assert main(["run", study, "--jobs", "2"]) == 1
    assert states(tmp_path) == {
        "plain-1": "finished",
        "linear-1": "failed",
        "plain-2": "finished",
        "linear-2": "failed",
    }
    log = tmp_path / "runs" / "linear" / "seed-1.log"
    assert "weights are not finite" in log.read_text()
    error = capsys.readouterr().err
    assert f"linear, seed 1: failed (status 1); see {log}" in error
    assert "linear, seed 1; linear, seed 2 ended with: the weights are not finite\n" in error
    (stand_in / "fail-linear").unlink()
    assert main(["run", study]) == 0
    assert order(stand_in).count("linear-1") == 2 and order(stand_in).count("plain-1") == 1


def test_changed_study_is_refused_and_says_what_differs(write_study, stand_in, tmp_path, capsys):
    assert main(["run", str(write_study())]) == 0
    before = len(order(stand_in))
    systems = {"plain": {"dropout": 0.3}, "linear": {"aggregation": "linear"}}
    assert main(["run", str(write_study(systems=systems))]) == 2
    error = capsys.readouterr().err
    assert "system plain: dropout 0.3 (was the default)" in error and "--output" in error
    # a change of the recipe is one, too
    path = write_study()
    recipe = json.loads((tmp_path / "tiny.yaml").read_text())
    (tmp_path / "tiny.yaml").write_text(json.dumps({**recipe, "max_steps": 9}))
    assert main(["run", str(path)]) == 2
    assert "max_steps 9 (was 6)" in capsys.readouterr().err
    assert len(order(stand_in)) == before


def test_systems_and_seeds_are_added(write_study, stand_in):
    assert main(["run", str(write_study(seeds=[1])), "--jobs", "1"]) == 0
    systems = {"plain": {}, "linear": {"aggregation": "linear"}, "EM": {"aggregation": "em_routing"}}
    assert main(["run", str(write_study(seeds=[1, 5], systems=systems)), "--jobs", "1"]) == 0
    assert order(stand_in) == ["plain-1", "linear-1", "EM-1", "plain-5", "linear-5", "EM-5"]


def test_one_process_at_a_time(write_study, stand_in, tmp_path, capsys):
    with only_writer(tmp_path / "runs"):
        assert main(["run", str(write_study())]) == 2
    assert "is being written by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"compare_with": "other"}, "compare_with: there is no system 'other'", id="compared"),
        pytest.param({"compare_with": None}, "missing key compare_with", id="missing"),
        pytest.param({"system": {}}, "unknown key 'system'", id="unknown key"),
        pytest.param({"seeds": [1, 1]}, "seeds: a number is given twice", id="seeds twice"),
        pytest.param({"seeds": 3}, "seeds must be a list", id="seeds"),
        pytest.param({"score": "comet"}, "score must be one of bleu, chrf, ter", id="score"),
        pytest.param(
            {"systems": {"plain": {"droput": 1}}}, "systems: plain: unknown argument --droput", id="argument"
        ),
        pytest.param({"systems": {"plain": {"seed": 3}}}, "systems: plain: seed is set by the study", id="reserved"),
        pytest.param({"systems": {"plain": "no/recipe"}}, "systems: plain: no recipe no/recipe", id="recipe"),
        pytest.param({"systems": {"../x": {}}}, "'../x' cannot be a name", id="name"),
        pytest.param({"systems": {"plain": {}, "Plain": {}}}, "two names are the same", id="same folder"),
        pytest.param({"test_sets": {"more": "more"}}, "test_sets: more: there is no file", id="test set"),
    ],
)
def test_mistakes_are_one_line_before_any_work(write_study, stand_in, tmp_path, capsys, values, message):
    path = write_study(**values)
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and "study.yaml" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists() and not order(stand_in)


def test_study_that_is_not_there_and_numbers_that_make_no_sense(write_study, capsys):
    assert main(["run", "nothing"]) == 2
    assert "there is no study nothing" in capsys.readouterr().err
    assert main(["run", str(write_study()), "--jobs", "0"]) == 2
    assert "--jobs must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(path.stem for path in PACKAGED.glob("*.yaml")))
def test_studies_of_the_package_are_valid(name, monkeypatch, tmp_path):
    from hf_capsule_mt.studies.study_file import find_study, read_study, resolve_arguments

    study = read_study(find_study(name), tmp_path)
    resolved = resolve_arguments(study)
    assert study.seeds == [1, 2, 3] and len({json.dumps(values) for values in resolved.values()}) == len(resolved)
    assert resolved[study.compare_with].get("aggregation", "none") == "none"


def test_estimate_of_the_remaining_time():
    def run(system, seed, state, seconds):
        return runner.Run(system, seed, Path(f"seed-{seed}"), [], [], state=state, seconds=seconds)

    waiting = run("a", 2, runner.WAITING, 0)
    assert runner.remaining_seconds([waiting], 1) is None
    runs = [run("a", 1, runner.FINISHED, 100), run("b", 1, runner.FINISHED, 300), run("b", 2, runner.RUNNING, 100)]
    # 200 s of b and 100 of a, by two
    assert runner.remaining_seconds([*runs, waiting], 2) == 200
    assert runner.remaining_seconds([*runs, waiting], 1) == 300
    assert [runner.duration(seconds) for seconds in (8, 200, 7500)] == ["8 s", "3 min", "2 h 5 min"]
