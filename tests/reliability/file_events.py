"""Counts what a process does to the files below a folder, and kills the process at a chosen moment.

    python tests/reliability/file_events.py --below FOLDER --at 7 -- train.py --output_dir FOLDER/run

runs the command after `--` and ends it with SIGKILL just before its seventh file event: opening a file for writing,
renaming, removing, making a folder, removing one. Python reports these (`sys.addaudithook`); what native code does to
files, such as writing safetensors, is not among them, hence the kills at random moments beside these.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# events of one path, which comes first; some have the folder's descriptor as their last argument
ONE_PATH = ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


class FileEvents:
    """Counts file events below a folder from now on; `kill_at` is the number of the event that is not reached."""

    def __init__(self, folder: str | Path, kill_at: int | None = None) -> None:
        self.folder, self.kill_at, self.count = os.path.realpath(folder), kill_at, 0
        self._busy = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._busy or not (event == "open" or event == "os.rename" or event in ONE_PATH):
            return
        self._busy = True
        try:
            if self._counts(event, arguments):
                self.count += 1
                if self.count == self.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        finally:
            self._busy = False

    def _counts(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & WRITING
            return bool(writes) and self._below(path)
        descriptor = arguments[-1] if event in ("os.remove", "os.mkdir", "os.rmdir", "os.rename") else -1
        return self._below(arguments[0], descriptor)

    def _below(self, path: Any, descriptor: int = -1) -> bool:
        """Whether a path, perhaps relative to an open folder, or an open file, is below the folder."""
        if isinstance(path, int):
            path = f"/proc/self/fd/{path}"
        elif isinstance(descriptor, int) and descriptor >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))
        place = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        return os.path.commonpath([place, self.folder]) == self.folder


def main(argv: list[str]) -> None:
    """Run a script, or a module after -m, and kill it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--below", required=True, help="folder whose events count")
    parser.add_argument("--at", type=int, help="number of the event, from 1")
    parser.add_argument("command", nargs="+", help="a script or -m MODULE, and its arguments")
    own = argv.index("--")
    arguments = parser.parse_args([*argv[:own], "-"])
    module, *rest = argv[own + 1 :]
    FileEvents(arguments.below, arguments.at)
    if module == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [module, *rest]
        runpy.run_path(module, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
