"""
Translate a file, or standard input, with any encoder-decoder checkpoint.

    hf-capsule-mt translate runs/grammar test.en --output test.de
    cat test.en | hf-capsule-mt translate runs/grammar > test.de
    hf-capsule-mt translate runs/grammar test.jsonl --jsonl --num_return_sequences 5 --agreements
    hf-capsule-mt translate runs/nllb test.en --source_lang eng_Latn --target_lang deu_Latn
    hf-capsule-mt translate runs/nllb test.jsonl --jsonl --source_lang_field from --target_lang_field to
    hf-capsule-mt translate exported test.en --backend onnx    a folder of `hf-capsule-mt export --format onnx`

One sentence a line; a blank line stays blank. With --scores a line is "score TAB translation", with several
translations a sentence "sentence TAB score TAB translation", the sentences counted from 0. With --jsonl lines are JSON
objects: the field "translation" is added, other fields are passed on, and with --scores, several translations or
--agreements also "translations", a list of objects with "text", "score", "tokens" (ids), "ended" (false if a length
limit cut it off) and "agreements".

Multilingual checkpoints (NLLB, M2M100, mBART) need the languages, as their tokenizers call them, unless the checkpoint
was trained for a single pair, which is saved with it.

The order of the lines is kept. They are sorted by length and written in windows of --window lines, so that text of any
length can be piped through. A file given by --output appears when it is complete; the same command after an
interruption goes on from the last window.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..command import run_command
from ..files import json_text
from ..serving.onnx_translator import Hypothesis, Progress
from ..trust_arguments import add_trust_argument
from .backend import DTYPES, Backend, is_detailed
from .line_files import (
    STANDARD_STREAM,
    WINDOW,
    LineOutput,
    count_lines,
    json_record,
    name_of,
    open_lines,
    process_lines,
)
from .line_languages import add_language_arguments, check_language_arguments, language_fields

PROGRAM = "hf-capsule-mt translate"
SCORE_DECIMALS = 6
GOES_ON = "what is finished is kept, and the same command goes on from there"
# Above these a number is a mistake: it would take all memory, or every score to zero
MOST = {"num_beams": 1000, "num_return_sequences": 1000, "max_tokens": 10**7, "window": 10**7}
LARGEST_PENALTY = 10.0
BACKENDS = ("pytorch", "onnx")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What all commands that run a checkpoint on lines have in common."""
    parser.add_argument("--output", type=Path, help="file to write (standard output)")
    parser.add_argument("--jsonl", action="store_true", help="lines are JSON objects")
    parser.add_argument("--source_field", default="source", help='with --jsonl, the field to translate ("source")')
    parser.add_argument("--target_prefix", metavar="TEXT", help="whole words that every translation begins with")
    parser.add_argument("--prefix_field", metavar="FIELD", help="with --jsonl, the field of each line's own prefix")
    parser.add_argument("--length_penalty", type=float, help="exponent of the length in a score (the checkpoint's)")
    add_language_arguments(parser)
    parser.add_argument("--max_tokens", type=int, default=4096, help="tokens of a batch, beams included (4096)")
    parser.add_argument("--window", type=int, default=WINDOW, help=f"lines read and written at a time ({WINDOW})")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="precision (float32)")
    parser.add_argument("--device", help="cpu, cuda, ... (the accelerator, if there is one)")
    add_trust_argument(parser)


def check_model_arguments(arguments: argparse.Namespace, *positive: str) -> None:
    """
    Check what `add_model_arguments` added.

    Args:
        positive: more arguments that must be at least one, if they are given.

    Raises:
        ValueError: a number that cannot be meant, or arguments that exclude or need each other.
    """
    check_numbers(arguments, "max_tokens", "window", *positive)
    if arguments.prefix_field is not None and not arguments.jsonl:
        raise ValueError("--prefix_field needs --jsonl; --target_prefix gives all lines the same prefix")
    if arguments.prefix_field is not None and arguments.target_prefix is not None:
        raise ValueError("give either --prefix_field or --target_prefix, and not both")
    check_language_arguments(arguments)


