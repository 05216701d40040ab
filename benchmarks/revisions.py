"""Time of the working tree as a ratio to another git revision's, system by system and job by job.

    python benchmarks/revisions.py HEAD~1
    python benchmarks/revisions.py v0.5.0 --size base --systems em_routing guided_routing --jobs "training step"

Two processes, one with the package of each revision, take turns: each turn times one job in one of them and then in
the other, in alternating order. Both are driven by the benchmarks of the working tree, so both do the same work. What
the older revision does not know is left out, with a message. The working tree's tests run first (`verify.py`); those
of the other revision do not.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import verify
from registry import JOBS, SIZES, SYSTEMS, Setting, Unknown, build, make_job, sentence_lengths, tests_of
from timing import Run, environment, ratios, rotated, seconds, write_record


class Worker:
    """A process that measures with the package in a folder. Commands and answers are lines of JSON."""

    def __init__(self, tree: Path, options: Sequence[str]) -> None:
        self.tree = tree
        command = [sys.executable, __file__, "--worker", str(tree), *options]
        # before what is installed
        path = os.environ | {"PYTHONPATH": str(tree)}
        self.process = subprocess.Popen(command, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str, value: str) -> Any:
        """
        "build" a system, whose answer is None or why it cannot be built; "run" a job of it, whose answer are seconds.

        Raises:
            RuntimeError: if the process has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([command, value]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the process that measures {self.tree} has ended; its error is above")
        return json.loads(answer)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


def serve(tree: Path, setting: Setting) -> None:
    """Answers the commands on standard input until it ends. What else is printed goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import hf_capsule_mt

    if tree.resolve() not in Path(hf_capsule_mt.__file__).resolve().parents:
        raise SystemExit(f"{hf_capsule_mt.__file__} was imported instead of the package in {tree}")
    runs: dict[str, Run] = {}
    for line in sys.stdin:
        command, value = json.loads(line)
        answer: Any = None
        if command == "run":
            answer = seconds(runs[value])
        else:
            # the last system goes before the next is built
            runs.clear()
            try:
                model = build(value, setting)
                runs.update({job: make_job(model, setting, job) for job in JOBS})
            except Unknown as error:
                answer = str(error)
        print(json.dumps(answer), file=answers, flush=True)


def extract(revision: str, folder: Path) -> str:
    """
    Puts the package of a revision into a folder. Returns the commit.

    Raises:
        SystemExit: if git knows no such revision, or it has no package.
    """
    try:
        commit = _git("rev-parse", "--verify", "--short=12", f"{revision}^{{commit}}").decode().strip()
        archive = _git("archive", commit, "hf_capsule_mt")
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{revision}: {error.stderr.decode().strip()}") from None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return commit


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=verify.ROOT, check=True, capture_output=True).stdout


def compare(
    old: Path, new: Path, systems: Sequence[str], jobs: Sequence[str], rounds: int, options: Sequence[str]
) -> dict[str, dict]:
    """
    Times systems in two trees.

    Args:
        old, new: folders that hold hf_capsule_mt.
        rounds: at least 2.
        options: of the workers, as on the command line.

    Returns:
        Ratios (new / old) by system and job; systems that either tree does not know are left out.
    """
    results: dict[str, dict] = {}
    with Worker(old, options) as old_worker, Worker(new, options) as new_worker:
        workers = {"old": old_worker, "new": new_worker}
        for system in systems:
            reasons = {name: worker.ask("build", system) for name, worker in workers.items()}
            unknown = [f"{workers[name].tree}: {reason}" for name, reason in reasons.items() if reason]
            if unknown:
                print(f"{system} is left out; {'; '.join(unknown)}", file=sys.stderr)
                continue
            results[system] = {job: _compare_job(workers, job, rounds * JOBS[job]) for job in jobs}
            print(f"{system}: {line_of(results[system])}", file=sys.stderr, flush=True)
    return results


def _compare_job(workers: dict[str, Worker], job: str, turns: int) -> dict[str, Any]:
    # the first runs compile and allocate
    for worker in workers.values():
        worker.ask("run", job)
        worker.ask("run", job)
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        for name in rotated(list(workers), turn):
            times[name].append(workers[name].ask("run", job))
    return ratios(times["new"], times["old"])


def line_of(row: dict[str, dict]) -> str:
    """The ratios of a system's jobs, with quartiles."""
    shown = []
    for job, cell in row.items():
        low, high = cell["time_ratio_quartiles"]
        shown.append(f"{job} {cell['time_ratio']:.2f}x [{low:.2f}, {high:.2f}]")
    return "; ".join(shown)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="what the working tree is compared with")
    parser.add_argument("--size", choices=SIZES, default="yardstick")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--source", type=Path, help="text whose first 16 sentences give the lengths to decode")
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    if (found.revision is None) == (found.worker is None):
        parser.error("which revision is the working tree to be compared with? For example HEAD")
    if found.rounds < 2:
        parser.error(f"--rounds must be at least 2, not {found.rounds}")
    return found


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    size = SIZES[arguments.size]
    try:
        lengths = sentence_lengths(arguments.source, size)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if arguments.worker:
        serve(arguments.worker, Setting(size, lengths, arguments.device, getattr(torch, arguments.dtype)))
        return
    options = ["--size", arguments.size, "--device", arguments.device, "--dtype", arguments.dtype]
    options += ["--threads", str(arguments.threads)]
    options += ["--source", str(arguments.source)] if arguments.source else []
    with tempfile.TemporaryDirectory() as folder:
        commit = extract(arguments.revision, Path(folder))
        green = verify.verify(tests_of(arguments.systems), gpu=arguments.device == "cuda")
        results = compare(Path(folder), verify.ROOT, arguments.systems, arguments.jobs, arguments.rounds, options)
    record = {
        "old": commit,
        "new": green,
        "size": arguments.size,
        "lengths": list(lengths),
        "dtype": arguments.dtype,
        "environment": environment(arguments.device),
        "results": results,
    }
    print("| system | " + " | ".join(f"{job}: new / old" for job in arguments.jobs) + " |")
    print("|---" * (len(arguments.jobs) + 1) + "|")
    for system, row in results.items():
        print(f"| {system} | " + " | ".join(f"{row[job]['time_ratio']:.2f}x" for job in arguments.jobs) + " |")
    if arguments.output:
        write_record(arguments.output, record)


if __name__ == "__main__":
    main()
