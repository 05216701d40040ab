"""Running a study: a process for each run, several at a time, each of which can be interrupted and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess  # nosec B404
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO, cast

from ..files import json_text, read_json, write_whole
from ..training.report import RESULTS
from .study_file import DISTILLED, SHARED_WITH_TEACHER, Study, extra_test_sets

RUNS = "runs.json"
WAITING, RUNNING, FINISHED, FAILED, INTERRUPTED = "waiting", "running", "finished", "failed", "interrupted"
# seconds
POLL, PATIENCE = 0.1, 30.0
# A run's own thread settings would be those of the study's process.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def train_command(arguments: Sequence[str]) -> list[str]:
    """The command line of a process that trains with these arguments."""
    return [sys.executable, "-m", "hf_capsule_mt", "train", *arguments]


def distill_command(folder: Path, arguments: Mapping[str, Any]) -> list[str]:
    """
    The command line of a process in which the model of a run translates the text that it was trained on.

    Args:
        arguments: of its training; those that name the text are taken.
    """
    program = [sys.executable, "-m", "hf_capsule_mt", "distill", "--recipe", "none"]
    words = [f"--teacher_name_or_path={folder}", f"--output_prefix={folder / DISTILLED}"]
    words += [f"--{key}={arguments[key]}" for key in SHARED_WITH_TEACHER if arguments.get(key) is not None]
    if arguments.get("operators"):
        words += ["--operators", *arguments["operators"]]
    return [*program, *words]


def translate_command(folder: Path, source: Path, output: Path) -> list[str]:
    """The command line of a process that translates a file with the model of a run."""
    program = [sys.executable, "-m", "hf_capsule_mt", "translate"]
    return [*program, str(folder), str(source), "--output", str(output)]


@dataclass
class Run:
    """
    One run of a study.

    Attributes:
        folder: its output.
        commands: one after the other; the first trains.
        products: what each of them writes last: a command whose product is there is passed over.
        state: one of the constants of this module.
        seconds: how long it ran in this call; before and between calls it does not count.
        reason: why it has failed.
        job: its id on a cluster.
        teacher: the run that has to be finished before, as it translates the text that this one is trained on.
    """

    system: str
    seed: int
    folder: Path
    commands: list[list[str]]
    products: list[Path]
    state: str = WAITING
    seconds: float = 0.0
    score: float | None = None
    reason: str = ""
    slot: int = -1
    began: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    job: str = ""
    teacher: Run | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """What its processes print."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def next_command(self) -> list[str] | None:
        """The first command whose product is not there."""
        left = (c for c, product in zip(self.commands, self.products, strict=True) if not product.is_file())
        return next(left, None)


@dataclass(frozen=True)
class Machine:
    """
    How the runs share a machine.

    Attributes:
        jobs: runs at a time.
        threads: of each.
        devices: names for CUDA_VISIBLE_DEVICES, which the runs get in turn; none without GPUs.
    """

    jobs: int
    threads: int
    devices: tuple[str, ...] = ()


