"""
Score given translations: their log-probability under any encoder-decoder checkpoint, as its beam search scores them.

    hf-capsule-mt score runs/grammar test.en test.de
    hf-capsule-mt score runs/grammar translated.jsonl --jsonl
    hf-capsule-mt score runs/grammar translated.jsonl --jsonl --nbest

A line is "score TAB tokens": the sum of the log-probabilities of the target's tokens, its end included, over their
number to the power of --length_penalty, and this number. With --per_token the log-probabilities follow, separated by
spaces. With --jsonl there is one file, of JSON objects with a source and a translation: "score", "num_tokens" and
with --per_token "log_probs" are added, other fields are passed on; null stands for minus infinity. The score of a
translation is the one that it was generated with if the tokenizer cuts its text as generation did and no length limit
cut it off. --nbest has neither condition: it scores the lists "translations" that `translate --jsonl --scores` writes
by their token ids, with a checkpoint that has the same tokenizer. A prefix that was forced is not scored.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..command import run_command
from ..files import json_text
from ..models.tokenizer_languages import check_target_text, languages_of
from .backend import prefixes_of
from .checkpoint_languages import check_languages, rows_by_languages
from .checkpoints import checkpoint_fingerprint, load_checkpoint
from .encoding import target_vocabulary
from .line_files import (
    STANDARD_STREAM,
    LineOutput,
    count_lines,
    json_record,
    name_of,
    open_lines,
    process_lines,
)
from .line_languages import language_fields
from .score_pairs import ScoredTranslation, score_pairs
from .translate_command import (
    SCORE_DECIMALS,
    add_model_arguments,
    after_interruption,
    check_model_arguments,
    json_number,
)

PROGRAM = "hf-capsule-mt score"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="directory or name on the Hub")
    parser.add_argument("source", type=Path, help="text file, or the JSON lines; - for standard input")
    parser.add_argument("target", type=Path, nargs="?", help="its translation, line by line; not with --jsonl")
    add_model_arguments(parser)
    parser.add_argument(
        "--target_field", default="translation", help='with --jsonl, the field with the translation ("translation")'
    )
    parser.add_argument("--nbest", action="store_true", help="with --jsonl, score the lists of `translate --scores`")
    parser.add_argument("--per_token", action="store_true", help="give the log-probability of every token too")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    check_model_arguments(arguments)
    if arguments.jsonl == (arguments.target is not None):
        raise ValueError("give a source and a target file, or one file of JSON lines with --jsonl")
    if arguments.source == arguments.target == STANDARD_STREAM:
        raise ValueError("standard input can only be one of the two; give a file for the source or the target")
    if arguments.nbest and not arguments.jsonl:
        raise ValueError("--nbest needs --jsonl")


def _command(arguments: argparse.Namespace) -> None:
    _check(arguments)
    total = count_lines(arguments.source)
    if not arguments.jsonl and None not in (counts := (total, count_lines(arguments.target))) and len(set(counts)) > 1:
        raise ValueError(f"{arguments.source} has {counts[0]} lines, but {arguments.target} {counts[1]}")
    # With --jsonl there is no second file
    second = Path(os.devnull) if arguments.jsonl else arguments.target
    inputs = [file for file in (arguments.source, arguments.target) if file is not None]
    with (
        open_lines(arguments.source) as sources,
        open_lines(second) as targets,
        LineOutput(arguments.output, inputs) as output,
    ):
        model, tokenizer = load_checkpoint(
            arguments.checkpoint,
            arguments.dtype,
            arguments.device,
            trust_remote_code=arguments.trust_remote_code,
        )
        check_languages(arguments, tokenizer)
        check_target_text(tokenizer)
        # Of the options, those that cannot change a score
        neutral = ("source", "target", "output", "max_tokens", "window", "device", "checkpoint", "operators")
        options = {name: value for name, value in vars(arguments).items() if name not in neutral}
        if arguments.output is not None:
            options |= checkpoint_fingerprint(model, tokenizer)
        output.begin(options)
        rows = target_vocabulary(model)

        def run(window: list[str], first: int, progress: Callable[[int, int], None]) -> list[str]:
            records = _records(arguments, window, first)
            counts, flat, tokens = _flatten(arguments, tokenizer, records, first, rows)
            places = [_place(arguments, first + n) for n, count in enumerate(counts) for _ in range(count)]
            found: dict[int, ScoredTranslation] = {}
            by_languages = rows_by_languages(arguments, tokenizer, [record for record, _ in flat], places)
            for pair, chosen in by_languages.items():

                def show(done: int, _: int, before: int = len(found)) -> None:
                    # Of an n-best list, several make a line
                    progress((before + done) * len(window) // max(1, len(flat)), len(window))

                given = None if tokens is None else [tokens[row] for row in chosen]
                with languages_of(tokenizer, pair) as languages:
                    options = {"numbers": [first + row for row in chosen], "progress": show, **languages}
                    results = _score(arguments, model, tokenizer, [flat[row] for row in chosen], given, **options)
                found.update(zip(chosen, results, strict=True))
            scored = iter([found[row] for row in range(len(flat))])
            return [
                _line(arguments, record, [next(scored) for _ in range(count)])
                for record, count in zip(records, counts, strict=True)
            ]

        lines = sources if arguments.jsonl else _pairs(sources, targets)
        process_lines(lines, output, run, total=total, window=arguments.window, title="scoring")


def _score(
    arguments: argparse.Namespace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    flat: list[tuple[dict[str, Any], str]],
    tokens: list[list[int]] | None,
    **options: Any,
) -> list[ScoredTranslation]:
    """Of records with the same languages and their translations."""
    if arguments.length_penalty is not None:
        options["length_penalty"] = arguments.length_penalty
    return score_pairs(
        model,
        tokenizer,
        [record[arguments.source_field] for record, _ in flat],
        [text for _, text in flat],
        tokens=tokens,
        prefixes=prefixes_of(arguments, [record for record, _ in flat]),
        max_tokens=arguments.max_tokens,
        **options,
    )


def _pairs(sources: Iterator[str], targets: Iterator[str]) -> Iterator[str]:
    """Both sides of a pair as one line of JSON."""
    try:
        for pair in zip(sources, targets, strict=True):
            yield json.dumps(pair)
    except ValueError as error:
        if "zip()" not in str(error):
            raise
        raise ValueError("source and target have different numbers of lines") from error


def _records(arguments: argparse.Namespace, window: list[str], first: int) -> list[dict[str, Any]]:
    if not arguments.jsonl:
        pairs = (json.loads(line) for line in window)
        return [{arguments.source_field: source, arguments.target_field: target} for source, target in pairs]
    target = ("translations", list) if arguments.nbest else (arguments.target_field, str)
    fields = dict([(arguments.source_field, str), target])
    fields |= dict.fromkeys(language_fields(arguments), str)
    if arguments.prefix_field is not None:
        fields[arguments.prefix_field] = str
    return [json_record(line, _place(arguments, number), fields) for number, line in enumerate(window, start=first)]


def _place(arguments: argparse.Namespace, number: int) -> str:
    return f"{name_of(arguments.source)}, line {number}"


def _flatten(
    arguments: argparse.Namespace,
    tokenizer: PreTrainedTokenizerBase,
    records: list[dict[str, Any]],
    first: int,
    rows: int,
) -> tuple[list[int], list[tuple[dict[str, Any], str]], list[list[int]] | None]:
    """Number of translations of each record, all of them beside their records, and their ids if they are known."""
    if not arguments.nbest:
        return [1] * len(records), [(record, record[arguments.target_field]) for record in records], None
    flat, ids = [], []
    for number, record in enumerate(records, start=first):
        for hypothesis in record["translations"]:
            place = _place(arguments, number)
            tokens, text = _tokens_and_text(hypothesis, place, rows)
            decoded = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if decoded != text:
                raise ValueError(
                    f"{place}: the tokens of {text[:60]!r} are another text for this checkpoint's tokenizer; "
                    "leave out --nbest to score texts"
                )
            flat.append((record, text))
            ids.append(tokens)
    return [len(record["translations"]) for record in records], flat, ids


def _tokens_and_text(hypothesis: Any, place: str, rows: int) -> tuple[list[int], str]:
    """Ids and text of one of a line's translations, for a model of so many rows."""
    fields = hypothesis if isinstance(hypothesis, dict) else {}
    tokens, text = fields.get("tokens"), fields.get("text")
    if not isinstance(text, str) or not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        raise ValueError(f'{place}: a translation without "text" and "tokens", a list of ids')
    unknown = [token for token in tokens if not 0 <= token < rows]
    if unknown:
        raise ValueError(
            f"{place}: the token {unknown[0]} is none of this checkpoint's, which end with {rows - 1}; give the "
            "checkpoint that made them, or leave out --nbest to score texts"
        )
    return tokens, text


def _line(arguments: argparse.Namespace, record: dict[str, Any], results: list[ScoredTranslation]) -> str:
    if arguments.nbest:
        for hypothesis, result in zip(record["translations"], results, strict=True):
            hypothesis.update(_fields(arguments, result))
        return json_text(record)
    (result,) = results
    if arguments.jsonl:
        return json_text({**record, **_fields(arguments, result)})
    columns = [f"{result.score:.{SCORE_DECIMALS}f}", str(len(result.log_probs))]
    if arguments.per_token:
        columns.append(" ".join(f"{value:.{SCORE_DECIMALS}f}" for value in result.log_probs))
    return "\t".join(columns)


def _fields(arguments: argparse.Namespace, result: ScoredTranslation) -> dict[str, Any]:
    fields: dict[str, Any] = {"score": json_number(result.score), "num_tokens": len(result.log_probs)}
    if arguments.per_token:
        fields["log_probs"] = [json_number(value) for value in result.log_probs]
    return fields


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption=after_interruption(arguments))
