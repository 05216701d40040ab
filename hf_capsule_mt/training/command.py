"""The command `hf-capsule-mt train`, which is train.py too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..command import say
from ..files import only_writer
from .failures import RunFailure, explain_failed_writes

PROGRAM = "hf-capsule-mt train"


def main(argv: Sequence[str]) -> int:
    """
    Run the command line; returns the exit status.

    What is wrong before any work ends with one line and status 2, a run that cannot go on with one line and status 1.

    Args:
        argv: arguments without the program name.
    """
    from .arguments import DEFAULT_RECIPE, parse_arguments

    with ExitStack() as held:
        try:
            arguments = parse_arguments(argv, DEFAULT_RECIPE)
            output_dir = Path(arguments.training.output_dir)
            # One process writes for all of a distributed run.
            if arguments.training.process_index == 0:
                held.enter_context(only_writer(output_dir))
            from .setup import prepare

            with explain_failed_writes(output_dir, "make room, and start again"):
                setup = prepare(arguments)
            from .run import build_trainer, run

            # Asks for whatever else a run needs: libraries, devices, number formats.
            trainer = build_trainer(setup)
        except (ValueError, OSError, ImportError, RunFailure) as error:
            return _end(error, 2)
        try:
            run(setup, argv, trainer)
        except RunFailure as error:
            # All processes of a distributed run fail together, unless one of them could not write.
            alone = error.__cause__ is not None
            return _end(error if alone or arguments.training.process_index == 0 else None, 1)
    return 0


def _end(error: Exception | None, status: int) -> int:
    if error is not None:
        say(PROGRAM, f"error: {error}")
    return status
