"""
Sequence-level knowledge distillation: a corpus whose targets are a teacher's translations.

Source: Kim and Rush, "Sequence-Level Knowledge Distillation" (EMNLP 2016), section 3.2: the student learns from the
teacher's beam search output. Wang et al., "Towards Linear Time Neural Machine Translation with Capsule Networks"
(EMNLP 2019), section 4.2: "We decode the entire training set once using the teacher to create a new training dataset".

The files beside an output prefix, in the order in which they come into being:

    PREFIX.partial-RANK.jsonl        one for each process: the fingerprint of the distillation, then finished sentences
    PREFIX.SOURCE_LANG, PREFIX.TARGET_LANG, PREFIX.json
                                     the corpus and, last, its record, which says that the corpus is whole; each is put
                                     in place in one step. Only then are the partial files removed.

With several pairs of languages, of a multilingual teacher, the corpus is PREFIX.PAIR.SOURCE_LANG and
PREFIX.PAIR.TARGET_LANG for each of language_pairs, or PREFIX.jsonl where records say their languages.

Whatever the moment of a kill, the same command goes on from these files. The processes need a common file system.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import torch
from accelerate import PartialState
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ..data.corpus import JSON_SUFFIXES, load_split, rows_by_pair
from ..evaluation.checkpoints import absent_weights, checkpoint_fingerprint, digest
from ..evaluation.translate import translate_batches
from ..files import json_text, one_line, only_writer, write_whole
from ..loading import from_checkpoint
from ..models.tokenizer_languages import LanguagePair, is_multilingual, use_languages
from ..records import without_secrets
from . import report
from .arguments import parse_recipe, recipe_parser
from .data_arguments import COLUMNS, DataArguments, language_check
from .failures import RunFailure, explain_failed_writes
from .help_text import argument

PROGRAM = "hf-capsule-mt distill"
# Tokenised at a time: the tokens of a large corpus would fill the memory.
CHUNK = 50_000
# The processes wait for the slowest one at the end; the default of half an hour may be less than their difference.
PATIENCE = timedelta(days=7)
USED_DATA_ARGUMENTS = (
    "source_lang",
    "target_lang",
    *COLUMNS,
    "language_pairs",
    "train_file",
    "dataset_name",
    "dataset_config_name",
    "data_dir",
    "max_train_samples",
    "trust_remote_code",
    "operators",
)


@dataclass
class DistillationArguments:
    """The teacher, how it translates, and where its corpus goes."""

    _argument_group_name = "distillation"

    teacher_name_or_path: str | None = argument("Folder or Hub name of the encoder-decoder model that translates.")
    output_prefix: str | None = argument(
        "Write PREFIX.SOURCE_LANG, PREFIX.TARGET_LANG and PREFIX.json (with language_pairs PREFIX.PAIR.SOURCE_LANG "
        "and so on, with a column of languages PREFIX.jsonl); relative to the current folder."
    )
    num_beams: int = argument("Beam size; 1 is greedy.", 5)
    length_penalty: float = argument("Exponent: a hypothesis' log-probability is divided by length^this.", 1.0)
    max_tokens_per_batch: int = argument(
        "Bound on sentences * longest source * beams, per process; without effect on the result.", 8192
    )

    def validate(self) -> None:
        """
        Check the values by themselves.

        Raises:
            ValueError: a missing or impossible value.
        """
        if self.teacher_name_or_path is None:
            raise ValueError("missing key teacher_name_or_path: the model that translates the corpus")
        if self.output_prefix is None:
            raise ValueError("missing key output_prefix: where the new corpus is written")
        if not self.prefix.name or self.prefix.suffix in JSON_SUFFIXES:
            raise ValueError(
                f"output_prefix={self.output_prefix} is to be the common beginning of two text files, "
                "such as runs/distilled/train"
            )
        for name in ("num_beams", "max_tokens_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def prefix(self) -> Path:
        """The output prefix as a path."""
        return Path(str(self.output_prefix)).expanduser()

    def generation_options(self) -> dict[str, Any]:
        """Options of generate."""
        options: dict[str, Any] = {"num_beams": self.num_beams, "do_sample": False, "num_return_sequences": 1}
        return {**options, "length_penalty": self.length_penalty} if self.num_beams > 1 else options


@dataclass
class DistillationCommand:
    """What to decode and how. `given` has what differs from the defaults, by name."""

    data: DataArguments
    distillation: DistillationArguments
    recipe: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def validate(self) -> None:
        """
        Check the values by themselves, and that the output can be written.

        Raises:
            ValueError: a missing or impossible value, or a folder that cannot be written to.
        """
        self.data.validate()
        self.distillation.validate()
        folder = next(path for path in self.distillation.prefix.absolute().parents if path.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            target = _corpus_files(self)[-1]
            raise ValueError(f"cannot write {target}: {folder} is no folder that can be written to")


@dataclass
class Distillation:
    """
    A distillation that is ready to run.

    Attributes:
        sources, pairs: the sentences, and the languages of each; None for a teacher of one pair.
        first: the first position of each sentence that is not blank, with its languages.
        done: positions of which there are translations.
    """

    command: DistillationCommand
    state: PartialState
    sources: list[str]
    pairs: list[LanguagePair | None]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: dict[str, Any]
    first: dict[tuple[str, LanguagePair | None], int] = field(repr=False)
    done: set[int] = field(repr=False)

    @property
    def pending(self) -> list[int]:
        """
        Positions of the sentences to decode, longest first: so that equal shares are equally long, and that one too
        long for the memory is found soon.
        """
        return sorted(set(self.first.values()) - self.done, key=lambda index: (-len(self.sources[index]), index))


def parse_distillation(argv: Sequence[str]) -> DistillationCommand:
    """
    Parse the command line of `hf-capsule-mt distill`.

    Raises:
        ValueError, FileNotFoundError: an unknown or invalid argument, or one that only training has a use for; no such
            recipe.
    """
    parser = recipe_parser(
        (DataArguments, DistillationArguments),
        PROGRAM,
        "Translate the source side of a training corpus with a teacher, and write the result as a training corpus. "
        "RECIPE, a path or a name, holds arguments by name; the command line overrides them. The same command "
        "again goes on after an interruption. Of the data arguments only these have a use here: "
        f"{', '.join(USED_DATA_ARGUMENTS)}.",
    )
    parsed = parse_recipe(parser, argv)
    data, distillation = parsed.parts
    unused = [name for name in vars(data) if name in parsed.given and name not in USED_DATA_ARGUMENTS]
    if unused:
        raise ValueError(
            f"without effect here: {', '.join(unused)}; the source sentences of train_file (or of the training split "
            "of dataset_name) are decoded with the teacher's own tokenizer"
        )
    return DistillationCommand(data, distillation, parsed.recipe, parsed.given)


def process_state() -> PartialState:
    """This process among those of a distributed run; the same object at every call."""
    # Without saying so, processes on the CPU would not know of each other.
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=PATIENCE)


def prepare_distillation(command: DistillationCommand) -> Distillation:
    """
    Load and check everything that a distillation needs. Nothing is written.

    Raises:
        ValueError, FileNotFoundError: something that does not fit, with what to do about it: a finished output, a
            folder that cannot be written to, an unreadable corpus or teacher, partial files of another distillation.
    """
    data, options = command.data, command.distillation
    command.validate()
    state = process_state()
    _check_output(command, state)
    model, tokenizer = load_teacher(str(options.teacher_name_or_path), data.trust_remote_code)
    dataset = load_split("train", **data.corpus("train"), check_language=language_check(data, tokenizer))
    sources = list(dataset["source"])
    pairs = _languages(data, dataset, tokenizer)
    fingerprint = _fingerprint(command, sources, pairs, model, tokenizer)
    done: set[int] = set()
    for path in _partial_files(options.prefix):
        _check_fingerprint(path, fingerprint, options.prefix)
        done |= {index for index, _ in _translations(path)}
    first: dict[tuple[str, LanguagePair | None], int] = {}
    for index, key in enumerate(zip(sources, pairs, strict=True)):
        if key[0].strip():
            first.setdefault(key, index)
    return Distillation(command, state, sources, pairs, model.to(state.device), tokenizer, fingerprint, first, done)


def _languages(data: DataArguments, dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> list[LanguagePair | None]:
    """The languages of each row, as the teacher has to be told them."""
    pairs: list[LanguagePair | None] = [None] * len(dataset)
    if is_multilingual(tokenizer):
        for pair, rows in rows_by_pair(dataset, LanguagePair(str(data.source_lang), str(data.target_lang))).items():
            for row in rows:
                pairs[row] = pair
    return pairs


def distill(run: Distillation, argv: Sequence[str] = ()) -> dict[str, Any]:
    """
    Decode what is not decoded yet, each process its share, and write the new corpus.

    Every source line gets one line: the teacher's translation of it, or an empty one if it is blank. Sentences that
    occur several times are decoded once. Line breaks inside of a sentence or a translation become spaces. The result
    depends neither on the batches nor on the number of processes nor on interruptions (up to what `translate` says
    about floating-point noise).

    Args:
        run: from `prepare_distillation`; it can be run once.
        argv: the command line, for the record.

    Returns:
        The record: what is written to PREFIX.json.
    """
    # Nobody writes before everybody has read what there is.
    run.state.wait_for_everyone()
    start = time.perf_counter()
    prefix = run.command.distillation.prefix
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _decode(run)
    run.state.wait_for_everyone()
    if run.state.is_main_process:
        record = _write_corpus(run, time.perf_counter() - start, argv)
        print(_summary(run.command, record))
    run.state.wait_for_everyone()
    return json.loads(_record_file(prefix).read_text(encoding="utf-8"))


def load_teacher(name: str, trust_remote_code: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    A model in float32 and evaluation mode, and its tokenizer.

    Args:
        name: folder or Hub name of any encoder-decoder model.
        trust_remote_code: run the code that it brings, if it needs any.

    Raises:
        ValueError: it cannot be loaded, or lacks weights.
    """
    try:
        model, info = from_checkpoint(
            AutoModelForSeq2SeqLM,
            name,
            trust_remote_code=trust_remote_code,
            dtype=torch.float32,
            output_loading_info=True,
        )
        tokenizer = from_checkpoint(AutoTokenizer, name, trust_remote_code=trust_remote_code)
    except (OSError, RuntimeError, ValueError, KeyError, ImportError, SafetensorError, StrictDataclassError) as error:
        hint = "" if Path(name).exists() else "there is no such folder, and as a Hub name: "
        reason = (str(error.__cause__ or error) if isinstance(error, StrictDataclassError) else str(error)).strip()
        raise ValueError(f"cannot load the teacher from {name}: {hint}{reason.splitlines()[0]}") from error
    absent = absent_weights(model, list(info["missing_keys"]))
    if absent:
        raise ValueError(f"the teacher {name} lacks weights of its model, such as {absent[0]} ({len(absent)} in all)")
    return model.eval(), tokenizer


