"""How a command ends: its exit status, and one line on standard error for what went wrong."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from .files import system_error

INTERRUPTED = 130
# what the user can mend
USER_ERRORS = (ValueError, OSError, ImportError, StrictDataclassError, SafetensorError)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_command(program: str, command: Callable[[], None], *, after_interruption: str = "") -> int:
    """
    Run the body of a command.

    Args:
        program: name of the command, for messages.
        after_interruption: what to tell someone who has pressed Ctrl-C, behind the word "interrupted".

    Returns:
        The exit status: 0; 1 if whoever reads the standard output has enough; 2 for what the user can mend, with one
        line on standard error; 130 after Ctrl-C, with one line too.
    """
    try:
        command()
        _flush()
        return 0
    except BrokenPipeError:
        _abandon_output()
        return 1
    except KeyboardInterrupt:
        say(program, f"interrupted{after_interruption}")
        return INTERRUPTED
    except Exception as error:
        if system_error(error) in FULL:
            say(program, f"error: {error}; make room, and give the same command again")
        elif isinstance(error, USER_ERRORS):
            say(program, f"error: {error}")
        elif _out_of_memory(error):
            say(program, "error: there is not enough memory; give a smaller --max_tokens, or --num_beams")
        else:
            raise
    try:
        _flush()
    except OSError:
        _abandon_output()
    return 2


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"cannot write to standard output: {error.strerror}") from error


def say(program: str, message: str) -> None:
    """Print one line on standard error, whatever line breaks the message has."""
    line = re.sub(r"\s*\n\s*", " ", message.strip())
    print(f"{program}: {line}", file=sys.stderr)


def _out_of_memory(error: Exception) -> bool:
    # PyTorch has a class of its own for accelerators alone, ONNX Runtime none
    messages = ("can't allocate memory", "Failed to allocate memory")
    # whoever could have raised it has imported it
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(words in str(error) for words in messages)


def _abandon_output() -> None:
    """What is left to flush at the end of the process goes nowhere: it would be a second error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
