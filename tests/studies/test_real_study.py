"""A study of real runs: what the stand-ins of the other tests stand for."""

import json
import signal
import subprocess
import sys
import time

import pytest

from hf_capsule_mt.studies.command import main
from hf_capsule_mt.training.averaging import checkpoints_by_step


def test_teacher_and_student_are_trained_and_compared(write_study, tmp_path, capsys):
    path = write_study(seeds=[3], systems={"plain": {}, "linear": {"aggregation": "linear", "teacher": "plain"}})
    assert main(["run", str(path), "--jobs", "2", "--threads", "1"]) == 0
    for system in ("plain", "linear"):
        folder = tmp_path / "runs" / system / "seed-3"
        results = json.loads((folder / "results.json").read_text())
        assert results["seed"] == 3 and results["threads"] == 1 and results["steps"] == 6
        assert results["arguments"].get("aggregation", "none") in (system, "none")
    corpus = tmp_path / "runs" / "plain" / "seed-3" / "distilled" / "train"
    # of the student, the last of the loop
    assert results["arguments"]["train_file"] == str(corpus)
    assert json.loads(corpus.with_suffix(".json").read_text())["sentences"] == 151
    assert main(["table", str(path), "--draws", "100"]) == 0
    record = json.loads((tmp_path / "runs" / "table" / "record.json").read_text())
    assert record["test_sets"]["test"]["sentences"] == 17
    assert record["systems"]["linear"]["arguments"]["teacher"] == "plain"


@pytest.mark.slow
def test_interrupted_runs_go_on_from_their_checkpoints(write_study, tmp_path):
    arguments = {"max_steps": 400, "save_steps": 5, "save_total_limit": 3}
    path = write_study(test_sets={"test": None, "other": "other"}, arguments=arguments)
    command = [sys.executable, "-m", "hf_capsule_mt", "study", "run", str(path)]
    process = subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.PIPE, text=True)
    folders = [tmp_path / "runs" / system / "seed-1" for system in ("plain", "linear")]
    while not all(folder.exists() and checkpoints_by_step(folder) for folder in folders):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate()[1] and process.returncode == 130
    assert not any((folder / "results.json").exists() for folder in folders)
    assert subprocess.run([*command, "--jobs", "2"]).returncode == 0
    runs = json.loads((tmp_path / "runs" / "runs.json").read_text())
    assert [run["state"] for run in runs] == ["finished"] * 4
    for folder in folders:
        assert folder.with_name("seed-1.log").read_text().count("400 updates of about") == 2
        assert json.loads((folder / "results.json").read_text())["steps"] == 400
        assert len((folder / "translations" / "study.other.de").read_text().splitlines()) == 7
    assert main(["table", str(path), "--draws", "100"]) == 0
    record = json.loads((tmp_path / "runs" / "table" / "record.json").read_text())
    assert [record["test_sets"][name]["sentences"] for name in ("test", "other")] == [17, 7]