def share_machine(jobs: int | None, threads: int | None, jobs_per_device: int, runs: int) -> Machine:
    """
    The machine as it is asked for. By default, runs on GPUs are as many as GPUs times `jobs_per_device`, those on a
    CPU as many as it has cores, of one thread each: so small models gain most.

    Args:
        runs: that there are to do, the most that makes sense.
    """
    cores, devices = available_cores(), available_devices()
    wanted = jobs or (len(devices) * jobs_per_device if devices else max(1, cores // (threads or 1)))
    jobs = max(1, min(wanted, runs))
    return Machine(jobs, threads or max(1, cores // jobs), devices)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_devices() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [name.strip() for name in visible.split(",")] if visible else [str(i) for i in range(count)]
    return tuple(names[:count])


def plan(study: Study, sources: Mapping[str, Path], resolved: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """
    All runs of a study in their order; those that are finished say so. A teacher is finished when it has translated
    the training text for students that are not.

    Args:
        sources: the source file of each further test set, by name.
        resolved: the systems' arguments, from `resolve_arguments`.
    """
    target_lang = str(resolved[study.compare_with]["target_lang"])
    runs: dict[tuple[str, int], Run] = {}
    for system, seed in study.runs():
        folder = study.folder(system, seed)
        arguments = [*study.arguments(system, seed), f"--output_dir={folder}", f"--seed={seed}"]
        commands = [train_command([*arguments, "--resume_from_checkpoint=true"])]
        products = [folder / RESULTS]
        for name in extra_test_sets(study):
            products.append(translation_file(folder, name, target_lang))
            commands.append(translate_command(folder, sources[name], products[-1]))
        teacher = runs.get((study.teachers.get(system, ""), seed))
        runs[system, seed] = Run(system, seed, folder, commands, products, teacher=teacher)
    # students of students first: what they need decides what their teachers are to do
    for run in reversed(runs.values()):
        if run.teacher is not None and run.next_command() is not None:
            _teach(run, run.teacher, resolved)
    for run in runs.values():
        if run.state == WAITING and run.next_command() is None:
            finish(run, study.score)
    return list(runs.values())


def _teach(student: Run, teacher: Run, resolved: Mapping[str, Mapping[str, Any]]) -> None:
    """Have a teacher translate the training text after its training, once for all its students."""
    product = Path(f"{teacher.folder / DISTILLED}.json")
    if product in teacher.products:
        return
    if (teacher.folder / RESULTS).is_file() and not product.is_file() and not has_weights(teacher.folder):
        student.state = FAILED
        student.reason = (
            f"its teacher {teacher.system}, seed {teacher.seed}, has results but no weights in {teacher.folder}: "
            f"remove that folder to train it again"
        )
        return
    teacher.commands.append(distill_command(teacher.folder, resolved[teacher.system]))
    teacher.products.append(product)


def has_weights(folder: Path) -> bool:
    """Whether there is a model in a run's folder: of kept runs there is none."""
    return any(folder.glob("model*.safetensors"))


def translation_file(folder: Path, test_set: str, target_lang: str) -> Path:
    """Where the translations of a further test set are."""
    return folder / "translations" / f"study.{test_set.replace(' ', '_')}.{target_lang}"


def finish(run: Run, score: str) -> None:
    """Note that a run is finished, and its last score."""
    run.state = FINISHED
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        results = read_json(run.folder / RESULTS)
        run.score = float(results["scores"][-1][score])
        run.seconds = run.seconds or float(results["wall_seconds"])


class Launcher(Protocol):
    """
    Where the processes of runs are.

    Attributes:
        poll: seconds between two looks at the runs.
    """

    poll: float

    def start(self, run: Run) -> None:
        """Start a run."""

    def has_ended(self, run: Run) -> bool:
        """Look after a run, and note how it stands; whether it has ended."""

    def stop(self, active: Sequence[Run]) -> str:
        """Leave the runs that have not ended; returns what there is to say of them."""


def carry_out(
    study: Study,
    runs: Sequence[Run],
    machine: Machine,
    display: Display,
    launcher: Launcher | None = None,
    after_run: Callable[[], None] = lambda: None,
) -> bool:
    """
    Carry out what is not finished. A run that fails is noted with its log, and the others go on.

    Args:
        launcher: by default, processes of this machine.
        after_run: called when a run has ended.

    Returns:
        Whether all runs are finished.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; the launcher has stopped, and can be gone on with.
    """
    launcher = launcher or Processes(study, machine)
    waiting = [run for run in runs if run.state == WAITING]
    active: list[Run] = []
    with told_to_stop() as stopping:
        try:
            while (waiting or active) and not stopping:
                for run in _without_teacher(waiting):
                    waiting.remove(run)
                    display.show(runs, machine, run)
                while len(active) < machine.jobs and not stopping:
                    ready = next((r for r in waiting if r.teacher is None or r.teacher.state == FINISHED), None)
                    if ready is None:
                        break
                    run = ready
                    waiting.remove(run)
                    launcher.start(run)
                    active.append(run)
                    display.show(runs, machine, run)
                for run in list(active):
                    before = run.state
                    if launcher.has_ended(run):
                        active.remove(run)
                        _record(study, runs)
                        after_run()
                    if run.state != before:
                        display.show(runs, machine, run)
                display.tick(runs, machine)
                time.sleep(launcher.poll)
        finally:
            left = launcher.stop(active)
            _record(study, runs)
        if stopping:
            display.show(runs, machine)
            display.say(left)
            raise KeyboardInterrupt
    return all(run.state == FINISHED for run in runs)


def _without_teacher(waiting: Sequence[Run]) -> list[Run]:
    """Note which of the waiting runs cannot start, as their teacher has failed."""
    lost = [run for run in waiting if run.teacher is not None and run.teacher.state == FAILED]
    for run in lost:
        teacher = cast(Run, run.teacher)
        run.state, run.reason = FAILED, f"its teacher {teacher.system}, seed {teacher.seed}, has failed"
    return lost


@contextmanager
def told_to_stop() -> Iterator[list[int]]:
    """A list that gets the signals which ask this process to end; further ones do not disturb the ending."""
    received: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: received.append(got)) for number in signals}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Processes:
    """The launcher of this machine: each run has a process, and a slot that says which GPU it gets."""

    def __init__(self, study: Study, machine: Machine) -> None:
        self.poll = POLL
        self._study, self._machine = study, machine
        self._slots = list(range(machine.jobs))

    def start(self, run: Run) -> None:
        """Start the first process of a run."""
        run.slot = self._slots.pop(0)
        self._start_next(run)

    def _start_next(self, run: Run) -> None:
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(self._machine.threads))}
        if devices := self._machine.devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices[run.slot % len(devices)]
        command = cast(list[str], run.next_command())
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("ab") as log:
            # a session of its own: Ctrl-C in a terminal reaches the study alone, which ends its runs in order
            run.process = subprocess.Popen(  # nosec B603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        keep_niceness(run.process.pid)
        run.began = run.began if run.state == RUNNING else time.monotonic()
        run.state = RUNNING

    def has_ended(self, run: Run) -> bool:
        """Start the run's next process, or note how it has ended."""
        process = cast("subprocess.Popen[bytes]", run.process)
        status = process.poll()
        run.seconds = time.monotonic() - run.began
        if status is None:
            return False
        if status != 0:
            run.state = FAILED
            run.reason = f"status {status}" if status > 0 else f"ended by signal {-status}"
        elif run.next_command() is None:
            finish(run, self._study.score)
        elif run.next_command() == process.args:
            run.state, run.reason = FAILED, "it ended without its results"
        else:
            self._start_next(run)
            return False
        self._slots.append(run.slot)
        return True

    def stop(self, active: Sequence[Run]) -> str:
        """End processes, with those that they have started, and wait until they have."""
        living = [process for run in active if (process := run.process) is not None and process.poll() is None]
        for process in living:
            _signal(process, signal.SIGTERM)
        for process in living:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        for run in active:
            if run.state == RUNNING:
                run.state = INTERRUPTED
        return ""


def keep_niceness(pid: int) -> None:
    """
    Let `nice hf-capsule-mt study run` hold for a run. On Linux a session is a group of its own to the scheduler, and
    the niceness of a process counts within its group alone: so the group gets that of this process, where it may.
    """
    with suppress(OSError, AttributeError):
        Path(f"/proc/{pid}/autogroup").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)), encoding="ascii")


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _record(study: Study, runs: Sequence[Run]) -> None:
    record: list[dict[str, Any]] = [
        {
            "system": run.system,
            "seed": run.seed,
            "state": run.state,
            "seconds": round(run.seconds, 1),
            "log": run.log.relative_to(study.output).as_posix(),
            **{name: value for name in ("reason", "job") if (value := getattr(run, name))},
        }
        for run in runs
    ]
    write_whole(study.output / RUNS, json_text(record, indent=2) + "\n")


