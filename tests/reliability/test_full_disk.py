"""On a full disk a command ends with one line that says so, and the same command goes on when there is room again."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import COMMANDS
from harness import Harness, difference, tail
from record import note

# Limits of the thorough run, as shares of the largest file that a command writes
SHARES = (0.0, 0.05, 0.4, 0.99)
# sizes of a small disk, as shares of all that a command leaves
ROOM = (0.1, 0.5, 0.95)
# what an operating system says of it, in the words of Python, PyTorch and safetensors
REASON = re.compile(r"File too large|No space left|disk", re.IGNORECASE)


def sizes(name: str, harness: Harness) -> tuple[int, int]:
    """The largest file that a command makes, and all of them together, in bytes."""
    with harness.workplace(name) as folder:
        before = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        assert harness.run(name, folder).status == 0
        made = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    new = [size for path, size in made.items() if before.get(path) != size]
    return max(new), sum(new)


def check_message(output: str) -> None:
    """One line for what went wrong, the last one, which names the file or the disk; no traceback."""
    assert "Traceback" not in output, tail(output)
    last = output.strip().splitlines()[-1]
    assert "error: " in last and REASON.search(last), last


def starve(name: str, harness: Harness, file_size: int) -> None:
    """Run a command with a bound on the size of files, then without."""
    with harness.workplace(name) as folder:
        outcome = harness.run(name, folder, file_size=file_size)
        assert outcome.status not in (0, -9), tail(outcome.output)
        again = harness.run(name, folder)
        assert again.status == 0, tail(again.output)
        assert difference(harness.state(name, folder), harness.reference(name).state) == []
    check_message(outcome.output)


@pytest.mark.parametrize("name", ["translate", "convert"])
def test_files_end_early(harness, name):
    starve(name, harness, sizes(name, harness)[0] // 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_files_end_early_at_several_sizes(harness, name):
    largest, _ = sizes(name, harness)
    failed = []
    for share in SHARES:
        try:
            starve(name, harness, int(share * largest))
        except AssertionError as error:
            failed.append(f"{int(share * largest)} bytes a file: {error}")
    note("full disk", name, {"limits": len(SHARES), "failed": len(failed)})
    assert not failed, "\n\n".join(failed)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes, in memory, at a folder; skips the test where this user may not make one."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes a small disk")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full(harness, tmp_path, name):
    """The same on a disk that is really full; then it gets larger, and the same command is given again."""
    _, total = sizes(name, harness)
    generator, failed = random.Random(name), []
    for number, share in enumerate(ROOM):
        # pages of 4 KiB
        room = max(4096, int(share * generator.uniform(0.9, 1) * total) // 4096 * 4096)
        with small_disk(tmp_path / str(number), 10 * total + 2**22) as disk:
            folder = disk / "work"
            folder.mkdir()
            harness.prepare(name, folder)
            used = sum(path.stat().st_blocks * 512 for path in disk.rglob("*") if path.is_file())
            subprocess.run(["mount", "-o", f"remount,size={used + room}", str(disk)], check=True)
            outcome = harness.run(name, folder)
            subprocess.run(["mount", "-o", f"remount,size={10 * total + 2**22}", str(disk)], check=True)
            try:
                # a disk with a little room may be enough
                if outcome.status != 0:
                    check_message(outcome.output)
                again = harness.run(name, folder)
                assert again.status == 0 or (outcome.status == 0 and "already" in again.output), tail(again.output)
                assert difference(harness.state(name, folder), harness.reference(name).state) == []
            except AssertionError as error:
                failed.append(f"{room} bytes of room: {error}")
    note("full disk", f"{name}, small disk", {"limits": len(ROOM), "failed": len(failed)})
    assert not failed, "\n\n".join(failed)
