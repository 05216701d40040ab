"""Time and memory of every system as a ratio to its parent, and of the package's fast paths to plain PyTorch.

    python benchmarks/speed.py                                 # every system and operator, at the yardstick's size
    python benchmarks/speed.py --size base --systems em_routing --jobs "training step" --operators   # one cell
    # the table of the README, in 24 GB of memory
    python benchmarks/speed.py --size base --threads 2 --memory --source DATA/newstest/newstest2014.en-de.en \\
        --output hf_capsule_mt/evidence/records/speed/speed_base.json
    # the same on a GPU
    python benchmarks/speed.py --size base --device cuda --dtype bfloat16 --tokens 25000 --memory \\
        --source DATA/newstest/newstest2014.en-de.en --output hf_capsule_mt/evidence/records/speed/speed_base_cuda.json

The tests of what is measured run first; if they are red, nothing is (`verify.py`).

The systems of a group and their parent take turns in an order that rotates, so that drifts of the machine hit all
alike; a ratio is the median over the turns of (time of the system / time of the parent in the same turn), its spread
the quartiles. Operations are counted by running a job once with the plain functions, so that they are the algorithm's,
however it is computed: two for each multiply-add of a matrix product, one for each element written by any other
kernel. `time_over_operations` is the quotient of the two ratios: 1 is a system that costs what its arithmetic costs.
Operators: forward and backward of the fast path, as a ratio to the plain one. Absolute times are noise between
machines.

With --output, results are written after every group, and a repeated command goes on with what is missing, or was
measured with other code of the models.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import memory
import verify
from hf_capsule_mt.analysis.efficiency import count_operations
from hf_capsule_mt.models.capsule_kernels import plain_kernels
from registry import (
    JOBS,
    OPERATORS,
    SIZES,
    SYSTEMS,
    Setting,
    build,
    make_job,
    make_operator,
    parent_of,
    sentence_lengths,
    tests_of,
)
from timing import Run, environment, ratios, rotated, seconds, write_record

OPERATOR_TURNS = 3


class Record:
    """Results with the conditions that they all share, in a file if there is one.

    "results" has the systems' rows: parent, parameters, a cell for each job, and "memory". "operators" has a cell for
    each operator. A cell's "code" says which code of the models it was measured with, and "tests" what was green then.

    Raises:
        ValueError: if the file holds results under other conditions.
    """

    def __init__(self, path: Path | None, conditions: dict[str, Any]) -> None:
        self.path = path
        self.code = verify.digest("hf_capsule_mt/models")
        self.content: dict[str, Any] = {**conditions, "tests": {}, "results": {}, "operators": {}}
        if path is not None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            other = [name for name, value in conditions.items() if found.get(name) != value]
            if other:
                raise ValueError(f"{path} was measured with another {', '.join(other)}: choose another --output")
            self.content = found

    def has(self, section: str, name: str, cell: str | None = None) -> bool:
        """Whether an operator, or a cell of a system, was measured with the present code."""
        found = self.content[section].get(name, {})
        return (found if cell is None else found.get(cell, {})).get("code") == self.code

    def put(self, section: str, name: str, values: dict[str, Any]) -> None:
        """Adds to the row of a system or operator; what is a cell gets the code."""
        row = self.content[section].setdefault(name, {})
        for key, value in values.items():
            row[key] = value | {"code": self.code} if isinstance(value, dict) else value

    def save(self) -> None:
        """Drops the tests of code that no cell was measured with, and writes the file."""
        rows = self.content["results"].values()
        cells = [cell for row in rows for cell in row.values() if isinstance(cell, dict)]
        used = {cell["code"] for cell in [*cells, *self.content["operators"].values()]}
        self.content["tests"] = {code: green for code, green in self.content["tests"].items() if code in used}
        if self.path is not None:
            write_record(self.path, self.content)


def groups(names: Sequence[str], size: int) -> Iterator[list[str]]:
    """The systems in groups of at most `size` beside their parent, which comes first."""
    for parent in dict.fromkeys(map(parent_of, names)):
        others = [name for name in names if parent_of(name) == parent and name != parent]
        for start in range(0, len(others), size):
            yield [parent, *others[start : start + size]]


def measure_group(names: Sequence[str], setting: Setting, jobs: Sequence[str], rounds: int) -> dict[str, dict]:
    """
    Times the jobs of a parent and of systems beside it.

    Args:
        names: the parent first.
        rounds: at least 2; in each, every system runs a job as often as JOBS says.

    Returns:
        A row for each system: "parent", "parameters", and for each job its ratios, operations and median seconds.
    """
    rows, runs = {}, {}
    for name in names:
        model = build(name, setting)
        rows[name] = {"parent": names[0], "parameters": sum(p.numel() for p in model.parameters())}
        runs[name] = {job: make_job(model, setting, job) for job in jobs}
    operations: dict[str, dict[str, int]] = {job: {} for job in jobs}
    for name in names:
        for job, run in runs[name].items():
            # an optimizer has no state before its first update; what is compiled is so on the first calls
            run()
            operations[job][name] = count_operations(run)
    times = take_turns(runs, {job: JOBS[job] for job in jobs}, rounds, ", ".join(names[1:]))
    for name in names:
        for job in jobs:
            rows[name][job] = _cell(times[job], operations[job], name, names[0])
    return rows


def take_turns(
    runs: dict[str, dict[str, Run]], turns: dict[str, int], rounds: int, what: str
) -> dict[str, dict[str, list[float]]]:
    """Times every job of everyone, in turns. runs: by name and job. Returns seconds by job and name."""
    times: dict = {job: {name: [] for name in runs} for job in turns}
    for done in range(rounds):
        for job, in_a_round in turns.items():
            for turn in range(in_a_round):
                for name in rotated(list(runs), done * in_a_round + turn):
                    times[job][name].append(seconds(runs[name][job]))
        print(f"\r{what}: round {done + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def _cell(times: dict[str, list[float]], operations: dict[str, int], name: str, parent: str) -> dict[str, Any]:
    found = ratios(times[name], times[parent])
    operation_ratio = operations[name] / operations[parent]
    return found | {
        "operations": operations[name],
        "operation_ratio": operation_ratio,
        "time_over_operations": found["time_ratio"] / operation_ratio,
        "time_over_operations_quartiles": [bound / operation_ratio for bound in found["time_ratio_quartiles"]],
        "median_seconds": statistics.median(times[name]),
    }


def measure_operator(name: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Times the fast path of an operator beside the plain one: ratios, operations of the plain one, median seconds."""
    plain = make_operator(name, setting, plain_kernels)
    runs = {"plain": {"operator": plain}, "fast": {"operator": make_operator(name, setting)}}
    operations = count_operations(plain)
    for contender in runs.values():
        contender["operator"]()
        contender["operator"]()
    times = take_turns(runs, {"operator": OPERATOR_TURNS}, rounds, name)["operator"]
    return ratios(times["fast"], times["plain"]) | {
        "shapes": OPERATORS[name].shapes(setting.size),
        "operations": operations,
        "median_seconds": statistics.median(times["fast"]),
        "median_seconds_plain": statistics.median(times["plain"]),
    }


