"""Every source of parallel text, and every way in which it can be wrong."""

import csv
import json

import datasets
import pytest

from hf_capsule_mt.data.corpus import DATA_VARIABLE, MissingSplitError, load_split, rows_by_pair
from hf_capsule_mt.models.tokenizer_languages import LanguagePair

PAIRS = [("a dog", "ein Hund"), ("two cats", "zwei Katzen"), ("no bird", "kein Vogel")]


def load(split="train", **options):
    dataset = load_split(split, **{"source_lang": "en", "target_lang": "de", **options})
    return list(zip(dataset["source"], dataset["target"], strict=True))


def write_text(folder, name="train", pairs=PAIRS, ending="\n"):
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + ending for pair in pairs)
        (folder / f"{name}.{language}").write_bytes(text.encode("utf-8"))


def records(pairs=PAIRS):
    return [{"translation": {"en": source, "de": target}} for source, target in pairs]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Keep what `datasets` caches out of the home folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def test_text_pair(tmp_path):
    write_text(tmp_path)
    assert load(file="train", data_dir=str(tmp_path)) == PAIRS
    assert load(file=str(tmp_path / "train"), source_lang="de", target_lang="en") == [(t, s) for s, t in PAIRS]


def test_relative_files_are_looked_up_in_the_variable_or_here(tmp_path, monkeypatch):
    write_text(tmp_path)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert load(file="train") == PAIRS
    monkeypatch.delenv(DATA_VARIABLE)
    monkeypatch.chdir(tmp_path)
    assert load(file="train") == PAIRS


def test_names_that_start_with_a_dot_are_looked_up_here(tmp_path, monkeypatch):
    data, here = tmp_path / "data", tmp_path / "here"
    for folder, pairs in ((data, PAIRS[:1]), (here, PAIRS[:2]), (tmp_path, PAIRS)):
        folder.mkdir(exist_ok=True)
        write_text(folder, pairs=pairs)
        write_lines(folder / "train.jsonl", records(pairs))
    monkeypatch.chdir(here)
    monkeypatch.setenv(DATA_VARIABLE, str(data))
    for name in ("train", "train.jsonl"):
        for data_dir in (None, str(data)):
            assert load(file=name, data_dir=data_dir) == PAIRS[:1]
            assert load(file=f"./{name}", data_dir=data_dir) == PAIRS[:2]
            assert load(file=f"../{name}", data_dir=data_dir) == PAIRS
    with pytest.raises(
        FileNotFoundError, match=r"no file nowhere\.en .* start with \./ or \.\./ in the current folder"
    ):
        load(file="./nowhere")


@pytest.mark.parametrize(
    "pairs,ending",
    [
        pytest.param(PAIRS, "\r\n", id="windows-line-ends"),
        pytest.param([("a", "b"), ("", ""), ("c", "d")], "\n", id="blank-line-is-kept"),
        pytest.param([("one\u2028line", "eine\x85Zeile"), ("x\rz", "y")], "\n", id="line-feed-alone-ends-a-line"),
    ],
)
def test_lines_are_kept_as_they_are(tmp_path, pairs, ending):
    write_text(tmp_path, pairs=pairs, ending=ending)
    assert load(file="train", data_dir=str(tmp_path)) == pairs


def test_last_line_needs_no_line_end_and_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbfa dog\ntwo cats")
    (tmp_path / "train.de").write_text("ein Hund\nzwei Katzen\n")
    assert load(file="train", data_dir=str(tmp_path)) == PAIRS[:2]


def test_json_lines_and_json_list(tmp_path):
    write_lines(tmp_path / "lines.jsonl", records())
    (tmp_path / "list.json").write_text(json.dumps(records(), indent=1))
    write_lines(tmp_path / "lines.json", records())
    for name in ("lines.jsonl", "list.json", "lines.json"):
        assert load(file=name, data_dir=str(tmp_path)) == PAIRS


