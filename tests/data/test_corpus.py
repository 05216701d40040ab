"""Every source of parallel text, and every way in which it can be wrong."""

import json

import datasets
import pytest

from hf_capsule_mt.data.corpus import DATA_VARIABLE, MissingSplitError, load_split

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
    ],
)
def test_malformed_record_is_located(tmp_path, line, message):
    (tmp_path / "train.jsonl").write_text(json.dumps(records()[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
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
