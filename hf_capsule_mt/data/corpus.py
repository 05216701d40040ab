"""
Reading parallel text: plain text files, JSON lines, tables, Hub data sets and the embedded grammar corpus; of one pair
of languages or of several.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import decoded_lines, open_text, parse_json, read_lines
from ..models.tokenizer_languages import LanguagePair
from .grammar import GRAMMAR_LANGUAGES, SPLITS, generate_corpus

if TYPE_CHECKING:
    from datasets import Dataset

DATA_VARIABLE = "HF_CAPSULE_MT_DATA"
GRAMMAR = "grammar"
GRAMMAR_SIZES = {"train": 20_000, "validation": 500, "test": 1_000}
JSON_SUFFIXES = (".json", ".jsonl")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
LOOKUP = (
    f"relative names are looked up in --data_dir (or ${DATA_VARIABLE}, or else the current folder), those that start "
    "with ./ or ../ in the current folder"
)


class MissingSplitError(ValueError):
    """A data set on the Hub does not have the split."""


@dataclass(frozen=True)
class Columns:
    """
    Where records have their texts and languages.

    Attributes:
        source_lang, target_lang: codes of all records; None where each has its own.
        source_column, target_column: fields of the texts; None where they are called by the codes of their languages.
        source_lang_column, target_lang_column: fields of the codes.
        check_language: raises a ValueError for a code that cannot be used.
    """

    source_lang: str | None
    target_lang: str | None
    source_column: str | None = None
    target_column: str | None = None
    source_lang_column: str | None = None
    target_lang_column: str | None = None
    check_language: Callable[[str], None] | None = None

    @property
    def have_languages(self) -> bool:
        """Whether records say their languages."""
        return not (self.source_lang_column is None and self.target_lang_column is None)

    def languages(self, record: Any, place: str) -> LanguagePair:
        """The languages of a record; raises a ValueError, with its place, where it has none that can be used."""
        codes = []
        for column, code in (
            (self.source_lang_column, self.source_lang),
            (self.target_lang_column, self.target_lang),
        ):
            if column is not None:
                code = record.get(column) if isinstance(record, dict) else None
                if not isinstance(code, str) or not code.strip():
                    raise ValueError(f'{place}: no language in the field "{column}"')
                if self.check_language is not None:
                    try:
                        self.check_language(code)
                    except ValueError as error:
                        raise ValueError(f"{place}: {error}") from None
            codes.append(str(code))
        if codes[0] == codes[1]:
            raise ValueError(f"{place}: source and target language are both {codes[0]!r}")
        return LanguagePair(*codes)


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
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    source_lang_column: str | None = None,
    target_lang_column: str | None = None,
    language_pairs: Sequence[LanguagePair] = (),
    check_language: Callable[[str], None] | None = None,
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
        source_lang, target_lang: language codes; of each side this, or a column of codes, or `language_pairs`.
        source_column, target_column: the ends of the file names, or the fields of the records, by default the codes.
        source_lang_column, target_lang_column: fields with the codes of each record.
        language_pairs: several pairs, each in text files of its own, see `pair_files`.
        check_language: raises a ValueError for a code of a record that cannot be used.
        file: either a prefix, whose two files are PREFIX.SOURCE_LANG and PREFIX.TARGET_LANG with one sentence a line,
            or a .jsonl file of {"translation": {"en": ..., "de": ...}} lines (.json: such lines, or a list of them),
            or a table (.csv and .tsv with the names of the columns in the first line, .parquet). With columns given,
            records may have the texts beside each other, without "translation".
        dataset_name: instead of a file, a data set on the Hub (or a folder) with a "translation" column or the given
            ones, or "grammar", the embedded English-German corpus.
        dataset_config_name: configuration of the data set on the Hub.
        data_dir: where relative files are, see `resolve`.
        max_samples: keep the first so many pairs (of each of the language pairs); for "grammar", generate so many.
        seed: seed of the embedded corpus.

    Returns:
        A data set with the string columns "source" and "target", as they are in the file: blank ones are kept; with
        several pairs of languages also "source_lang" and "target_lang".

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
    columns = Columns(
        source_lang,
        target_lang,
        source_column,
        target_column,
        source_lang_column,
        target_lang_column,
        check_language,
    )
    if language_pairs:
        return _load_pairs(file, language_pairs, data_dir, max_samples)
    if dataset_name == GRAMMAR:
        sources, targets = _read_grammar(split, source_lang, target_lang, max_samples, seed)
        return Dataset.from_dict({"source": sources, "target": targets})
    records: Iterable[tuple[str, Any]]
    if dataset_name is not None:
        records = _hub_records(dataset_name, dataset_config_name, split, columns, max_samples)
    elif Path(str(file)).suffix in (*JSON_SUFFIXES, *TABLE_SUFFIXES):
        records = _file_records(resolve(str(file), data_dir))
    elif columns.have_languages:
        raise ValueError(
            f"{file} is taken for the beginning of the names of two text files, which have no column of languages: "
            f"give a file that ends in {', '.join((*JSON_SUFFIXES, *TABLE_SUFFIXES))}, or language_pairs"
        )
    else:
        sources, targets = _read_text_pair(
            resolve(str(file), data_dir), source_column or str(source_lang), target_column or str(target_lang)
        )
        return Dataset.from_dict({"source": sources[:max_samples], "target": targets[:max_samples]})
    # a table has no field for a record in a record
    flat = file is not None and Path(file).suffix in TABLE_SUFFIXES
    found = _pairs(records, columns, flat or source_column is not None or target_column is not None)
    return Dataset.from_dict({name: values[:max_samples] for name, values in found.items()})


def rows_by_pair(dataset: Dataset, pair: LanguagePair) -> dict[LanguagePair, list[int]]:
    """The rows of each pair of languages of a data set of `load_split`; all are of `pair` where it has no codes."""
    if "source_lang" not in dataset.column_names:
        return {pair: list(range(len(dataset)))}
    rows: dict[LanguagePair, list[int]] = {}
    for row, codes in enumerate(zip(dataset["source_lang"], dataset["target_lang"], strict=True)):
        rows.setdefault(LanguagePair(*codes), []).append(row)
    return rows


def _load_pairs(
    file: str | None, language_pairs: Sequence[LanguagePair], data_dir: str | None, max_samples: int | None
) -> Dataset:
    from datasets import Dataset

    if file is None or Path(file).suffix in (*JSON_SUFFIXES, *TABLE_SUFFIXES):
        raise ValueError(
            f"language_pairs are those of text files, not of {file or 'a data set'}: records say their languages "
            "themselves, in source_lang_column and target_lang_column"
        )
    columns: dict[str, list[str]] = {"source": [], "target": [], "source_lang": [], "target_lang": []}
    for pair in language_pairs:
        texts = _read_text_pair(*pair_files(resolve(file, data_dir), pair))
        for side, language, lines in zip(("source", "target"), pair, texts, strict=True):
            columns[side] += lines[:max_samples]
            columns[f"{side}_lang"] += [language] * len(lines[:max_samples])
    return Dataset.from_dict(columns)


def pair_files(prefix: Path, pair: LanguagePair) -> tuple[Path, str, str]:
    """
    The prefix of the text files of one of several pairs of languages, and the ends of their names.

    PREFIX.en-de.en and PREFIX.en-de.de, those of the other direction (PREFIX.de-en.en), or PREFIX.en and PREFIX.de of
    a corpus in which all languages have the same sentences: the first of which there is the source.

    Raises:
        FileNotFoundError: there are none.
    """
    candidates = [Path(f"{prefix}.{pair}"), Path(f"{prefix}.{LanguagePair(*reversed(pair))}"), prefix]
    for candidate in candidates:
        if Path(f"{candidate}.{pair.source}").is_file():
            return candidate, *pair
    tried = ", ".join(f"{candidate}.{pair.source}" for candidate in candidates)
    raise FileNotFoundError(f"no text of the pair {pair}: there is none of {tried}; {LOOKUP}")


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


def _file_records(path: Path) -> list[tuple[str, Any]]:
    """The records of a file, each with its place for messages."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; {LOOKUP}")
    if path.suffix == ".parquet":
        return _parquet_records(path)
    if path.suffix in TABLE_SUFFIXES:
        return _table_records(path)
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(_read_lines(path), 1) if line.strip()]
    if lines[0][1].lstrip().startswith("["):
        whole = _parse("\n".join(line for _, line in lines), str(path))
        return [(f"{path}, record {number}", record) for number, record in enumerate(whole, 1)]
    return [(place, _parse(line, place)) for place, line in lines]


