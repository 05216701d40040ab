"""Runs the tests of what is to be measured, and refuses to go on unless they are green.

Files that were green are not run again as long as package, tests and libraries stay as they are, byte for byte: that
is noted under .pytest_cache, by a hash of them all.
"""

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import __version__

from timing import write_record

ROOT = Path(__file__).parent.parent
# what is measured changes them
RECORDS = ":!hf_capsule_mt/evidence/records"
STAMPS = ROOT / ".pytest_cache" / "green"
# how much of pytest's output a refusal shows
SHOWN_LINES = 15


def verify(files: Sequence[str], *, gpu: bool = False) -> dict[str, Any]:
    """
    Runs test files of this repository.

    Args:
        files: relative to the repository, or absolute.
        gpu: include the tests that need a GPU.

    Returns:
        "revision" and "dirty" of the working tree, and "passed", the number of tests by file.

    Raises:
        SystemExit: with what is red, if a file is missing, fails, or has no test that passes.
    """
    missing = [file for file in files if not (ROOT / file).is_file()]
    if missing:
        raise SystemExit(f"nothing is measured: the tests that cover it are not there: {', '.join(missing)}")
    stamp = STAMPS / f"{_digest_of_everything(gpu)}.json"
    known = json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {}
    left = [file for file in files if file not in known]
    if left:
        print(f"tests first: {', '.join(left)}", file=sys.stderr, flush=True)
        known |= _run(left, gpu)
        write_record(stamp, known)
    return revision() | {"passed": {file: known[file] for file in files}}


def _run(files: Sequence[str], gpu: bool) -> dict[str, int]:
    """Runs pytest; the number of passed tests by file, all of which are green."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # this format names the file of a test
        options = ["-q", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
        options += ["-m", "not slow" if gpu else "not slow and not gpu"]
        command = [sys.executable, "-m", "pytest", *options, *files]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
            raise SystemExit(f"{tail}\nnothing is measured: red tests in {', '.join(files)}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    passed = {file: 0 for file in files}
    for case in cases:
        file = next(file for file in files if (ROOT / file).resolve() == (ROOT / case.attrib["file"]).resolve())
        passed[file] += case.find("skipped") is None
    idle = [file for file, count in passed.items() if not count]
    if idle:
        raise SystemExit(f"nothing is measured: every test was skipped in {', '.join(idle)}")
    return passed


def revision() -> dict[str, Any]:
    """The commit of the working tree, and whether package, tests or benchmarks differ from it."""

    def git(*arguments: str) -> str | None:
        try:
            return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None

    commit = git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return {"revision": "unknown", "dirty": None}
    changes = git("status", "--porcelain", "--", "hf_capsule_mt", "tests", "benchmarks/*.py", RECORDS)
    return {"revision": commit.strip(), "dirty": bool(changes)}


def digest(*folders: str) -> str:
    """A hash of the Python files below these folders of the repository."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            total.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _digest_of_everything(gpu: bool) -> str:
    versions = f"{platform.python_version()} {torch.__version__} {__version__} {gpu}"
    return hashlib.sha256(f"{versions} {digest('hf_capsule_mt', 'tests')}".encode()).hexdigest()[:16]
