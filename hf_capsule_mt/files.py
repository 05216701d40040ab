"""Files that are there in whole or not at all, and outputs that one process writes at a time."""

from __future__ import annotations

import os
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
