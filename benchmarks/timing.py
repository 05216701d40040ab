"""What the benchmarks of speed share: a clock, runs that take turns, ratios with their spread, the environment."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import __version__

# a job: runs once, and what it returns is of no interest
Run = Callable[[], object]


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a recorded benchmark depends on besides the code, with settings of the C library's allocator if any."""
    return {
        "torch": torch.__version__,
        "transformers": __version__,
        "threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        **{name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
    }


def seconds(run: Run) -> float:
    """Wall-clock time of one run, in seconds, the work that it has left to a GPU included."""
    _wait_for_gpu()
    start = time.perf_counter()
    run()
    _wait_for_gpu()
    return time.perf_counter() - start


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names in the order of a turn: every turn begins one further on, so that no name always comes first."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def ratios(times: Sequence[float], of_parent: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of the ratios of two series of at least 2 times that were taken in turns."""
    each = [ours / parent for ours, parent in zip(times, of_parent, strict=True)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    return {"time_ratio": median, "time_ratio_quartiles": [low, high], "turns": len(each)}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Writes JSON so that the file is whole at any moment: a kill leaves the last version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
