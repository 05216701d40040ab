"""The help of commands that take recipes: this project's arguments, and those of transformers on demand."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from transformers import HfArgumentParser

# inherited ones that most runs give
_FREQUENT = ("output_dir", "max_steps", "seed", "resume_from_checkpoint")


def argument(help: str, default: Any = None) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": help})


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows each flag in one spelling, and no default where it is None."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[0]} {values}".rstrip()

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def print_help_and_leave(parser: HfArgumentParser, argv: Sequence[str]) -> None:
    """
    Print the help if a command line asks for it: `--help`, or `--help all`.

    Raises:
        SystemExit: the help is printed.
    """
    for position, token in enumerate(argv):
        if token in ("-h", "--help"):
            print(help_text(parser, everything=list(argv[position + 1 : position + 2]) == ["all"]), end="")
            raise SystemExit(0)


def help_text(parser: HfArgumentParser, everything: bool = False) -> str:
    """
    The arguments by dataclass, those that it inherits only on demand.

    Args:
        parser: of dataclasses that have an `_argument_group_name`.
        everything: with the inherited arguments, after the others.
    """
    formatter = HelpFormatter(parser.prog)
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    groups = {group.title: group._group_actions for group in parser._action_groups}
    inherited = []
    for dtype in parser.dataclass_types:
        own = inspect.get_annotations(dtype)
        actions = groups[dtype._argument_group_name]
        formatter.start_section(dtype._argument_group_name)
        formatter.add_arguments([action for action in actions if action.dest in own])
        formatter.end_section()
        inherited += [action for action in actions if action.dest not in own]
    if inherited and everything:
        formatter.start_section("transformers.Seq2SeqTrainingArguments")
        formatter.add_arguments(inherited)
        formatter.end_section()
    elif inherited:
        frequent = ", ".join(f"--{name}" for name in _FREQUENT)
        formatter.add_text(
            f"Every argument of transformers.Seq2SeqTrainingArguments can be given too, such as {frequent}: "
            "--help all lists them."
        )
    return formatter.format_help()
