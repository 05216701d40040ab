"""How a command line names systems, and the runs of each: RUN, or NAME=RUN1,RUN2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .report import file_name


def named_runs(arguments: Sequence[str], given: Sequence[str] | None) -> dict[str, list[str]]:
    """
    The runs of each system by its name: given, or the last part of its path.

    Args:
        arguments: "RUN" or "NAME=RUN1,RUN2" each; a folder that is called so is a run.
        given: names for all of them, in their order.

    Raises:
        ValueError: names that are alike, twice or too few, or something that is no system.
    """
    systems = [_system(argument) for argument in arguments]
    if given is not None:
        named = [name for name, _ in systems if name is not None]
        if named:
            raise ValueError(f"{named[0]}=... has its name already: leave out --names, or the names before the =")
        if len(given) != len(systems):
            raise ValueError(f"--names needs one name for each of the {len(systems)} checkpoints, got {len(given)}")
        systems = [(name, runs) for name, (_, runs) in zip(given, systems, strict=True)]
    names = [name if name is not None else Path(runs[0]).name or runs[0] for name, runs in systems]
    files = [file_name(name) for name in names]
    if len(set(files)) < len(files):
        raise ValueError(f"several checkpoints would be called {', '.join(names)}: tell them apart with --names")
    return {name: runs for name, (_, runs) in zip(names, systems, strict=True)}


def _system(argument: str) -> tuple[str | None, list[str]]:
    """The name, or None, and the runs."""
    if "=" not in argument or Path(argument).is_dir():
        return None, [argument]
    name, _, listed = argument.partition("=")
    runs = [run.strip() for run in listed.split(",")]
    if not name or not all(runs):
        raise ValueError(
            f"{argument!r} is no system: write NAME=RUN1,RUN2, with a folder or a name on the Hub for each"
        )
    if len(set(runs)) < len(runs):
        raise ValueError(f"{name} has a run twice: {', '.join(runs)}")
    return name, runs