def measure_memory(record: Record, systems: Sequence[str], size: str, setting: Setting) -> None:
    """Adds the peak memory of training to the rows of the systems, and of their parents."""
    for name in dict.fromkeys([*map(parent_of, systems), *systems]):
        if record.has("results", name, "memory"):
            continue
        print(f"memory of {name} ...", file=sys.stderr, flush=True)
        peak = memory.peak_bytes(name, size, setting)
        parents = record.content["results"].get(parent_of(name), {})
        of_parent = peak if name == parent_of(name) else parents["memory"]["peak_bytes"]
        cell = {"peak_bytes": peak, "memory_ratio": peak / of_parent}
        record.put("results", name, {"parent": parent_of(name), "memory": cell})
        record.save()


def measure(record: Record, arguments: argparse.Namespace, setting: Setting) -> None:
    """Measures what the record does not have yet, and saves it after every group."""
    left = [name for name in arguments.systems if not all(record.has("results", name, job) for job in arguments.jobs)]
    for names in groups(left, arguments.group):
        for name, row in measure_group(names, setting, arguments.jobs, arguments.rounds).items():
            record.put("results", name, row)
        record.save()
        # the models of a group are gone before those of the next are built
        gc.collect()
    for name in arguments.operators:
        if not record.has("operators", name):
            cell = measure_operator(name, setting, arguments.rounds)
            record.content["operators"][name] = cell | {"code": record.code}
            record.save()
    if arguments.memory:
        measure_memory(record, arguments.systems, arguments.size, setting)


