"""Reading parallel text: pairs of plain text files, JSON lines, Hub data sets and the embedded grammar corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import parse_json, read_lines
from .grammar import GRAMMAR_LANGUAGES, SPLITS, generate_corpus

if TYPE_CHECKING:
    from datasets import Dataset

DATA_VARIABLE = "HF_CAPSULE_MT_DATA"
GRAMMAR = "grammar"
GRAMMAR_SIZES = {"train": 20_000, "validation": 500, "test": 1_000}
JSON_SUFFIXES = (".json", ".jsonl")
LOOKUP = (
    f"relative names are looked up in --data_dir (or ${DATA_VARIABLE}, or else the current folder), those that start "
    "with ./ or ../ in the current folder"
)


class MissingSplitError(ValueError):
    """A data set on the Hub does not have the split."""


def resolve(file: str, data_dir: str | None) -> Path:
    """
    `file` under `data_dir` (default: the environment variable HF_CAPSULE_MT_DATA, else the current folder).

    A name that starts with ./ or ../ is relative to the current folder whatever the data folder, so that one recipe
    can train on a corpus that another command wrote, and validate on one from the data folder.
    """
    # A Path would have dropped the "./".
    if file.startswith(("./", "../")):
        return Path(file)
    return Path(data_dir or os.environ.get(DATA_VARIABLE) or ".").expanduser() / Path(file).expanduser()


def load_split(
    split: str,
    *,
    source_lang: str,
    target_lang: str,
    file: str | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    data_dir: str | None = None,
    max_samples: int | None = None,
    seed: int = 0,
) -> Dataset:
    """
    Load one split of a parallel corpus.

    Args:
        split: "train", "validation" or "test".
        source_lang, target_lang: language codes: the ends of the file names, or the keys of a translation record.
        file: either a prefix, whose two files are PREFIX.SOURCE_LANG and PREFIX.TARGET_LANG with one sentence a line,
            or a .jsonl file of {"translation": {"en": ..., "de": ...}} lines (.json: such lines, or a list of them).
        dataset_name: instead of a file, a data set on the Hub (or a folder) with a "translation" column, or "grammar",
            the embedded English-German corpus.
        dataset_config_name: configuration of the data set on the Hub.
        data_dir: where relative files are, see `resolve`.
        max_samples: keep the first so many pairs; for "grammar", generate so many.
        seed: seed of the embedded corpus.

    Returns:
        A data set with the string columns "source" and "target", as they are in the file: blank ones are kept.

    Raises:
        FileNotFoundError: a missing file; lists the languages that exist.
        ValueError: an unknown language or split, an empty file, files of different length, a malformed record; a
            MissingSplitError if the data set on the Hub has no such split.
    """
    from datasets import Dataset

    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if (file is None) == (dataset_name is None):
        raise ValueError(f"the {split} split needs either a file or a dataset_name, and not both")
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"the number of {split} samples must be at least 1, got {max_samples}")
    if dataset_name == GRAMMAR:
        sources, targets = _read_grammar(split, source_lang, target_lang, max_samples, seed)
    elif dataset_name is not None:
        sources, targets = _read_hub(dataset_name, dataset_config_name, split, source_lang, target_lang, max_samples)
    elif file is not None and Path(file).suffix in JSON_SUFFIXES:
        sources, targets = _read_json(resolve(file, data_dir), source_lang, target_lang)
    else:
        sources, targets = _read_text_pair(resolve(str(file), data_dir), source_lang, target_lang)
    return Dataset.from_dict({"source": sources[:max_samples], "target": targets[:max_samples]})


def _read_text_pair(prefix: Path, source_lang: str, target_lang: str) -> tuple[list[str], list[str]]:
    paths = [Path(f"{prefix}.{language}") for language in (source_lang, target_lang)]
    for path, language in zip(paths, (source_lang, target_lang), strict=True):
        if not path.is_file():
            present = sorted(p.name for p in prefix.parent.glob(f"{prefix.name}.*") if p.is_file())
            found = f"with this prefix there are: {', '.join(present)}" if present else "no file has this prefix"
            raise FileNotFoundError(f"no file {path} for the language {language!r}; {found}; {LOOKUP}")
    sources, targets = (_read_lines(path) for path in paths)
    if len(sources) != len(targets):
        raise ValueError(
            f"the two sides of a corpus must have as many lines, but {paths[0]} has {len(sources)} and {paths[1]} "
            f"has {len(targets)}"
        )
    return sources, targets


def _read_lines(path: Path) -> list[str]:
    lines = read_lines(path)
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} is empty")
    return lines


def _read_json(path: Path, source_lang: str, target_lang: str) -> tuple[list[str], list[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; {LOOKUP}")
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(_read_lines(path), 1) if line.strip()]
    if lines[0][1].lstrip().startswith("["):
        whole = _parse("\n".join(line for _, line in lines), str(path))
        records = [(f"{path}, record {number}", record) for number, record in enumerate(whole, 1)]
    else:
        records = [(place, _parse(line, place)) for place, line in lines]
    return _pairs(records, source_lang, target_lang)


def _parse(text: str, place: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}: not valid JSON ({error})") from None


def _read_hub(
    name: str, config_name: str | None, split: str, source_lang: str, target_lang: str, max_samples: int | None
) -> tuple[list[str], list[str]]:
    import datasets

    try:
        dataset = datasets.load_dataset(name, config_name)
    except OSError as error:
        raise ValueError(f"cannot load the data set {name!r}: {error}") from error
    if split not in dataset:
        raise MissingSplitError(f"data set {name!r} has no split {split!r}; it has: {', '.join(dataset)}")
    part = dataset[split]
    if "translation" not in part.column_names:
        raise ValueError(
            f"data set {name!r} has no column 'translation'; it has: {', '.join(part.column_names)}. Write it as JSON "
            "lines with a translation field and use train_file, validation_file and test_file"
        )
    if max_samples is not None:
        part = part.select(range(min(max_samples, len(part))))
    place = f"data set {name!r}, {split} record"
    records = ((f"{place} {number}", {"translation": pair}) for number, pair in enumerate(part["translation"], 1))
    return _pairs(records, source_lang, target_lang)


def _pairs(records: Iterable[tuple[str, Any]], source_lang: str, target_lang: str) -> tuple[list[str], list[str]]:
    sources, targets = [], []
    for place, record in records:
        translation = record.get("translation") if isinstance(record, dict) else None
        if not isinstance(translation, dict):
            raise ValueError(
                f'{place}: expected {{"translation": {{"{source_lang}": ..., "{target_lang}": ...}}}}, got '
                f"{json.dumps(record, ensure_ascii=False)[:80]}"
            )
        for language, side in ((source_lang, sources), (target_lang, targets)):
            if not isinstance(translation.get(language), str):
                raise ValueError(
                    f"{place}: no text for the language {language!r}; there are: {', '.join(sorted(translation))}"
                )
            side.append(translation[language])
    if not sources:
        raise ValueError("the data set is empty")
    return sources, targets


def _read_grammar(
    split: str, source_lang: str, target_lang: str, size: int | None, seed: int
) -> tuple[list[str], list[str]]:
    if {source_lang, target_lang} != set(GRAMMAR_LANGUAGES):
        raise ValueError(
            f"the embedded corpus is {' and '.join(GRAMMAR_LANGUAGES)}, got source_lang={source_lang!r} and "
            f"target_lang={target_lang!r}"
        )
    pairs = generate_corpus(size or GRAMMAR_SIZES[split], seed=seed, split=split)
    english, german = [pair.source for pair in pairs], [pair.target for pair in pairs]
    return (english, german) if source_lang == "en" else (german, english)
