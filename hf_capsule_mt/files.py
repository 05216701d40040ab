"""Files and folders that are there in whole or not at all, and outputs that one process writes at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


def write_whole(path: Path, content: str | bytes) -> None:
    """
    Write a file in one step: a crash, a kill or a full disk leaves the old one or the new one, and nothing beside it.

    Args:
        path: the file; its folder is made if there is none.
        content: bytes, or text that is written as UTF-8 with its line ends as they are.

    Raises:
        OSError: it cannot be written.
        UnicodeEncodeError: the text has lone surrogates.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def only_writer(output: Path) -> Iterator[None]:
    """
    Hold an output, a file or a folder, for this process; the system lets go of it when the process ends, however.

    The lock is a file beside the output, `.NAME.lock`, which stays behind empty.

    Raises:
        ValueError: another process holds it.
    """
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output.with_name(f".{output.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"{output} is being written by another process; wait until that has ended, or name another output"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """
    A fresh folder that takes the place of `path` when the block ends without an error; if not, `path` stays as it is.

    Both are renamed, so that nobody sees a part. A kill between the two renames leaves the old folder as `.NAME.old`;
    the next call puts it back.

    Raises:
        ValueError: another process writes there.
        OSError: it cannot be written.
    """
    path = path.absolute()
    fresh, old = (path.with_name(f".{path.name}.{state}") for state in ("partial", "old"))
    with only_writer(path):
        _put_back(old, path)
        for left in (fresh, old):
            _remove(left)
        fresh.mkdir()
        try:
            yield fresh
            if path.is_dir():
                os.replace(path, old)
            os.replace(fresh, path)
        except BaseException:
            _put_back(old, path)
            _remove(fresh)
            raise
        _remove(old)


def _put_back(old: Path, path: Path) -> None:
    if old.is_dir() and not path.exists():
        os.replace(old, path)


def _remove(path: Path) -> None:
    """A folder, or a link in its place but not what that leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
