"""Nothing is measured unless its tests are green."""

import re
import subprocess

import pytest

import verify


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with green, red and skipped tests in the place of this one."""
    monkeypatch.setattr(verify, "ROOT", tmp_path)
    monkeypatch.setattr(verify, "STAMPS", tmp_path / "stamps")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow", "gpu"]\n')
    (tmp_path / "tests").mkdir()
    files = {
        "green": "def test_a():\n    pass\n\n\ndef test_b():\n    pass\n",
        "red": "def test_a():\n    pass\n\n\ndef test_b():\n    assert 1 == 2\n",
        "skipped": "import pytest\n\n\n@pytest.mark.skip\ndef test_a():\n    pass\n",
        "gpu": "import pytest\n\n\n@pytest.mark.gpu\ndef test_a():\n    pass\n\n\ndef test_b():\n    pass\n",
    }
    for name, text in files.items():
        (tmp_path / f"tests/test_{name}.py").write_text(text)
    return tmp_path


def test_green_tests_are_counted_by_file(project):
    assert verify.verify(["tests/test_green.py", "tests/test_gpu.py"]) == {
        "revision": "unknown",
        "dirty": None,
        "passed": {"tests/test_green.py": 2, "tests/test_gpu.py": 1},
    }
    assert verify.verify(["tests/test_gpu.py"], gpu=True)["passed"] == {"tests/test_gpu.py": 2}
    assert verify.verify([])["passed"] == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("red", r"test_red.py::test_b.*\n.*1 failed, 3 passed.*\nnothing is measured: red tests in .*test_red.py"),
        ("skipped", r"every test was skipped in tests/test_skipped.py"),
        ("absent", r"the tests that cover it are not there: tests/test_absent.py"),
    ],
)
def test_anything_but_green_is_refused(project, name, message):
    with pytest.raises(SystemExit) as refusal:
        verify.verify(["tests/test_green.py", f"tests/test_{name}.py"])
    # a message as the code of an exit is printed, and is an exit status of 1
    assert re.search(message, refusal.value.code)


def test_what_was_green_runs_again_only_after_a_change(project, monkeypatch):
    verify.verify(["tests/test_green.py"])
    with monkeypatch.context() as patch:
        patch.setattr(verify, "_run", lambda *_: pytest.fail("run again"))
        assert verify.verify(["tests/test_green.py"])["passed"] == {"tests/test_green.py": 2}
    (project / "hf_capsule_mt").mkdir()
    (project / "hf_capsule_mt/new.py").write_text("")
    (project / "tests/test_green.py").write_text("def test_a():\n    assert False\n")
    with pytest.raises(SystemExit, match="red tests"):
        verify.verify(["tests/test_green.py"])


def test_digest_follows_names_and_contents(project):
    folder = project / "package"
    folder.mkdir()
    digests = {verify.digest("package")}
    (folder / "a.py").write_text("1")
    digests.add(verify.digest("package"))
    (folder / "a.py").write_text("2")
    digests.add(verify.digest("package"))
    (folder / "a.py").rename(folder / "b.py")
    digests.add(verify.digest("package"))
    assert len(digests) == 4
    assert verify.digest("package") == verify.digest("package")


def test_new_records_do_not_make_the_code_another_one(project):
    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)

    record = project / "hf_capsule_mt" / "evidence" / "records" / "speed.json"
    record.parent.mkdir(parents=True)
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    record.write_text("{}")
    assert verify.revision()["dirty"] is False
    (record.parents[1] / "tables.py").write_text("")
    assert verify.revision()["dirty"] is True
