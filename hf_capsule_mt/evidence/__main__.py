"""
Write the tables of README and documents from the records, so that no number in them is typed by hand.

    python -m hf_capsule_mt.evidence            # rewrite the documents
    python -m hf_capsule_mt.evidence --check    # exit with 1 if a document is not what the records give

Both exit with 1, too, if two tables give one score different values.

From a checkout: neither documents nor records are in a wheel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..command import run_command
from .documents import update
from .recorded import RECORDS

PROGRAM = "hf_capsule_mt.evidence"


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args(argv).check
    wrong: list[str] = []

    def command() -> None:
        if not RECORDS.is_dir():
            raise ValueError("there are no records here: run this in a checkout, as an editable install")
        documents, differing = update(write=not check)
        for document in documents:
            print(f"{document} {'is not what the records give' if check else 'written'}")
        for line in differing:
            print(line)
        wrong.extend([*differing, *(documents if check else ())])

    status = run_command(PROGRAM, command)
    return status or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
