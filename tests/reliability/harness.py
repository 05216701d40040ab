"""Runs a command, ends it in the middle, runs it again, and compares what it leaves with an uninterrupted run's."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import COMMANDS, REPO, Materials, files
from fork_server import Outcome, Server
from loopback import LoopbackHub


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run: how it went, how many requests it sent to the Hub, and what it left."""

    outcome: Outcome
    requests: int
    state: dict[str, Any]


class Harness:
    """All tests of a session share one: the reference of each command is run once."""

    def __init__(self, server: Server, hub: LoopbackHub, materials: Materials, root: Path) -> None:
        self.server, self.hub, self.materials, self.root = server, hub, materials, root
        self._references: dict[str, Reference] = {}
        self._numbers = itertools.count()

    @contextmanager
    def workplace(self, name: str) -> Iterator[Path]:
        """A new folder with what a command needs, and an empty Hub."""
        folder = self.root / f"{name}-{next(self._numbers)}" / "work"
        folder.mkdir(parents=True)
        self.prepare(name, folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder.parent)

    def prepare(self, name: str, folder: Path) -> None:
        """Put what a command needs into an empty folder, and empty the Hub."""
        self.hub.repos.clear()
        self.hub.objects.clear()
        self.hub.requests.clear()
        COMMANDS[name].prepare(folder, self.materials)

    def run(self, name: str, folder: Path, *, kill_at_request: int | None = None, **options: Any) -> Outcome:
        """
        Run a command in a folder.

        Args:
            kill_at_request: kill it when the Hub has received this request, counted from 1, and not yet answered.
            options: of `Server.run`.
        """
        answer, before = self.hub.answer, len(self.hub.requests)

        def killing(request: Any) -> Any:
            if len(self.hub.requests) - before == kill_at_request:
                os.kill(self.server.pid, signal.SIGKILL)
            return answer(request)

        if kill_at_request is not None:
            self.hub.answer = killing
        try:
            return self.server.run(COMMANDS[name].argv, folder, **options)
        finally:
            self.hub.answer = answer

    def state(self, name: str, folder: Path) -> dict[str, Any]:
        """What a command has left: its files, and the Hub's."""
        found = files(folder)
        if COMMANDS[name].uploads and REPO in self.hub.repos:
            repo = self.hub.repos[REPO]
            found |= {f"Hub: {path}": content for path, content in repo.head.files.items()}
            for tag in repo.tags:
                found |= {f"Hub: {path} at {tag}": content for path, content in repo.find(tag).files.items()}
        return found

    def reference(self, name: str) -> Reference:
        """An uninterrupted run of a command; it has to succeed."""
        if name not in self._references:
            with self.workplace(name) as folder:
                outcome = self.run(name, folder)
                assert outcome.status == 0, outcome.output
                self._references[name] = Reference(outcome, len(self.hub.requests), self.state(name, folder))
        return self._references[name]

    def interrupt(self, name: str, **kill: Any) -> Outcome:
        """
        Kill a command, give it again, and compare.

        Returns:
            How the first one ended: it may have been faster than the kill.

        Raises:
            AssertionError: the second one fails, or the files are others than the reference's.
        """
        expected = self.reference(name).state
        with self.workplace(name) as folder:
            first = self.run(name, folder, **kill)
            assert first.killed or first.status == 0, first.output
            second = self.run(name, folder)
            # a kill between the last file and the end leaves everything done, which the command says
            assert second.status == 0 or "already" in second.output, tail(second.output)
            differing = difference(self.state(name, folder), expected)
            assert not differing, f"{'; '.join(differing)}\n{tail(second.output) if second.status else ''}"
        return first


def tail(output: str) -> str:
    """The end of what a command printed."""
    return "\n".join(output.strip().splitlines()[-6:])


def difference(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not as it should be, file by file."""
    lines = [f"{path}: missing" for path in expected.keys() - found.keys()]
    lines += [f"{path}: left over" for path in found.keys() - expected.keys()]
    lines += [f"{path}: differs" for path in expected.keys() & found.keys() if found[path] != expected[path]]
    return sorted(lines)


def spread(count: int, largest: int, generator: random.Random) -> list[int]:
    """So many different numbers from 1 to the largest: all if there are no more, else one of each equal part."""
    if largest <= count:
        return list(range(1, largest + 1))
    bounds = [1 + part * largest // count for part in range(count + 1)]
    return [generator.randrange(low, high) for low, high in itertools.pairwise(bounds)]
