"""
Fetch a parallel corpus from the Hub as text files, in the folders that the recipes look for.

    hf-capsule-mt data multi30k --output DATA                  DATA/multi30k/train.en, train.de, val.en, ...
    hf-capsule-mt data wmt16 --output DATA --source_lang ro     DATA/wmt16/en-ro/train.en, train.ro, ...
    hf-capsule-mt train multi30k/em_routing --data_dir DATA     how a recipe finds them

A corpus that has several pairs of languages gets a folder for each pair, whichever of the two is the source. Every
file is there as a whole or not at all, and a file that is there already is checked and kept, so that the same command
goes on after an interruption. What was fetched stands beside the text in corpus.json: the data set, its revision, its
terms, the number of sentences and the SHA-256 of every file. The numbers of sentences are checked where they are
known.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..command import run_command
from ..files import json_text, only_writer, raw_lines, read_json, write_lines, write_whole

if TYPE_CHECKING:
    from datasets import Dataset

PROGRAM = "hf-capsule-mt data"
RECORD = "corpus.json"
SPLITS = ("train", "validation", "test")
# The branch to which the Hub converts a data set whose main one has a script, which datasets runs no more.
CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True)
class Corpus:
    """
    A parallel corpus and where it is.

    Attributes:
        id: on the Hub; None if it is not known to be there.
        languages: those that English is paired with.
        default: of `languages`, if none is named.
        terms: licence, in a sentence.
        links: the pages of the corpus and of its paper.
        counts: sentences of train, validation and test by pair, as far as they are known.
        config: name of the configuration on the Hub; {pair} is filled in. None if there is but one.
        english_last: the names of the Hub have English as the second language of a pair; else the order is that of the
            alphabet.
        folder: in `CONVERTED`, if the files are taken from there.
        revision: unless another is asked for.
        test: name of the test set's files.
        by_hand: how to get what is not on the Hub.
    """

    id: str | None
    languages: tuple[str, ...]
    terms: str
    links: tuple[str, ...]
    counts: Mapping[str, tuple[int, int, int]]
    default: str = "de"
    config: str | None = None
    english_last: bool = False
    folder: str | None = None
    revision: str | None = None
    test: str = "test"
    by_hand: str = ""

    @property
    def several(self) -> bool:
        """Whether there is more than one pair of languages."""
        return len(self.languages) > 1


_TED = ("ar", "de", "fr", "ja", "ko", "zh")
# of OPUS-100 with a training set
_OPUS = (
    "af am an ar as az be bg bn br bs ca cs cy da de dz el eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu hy "
    "id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mn mr ms mt my nb ne nl nn no oc or pa pl ps pt ro ru "
    "rw se sh si sk sl sq sr sv ta te tg th tk tr tt ug uk ur uz vi wa xh yi yo zh zu"
)
# Counts: cards and metadata of the data sets on the Hub; 3AM: its paper's repository.
CORPORA = {
    "multi30k": Corpus(
        id="bentrevett/multi30k",
        languages=("de",),
        terms="captions of Flickr30k images and their translations, for non-commercial research and education only; "
        "the images are not in it",
        links=("https://huggingface.co/datasets/bentrevett/multi30k", "https://aclanthology.org/W16-3210"),
        counts=MappingProxyType({"de-en": (29_000, 1_014, 1_000)}),
        test="test2016",
    ),
    "3am": Corpus(
        id=None,
        languages=("zh",),
        default="zh",
        terms="MIT; the images are not in it",
        links=("https://github.com/MaxyLee/3AM", "https://aclanthology.org/2024.lrec-main.1"),
        counts=MappingProxyType({"en-zh": (23_931, 1_000, 1_000)}),
        by_hand="git clone https://github.com/MaxyLee/3AM, and copy its data/{{train,val,test}}.{{en,zh}} to {folder}",
    ),
    "iwslt2017": Corpus(
        id="IWSLT/iwslt2017",
        languages=_TED,
        terms="CC BY-NC-ND 4.0: TED talks and their translations; no commercial use, no derivatives",
        links=("https://huggingface.co/datasets/IWSLT/iwslt2017", "https://aclanthology.org/2017.iwslt-1.1"),
        counts=MappingProxyType({"de-en": (206_112, 888, 8_079)}),
        english_last=True,
        folder="iwslt2017-{pair}",
        revision=CONVERTED,
    ),
    "wmt14": Corpus(
        id="wmt/wmt14",
        languages=("cs", "de", "fr", "hi", "ru"),
        terms="no single licence: Europarl, Common Crawl, News Commentary and others, for research; see the pages",
        links=("https://huggingface.co/datasets/wmt/wmt14", "https://aclanthology.org/W14-3302"),
        counts=MappingProxyType({"de-en": (4_508_785, 3_000, 3_003)}),
        config="{pair}",
        english_last=True,
    ),
    "wmt16": Corpus(
        id="wmt/wmt16",
        languages=("cs", "de", "fi", "ro", "ru", "tr"),
        terms="no single licence: Europarl, Common Crawl, News Commentary and others, for research; see the pages",
        links=("https://huggingface.co/datasets/wmt/wmt16", "https://aclanthology.org/W16-2301"),
        counts=MappingProxyType({"de-en": (4_548_885, 2_169, 2_999)}),
        config="{pair}",
        english_last=True,
    ),
    "opus100": Corpus(
        id="Helsinki-NLP/opus-100",
        languages=tuple(_OPUS.split()),
        terms="no single licence: a sample of OPUS, whose parts have their own terms; see the pages",
        links=("https://huggingface.co/datasets/Helsinki-NLP/opus-100", "https://aclanthology.org/2020.acl-main.148"),
        counts=MappingProxyType({"de-en": (1_000_000, 2_000, 2_000)}),
        config="{pair}",
    ),
}


@dataclass(frozen=True)
class Request:
    """What to fetch, and the folder that it goes to; see `request`."""

    name: str
    corpus: Corpus
    language: str
    revision: str | None
    folder: Path
    counts: tuple[int, int, int] | None = field(default=None)

    @property
    def pair(self) -> str:
        """The two languages in the order in which the Hub names them."""
        return f"{self.language}-en" if self.corpus.english_last else "-".join(sorted(("en", self.language)))

    def paths(self, split: str) -> dict[str, Path]:
        """The two files of a split, by language."""
        prefix = {"train": "train", "validation": "val", "test": self.corpus.test}[split]
        return {language: self.folder / f"{prefix}.{language}" for language in ("en", self.language)}

    def known(self, split: str) -> int | None:
        """The number of sentences of a split, if it is known."""
        return None if self.counts is None else self.counts[SPLITS.index(split)]


def request(
    name: str,
    output: Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    revision: str | None = None,
) -> Request:
    """
    Check what is asked for.

    Raises:
        ValueError: there is no such corpus or no such pair in it; says which there are.
    """
    if name not in CORPORA:
        raise ValueError(f"there is no corpus {name!r}; there are: {', '.join(CORPORA)}")
    corpus = CORPORA[name]
    asked = {language for language in (source_lang, target_lang) if language is not None}
    language = (asked - {"en"}) or {corpus.default}
    pair = {"en", *language}
    if len(pair) != 2 or not asked <= pair or language - set(corpus.languages) or (source_lang or 0) == target_lang:
        given = "-".join(filter(None, (source_lang, target_lang)))
        raise ValueError(f"{name} has no pair {given}; it pairs en with {', '.join(corpus.languages)}")
    if revision is not None and corpus.id is None:
        raise ValueError(f"{name} is fetched by hand; leave out --revision")
    (other,) = language
    key = "-".join(sorted(pair))
    folder = output / name / key if corpus.several else output / name
    return Request(name, corpus, other, revision or corpus.revision, folder, corpus.counts.get(key))


def fetch(wanted: Request) -> dict[str, int]:
    """
    Write the files that are not there yet, check the others, and write the record.

    Returns:
        The number of sentences of each split.

    Raises:
        ValueError: the corpus is not to be had, its counts are not those that are known, files that are there are of
            something else, or another process writes there.
        OSError: it cannot be written.
    """
    with only_writer(wanted.folder):
        _check_record(wanted)
        counts = {split: count for split in SPLITS if (count := _kept(wanted, split)) is not None}
        missing = [split for split in SPLITS if split not in counts]
        if missing:
            loaded = _load(wanted)
            # all of it is checked before anything is written
            for split in missing:
                counts[split] = _count(wanted, loaded, split)
            for split in missing:
                for language, path in wanted.paths(split).items():
                    write_lines(path, _texts(wanted, loaded[split], split, language))
        _write_record(wanted, counts)
    return {split: counts[split] for split in SPLITS}


def _check_record(wanted: Request) -> None:
    """What was fetched before has to be of the same data set and revision, and as it was written."""
    path = wanted.folder / RECORD
    if not path.is_file():
        return
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError(f"{path} is no record of a corpus; remove {wanted.folder}, or name another output")
    for key, value in (("dataset", wanted.corpus.id), ("revision", wanted.revision)):
        if record.get(key) != value:
            raise ValueError(
                f"{wanted.folder} was fetched with {key} {record.get(key)}, not {value}; remove it, or name another "
                "output"
            )
    for name, digest in record.get("sha256", {}).items():
        file = wanted.folder / name
        if file.is_file() and _digest(file) != digest:
            raise ValueError(f"{file} is not as it was fetched; remove it, and it is fetched again")


def _kept(wanted: Request, split: str) -> int | None:
    """The number of sentences of a split that is there already; None if one of its files is not."""
    paths = wanted.paths(split).values()
    if not all(path.is_file() for path in paths):
        return None
    counts = []
    for path in paths:
        with path.open("rb") as stream:
            counts.append(sum(1 for _ in raw_lines(stream)))
    known = wanted.known(split)
    if len(set(counts)) > 1 or not counts[0] or known not in (None, counts[0]):
        names = " and ".join(map(str, paths))
        expected = f"{known:,} each" if known is not None else "as many each, and at least one"
        raise ValueError(f"{names} have {counts[0]:,} and {counts[1]:,} lines, not {expected}; remove them")
    return counts[0]


def _load(wanted: Request) -> Mapping[str, Dataset]:
    """The data set; errors of the many libraries below become one line."""
    corpus = wanted.corpus
    if corpus.id is None:
        how = corpus.by_hand.format(folder=wanted.folder)
        raise ValueError(
            f"no copy of {wanted.name} on the Hub is known: get it by hand ({how}), and give the same command again, "
            "which checks it"
        )
    import datasets

    # names of the Hub's configuration, or files of its converted branch
    options: dict[str, Any] = {}
    if corpus.config is not None:
        options["name"] = corpus.config.format(pair=wanted.pair)
    if corpus.folder is not None:
        folder = corpus.folder.format(pair=wanted.pair)
        options["data_files"] = {split: f"{folder}/{split}/*.parquet" for split in SPLITS}
    try:
        return datasets.load_dataset(corpus.id, revision=wanted.revision, **options)  # nosec B615
    except Exception as error:
        # Of datasets, huggingface_hub, fsspec, pyarrow and the HTTP library, which have no class in common.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"cannot fetch {corpus.id} from {datasets.config.HF_ENDPOINT}: {reason[:300]}; check the network (and "
            "HF_ENDPOINT, HF_HUB_OFFLINE), and give the same command again"
        ) from error


def _count(wanted: Request, loaded: Mapping[str, Dataset], split: str) -> int:
    if split not in loaded:
        raise ValueError(f"{wanted.corpus.id} has no {split} set for {wanted.pair}; it has: {', '.join(loaded)}")
    count, known = len(loaded[split]), wanted.known(split)
    columns = set(loaded[split].column_names)
    if not ("translation" in columns or {"en", wanted.language} <= columns):
        raise ValueError(f"{wanted.corpus.id} has the columns {', '.join(sorted(columns))}, not translation")
    if count == 0 or known not in (None, count):
        raise ValueError(
            f"{wanted.corpus.id} has {count:,} {split} pairs, not {f'{known:,}' if known else 'at least one'}: it has "
            "changed; name a commit from before with --revision"
        )
    return count


def _texts(wanted: Request, part: Dataset, split: str, language: str) -> Iterator[str]:
    """One side of a split, a thousand records in memory at a time."""
    nested = "translation" in part.column_names
    for start in range(0, len(part), 1000):
        records = part[start : start + 1000]
        texts = [pair.get(language) for pair in records["translation"]] if nested else records[language]
        for number, text in enumerate(texts, start + 1):
            if not isinstance(text, str):
                raise ValueError(f"{wanted.corpus.id}, {split} record {number}: no text for the language {language}")
            yield text


def _write_record(wanted: Request, counts: Mapping[str, int]) -> None:
    files = [path for split in SPLITS for path in wanted.paths(split).values()]
    record = {
        "corpus": wanted.name,
        "dataset": wanted.corpus.id,
        "revision": wanted.revision,
        "languages": ["en", wanted.language],
        "terms": wanted.corpus.terms,
        "links": wanted.corpus.links,
        "sentences": dict(counts),
        "sha256": {path.name: _digest(path) for path in files},
    }
    write_whole(wanted.folder / RECORD, json_text(record, indent=2) + "\n")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", help=f"one of {', '.join(CORPORA)}")
    parser.add_argument("--output", type=Path, required=True, help="the data folder; the corpus gets one of its own")
    parser.add_argument("--source_lang", help="of a corpus with several pairs, one of which is English; en by default")
    parser.add_argument("--target_lang", help="the other language; de by default")
    parser.add_argument("--revision", help="branch, tag or commit of the data set; its newest if not given")
    return parser


def _command(arguments: argparse.Namespace) -> None:
    wanted = request(
        arguments.corpus, arguments.output, arguments.source_lang, arguments.target_lang, arguments.revision
    )
    print(f"{wanted.name}: {wanted.corpus.terms}\n{chr(10).join(wanted.corpus.links)}", flush=True)
    for split, count in fetch(wanted).items():
        print(f"{count:>9,}  {', '.join(map(str, wanted.paths(split).values()))}")


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption=": the same command goes on")
