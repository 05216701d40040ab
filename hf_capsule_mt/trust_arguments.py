"""The arguments of every command that loads a checkpoint: what code may be run for it. Imports no PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

TRUST_HELP = "run the code that a checkpoint brings along; read it first"
OPERATORS_HELP = (
    "Files (or modules) with aggregations of your own, which are run; relative to the current folder. See "
    "docs/operators.md."
)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --trust_remote_code and --operators."""
    parser.add_argument("--trust_remote_code", action="store_true", help=TRUST_HELP)
    parser.add_argument("--operators", nargs="+", metavar="FILE", action=_LoadOperators, help=OPERATORS_HELP)


class _LoadOperators(argparse.Action):
    """Operators are run when they are named, before anything else is read."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        # only now: they are PyTorch's modules
        from .operators import load_operators

        names: Sequence[str] = values
        try:
            load_operators(names)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [str(name) for name in names])