def test_data_set_with_a_translation_column(tmp_path):
    # A folder loads like a data set on the Hub.
    for split in ("train", "validation"):
        write_lines(tmp_path / f"{split}.jsonl", records())
    assert load(dataset_name=str(tmp_path)) == PAIRS
    assert load("validation", dataset_name=str(tmp_path), max_samples=2) == PAIRS[:2]
    with pytest.raises(MissingSplitError, match="no split 'test'; it has: train, validation"):
        load("test", dataset_name=str(tmp_path))
    with pytest.raises(ValueError, match=r"train record 1: no text for the language 'fr'; there are: de, en"):
        load(dataset_name=str(tmp_path), target_lang="fr")


def test_data_set_without_a_translation_column(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"text": "a"}])
    with pytest.raises(ValueError, match="no column 'translation'; it has: text"):
        load(dataset_name=str(tmp_path))


def test_unknown_data_set(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match="nowhere"):
        load(dataset_name=str(tmp_path / "nowhere"))


def test_embedded_corpus_in_both_directions():
    forward = load(dataset_name="grammar", max_samples=20)
    assert len(forward) == 20
    backward = load(dataset_name="grammar", max_samples=20, source_lang="de", target_lang="en")
    assert backward == [(target, source) for source, target in forward]
    assert not set(forward) & set(load("test", dataset_name="grammar", max_samples=20))
    with pytest.raises(
        ValueError, match="the embedded corpus is en and de, got source_lang='en' and target_lang='fr'"
    ):
        load(dataset_name="grammar", target_lang="fr")


def test_max_samples_takes_the_first(tmp_path):
    write_text(tmp_path)
    assert load(file="train", data_dir=str(tmp_path), max_samples=2) == PAIRS[:2]
    assert load(file="train", data_dir=str(tmp_path), max_samples=99) == PAIRS
    with pytest.raises(ValueError, match="train samples must be at least 1, got 0"):
        load(file="train", data_dir=str(tmp_path), max_samples=0)


def test_different_line_counts_are_named(tmp_path):
    write_text(tmp_path)
    (tmp_path / "train.de").write_text("ein Hund\nzwei Katzen\n")
    with pytest.raises(ValueError, match=r"train\.en has 3 and .*train\.de has 2"):
        load(file="train", data_dir=str(tmp_path))


@pytest.mark.parametrize("content", ["", "\n \n"], ids=["empty", "blank"])
def test_empty_file_is_named(tmp_path, content):
    write_text(tmp_path)
    (tmp_path / "train.de").write_text(content)
    with pytest.raises(ValueError, match=r"train\.de is empty"):
        load(file="train", data_dir=str(tmp_path))
    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"train\.jsonl is empty"):
        load(file="train.jsonl", data_dir=str(tmp_path))


def test_unknown_language_lists_what_there_is(tmp_path):
    write_text(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"train\.fr for the language 'fr'; .*: train\.de, train\.en"):
        load(file="train", data_dir=str(tmp_path), target_lang="fr")
    with pytest.raises(FileNotFoundError, match="no file has this prefix"):
        load(file="trian", data_dir=str(tmp_path))
    write_lines(tmp_path / "train.jsonl", records())
    with pytest.raises(ValueError, match=r"train\.jsonl, line 1: no text for the language 'fr'; there are: de, en"):
        load(file="train.jsonl", data_dir=str(tmp_path), target_lang="fr")