def _check_output(command: DistillationCommand, state: PartialState) -> None:
    prefix = command.distillation.prefix
    corpus, record = _corpus_files(command), _record_file(prefix)
    present = [path for path in (*corpus, record) if path.exists()]
    if record in present and len(present) == len(corpus) + 1 and state.is_main_process:
        _remove_leftovers(prefix)
    # Without a record beside it, a corpus with partial files is one whose end was interrupted.
    if present and (record in present or not _partial_files(prefix)):
        raise ValueError(
            f"{', '.join(map(str, present))}: there already; remove {'it' if len(present) == 1 else 'them'} to decode "
            "again, or choose another --output_prefix; nothing was changed"
        )


def _remove_leftovers(prefix: Path) -> None:
    """Partial files whose removal was interrupted; those of another distillation stay."""
    try:
        fingerprint = json.loads(_record_file(prefix).read_text(encoding="utf-8"))["fingerprint"]
    except (ValueError, KeyError, TypeError):
        return
    for path in _partial_files(prefix):
        if _read_fingerprint(path) == fingerprint:
            path.unlink(missing_ok=True)


def _fingerprint(
    command: DistillationCommand,
    sources: list[str],
    pairs: list[LanguagePair | None],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, Any]:
    """All that the translations depend on, by the name that an error calls it; neither paths nor batch sizes."""
    several = {"languages": digest(pairs)} if command.data.has_several_pairs else {}
    return {
        **several,
        **{f"teacher's {name}": value for name, value in checkpoint_fingerprint(model, tokenizer).items()},
        "source sentences": digest(sources),
        "source_lang": command.data.source_lang,
        "target_lang": command.data.target_lang,
        **command.distillation.generation_options(),
    }


