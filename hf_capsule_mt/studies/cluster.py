"""Running a study on a cluster: each run is a job of Slurm, submitted and watched through submitit."""

from __future__ import annotations

import os
import re
import signal
import subprocess  # nosec B404
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..files import json_text, read_json, write_whole
from .runner import FAILED, RUNNING, THREAD_VARIABLES, WAITING, Run, finish
from .study_file import Study

# the name of submitit's executor, and the folder of its files in that of the study
CLUSTER, FOLDER = "slurm", "slurm"
JOBS = "jobs.json"
# seconds between two looks at the jobs' files, and between two questions to Slurm
POLL, CHECK = 1.0, 30.0
# how often a job goes on after its time was up
MAX_TIMEOUTS = 10
# seconds that a process, or Slurm, has to end what it has asked to end
PATIENCE, GRACE = 20.0, 300.0
# options of sbatch, by submitit's names
NUMBERS = ("nodes", "gpus_per_node", "cpus_per_task")
TEXTS = (
    *("partition", "mem", "mem_per_cpu", "mem_per_gpu", "gres", "account", "qos", "constraint", "nodelist", "exclude"),
    *("exclusive", "comment", "mail_type", "mail_user"),
)
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def read_options(words: Sequence[str]) -> dict[str, int | str | bool]:
    """
    The options of the jobs from KEY=VALUE words.

    Returns:
        Numbers for NUMBERS and for "time" (minutes), texts or True (of "true") for the others.

    Raises:
        ValueError: an option is unknown, wrong or given twice, or the time is missing.
    """
    options: dict[str, int | str | bool] = {}
    for word in words:
        key, equals, value = word.partition("=")
        known = ("time", *NUMBERS, *TEXTS)
        if key not in known or not equals or not value:
            raise ValueError(f"--slurm {word}: give KEY=VALUE with one of {', '.join(known)}")
        if key in options:
            raise ValueError(f"--slurm: {key} is given twice")
        if key == "time":
            options[key] = minutes(value)
        elif key in NUMBERS:
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"--slurm {word}: {key} must be a whole number of at least 1")
            options[key] = int(value)
        else:
            options[key] = value == "true" or value
    if "time" not in options:
        raise ValueError(
            "--slurm: say how long a job may take, such as --slurm time=12:00:00; a run that takes longer goes on in "
            f"the same job from its last checkpoint, up to {MAX_TIMEOUTS} times"
        )
    return options


