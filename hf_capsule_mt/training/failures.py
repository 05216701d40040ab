"""What ends a run that had begun, and is no mistake in the program: a full disk, lost checkpoints, divergence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files import system_error

FULL = (errno.ENOSPC, errno.EDQUOT)
# errors of writing alone
UNWRITABLE = (*FULL, errno.EFBIG, errno.EROFS)
# what remains of a failed write in the errors of libraries: PyTorch's zip writer names no reason
TORCH_WRITER = ("unexpected pos", "PytorchStreamWriter failed", "file write failed", "iostream error")


class RunFailure(RuntimeError):
    """A run cannot go on, for a reason that whoever started it can remove; the message is one line."""


@contextmanager
def explain_failed_writes(folder: Path, remedy: str) -> Iterator[None]:
    """
    Files that cannot be written end with one line.

    Args:
        folder: where they are written.
        remedy: what to do when there is room again.

    Raises:
        RunFailure: instead of the errors of the system, PyTorch, safetensors and tokenizers about it.
    """
    try:
        yield
    except Exception as error:
        reason = _why_not_written(error)
        if reason is None:
            raise
        raise RunFailure(f"cannot write to {folder}: {reason}; {remedy}") from error


def _why_not_written(error: Exception) -> str | None:
    text = " ".join(str(error).split())
    code = system_error(error)
    if code in FULL:
        return f"the disk is full ({text})"
    if code in UNWRITABLE:
        return f"{os.strerror(code)} ({text})"
    if any(words in text for words in TORCH_WRITER):
        return f"the disk is probably full ({text})"
    return None
