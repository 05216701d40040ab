"""Students: systems of a study that are trained on what another one has translated, seed by seed."""

import json
import shutil

import pytest
from test_study_runs import order, states

import hf_capsule_mt.studies.cluster as cluster
import hf_capsule_mt.studies.runner as runner
from hf_capsule_mt.studies.command import main
from hf_capsule_mt.studies.study_file import read_study, resolve_arguments

SYSTEMS = {"plain": {}, "student": {"aggregation": "linear", "teacher": "plain"}}


@pytest.fixture
def taught(write_study):
    """Writes the study of a teacher and its student."""
    return lambda **values: str(write_study(**{"systems": SYSTEMS, **values}))


def test_teacher_translates_before_its_students_start(taught, stand_in, tmp_path):
    several = {**SYSTEMS, "other": {"aggregation": "dynamic", "teacher": "plain"}}
    assert main(["run", taught(systems=several, seeds=[1]), "--jobs", "3"]) == 0
    began = order(stand_in)
    assert began[:2] == ["plain-1", "teach-plain-1"] and sorted(began[2:]) == ["other-1", "student-1"]
    corpus = tmp_path / "runs" / "plain" / "seed-1" / "distilled" / "train"
    told = json.loads(corpus.with_suffix(".json").read_text())
    assert told["output_prefix"] == str(corpus) and (told["train_file"], told["source_lang"]) == ("train", "en")
    assert main(["run", taught(systems=several, seeds=[1])]) == 0
    assert order(stand_in) == began


def test_student_has_text_and_tokenizer_of_the_teacher_with_its_seed(taught, tmp_path):
    study = read_study(tmp_path / taught())
    commands = {(run.system, run.seed): run.commands for run in runner.plan(study, {}, resolve_arguments(study))}
    for seed in (1, 2):
        teacher = tmp_path / "runs" / "plain" / f"seed-{seed}"
        training = commands["student", seed][0]
        assert f"--train_file={teacher / 'distilled' / 'train'}" in training
        assert f"--tokenizer_name_or_path={teacher}" in training
        assert not any("--teacher" in word for word in training)
        assert f"--teacher_name_or_path={teacher}" in commands["plain", seed][-1]


def test_names_of_the_current_folder_stay_there(taught, tmp_path):
    study = read_study(tmp_path / taught(output="runs/mine"))
    assert "--train_file=./runs/mine/plain/seed-1/distilled/train" in study.arguments("student", 1)


def test_added_student_needs_the_weights_of_its_teacher(taught, stand_in, tmp_path, capsys):
    assert main(["run", taught(systems={"plain": {}}), "--jobs", "1"]) == 0
    # only of the second seed
    (tmp_path / "runs" / "plain" / "seed-2" / "model.safetensors").touch()
    assert main(["run", taught(), "--jobs", "1"]) == 1
    assert order(stand_in)[2:] == ["teach-plain-2", "student-2"]
    error = capsys.readouterr().err
    lost = tmp_path / "runs" / "plain" / "seed-1"
    assert f"student, seed 1: its teacher plain, seed 1, has results but no weights in {lost}: remove that" in error
    shutil.rmtree(lost)
    assert main(["run", taught(), "--jobs", "1"]) == 0
    assert order(stand_in)[4:] == ["plain-1", "teach-plain-1", "student-1"]


def test_students_of_a_failed_teacher_fail_and_others_go_on(taught, stand_in, tmp_path, capsys):
    (stand_in / "fail-plain").touch()
    systems = {**SYSTEMS, "other": {"aggregation": "dynamic"}}
    assert main(["run", taught(systems=systems, seeds=[1]), "--jobs", "1"]) == 1
    assert states(tmp_path) == {"plain-1": "failed", "student-1": "failed", "other-1": "finished"}
    assert "student, seed 1: failed (its teacher plain, seed 1, has failed)" in capsys.readouterr().err
    (stand_in / "fail-plain").unlink()
    assert main(["run", taught(systems=systems, seeds=[1]), "--jobs", "1"]) == 0


def test_kept_teacher_is_trained_again_for_students_that_are_not(taught, stand_in, tmp_path):
    kept = tmp_path / "kept"
    assert main(["run", taught(), "--jobs", "1", "--keep", str(kept)]) == 0
    before = len(order(stand_in))
    assert not list(kept.rglob("distilled"))
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(kept / "student" / "seed-2")
    assert main(["run", taught(), "--jobs", "1", "--keep", str(kept)]) == 0
    assert order(stand_in)[before:] == ["plain-2", "teach-plain-2", "student-2"]


def test_jobs_of_students_are_submitted_after_their_teacher(taught, stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CLUSTER", "local")
    monkeypatch.setattr(cluster, "POLL", 0.05)
    assert main(["run", taught(seeds=[1]), "--launcher", "slurm", "--slurm", "time=10"]) == 0
    assert order(stand_in) == ["plain-1", "teach-plain-1", "student-1"]


def test_chain_of_teachers(taught, stand_in):
    chain = {**SYSTEMS, "second": {"aggregation": "dynamic", "teacher": "student"}}
    assert main(["run", taught(systems=chain, seeds=[1]), "--jobs", "2"]) == 0
    assert order(stand_in) == ["plain-1", "teach-plain-1", "student-1", "teach-student-1", "second-1"]


def student(**values):
    return {"plain": {}, "student": {"teacher": "plain", **values}}


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        pytest.param(student(teacher="nobody"), "student: teacher 'nobody' must be a system that stands above it; th"),
        pytest.param(student(teacher="student"), "student: teacher 'student' must be a system that stands above it"),
        pytest.param(student(teacher=["plain"]), "student: teacher ['plain'] must be a system", id="list"),
        pytest.param(student(train_file="val"), 'must have the same train_file, whose text it translates: "val", and'),
        pytest.param(
            student(tokenizer_name_or_path="x"), "tokenizer_name_or_path and teacher exclude each other: its"
        ),
    ],
)
def test_mistakes_are_one_line_before_any_work(taught, stand_in, tmp_path, capsys, systems, message):
    assert main(["run", taught(systems=systems)]) == 2
    error = capsys.readouterr().err
    assert message in error and "study.yaml" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_another_teacher_is_another_system(taught, stand_in, capsys):
    assert main(["run", taught(seeds=[1])]) == 0
    assert main(["run", taught(seeds=[1], systems={"plain": {}, "student": {"aggregation": "linear"}})]) == 2
    assert 'system student: teacher the default (was "plain")' in capsys.readouterr().err