def minutes(text: str) -> int:
    """
    A time as sbatch reads it, in minutes, rounded up: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        ValueError: it is none.
    """
    found = TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"--slurm time={text}: give minutes, hours:minutes:seconds, or days-hours")
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = (part or 0 for part in parts)
    if days is None and parts[2] is None:
        seconds = first * 60 + second
    else:
        seconds = (days or 0) * 86400 + first * 3600 + second * 60 + third
    if seconds == 0:
        raise ValueError(f"--slurm time={text}: a job needs some time")
    return -(-seconds // 60)


def distributed(command: Sequence[str], nodes: int, processes: int, host: str, job: str) -> list[str]:
    """
    The command of one node for a Python command line (`python -m ...`) that runs as several processes.

    Args:
        nodes: that run the same command together.
        processes: on each of them.
        host: the first node.
        job: id of the job; its digits choose the port.
    """
    port = 20000 + int("".join(filter(str.isdecimal, job)) or 0) % 20000
    meeting = [f"--nnodes={nodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={host}:{port}", f"--rdzv_id={job}"]
    options = [f"--nproc_per_node={processes}", *(["--standalone"] if nodes == 1 else meeting)]
    return [command[0], "-m", "torch.distributed.run", *options, *command[1:]]


@dataclass(frozen=True)
class Job:
    """
    What a job of the cluster does on each of its nodes. It is pickled with its code and imports nothing of this
    package: what it starts does.

    Attributes:
        commands: one after the other; the first trains, on all nodes.
        products: what each of them writes last: a command whose product is there is passed over.
        log: file to which everything that they print is added.
        nodes: of the job.
        processes: that train on each node.
        threads: of each process.
    """

    commands: list[list[str]]
    products: list[str]
    log: str
    nodes: int
    processes: int
    threads: int

    def __call__(self) -> int:
        """Returns the exit status of the command that failed, or 0."""
        from submitit import JobEnvironment

        environment = JobEnvironment()
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        for index, (command, product) in enumerate(zip(self.commands, self.products, strict=True)):
            if os.path.isfile(product) or (index > 0 and environment.global_rank > 0):
                continue
            if index == 0 and self.nodes * self.processes > 1:
                host = environment.hostnames[0]
                command = distributed(command, self.nodes, self.processes, host, environment.job_id)
            status = self._run(command)
            if status != 0 and (told or status in (-signal.SIGTERM, -signal.SIGUSR2)):
                # Slurm ends the job, or queues it again, and has told the command, too: that is no failure.
                time.sleep(GRACE)
            if status != 0:
                return status
        return 0

    def _run(self, command: list[str]) -> int:
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(self.threads))}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(  # nosec B603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            return process.wait()
        except BaseException:
            # the time is up: submitit queues the job again, and leaves
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise

    def checkpoint(self) -> Any:
        """Asked by submitit when the time is up: the same again, as the commands go on where they were."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Cluster:
    """
    Submits runs as jobs and watches them; jobs that an earlier call has left in the queue are taken up again.

    Args:
        study: its output has the ids of the jobs (JOBS) and submitit's files (FOLDER).
        options: from `read_options`.

    Raises:
        ImportError: submitit is missing.
        ValueError: there is no Slurm here, or submitit does not take the options.
    """

    def __init__(self, study: Study, options: dict[str, int | str | bool]) -> None:
        try:
            import cloudpickle
            import submitit
        except ImportError:
            raise ImportError(
                "--launcher slurm needs submitit: pip install 'hf_capsule_mt[slurm]' (or: pip install submitit)"
            ) from None
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.poll = POLL
        self._study, self._options = study, options
        self._nodes, self._processes = int(options.get("nodes", 1)), int(options.get("gpus_per_node", 1))
        self._jobs: dict[str, Any] = {}
        self._checked = time.monotonic()
        self._job_class = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[CLUSTER]
        self._folder = (study.output / FOLDER).absolute()
        try:
            self._executor = submitit.AutoExecutor(
                self._folder, cluster=CLUSTER, **{f"{CLUSTER}_max_num_timeout": MAX_TIMEOUTS}
            )
            self._executor.update_parameters(**_parameters(options, study.title))
        except RuntimeError:
            raise ValueError(
                "--launcher slurm: there is no srun here; give the command on a login node of the cluster"
            ) from None
        except (NameError, AssertionError, ValueError) as error:
            raise ValueError(f"--slurm: {error}") from None
        path = study.output / JOBS
        self._kept: dict[str, Any] = read_json(path) if path.exists() else {}

    def start(self, run: Run) -> None:
        """
        Take up the run's job if it is queued or running, or else submit one.

        Raises:
            ValueError: Slurm does not take it.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        job = self._left(run)
        if job is None:
            run.log.parent.mkdir(parents=True, exist_ok=True)
            threads = max(1, int(self._options.get("cpus_per_task", 1)) // self._processes)
            work = Job(
                run.commands, [str(p) for p in run.products], str(run.log), self._nodes, self._processes, threads
            )
            try:
                job = self._executor.submit(work)
            except (FailedJobError, FailedSubmissionError) as error:
                raise ValueError(
                    f"{CLUSTER} does not take the job of {run.system}, seed {run.seed}: {error}"
                ) from None
            self._kept[self._name(run)] = {"job": job.job_id, "tasks": self._nodes}
            write_whole(self._study.output / JOBS, json_text(self._kept, indent=2) + "\n")
        self._jobs[self._name(run)] = job
        run.job, run.state = job.job_id, WAITING

    def has_ended(self, run: Run) -> bool:
        """Look after a run: note that its job has begun, or how it has ended."""
        job = self._jobs[self._name(run)]
        if time.monotonic() - self._checked > CHECK:
            # one question for all jobs
            job.get_info(mode="force")
            self._checked = time.monotonic()
        if not job.done():
            if run.state == RUNNING:
                run.seconds = time.monotonic() - run.began
            elif job.paths.stdout.exists():
                run.state, run.began = RUNNING, time.monotonic()
            return False
        reason = "" if run.next_command() is None else self._reason(job)
        if run.next_command() is None:
            # as its results say: this process may have seen the end alone
            run.seconds = 0.0
            finish(run, self._study.score)
        else:
            run.state, run.reason = FAILED, reason
        return True

    def stop(self, active: Sequence[Run]) -> str:
        """Leave the jobs, which go on without this process; returns how to end them."""
        ids = " ".join(run.job for run in active)
        return f"left in the queue: {len(active)} jobs; to end them: scancel {ids}" if ids else ""

    def _name(self, run: Run) -> str:
        return run.folder.relative_to(self._study.output).as_posix()

    def _left(self, run: Run) -> Any:
        """The job of an earlier call, if it is queued or running, or has made since what it was to make."""
        kept = self._kept.get(self._name(run))
        if kept is None:
            return None
        job = self._job_class(self._folder, kept["job"], tasks=list(range(kept["tasks"])))
        job.get_info(mode="force")
        return None if job.done() and run.next_command() is not None else job

    def _reason(self, job: Any) -> str:
        """Why a job has not made what it was to make."""
        from submitit.core.utils import UncompletedJobError

        try:
            # waits a while for what other machines have written
            status = next(filter(None, job.results()), 0)
        except UncompletedJobError:
            return f"job {job.job_id}: {job.state}; see {job.paths.stderr}"
        words = f"status {status}" if status > 0 else f"ended by signal {-status}"
        return f"job {job.job_id}: {words if status else 'it ended without its results'}"


def _parameters(options: dict[str, int | str | bool], title: str) -> dict[str, Any]:
    """The options as submitit's AutoExecutor has them: those of Slurm alone have its name before them."""
    common = {"time": "timeout_min", **{name: name for name in NUMBERS}}
    parameters: dict[str, Any] = {common.get(key, f"slurm_{key}"): value for key, value in options.items()}
    if "cpus_per_task" in options:
        # since Slurm 22.05 srun does not take it over from sbatch
        parameters["slurm_srun_args"] = [f"--cpus-per-task={options['cpus_per_task']}"]
    return {**parameters, "name": re.sub(r"\W+", "-", title)[:40], "tasks_per_node": 1}
