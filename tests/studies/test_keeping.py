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


def test_kept_results_name_no_path_of_the_machine(finished, tmp_path):  # noqa: F811
    study, kept = str(finished()), tmp_path / "kept"
    path = tmp_path / "runs" / "plain" / "seed-1" / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"output_dir": "/home/somebody/runs"}))
    assert main(["run", study, "--keep", str(kept)]) == 0
    assert "/home/somebody" not in (kept / "plain" / "seed-1" / "results.json").read_text()
