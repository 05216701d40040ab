"""Lines, JSON, and folders that appear when they are complete."""

import io
import json
import os

import pytest

from hf_capsule_mt.data.corpus import load_split
from hf_capsule_mt.files import (
    decoded_lines,
    empty_folder,
    json_text,
    only_writer,
    parse_json,
    read_json,
    read_lines,
    whole_folder,
    write_lines,
    write_whole,
)

MARK = "\ufeff"
# what str.splitlines would cut at
INNER = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\0"]

TEXTS = {
    "": [],
    MARK: [],
    "\n": [""],
    f"{MARK}\n": [""],
    "a": ["a"],
    "a\n": ["a"],
    "a\n\n": ["a", ""],
    "a\r\nb\r\n": ["a", "b"],
    "a\r\r\nb\r": ["a\r", "b"],
    f"{MARK}a\n{MARK}b{MARK}\n": ["a", f"{MARK}b{MARK}"],
    "".join(f"a{inner}b\n" for inner in INNER): [f"a{inner}b" for inner in INNER],
}


@pytest.mark.parametrize(("text", "lines"), TEXTS.items())
def test_only_a_line_feed_ends_a_line(tmp_path, text, lines):
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    assert read_lines(path) == list(decoded_lines(io.BytesIO(text.encode()), "stream")) == lines


def test_a_corpus_is_read_by_the_same_rules(tmp_path):
    lines = [f"a{inner}b" for inner in INNER]
    (tmp_path / "train.en").write_bytes((MARK + "\n".join(lines)).encode())
    (tmp_path / "train.de").write_bytes("".join(f"{line}\r\n" for line in lines).encode())
    dataset = load_split("train", source_lang="en", target_lang="de", file=str(tmp_path / "train"))
    assert list(dataset["source"]) == list(dataset["target"]) == lines
    records = [{"translation": {"en": line, "de": line}} for line in lines]
    texts = {
        "lines.jsonl": "\r\n".join(json.dumps(record, ensure_ascii=False) for record in records),
        "list.json": json.dumps(records, indent=1),
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes((MARK + text).encode())
        dataset = load_split("train", source_lang="en", target_lang="de", file=str(tmp_path / name))
        assert list(dataset["source"]) == lines


def test_what_is_no_text_is_named(tmp_path):
    (tmp_path / "text").write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=r"text, line 2: not UTF-8 .*; convert it"):
        read_lines(tmp_path / "text")
    with pytest.raises(ValueError, match="is a folder; name a text file"):
        read_lines(tmp_path)
    with pytest.raises(OSError, match=r"there is no file .*absent"):
        read_lines(tmp_path / "absent")


def test_every_text_is_one_line(tmp_path):
    texts = ["a\nb", "a\r\nb", "a\rb", "", "a\u2028b"]
    write_lines(tmp_path / "out", texts)
    assert read_lines(tmp_path / "out") == ["a b", "a b", "a b", "", "a\u2028b"]


BAD_JSON = {
    "nan": ('{"a": NaN}', "there is no NaN in JSON; write null"),
    "infinity": ("[-Infinity]", "there is no -Infinity in JSON"),
    "too large": ('{"a": [1e999]}', "a number is not finite, or too large"),
    "surrogate": (r'{"a": "\ud800"}', "half of a surrogate pair"),
    "surrogate in a name": (r'{"\udfff": 1}', "half of a surrogate pair"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "deep and whole": ("[" * 5_000 + "]" * 5_000, "nested too deeply"),
    "broken": ("{", "Expecting"),
    "digits": ("1" * 10_000, "."),
}


@pytest.mark.parametrize(("text", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_what_is_no_json_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(ValueError, match=f"file.json is not JSON: .*{message}"):
        read_json(tmp_path / "file.json")


def test_json_there_and_back():
    value = {"ä": [1, 0.5, None, "\U0001f600\u2028\0"], "b": {"c": True}}
    assert parse_json(json_text(value)) == value and "ä" in json_text(value)
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            json_text({"a": [number]})


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_whole(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestWholeFolder:
    @staticmethod
    def names(folder):
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")

    @pytest.mark.parametrize("there", [False, True], ids=["absent", "empty"])
    def test_appears_when_it_is_complete(self, tmp_path, there):
        output = tmp_path / "model"
        if there:
            output.mkdir()
        with whole_folder(output) as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "file").write_text("text")
            assert not output.exists() or not any(output.iterdir())
        assert (output / "sub" / "file").read_text() == "text" and self.names(tmp_path) == ["model"]

    def test_a_link_leads_to_it(self, tmp_path):
        (tmp_path / "disk").mkdir()
        os.symlink(tmp_path / "disk", tmp_path / "link")
        with whole_folder(tmp_path / "link") as folder:
            (folder / "file").touch()
        assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "file").exists()

    def test_nothing_stays_of_one_that_failed(self, tmp_path):
        with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "model") as folder:
            (folder / "file").touch()
            raise KeyboardInterrupt
        assert self.names(tmp_path) == []

    def test_what_a_kill_has_left_is_removed(self, tmp_path):
        (tmp_path / ".model.partial").mkdir()
        (tmp_path / ".model.partial" / "old").touch()
        with whole_folder(tmp_path / "model"):
            pass
        assert self.names(tmp_path) == ["model"] and not any((tmp_path / "model").iterdir())

    def test_has_one_writer(self, tmp_path):
        with whole_folder(tmp_path / "model") as folder:
            with pytest.raises(ValueError, match="is being written by"), whole_folder(tmp_path / "model"):
                pass
            assert folder.is_dir()

    def test_leaves_alone_what_is_there(self, tmp_path):
        (tmp_path / "file").touch()
        for output in (tmp_path, tmp_path / "file"):
            with pytest.raises(ValueError, match="exists already"):
                empty_folder(output)
            with pytest.raises(ValueError, match="exists already"), whole_folder(output):
                pass


def test_no_writer_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file" / "out", "/proc/hf_capsule_mt/out"):
        with pytest.raises(OSError, match=r"cannot write to .*; name another output"), only_writer(tmp_path / output):
            pass
