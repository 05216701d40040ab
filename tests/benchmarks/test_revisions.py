"""The comparison with another revision of the package."""

import shutil

import pytest

import revisions
from registry import JOBS
from verify import ROOT

in_a_repository = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git repository")


@in_a_repository
def test_package_of_a_revision_is_taken_from_git(tmp_path):
    commit = revisions.extract("HEAD", tmp_path)
    assert len(commit) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["hf_capsule_mt"]
    assert (tmp_path / "hf_capsule_mt/__init__.py").is_file()
    with pytest.raises(SystemExit, match="no-such-revision"):
        revisions.extract("no-such-revision", tmp_path)


def test_a_revision_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        revisions.parse([])
    assert "which revision" in capsys.readouterr().err


@pytest.mark.slow
def test_two_trees_are_timed_in_turns_and_what_one_lacks_is_left_out(tmp_path, capfd):
    shutil.copytree(ROOT / "hf_capsule_mt", tmp_path / "hf_capsule_mt")
    with (tmp_path / "hf_capsule_mt/models/__init__.py").open("a") as file:
        file.write("\ndel CapsuleBartForConditionalGeneration\n")
    options = ["--size", "tiny", "--threads", "1"]
    jobs = ["greedy, 1 sentence"]
    results = revisions.compare(tmp_path, ROOT, ["bart_none", "em_routing"], jobs, 2, options)
    assert list(results) == ["em_routing"]
    cell = results["em_routing"]["greedy, 1 sentence"]
    assert cell["turns"] == 2 * JOBS[jobs[0]]
    assert 0 < cell["time_ratio_quartiles"][0] <= cell["time_ratio_quartiles"][1]
    told = capfd.readouterr().err
    assert "bart_none is left out" in told and "CapsuleBartForConditionalGeneration" in told


@pytest.mark.slow
def test_a_process_that_imports_another_package_is_refused(tmp_path):
    with revisions.Worker(tmp_path, ["--size", "tiny"]) as worker, pytest.raises(RuntimeError, match="has ended"):
        worker.ask("build", "none")
