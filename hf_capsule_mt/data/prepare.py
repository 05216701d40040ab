"""
Prepare raw text as the published Multi30k is: lower-cased, punctuation-normalised and tokenised as Moses does.

    hf-capsule-mt prepare DATA/multi30k/{train,val,test2016} --languages en de --output DATA/multi30k_lc
    hf-capsule-mt train multi30k_lc/tiny --data_dir DATA

Models trained on such text, and scored by `score_convention: lc_norm_tok`, compare with what is published of Multi30k.
A file that has been prepared already (PREFIX.lc.norm.tok.LANGUAGE beside the raw one) is taken as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command import run_command
from ..evaluation.scores import prepare_lc_norm_tok
from ..files import read_lines, write_lines

PROGRAM = "hf-capsule-mt prepare"
PREPARED = "lc.norm.tok"


def prepare(prefix: Path, languages: Sequence[str], folder: Path) -> int:
    """
    Write the prepared files of a corpus.

    Args:
        prefix: of the raw files, PREFIX.LANGUAGE.
        languages: their ISO codes.
        folder: gets files of the same names.

    Returns:
        The number of lines of each.

    Raises:
        ValueError: the files are not parallel, or would be overwritten.
        ImportError: sacremoses is missing.
        OSError: a file is not there, or cannot be read or written.
    """
    if folder.resolve() == prefix.parent.resolve():
        raise ValueError(f"--output {folder} is where the raw text is; name another folder")
    texts = {}
    for language in languages:
        done = prefix.with_name(f"{prefix.name}.{PREPARED}.{language}")
        raw = prefix.with_name(f"{prefix.name}.{language}")
        texts[language] = read_lines(done) if done.is_file() else prepare_lc_norm_tok(read_lines(raw), language)
    counts = {language: len(lines) for language, lines in texts.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{prefix}.{language} {count:,}" for language, count in counts.items())
        raise ValueError(f"the files must have the same number of lines, but have: {shown}")
    for language, lines in texts.items():
        write_lines(folder / f"{prefix.name}.{language}", lines)
    return next(iter(counts.values()))


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefixes", nargs="+", type=Path, metavar="PREFIX", help="of the raw files, PREFIX.LANGUAGE")
    parser.add_argument("--languages", nargs="+", required=True, help="ISO codes of the files, such as en de")
    parser.add_argument("--output", type=Path, required=True, help="folder for the prepared files")
    arguments = parser.parse_args(argv)

    def command() -> None:
        for prefix in arguments.prefixes:
            count = prepare(prefix, arguments.languages, arguments.output)
            print(f"{arguments.output / prefix.name}: {count:,} lines", file=sys.stderr)

    return run_command(PROGRAM, command)