@pytest.mark.parametrize(
    "line,message",
    [
        pytest.param('{"translation": {"en": "a", "de": ', "line 2: not valid JSON", id="not-json"),
        pytest.param('{"en": "a", "de": "b"}', 'line 2: expected {"translation"', id="no-translation"),
        pytest.param('{"translation": {"en": "a", "de": null}}', "line 2: no text for the language 'de'", id="null"),
        pytest.param("[1]", "line 2: expected", id="list"),
        pytest.param("[" * 100_000, "line 2: not valid JSON .it is nested too deeply", id="deep"),
        pytest.param("1" * 5_000, "line 2: not valid JSON", id="long number"),
        pytest.param(
            r'{"translation": {"en": "a", "de": "b\ud800"}}',
            "line 2: not valid JSON .it has half of a surrogate pair",
            id="surrogate",
        ),
        pytest.param(r'{"translation": {"en": "a", "\udc00": "b"}}', "line 2: not valid JSON .it has half", id="key"),
    ],
)
def test_malformed_record_is_located(tmp_path, line, message):
    (tmp_path / "train.jsonl").write_text(json.dumps(records()[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        load(file="train.jsonl", data_dir=str(tmp_path))


@pytest.mark.parametrize("depth", [900, 3_000, 30_000])
def test_record_of_any_depth_is_one_line(tmp_path, depth):
    (tmp_path / "train.jsonl").write_text('{"a": ' * depth + "1" + "}" * depth + "\n")
    with pytest.raises(ValueError, match=r"train\.jsonl, line 1: "):
        load(file="train.jsonl", data_dir=str(tmp_path))


def test_text_in_another_encoding_is_named(tmp_path):
    write_text(tmp_path)
    (tmp_path / "train.de").write_bytes("schläft\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.de, line 1: not UTF-8"):
        load(file="train", data_dir=str(tmp_path))


def test_missing_json_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*train\.jsonl"):
        load(file="train.jsonl", data_dir=str(tmp_path))


def test_neither_or_both_of_file_and_data_set():
    with pytest.raises(ValueError, match="either a file or a dataset_name"):
        load()
    with pytest.raises(ValueError, match="either a file or a dataset_name"):
        load(file="train", dataset_name="grammar")


def test_unknown_split():
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        load("dev", dataset_name="grammar")


LANGUAGES = [("en", "de"), ("en", "fr"), ("en", "de")]
ROWS = [(source, target, *codes) for (source, target), codes in zip(PAIRS, LANGUAGES, strict=True)]
IN_RECORDS = {
    "source_lang": None,
    "target_lang": None,
    "source_lang_column": "from",
    "target_lang_column": "to",
}
FLAT = {**IN_RECORDS, "source_column": "a", "target_column": "b"}


def load_rows(**options):
    dataset = load_split("train", **options)
    return list(zip(*(dataset[name] for name in ("source", "target", "source_lang", "target_lang")), strict=True))


def test_records_say_their_languages(tmp_path):
    by_language = [{"translation": {s: a, t: b}, "from": s, "to": t} for a, b, s, t in ROWS]
    write_lines(tmp_path / "train.jsonl", by_language)
    assert load_rows(file=str(tmp_path / "train.jsonl"), **IN_RECORDS) == ROWS
    # one side can be the same for all
    fixed = {"source_lang": "en", "target_lang_column": "to"}
    assert load_rows(file=str(tmp_path / "train.jsonl"), **fixed, max_samples=2) == ROWS[:2]
    flat = [{"a": a, "b": b, "from": s, "to": t, "year": 1} for a, b, s, t in ROWS]
    write_lines(tmp_path / "flat.jsonl", flat)
    assert load_rows(file=str(tmp_path / "flat.jsonl"), **FLAT) == ROWS
    write_lines(tmp_path / "named.jsonl", [{"translation": {"a": r["a"], "b": r["b"]}, **r} for r in flat])
    assert load_rows(file=str(tmp_path / "named.jsonl"), **FLAT) == ROWS


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_tables(tmp_path, ending):
    rows = [("a, b", 'say "no"', "en", "de"), ("two", "", "en", "fr"), ("NA", "null", "en", "de")]
    names = ("a", "b", "from", "to")
    path = tmp_path / f"train.{ending}"
    if ending == "parquet":
        datasets.Dataset.from_dict(dict(zip(names, zip(*rows, strict=True), strict=True))).to_parquet(path)
    elif ending == "tsv":
        path.write_text("".join("\t".join(row) + "\n" for row in (names, *rows)), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows((names, *rows))
    assert load_rows(file=str(path), **FLAT) == rows
    assert load(file=str(path), source_column="a", target_column="b") == [row[:2] for row in rows]
    # with a column for each language
    with pytest.raises(ValueError, match=r"no text for the language 'en'; there are: a, b, from, to"):
        load(file=str(path))


def test_column_named_translation(tmp_path):
    (tmp_path / "train.csv").write_text("text,translation\na,b\n")
    assert load(file=str(tmp_path / "train.csv"), source_column="text", target_column="translation") == [("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", "a,b\n1,2,3\n", r"train\.csv, line 2: 3 values, but the first line has the names of 2 columns"),
        ("train.csv", 'a,b\n1,"2\n', r"train\.csv, line 2: unexpected end of data"),
        ("train.csv", "a,b\n", "has the names of the columns only"),
        ("train.tsv", "", "is empty"),
        ("train.parquet", "PAR1", "cannot be read as Parquet"),
        ("train.csv", "a,c\n1,2\n", "line 2: no text in the field 'b'; there are: a, c"),
    ],
)
def test_malformed_table_is_located(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load(file=name, data_dir=str(tmp_path), source_column="a", target_column="b")


def test_data_set_says_its_languages(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"a": a, "b": b, "from": s, "to": t, "n": 1} for a, b, s, t in ROWS])
    assert load_rows(dataset_name=str(tmp_path), **FLAT) == ROWS
    assert load(dataset_name=str(tmp_path), source_column="a", target_column="b") == PAIRS
    with pytest.raises(ValueError, match='train record 1: no language in the field "code"'):
        load_rows(dataset_name=str(tmp_path), **{**FLAT, "source_lang_column": "code"})


def test_pairs_of_files(tmp_path):
    pairs = [LanguagePair("en", "de"), LanguagePair("de", "en"), LanguagePair("en", "fr")]
    for name, texts in (
        ("train.en-de.en", ["a", "b"]),
        ("train.en-de.de", ["A", "B"]),
        # all languages have the same sentences
        ("train.en", ["c", "d"]),
        ("train.fr", ["C", "D"]),
    ):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    options = {"file": "train", "data_dir": str(tmp_path), "language_pairs": pairs}
    assert load_rows(**options, max_samples=1) == [
        ("a", "A", "en", "de"),
        ("A", "a", "de", "en"),
        ("c", "C", "en", "fr"),
    ]
    assert [row[2:] for row in load_rows(**options)] == [pair for pair in pairs for _ in range(2)]
    with pytest.raises(FileNotFoundError, match=r"no text of the pair it-de: there is none of .*train\.it-de\.it, "):
        load_rows(**{**options, "language_pairs": [LanguagePair("it", "de")]})
    with pytest.raises(ValueError, match=r"language_pairs are those of text files, not of train\.csv"):
        load_rows(**{**options, "file": "train.csv"})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"to": "de"}, r'line 1: no language in the field "from"'),
        ({"from": " ", "to": "de"}, r'line 1: no language in the field "from"'),
        ({"from": ["en"], "to": "de"}, r'line 1: no language in the field "from"'),
        ({"from": "de", "to": "de"}, "line 1: source and target language are both 'de'"),
        ({"from": "en", "to": "fr"}, "line 1: no text for the language 'fr'; there are: de, en"),
        ({"from": "xx", "to": "de"}, "line 1: there is no 'xx'"),
    ],
)
def test_language_of_a_record_is_located(tmp_path, record, message):
    def check(code):
        if code == "xx":
            raise ValueError("there is no 'xx'")

    write_lines(tmp_path / "train.jsonl", [{"translation": {"en": "a", "de": "b"}, **record}])
    with pytest.raises(ValueError, match=message):
        load_rows(file=str(tmp_path / "train.jsonl"), check_language=check, **IN_RECORDS)


def test_rows_by_pair(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"a": a, "b": b, "from": s, "to": t} for a, b, s, t in ROWS])
    dataset = load_split("train", file=str(tmp_path / "train.jsonl"), **FLAT)
    assert rows_by_pair(dataset, LanguagePair("x", "y")) == {("en", "de"): [0, 2], ("en", "fr"): [1]}
    write_text(tmp_path)
    dataset = load_split("train", file=str(tmp_path / "train"), source_lang="en", target_lang="de")
    assert rows_by_pair(dataset, LanguagePair("x", "y")) == {("x", "y"): [0, 1, 2]}
