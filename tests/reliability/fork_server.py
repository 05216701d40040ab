"""Runs commands of this package in forked children of a process that has imported everything once.

Importing takes seconds; a fork takes none. `Server` is the caller's side: it starts this file as a process, sends it
one request per line and reads two answers per request, the child's process number and how it ended. No child shares
anything with the next one: the server itself never runs a command, and starts no thread.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# nothing that is tested takes longer
PATIENCE = 300


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit status (minus the signal), what it printed, its file events and its seconds."""

    status: int
    output: str
    events: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether the kill came before the end."""
        return self.status == -signal.SIGKILL


class Server:
    """A context manager; see the module. Every command runs in its own folder, where its file events are counted."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = {**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.pid = 0

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, cwd=ROOT
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        kill_at: int | None = None,
        kill_after: float | None = None,
        file_size: int | None = None,
        started: Callable[[int], None] = lambda pid: None,
    ) -> Outcome:
        """
        Run a command and wait for its end.

        Args:
            command: "train" or a command of `python -m hf_capsule_mt`, and its arguments.
            folder: the current folder of the command.
            kill_at: kill it with SIGKILL just before this file event, counted from 1.
            kill_after: kill it after so many seconds.
            file_size: no file may grow beyond so many bytes, as on a full disk.
            started: is called with the number of the process.
        """
        request = {"command": list(command), "folder": str(folder), "kill_at": kill_at, "file_size": file_size}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self.pid = self._answer(PATIENCE)["pid"]
        begin = time.perf_counter()
        started(self.pid)
        if kill_after is not None and not select.select([self._process.stdout], [], [], kill_after)[0]:
            os.kill(self.pid, signal.SIGKILL)
        ended = self._answer(PATIENCE)
        return Outcome(**ended, seconds=time.perf_counter() - begin)

    def _answer(self, patience: float) -> dict:
        # unbuffered in effect: every answer is one line, and the next one comes only after the next request
        if not select.select([self._process.stdout], [], [], patience)[0]:
            raise TimeoutError(f"no answer within {patience} s")
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            if not byte:
                raise RuntimeError("the fork server has ended")
            line += byte
        return json.loads(line)


def _import_everything() -> None:
    """All that the commands import, so that no child has to."""
    import accelerate
    import datasets
    import matplotlib.pyplot
    import sacrebleu
    import sklearn.linear_model
    import torch
    import transformers.trainer_seq2seq

    import commands
    import hf_capsule_mt
    import hf_capsule_mt.analysis.report_command
    import hf_capsule_mt.evaluation.pytorch_backend
    import hf_capsule_mt.evaluation.score_command
    import hf_capsule_mt.evaluation.translate_command
    import hf_capsule_mt.hub.conversion
    import hf_capsule_mt.hub.publishing
    import hf_capsule_mt.training.distillation
    import hf_capsule_mt.training.run
    import hf_capsule_mt.training.setup

    for module in (commands, accelerate, datasets, matplotlib.pyplot, sacrebleu, sklearn.linear_model, transformers):
        assert module
    hf_capsule_mt.register()
    torch.set_num_threads(1)


def _child(request: dict, report: int) -> None:
    """The command, in the child; ends the process."""
    import tempfile

    import datasets

    from commands import CACHE
    from file_events import FileEvents

    status, events = 1, None
    try:
        folder = Path(request["folder"])
        os.chdir(folder)
        tempfile.tempdir = str(folder.parent)
        datasets.config.HF_DATASETS_CACHE = folder / CACHE
        name, *arguments = request["command"]
        if request["file_size"] is not None:
            # without the signal, writing fails as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"], request["file_size"]))
        events = FileEvents(folder, request["kill_at"])
        if name == "train":
            sys.argv = ["train.py", *arguments]
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        else:
            from hf_capsule_mt.__main__ import main

            sys.exit(main([name, *arguments]))
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(report, str(events.count if events else 0).encode())
        os._exit(status)


def _serve() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.path.insert(0, str(Path(__file__).parent))
    _import_everything()
    for line in sys.stdin:
        request = json.loads(line)
        (output, print_to), (events, report) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(print_to, 1)
            os.dup2(print_to, 2)
            _child(request, report)
        os.close(print_to)
        os.close(report)
        os.write(answers, json.dumps({"pid": pid}).encode() + b"\n")
        printed = b""
        while chunk := os.read(output, 65536):
            printed += chunk
        counted = os.read(events, 64)
        _, status = os.waitpid(pid, 0)
        os.close(output)
        os.close(events)
        ended = {
            "status": os.waitstatus_to_exitcode(status),
            "output": printed.decode(errors="replace"),
            "events": int(counted or 0),
        }
        os.write(answers, json.dumps(ended).encode() + b"\n")


if __name__ == "__main__":
    _serve()
