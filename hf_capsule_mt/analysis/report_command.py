"""
One page on what checkpoints translate and what their routing does, on a test set.

    hf-capsule-mt report runs/grammar --source test.en --reference test.de
    hf-capsule-mt report runs/baseline runs/em_routing runs/gdr --source test.en --reference test.de
    hf-capsule-mt report Transformer=runs/t1,runs/t2,runs/t3 EM=runs/e1,runs/e2,runs/e3 --source test.en ...

The output folder gets index.html, which holds everything and needs no network, the figures as SVG and PNG, every
number in report.json (in summary.json without examples and maps), the table of systems as Markdown and LaTeX, and the
translations. With several checkpoints the first is the baseline that the others are tested against. Several runs of a
system, which differ in their seeds, are given as NAME=RUN1,RUN2,RUN3: the report has their mean and spread, and tests
over seeds and sentences. Each checkpoint's part is kept when it is finished: the same command after an interruption
goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tqdm.auto import tqdm
from transformers import AutoConfig

from ..command import run_command
from ..evaluation.checkpoints import is_missing_directory
from ..evaluation.comet import find_comet
from ..evaluation.translate_command import GOES_ON, check_numbers
from ..files import only_writer
from ..loading import from_checkpoint
from ..trust_arguments import add_trust_argument
from .alignment_part import PART as ALIGNMENTS
from .alignment_part import add_alignment_arguments, alignment_file, check_can_probe
from .named_runs import named_runs
from .report import NUM_EXAMPLES, Options, Progress, load_test_set, make_report, write_report

PROGRAM = "hf-capsule-mt report"


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    with tqdm(desc=title, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkpoints",
        nargs="+",
        metavar="RUN|NAME=RUN1,RUN2",
        help="directories or names on the Hub, or several runs of one system; the first is the baseline",
    )
    parser.add_argument("--source", type=Path, required=True, help="text file with one sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translation, line by line")
    parser.add_argument("--output", type=Path, default=Path("report"), help="folder to write (report)")
    parser.add_argument("--names", nargs="+", help="what to call the checkpoints; the names of their folders")
    parser.add_argument("--source_lang", help="language code; the end of the file's name if not given")
    parser.add_argument("--target_lang", help="language code; the end of the file's name if not given")
    parser.add_argument("--num_beams", type=int, default=5, help="beam size (5)")
    parser.add_argument(
        "--length_penalty", type=float, default=1.0, help="exponent of the length; 1 is not neutral (1.0)"
    )
    parser.add_argument("--max_sentences", type=int, help="use the first sentences only")
    parser.add_argument("--max_tokens", type=int, default=4096, help="tokens of a batch, beams included (4096)")
    parser.add_argument(
        "--examples", type=int, default=NUM_EXAMPLES, help=f"sentences to step through ({NUM_EXAMPLES})"
    )
    add_alignment_arguments(parser)
    parser.add_argument("--comet", metavar="COMMAND", help="path of COMET's comet-score, to have its scores too")
    parser.add_argument("--no_speed", action="store_true", help="leave operations and speed out")
    add_trust_argument(parser)
    return parser


def _check(arguments: argparse.Namespace, checkpoints: dict[str, list[str]]) -> None:
    for name, checkpoint in ((name, run) for name, runs in checkpoints.items() for run in runs):
        if is_missing_directory(checkpoint):
            raise ValueError(f"there is no directory {checkpoint} ({name})")
        config = from_checkpoint(AutoConfig, checkpoint, trust_remote_code=arguments.trust_remote_code)
        if arguments.alignments is not None:
            check_can_probe(config)
    check_numbers(arguments, "num_beams", "max_tokens", "examples", "max_sentences")
    output = arguments.output
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; name a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / "parts").is_dir():
        raise ValueError(f"{output} is not empty and holds no report; name another folder")
    if arguments.comet is not None:
        find_comet(arguments.comet)


def _command(arguments: argparse.Namespace) -> None:
    if find_spec("matplotlib") is None:
        raise ValueError('the figures need matplotlib: pip install "hf_capsule_mt[plots]"')
    checkpoints = named_runs(arguments.checkpoints, arguments.names)
    _check(arguments, checkpoints)
    test_set = load_test_set(
        arguments.source,
        arguments.reference,
        arguments.source_lang,
        arguments.target_lang,
        arguments.max_sentences,
        alignment_file(arguments),
    )
    options = Options(
        num_beams=arguments.num_beams,
        length_penalty=arguments.length_penalty,
        max_tokens=arguments.max_tokens,
        num_examples=arguments.examples,
        efficiency=not arguments.no_speed,
        comet=arguments.comet,
        trust_remote_code=arguments.trust_remote_code,
    )
    with only_writer(arguments.output):
        report = make_report(checkpoints, test_set, arguments.output, options, _bar)
        page = write_report(report, arguments.output)
    if test_set.aligned is not None and not any(system.get(ALIGNMENTS) for system in report["systems"]):
        print(f"{PROGRAM}: no system has PAST and FUTURE; the alignments serve adequacy alone", file=sys.stderr)
    if find_spec("systran_align") is None:
        print(f'{PROGRAM}: no adequacy: pip install "hf_capsule_mt[align]"', file=sys.stderr)
    print(report["table"]["markdown"])
    for warning in report.get("speed_warnings", ()):
        print(f"{PROGRAM}: {warning}", file=sys.stderr)
    print(f"written: {page}")


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption=f"; {GOES_ON}")