def check_numbers(arguments: argparse.Namespace, *names: str) -> None:
    """
    Check the length penalty, and arguments that must be at least one, if they are given.

    Raises:
        ValueError: a number that is out of its bounds.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
        if value is not None and value > MOST.get(name, value):
            raise ValueError(f"--{name} must be at most {MOST[name]}, got {value}")
    penalty = arguments.length_penalty
    if penalty is not None and not (math.isfinite(penalty) and abs(penalty) <= LARGEST_PENALTY):
        raise ValueError(f"--length_penalty must be from {-LARGEST_PENALTY:g} to {LARGEST_PENALTY:g}, got {penalty:g}")


def after_interruption(arguments: argparse.Namespace) -> str:
    """What to say after Ctrl-C: a part is kept of a file, and not of a stream."""
    return "" if arguments.output in (None, STANDARD_STREAM) else f"; {GOES_ON}"


def json_number(value: float) -> float | None:
    """A score for JSON, which has no infinity: null is what generation could not have produced."""
    return round(value, SCORE_DECIMALS) if math.isfinite(value) else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="directory or name on the Hub")
    parser.add_argument("input", type=Path, nargs="?", default=STANDARD_STREAM, help="text file (standard input)")
    add_model_arguments(parser)
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default=BACKENDS[0],
        help="what translates: PyTorch, or ONNX Runtime, for which CHECKPOINT is an exported folder (pytorch)",
    )
    parser.add_argument("--num_beams", type=int, default=5, help="beam size; 1 is greedy search (5)")
    parser.add_argument("--num_return_sequences", type=int, default=1, help="translations of each sentence (1)")
    parser.add_argument("--max_new_tokens", type=int, help="limit of every translation (twice its source's, plus 10)")
    parser.add_argument("--scores", action="store_true", help="give the scores of the translations too")
    parser.add_argument(
        "--agreements", action="store_true", help="with --jsonl, a summary of the routing of each translation"
    )
    return parser


def _check(arguments: argparse.Namespace) -> None:
    check_model_arguments(arguments, "num_beams", "num_return_sequences", "max_new_tokens")
    if arguments.num_return_sequences > arguments.num_beams:
        raise ValueError(
            f"--num_return_sequences {arguments.num_return_sequences} needs at least as many beams, got --num_beams "
            f"{arguments.num_beams}"
        )
    if arguments.agreements and not arguments.jsonl:
        raise ValueError("--agreements needs --jsonl: they have no place in plain text")


def _load_backend(arguments: argparse.Namespace) -> Backend:
    # imported when it is asked for: an exported model translates before PyTorch would be imported
    if arguments.backend == "onnx":
        from .onnx_backend import load_backend
    else:
        from .pytorch_backend import load_backend
    return load_backend(arguments)


def _command(arguments: argparse.Namespace) -> None:
    _check(arguments)
    with open_lines(arguments.input) as lines, LineOutput(arguments.output, [arguments.input]) as output:
        backend = _load_backend(arguments)
        # Of the options, those that cannot change a translation; which backend it is, its fingerprint says
        neutral = ("input", "output", "max_tokens", "window", "device", "checkpoint", "operators", "backend")
        options = {name: value for name, value in vars(arguments).items() if name not in neutral}
        if arguments.output is not None:
            options |= backend.fingerprint()
        output.begin(options)

        def run(window: list[str], first: int, progress: Progress) -> list[str]:
            places = [f"{name_of(arguments.input)}, line {number}" for number in range(first, first + len(window))]
            records = _records(arguments, window, places)
            nbest = backend.translate(records, places, progress)
            if arguments.jsonl:
                return [_json_line(*line, is_detailed(arguments)) for line in zip(records, nbest, strict=True)]
            numbered = enumerate(nbest, start=first - 1)
            return [line for number, line_nbest in numbered for line in _text_lines(arguments, number, line_nbest)]

        total = count_lines(arguments.input)
        process_lines(lines, output, run, total=total, window=arguments.window, title="translating")


def _records(arguments: argparse.Namespace, window: list[str], places: list[str]) -> list[dict[str, Any]]:
    """The lines as records; plain text has one field."""
    if not arguments.jsonl:
        return [{arguments.source_field: line} for line in window]
    names = (arguments.source_field, arguments.prefix_field, *language_fields(arguments))
    fields = dict.fromkeys(filter(None, names), str)
    records = [json_record(line, place, fields) for place, line in zip(places, window, strict=True)]
    for place, record in zip(places, records, strict=True):
        for name in ("translation", "translations"):
            if name in record:
                raise ValueError(f'{place} has a field "{name}" already, which would be lost; rename it')
    return records


def _json_line(record: dict[str, Any], nbest: list[Hypothesis], detailed: bool) -> str:
    record["translation"] = nbest[0].text
    if detailed:
        record["translations"] = [
            {
                "text": hypothesis.text,
                "score": json_number(hypothesis.score),
                "tokens": hypothesis.tokens,
                "ended": hypothesis.ended,
                **({} if hypothesis.agreements is None else {"agreements": hypothesis.agreements}),
            }
            for hypothesis in nbest
        ]
    return json_text(record)


def _text_lines(arguments: argparse.Namespace, number: int, nbest: list[Hypothesis]) -> list[str]:
    texts = [hypothesis.text for hypothesis in nbest]
    scored = [f"{nbest[rank].score:.{SCORE_DECIMALS}f}\t{text}" for rank, text in enumerate(texts)]
    if arguments.num_return_sequences > 1:
        return [f"{number}\t{line}" for line in scored]
    return scored if arguments.scores else texts


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption=after_interruption(arguments))
