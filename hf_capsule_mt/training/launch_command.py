"""
Print the path of a configuration of accelerate that comes with the package, for `accelerate launch`.

    accelerate launch --config_file "$(hf-capsule-mt launch-config fsdp)" --num_processes 4 \\
        -m hf_capsule_mt train RECIPE

Without a name, the names. See docs/scale.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..command import run_command

PROGRAM = "hf-capsule-mt launch-config"
CONFIGS = Path(__file__).parent / "accelerate"


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="of the configuration")
    name = parser.parse_args(argv).name
    return run_command(PROGRAM, lambda: print(_list() if name is None else config_path(name)))


def config_path(name: str) -> Path:
    """
    The file of a configuration.

    Raises:
        ValueError: there is none of that name; says which there are.
    """
    paths = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    if name not in paths:
        raise ValueError(f"there is no configuration {name!r}; there are: {', '.join(paths)}")
    return paths[name]


def _list() -> str:
    """Names, and the first comments of the files."""
    lines = ((path.stem, path.read_text(encoding="utf-8").splitlines()[0]) for path in sorted(CONFIGS.glob("*.yaml")))
    return "\n".join(f"{name:<16}{line.removeprefix('# ')}" for name, line in lines)