def table(content: dict[str, Any]) -> str:
    """The results as Markdown tables: time ratio (operation ratio), memory ratio; time ratio of operators."""
    lines = ["| system | " + " | ".join(f"{job}: time (operations)" for job in JOBS) + " | training memory |"]
    lines.append("|---" * (len(JOBS) + 2) + "|")
    for name, row in content["results"].items():
        cells = [
            f"{row[job]['time_ratio']:.2f}x ({row[job]['operation_ratio']:.2f}x)" if job in row else "-"
            for job in JOBS
        ]
        cells.append(f"{row['memory']['memory_ratio']:.2f}x" if "memory" in row else "-")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    if content["operators"]:
        lines += ["", "| operator | time, to the plain functions |", "|---|---|"]
        lines += [f"| {name} | {cell['time_ratio']:.2f}x |" for name, cell in content["operators"].items()]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="yardstick")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS), help="empty for none")
    parser.add_argument("--operators", nargs="*", choices=OPERATORS, default=list(OPERATORS), help="empty for none")
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS), help="empty for none")
    parser.add_argument(
        "--memory", action="store_true", help="also peak memory of training, in processes of their own"
    )
    parser.add_argument("--source", type=Path, help="text whose first 16 sentences give the lengths to decode")
    parser.add_argument("--rounds", type=int, default=15, help="at least 2")
    parser.add_argument("--group", type=int, default=3, help="systems in memory beside their parent")
    parser.add_argument("--tokens", type=int, help="per training batch, instead of the size's own")
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--output", type=Path, help="JSON file for the results, continued if it is there")
    found = parser.parse_args(arguments)
    for name, least in (("rounds", 2), ("group", 1), ("tokens", 1), ("threads", 1)):
        value = getattr(found, name)
        if value is not None and value < least:
            parser.error(f"--{name} must be at least {least}, not {value}")
    if found.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no such device here")
    if found.source is not None and not found.source.is_file():
        parser.error(f"--source: there is no file {found.source}")
    return found


def main() -> None:
    arguments = parse()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    size = SIZES[arguments.size]
    if arguments.tokens is not None:
        size = size._replace(tokens=arguments.tokens)
    try:
        lengths = sentence_lengths(arguments.source, size)
        conditions = {
            "size": arguments.size,
            **size._asdict(),
            "source": arguments.source.name if arguments.source else None,
            "lengths": list(lengths),
            "device": arguments.device,
            "dtype": arguments.dtype,
            "environment": environment(arguments.device),
        }
        record = Record(arguments.output, conditions)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    green = verify.verify(tests_of(arguments.systems, arguments.operators), gpu=arguments.device == "cuda")
    before = record.content["tests"].get(record.code, {"passed": {}})
    record.content["tests"][record.code] = green | {"passed": before["passed"] | green["passed"]}
    measure(record, arguments, Setting(size, lengths, arguments.device, getattr(torch, arguments.dtype)))
    print(table(record.content))


if __name__ == "__main__":
    main()