def _check_fingerprint(path: Path, fingerprint: dict[str, Any], prefix: Path) -> None:
    started = _read_fingerprint(path)
    if started is None or started == fingerprint:
        return
    differences = [
        # Of a digest nothing can be read.
        name if str(value).startswith("sha256:") else f"{name} ({started.get(name)}, now {value})"
        for name, value in {**started, **fingerprint}.items()
        if started.get(name) != fingerprint.get(name)
    ]
    raise ValueError(
        f"{path} holds the beginning of a distillation with another {', '.join(differences)}: give the same again to "
        f"go on, remove {prefix}.partial-*.jsonl to begin anew, or choose another --output_prefix; nothing was changed"
    )


def _corpus_files(command: DistillationCommand) -> list[Path]:
    prefix, data = command.distillation.prefix, command.data
    if data.language_pairs is not None:
        return [Path(f"{prefix}.{pair}.{code}") for pair in data.pairs for code in pair]
    if data.has_several_pairs:
        return [Path(f"{prefix}.jsonl")]
    names = (data.source_column or data.source_lang, data.target_column or data.target_lang)
    return [Path(f"{prefix}.{name}") for name in names]


def _record_file(prefix: Path) -> Path:
    return Path(f"{prefix}.json")


def _partial_files(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.partial-*.jsonl"))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """
    The whole records of a partial file. What a kill cut off is passed over: the beginning of a JSON object is none.
    """
    with path.open("rb") as stream:
        for line in stream:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _read_fingerprint(path: Path) -> dict[str, Any] | None:
    """
    The fingerprint that a partial file begins with; None if not even that was written.

    Raises:
        ValueError: the file has records, but no fingerprint before them.
    """
    record = next(_records(path), None)
    if record is not None and "fingerprint" not in record:
        raise ValueError(f"{path} does not begin with a fingerprint: remove it, its sentences are decoded again")
    return None if record is None else record["fingerprint"]


def _translations(path: Path) -> Iterator[tuple[int, str]]:
    return ((record["index"], record["translation"]) for record in _records(path) if "translation" in record)


def _open_partial_file(run: Distillation) -> BinaryIO:
    """The partial file of this process, ready for more lines."""
    path = Path(f"{run.command.distillation.prefix}.partial-{run.state.process_index}.jsonl")
    stream = path.open("ab+")
    if stream.tell() > 0:
        stream.seek(-1, os.SEEK_END)
        if stream.read() != b"\n":
            # Ends a line that a kill cut off, so that it does not spoil the next one.
            stream.write(b"\n")
    if _read_fingerprint(path) is None:
        _append(stream, [{"fingerprint": run.fingerprint}])
    return stream


def _append(stream: BinaryIO, records: Iterable[dict[str, Any]]) -> None:
    stream.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    stream.flush()
    os.fsync(stream.fileno())


def _decode(run: Distillation) -> None:
    """Decode this process's share; each batch is on the disk before the next one begins."""
    pending = run.pending
    share = pending[run.state.process_index :: run.state.num_processes]
    done_before, decoded = len(run.first) - len(pending), 0
    with tqdm(
        total=len(run.first),
        initial=done_before,
        desc="decoding",
        unit=" sentences",
        dynamic_ncols=True,
        disable=not run.state.is_main_process,
    ) as bar:
        if not share:
            return
        with _open_partial_file(run) as stream:
            for records in _batches(run, share):
                _append(stream, records)
                decoded += len(records)
                # The other processes, whose shares are as large, are taken to be as far.
                bar.update(done_before + decoded * len(pending) // len(share) - bar.n)


def _batches(run: Distillation, share: list[int]) -> Iterator[list[dict[str, Any]]]:
    """Translations of the sentences at some positions, batch by batch, as the partial files keep them."""
    options = run.command.distillation
    for start in range(0, len(share), CHUNK):
        chunk = share[start : start + CHUNK]
        by_pair: dict[LanguagePair | None, list[int]] = {}
        for index in chunk:
            by_pair.setdefault(run.pairs[index], []).append(index)
        for pair, indices in by_pair.items():
            for rows, texts in translate_batches(
                run.model,
                run.tokenizer,
                [run.sources[index] for index in indices],
                max_tokens=options.max_tokens_per_batch,
                **options.generation_options(),
                **use_languages(run.tokenizer, pair),
            ):
                yield [
                    {"index": indices[row], "translation": one_line(text)}
                    for row, text in zip(rows, texts, strict=True)
                ]


def _write_corpus(run: Distillation, seconds: float, argv: Sequence[str]) -> dict[str, Any]:
    """Put the translations in order, write the corpus and its record, and remove the partial files."""
    prefix = run.command.distillation.prefix
    partial_files = _partial_files(prefix)
    translations = {index: text for path in partial_files for index, text in _translations(path)}
    missing = set(run.first.values()) - set(translations)
    if missing:
        raise RunFailure(
            f"the partial files of {prefix} lack {len(missing)} sentences: have all processes the same file system, "
            "and has nothing else removed files? The same command goes on with what there is"
        )
    targets = [
        translations[run.first[key]] if key[0].strip() else "" for key in zip(run.sources, run.pairs, strict=True)
    ]
    record = _record(run, targets, seconds, argv)
    for path, lines in zip(_corpus_files(run.command), _corpus_lines(run, targets), strict=True):
        write_whole(path, "".join(f"{line}\n" for line in lines))
    write_whole(_record_file(prefix), f"{json.dumps(record, indent=2, ensure_ascii=False)}\n")
    for path in partial_files:
        path.unlink()
    return record


def _corpus_lines(run: Distillation, targets: list[str]) -> Iterator[list[str]]:
    """The lines of each of the corpus' files."""
    data, sources = run.command.data, [one_line(source) for source in run.sources]
    if data.language_pairs is not None:
        for wanted in data.pairs:
            rows = [row for row, pair in enumerate(run.pairs) if pair == wanted]
            yield from ([texts[row] for row in rows] for texts in (sources, targets))
    elif data.has_several_pairs:
        columns = (data.source_lang_column, data.target_lang_column)
        records = []
        # none is without: several pairs are those of a multilingual teacher
        known = [pair for pair in run.pairs if pair is not None]
        for source, target, pair in zip(sources, targets, known, strict=True):
            names = (data.source_column or pair.source, data.target_column or pair.target)
            codes = {column: code for column, code in zip(columns, pair, strict=True) if column is not None}
            records.append(json_text({"translation": dict(zip(names, (source, target), strict=True)), **codes}))
        yield records
    else:
        yield from (sources, targets)


def _record(run: Distillation, targets: list[str], seconds: float, argv: Sequence[str]) -> dict[str, Any]:
    command, decoded = run.command, len(run.pending)
    blank = sum(bool(source.strip()) and not text.strip() for source, text in zip(run.sources, targets, strict=True))
    return {
        "teacher": report.relative(str(command.distillation.teacher_name_or_path)),
        "generation": command.distillation.generation_options(),
        "sentences": len(run.sources),
        "distinct_sentences": len(run.first),
        "blank_translations": blank,
        # Of the last run, which may have gone on with the work of others.
        "decoded_sentences": decoded,
        "seconds": round(seconds, 1),
        "sentences_per_second": round(decoded / max(seconds, 1e-9), 1),
        "device": str(run.state.device),
        "processes": run.state.num_processes,
        "threads": torch.get_num_threads(),
        "recipe": None if command.recipe is None else report.relative(command.recipe),
        "arguments": without_secrets(command.given),
        "command": report.run_command(argv, "distill"),
        "versions": report.versions(),
        "fingerprint": run.fingerprint,
    }


def _summary(command: DistillationCommand, record: dict[str, Any]) -> str:
    """One line: what was done, where it is, and how to train on it."""
    earlier = record["distinct_sentences"] - record["decoded_sentences"]
    # with a column of languages, the file that says them
    single = _corpus_files(command)[0] if len(_corpus_files(command)) == 1 else command.distillation.prefix
    name = report.relative(single)
    if not Path(name).is_absolute() and not name.startswith("../"):
        # Of the current folder, whatever the data folder.
        name = f"./{name}"
    return (
        f"{record['sentences']:,} sentences ({record['decoded_sentences']:,} of {record['distinct_sentences']:,} "
        f"different ones decoded now, {earlier:,} before), {record['seconds']:,.1f} s, "
        f"{record['sentences_per_second']:,.1f} sentences/s -> {' and '.join(map(str, _corpus_files(command)))}; "
        f"train on it: hf-capsule-mt train RECIPE --train_file {name}"
    )


def main(argv: list[str]) -> int:
    """
    Run the command line; returns the exit status. Mistakes in it end with one line and status 2, before any work; what
    keeps it from going on later, with one line and status 1.
    """
    # Only the bars of transformers' own loading.
    disable_progress_bar()
    with ExitStack() as held:
        try:
            command = parse_distillation(argv)
            command.validate()
            prefix = command.distillation.prefix
            # One process holds the output for all of a distributed run.
            if process_state().is_main_process:
                held.enter_context(only_writer(prefix))
            run = prepare_distillation(command)
        except (ValueError, OSError) as error:
            return _end(error, 2)
        try:
            with explain_failed_writes(prefix.parent, "make room; the same command goes on with what there is"):
                distill(run, argv)
        except RunFailure as error:
            return _end(error, 1)
        run.state.destroy_process_group()
    return 0


def _end(error: Exception, status: int) -> int:
    print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status
