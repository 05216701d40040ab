"""A command that is killed at any moment leaves what the same command, given again, makes whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from commands import COMMANDS
from harness import Harness, difference, spread
from record import note

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SEED = 7


@dataclass(frozen=True)
class Plan:
    """How often the thorough run kills a command: at file events, at random moments, at requests to the Hub."""

    events: int
    moments: int
    requests: int = 0


PLANS = {
    "train": Plan(24, 10),
    "average": Plan(12, 6),
    "distill": Plan(9, 6),
    "translate": Plan(15, 6),
    "score": Plan(15, 6),
    "report": Plan(12, 6),
    "convert": Plan(20, 6),
    "publish": Plan(6, 4, 8),
}


def kills(name: str, harness: Harness) -> list[dict[str, float]]:
    """The kills of the thorough run; with the same seed, and a machine of the same speed, they are the same."""
    generator, reference, plan = random.Random(f"{SEED} {name}"), harness.reference(name), PLANS[name]
    at_events = [{"kill_at": number} for number in spread(plan.events, reference.outcome.events, generator)]
    at_moments = [{"kill_after": generator.uniform(0, reference.outcome.seconds)} for _ in range(plan.moments)]
    at_requests = [{"kill_at_request": number} for number in spread(plan.requests, reference.requests, generator)]
    return [*at_events, *at_moments, *at_requests]


@pytest.mark.parametrize(("name", "share"), [("train", 0.6), ("translate", 0.5), ("score", 1.0), ("convert", 0.5)])
def test_one_kill(harness, name, share):
    """A sample of what the thorough run does: one file event of each of the quick commands."""
    event = max(1, round(share * harness.reference(name).outcome.events))
    assert harness.interrupt(name, kill_at=event).killed


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_kills_everywhere(harness, name):
    failed, done = [], {"kill_at": 0, "kill_after": 0, "kill_at_request": 0}
    planned = kills(name, harness)
    for kill in planned:
        try:
            done[next(iter(kill))] += harness.interrupt(name, **kill).killed
        except AssertionError as error:
            failed.append(f"{kill}: {error}")
    note(
        "kills",
        name,
        {
            "file_events": done["kill_at"],
            "moments": done["kill_after"],
            "requests": done["kill_at_request"],
            "tried": len(planned),
            "failed": len(failed),
            "files_compared": len(harness.reference(name).state),
        },
    )
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "translate"])
def test_kills_of_whole_processes(harness, name):
    """The same with processes of their own, started as a user starts them: at two file events, and after a time."""
    argv = COMMANDS[name].argv
    start = [str(ROOT / "train.py"), *argv[1:]] if name == "train" else ["-m", "hf_capsule_mt", *argv]
    events = harness.reference(name).outcome.events
    plans = [events // 3, events - 1, None]
    with harness.workplace(name) as folder:
        environment = {**harness.server.environment, "HF_DATASETS_CACHE": str(folder / "cache")}

        def run(command: list[str], seconds: float | None = None) -> int:
            try:
                return subprocess.run(
                    [sys.executable, *command], cwd=folder, env=environment, capture_output=True, timeout=seconds
                ).returncode
            except subprocess.TimeoutExpired:
                return -signal.SIGKILL

        for event in plans:
            below = ["--below", str(folder), "--at", str(event)]
            command = start if event is None else [str(HERE / "file_events.py"), *below, "--", *start]
            # the time is that of importing everything, and a little
            status = run(command, 8.0 if event is None else None)
            # going on has fewer events than beginning: the output may be there before the next kill, which is said
            assert status in (-signal.SIGKILL, 0, 2)
            os.sync()
        status = run(start)
        assert status in (0, 2) and difference(harness.state(name, folder), harness.reference(name).state) == []
    compared = len(harness.reference(name).state)
    figures = {"file_events": 2, "moments": 1, "tried": len(plans), "failed": 0, "files_compared": compared}
    note("kills", f"{name}, whole processes", figures)