def _parse(text: str, place: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}: not valid JSON ({error})") from None


def _table_records(path: Path) -> list[tuple[str, Any]]:
    """Of comma-separated values, quoted where need be, or of tab-separated ones, in which a quote is text."""
    records: list[tuple[str, Any]] = []
    with open_text(path) as stream:
        lines = (f"{line}\n" for line in decoded_lines(stream, str(path)))
        quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
        reader = csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=quoting, strict=True)
        try:
            names = next(reader, [])
            for values in reader:
                if not values:
                    continue
                place = f"{path}, line {reader.line_num}"
                if len(values) != len(names):
                    raise ValueError(
                        f"{place}: {len(values)} values, but the first line has the names of {len(names)} columns"
                    )
                records.append((place, dict(zip(names, values, strict=True))))
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    if not records:
        raise ValueError(f"{path} is empty, or has the names of the columns only")
    return records


def _parquet_records(path: Path) -> list[tuple[str, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    return [(f"{path}, record {number}", row) for number, row in enumerate(rows, 1)]


def _hub_records(
    name: str, config_name: str | None, split: str, columns: Columns, max_samples: int | None
) -> Iterable[tuple[str, Any]]:
    import datasets

    try:
        # The user names the data set; versions of datasets that still run a data set's script would ask for trust.
        dataset = datasets.load_dataset(name, config_name, trust_remote_code=False)  # nosec B615
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot load the data set {name!r}: {error}") from error
    if split not in dataset:
        raise MissingSplitError(f"data set {name!r} has no split {split!r}; it has: {', '.join(dataset)}")
    part = dataset[split]
    texts = [columns.source_column, columns.target_column]
    if "translation" not in part.column_names and not set(texts) <= set(part.column_names):
        raise ValueError(
            f"data set {name!r} has no column 'translation'; it has: {', '.join(part.column_names)}. Name those of "
            "the texts in source_column and target_column, or write it as JSON lines with a translation field and use "
            "train_file, validation_file and test_file"
        )
    wanted = ["translation", *texts, columns.source_lang_column, columns.target_lang_column]
    part = part.select_columns([column for column in part.column_names if column in wanted])
    if max_samples is not None:
        part = part.select(range(min(max_samples, len(part))))
    place = f"data set {name!r}, {split} record"
    return ((f"{place} {number}", record) for number, record in enumerate(part, 1))


def _pairs(records: Iterable[tuple[str, Any]], columns: Columns, flat: bool) -> dict[str, list[str]]:
    """
    The texts of records, and their languages if they say them, by the names of columns of a data set.

    Args:
        flat: records without "translation" have the texts themselves.
    """
    found: dict[str, list[str]] = {"source": [], "target": []}
    if columns.have_languages:
        found |= {"source_lang": [], "target_lang": []}
    for place, record in records:
        pair = columns.languages(record, place)
        names = (columns.source_column or pair.source, columns.target_column or pair.target)
        texts = record.get("translation") if isinstance(record, dict) else None
        if flat and not isinstance(texts, dict):
            texts = record
        if not isinstance(texts, dict):
            raise ValueError(
                f'{place}: expected {{"translation": {{"{names[0]}": ..., "{names[1]}": ...}}}}, got '
                f"{json.dumps(record, ensure_ascii=False, default=str)[:80]}"
            )
        for name, side in zip(names, ("source", "target"), strict=True):
            if not isinstance(texts.get(name), str):
                what = "for the language" if name in pair else "in the field"
                raise ValueError(f"{place}: no text {what} {name!r}; there are: {', '.join(sorted(map(str, texts)))}")
            found[side].append(texts[name])
        if columns.have_languages:
            found["source_lang"].append(pair.source)
            found["target_lang"].append(pair.target)
    if not found["source"]:
        raise ValueError("the data set is empty")
    return found


def _read_grammar(
    split: str, source_lang: str | None, target_lang: str | None, size: int | None, seed: int
) -> tuple[list[str], list[str]]:
    if {source_lang, target_lang} != set(GRAMMAR_LANGUAGES):
        raise ValueError(
            f"the embedded corpus is {' and '.join(GRAMMAR_LANGUAGES)}, got source_lang={source_lang!r} and "
            f"target_lang={target_lang!r}"
        )
    pairs = generate_corpus(size or GRAMMAR_SIZES[split], seed=seed, split=split)
    english, german = [pair.source for pair in pairs], [pair.target for pair in pairs]
    return (english, german) if source_lang == "en" else (german, english)
