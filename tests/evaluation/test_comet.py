"""COMET as a command of its own; a script takes its place."""

import os
import sys

import pytest

from hf_capsule_mt.evaluation.comet import comet_score

SCRIPT = """#!{python}
import sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
sides = [open(arguments[name], encoding="utf-8").read().splitlines() for name in ("-s", "-t", "-r")]
assert arguments["--model"] == "a/model" and sys.argv[-2:] == ["--quiet", "--only_system"], sys.argv
if sides[1][0] == "fail":
    sys.exit("no such model")
print("some log line")
print(arguments["-t"] + "\\tscore: " + "%.4f" % (sum(t == r for t, r in zip(*sides[1:])) / len(sides[0])))
"""


@pytest.fixture
def command(tmp_path):
    path = tmp_path / "comet-score"
    path.write_text(SCRIPT.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_score_that_is_printed(command, monkeypatch):
    arguments = (["one\ntwo", "two", "three"], ["eins\nzwei", "zwo", "drei"], ["eins zwei", "zwei", "drei"])
    assert comet_score(*arguments, command=command, model="a/model") == 0.6667
    monkeypatch.setenv("PATH", os.path.dirname(command))
    assert comet_score(*arguments, model="a/model") == 0.6667


def test_failures_name_the_reason(command, monkeypatch):
    with pytest.raises(RuntimeError, match="gave no score: no such model"):
        comet_score(["one"], ["fail"], ["eins"], command=command, model="a/model")
    with pytest.raises(ValueError, match="as many of each, and at least one, got 2 sources, 1 translations and 1"):
        comet_score(["one", "two"], ["eins"], ["eins"], command=command)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="there is no command comet-score: install COMET into an environment of its"):
        comet_score(["one"], ["eins"], ["eins"])