def remaining_seconds(runs: Sequence[Run], jobs: int) -> float | None:
    """
    How long a study will take from now on, from how long its finished runs took: those of the same system, or else of
    all systems. None before any has finished.
    """
    finished = [run for run in runs if run.state == FINISHED and run.seconds]
    if not finished:
        return None
    overall = sum(run.seconds for run in finished) / len(finished)
    left = []
    for run in runs:
        if run.state in (WAITING, RUNNING, INTERRUPTED):
            same = [other.seconds for other in finished if other.system == run.system]
            whole = sum(same) / len(same) if same else overall
            left.append(max(0.0, whole - run.seconds) if run.state == RUNNING else whole)
    return max(sum(left) / jobs, max(left, default=0.0))


def duration(seconds: float) -> str:
    """A time in words: 45 s, 3 min, 2 h 5 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Display:
    """
    The states of the runs: on a terminal a table that is rewritten in its place, elsewhere a line for each change.

    Args:
        stream: standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.lines = 0
        self.shown = 0.0

    def show(self, runs: Sequence[Run], machine: Machine, changed: Run | None = None) -> None:
        """Show a change of one run, or the states of all."""
        if self.terminal or changed is None:
            self._table(runs, machine)
            return
        done = sum(run.state in (FINISHED, FAILED) for run in runs)
        words = f"[{done}/{len(runs)}] {changed.system}, seed {changed.seed}: {_state(changed)}"
        if changed.state == FAILED:
            words += f" ({changed.reason}){_see_log(changed)}"
        if changed.state in (FINISHED, FAILED):
            words += f"; {_remaining(runs, machine)}"
        print(words, file=self.stream, flush=True)

    def say(self, words: str) -> None:
        """Show a line under everything else."""
        if words:
            print(words, file=self.stream, flush=True)

    def tick(self, runs: Sequence[Run], machine: Machine) -> None:
        """On a terminal, renew the table about once a second."""
        if self.terminal and time.monotonic() - self.shown > 1:
            self._table(runs, machine)

    def _table(self, runs: Sequence[Run], machine: Machine) -> None:
        text = [*state_table(runs), _remaining(runs, machine)]
        if self.terminal and self.lines:
            self.stream.write(f"\x1b[{self.lines}A\x1b[J")
        self.stream.write("".join(f"{line}\n" for line in text))
        self.stream.flush()
        self.lines, self.shown = len(text), time.monotonic()


