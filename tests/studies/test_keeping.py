"""Kept runs: what is left of finished ones is enough to go on and to make the table."""

import json
import shutil

from test_study_tables import finished, record_of  # noqa: F401 (a fixture)

from hf_capsule_mt.studies.command import main


def test_table_of_kept_runs_alone_is_that_of_the_runs(finished, stand_in, tmp_path, capsys):  # noqa: F811
    study, kept = str(finished(missing=[("same", 3)])), tmp_path / "kept"
    assert main(["table", study, "--draws", "200"]) == 0
    expected = record_of(tmp_path)
    (tmp_path / "runs" / "plain" / "seed-1" / "model.safetensors").write_bytes(b"weights")
    assert main(["run", study, "--keep", str(kept)]) == 0
    run = kept / "plain" / "seed-1"
    assert {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()} == {
        "config.json",
        "results.json",
        "translations/test.greedy.de",
    }
    # also the run that was left
    assert (kept / "same" / "seed-3" / "results.json").is_file()
    shutil.rmtree(kept / "same" / "seed-3")
    shutil.rmtree(tmp_path / "runs")
    assert main(["table", study, "--draws", "200", "--keep", str(kept)]) == 0
    assert record_of(tmp_path) == expected


def test_kept_runs_are_passed_over(write_study, stand_in, tmp_path, capsys):
    study, kept = str(write_study()), tmp_path / "kept"
    assert main(["run", study, "--jobs", "1", "--keep", str(kept)]) == 0
    began = (stand_in / "order").read_text()
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(kept / "linear" / "seed-2")
    assert main(["run", study, "--jobs", "1", "--keep", str(kept)]) == 0
    assert [line.split()[0] for line in (stand_in / "order").read_text().removeprefix(began).splitlines()] == [
        "linear-2"
    ]
    assert "1 of 4 runs to do" in capsys.readouterr().err


def test_kept_runs_of_another_system_are_refused(write_study, stand_in, tmp_path, capsys):
    kept = tmp_path / "kept"
    assert main(["run", str(write_study()), "--keep", str(kept)]) == 0
    shutil.rmtree(tmp_path / "runs")
    changed = {"plain": {"max_steps": 7}, "linear": {"aggregation": "linear"}}
    assert main(["run", str(write_study(systems=changed)), "--keep", str(kept)]) == 2
    assert f"is not the study that {kept} was begun with: system plain: max_steps 7 (was 6)" in capsys.readouterr().err


def test_runs_of_another_study_are_taken_from_there(write_study, stand_in, tmp_path, capsys):
    other = tmp_path / "other"
    systems = {"first": {}, "second": {"aggregation": "dynamic"}, "third": {"aggregation": "linear", "max_steps": 7}}
    begun = write_study(systems=systems, seeds=[1], compare_with="first", output=str(other))
    assert main(["run", str(begun), "--jobs", "1"]) == 0
    (other / "first" / "seed-1" / "model.safetensors").write_bytes(b"weights")
    (other / "first" / "seed-1" / "checkpoint-3").mkdir()
    (other / "first" / "seed-1" / "checkpoint-3" / "trainer_state.json").touch()
    began = (stand_in / "order").read_text()
    study = str(write_study())
    assert main(["run", study, "--jobs", "1", "--reuse", str(other)]) == 0
    ran = [line.split()[0] for line in (stand_in / "order").read_text().removeprefix(began).splitlines()]
    # plain is what is called first there; linear differs in its steps
    assert ran == ["linear-1", "plain-2", "linear-2"]
    taken = tmp_path / "runs" / "plain" / "seed-1"
    assert (taken / "model.safetensors").read_bytes() == b"weights" and (taken / "results.json").is_file()
    assert not (taken / "checkpoint-3").exists()
    assert main(["run", study, "--reuse", str(tmp_path)]) == 2
    assert f"--reuse {tmp_path}: no study has its runs there" in capsys.readouterr().err


def test_a_run_without_weights_is_not_taken_to_teach_or_to_translate(write_study, stand_in, tmp_path, corpus):
    other = tmp_path / "other"
    assert main(["run", str(write_study(systems={"plain": {}}, seeds=[1], output=str(other)))]) == 0
    began = (stand_in / "order").read_text()
    systems = {"plain": {}, "student": {"aggregation": "linear", "teacher": "plain"}}
    arguments = ["run", str(write_study(systems=systems, seeds=[1])), "--jobs", "1", "--reuse", str(other)]
    assert main(arguments) == 0
    ran = [line.split()[0] for line in (stand_in / "order").read_text().removeprefix(began).splitlines()]
    assert ran == ["plain-1", "teach-plain-1", "student-1"]
    # with weights, or when its students are finished, it is
    (other / "plain" / "seed-1" / "model.safetensors").write_bytes(b"weights")
    shutil.rmtree(tmp_path / "runs")
    began = (stand_in / "order").read_text()
    assert main(arguments) == 0
    ran = [line.split()[0] for line in (stand_in / "order").read_text().removeprefix(began).splitlines()]
    assert ran == ["teach-plain-1", "student-1"]
    (other / "plain" / "seed-1" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "runs" / "plain")
    began = (stand_in / "order").read_text()
    assert main(arguments) == 0
    assert (stand_in / "order").read_text() == began
    assert not (tmp_path / "runs" / "plain" / "seed-1" / "model.safetensors").exists()


def test_kept_results_name_no_path_of_the_machine(finished, tmp_path):  # noqa: F811
    study, kept = str(finished()), tmp_path / "kept"
    path = tmp_path / "runs" / "plain" / "seed-1" / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"output_dir": "/home/somebody/runs"}))
    assert main(["run", study, "--keep", str(kept)]) == 0
    assert "/home/somebody" not in (kept / "plain" / "seed-1" / "results.json").read_text()