def state_table(runs: Sequence[Run]) -> list[str]:
    """Systems and seeds, with the state of each run; under them the logs of failed ones."""
    seeds = list(dict.fromkeys(run.seed for run in runs))
    systems = list(dict.fromkeys(run.system for run in runs))
    states = {(run.system, run.seed): _state(run) for run in runs}
    rows = [["", *(f"seed {seed}" for seed in seeds)]]
    rows += [[system, *(states.get((system, seed), "") for seed in seeds)] for system in systems]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines + [f"{run.system}, seed {run.seed}: {run.reason}{_see_log(run)}" for run in runs if run.reason]


def last_words(runs: Sequence[Run]) -> list[str]:
    """The last line of the logs of failed runs, mostly the error, a line for all runs that end alike."""
    ends: dict[str, list[str]] = {}
    for run in runs:
        if run.state == FAILED and run.log.is_file():
            lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                ends.setdefault(lines[-1].strip(), []).append(f"{run.system}, seed {run.seed}")
    return [f"{'; '.join(failed)} ended with: {end}" for end, failed in ends.items()]


def _see_log(run: Run) -> str:
    """Where to look; a run that was not started in vain has no log."""
    return f"; see {run.log}" if run.log.is_file() else ""


def _state(run: Run) -> str:
    if run.state == FINISHED and run.score is not None:
        return f"finished {run.score:.1f}"
    words = f"{run.state} {duration(run.seconds)}" if run.state == RUNNING and run.seconds else run.state
    return f"{words} (job {run.job})" if run.job and run.state in (WAITING, RUNNING) else words


def _remaining(runs: Sequence[Run], machine: Machine) -> str:
    count = {state: sum(run.state == state for run in runs) for state in (FINISHED, FAILED)}
    words = f"{count[FINISHED]} of {len(runs)} runs finished"
    if count[FAILED]:
        words += f", {count[FAILED]} failed"
    if count[FINISHED] + count[FAILED] == len(runs):
        return words
    seconds = remaining_seconds(runs, machine.jobs)
    return f"{words}; {'time unknown yet' if seconds is None else f'about {duration(seconds)} left'}"
