"""Text of any kind: as many lines out as in, in their order, or one line that names the place of what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation.line_files import LineOutput, open_lines, process_lines
from hf_capsule_mt.models.pipeline_translation import TranslationPipeline
from record import note
from tiny_translation import SOURCES, tiny_model, tiny_tokenizer

ODD = [
    "",
    " ",
    "\r",
    "\x00",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\u2029",
    "\ufeff",
    "\u200f",
    "e\u0301",
    "\U0001f600",
    "<pad>",
    "</s>",
    "<unk>",
    "\t",
    "a" * 300,
    *SOURCES,
]
LINES = st.one_of(
    st.sampled_from(ODD),
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12),
)
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n"])
# lines with their ends; the last one may have none
FILES = st.lists(st.tuples(LINES, ENDS), max_size=12).flatmap(lambda lines: st.tuples(st.just(lines), st.booleans()))
counts: Counter = Counter()


@pytest.fixture(autouse=True)
def fresh_counts():
    counts.clear()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def encode(file: tuple[list[tuple[str, str]], bool]) -> bytes:
    lines, ended = file
    text = "".join(line + end for line, end in lines)
    return (text if ended or not lines else text.removesuffix(lines[-1][1])).encode()


def number_of_lines(data: bytes) -> int:
    """As `wc -l` counts them, and a last one that does not end; a byte order mark alone is none."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def run_lines(folder: Path, data: bytes, window: int) -> list[str]:
    """What process_lines writes for a file with a function that numbers the lines."""
    source, output = folder / "in.txt", folder / "out.txt"
    source.write_bytes(data)
    output.unlink(missing_ok=True)
    seen: list[str] = []

    def number(lines: list[str], first: int, progress: Any) -> list[str]:
        seen.extend(lines)
        return [f"{first + position}" for position in range(len(lines))]

    with open_lines(source) as lines, LineOutput(output, [source]) as made:
        made.begin({})
        process_lines(lines, made, number, total=None, window=window, title="")
    assert output.read_bytes() == b"".join(b"%d\n" % (position + 1) for position in range(len(seen)))
    return seen


def test_as_many_lines_out_as_in(tmp_path):
    @given(FILES, st.integers(1, 5))
    def check(file: Any, window: int) -> None:
        data = encode(file)
        counts["tried"] += 1
        seen = run_lines(tmp_path, data, window)
        assert len(seen) == number_of_lines(data)
        expected = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")[: len(seen)]
        assert [line.encode() for line in seen] == [line.removesuffix(b"\r") for line in expected]

    check()
    note("properties", "files of lines", dict(counts))


def test_bytes_are_lines_or_the_line_is_named(tmp_path):
    @given(
        st.lists(
            st.one_of(st.binary(max_size=8), st.just(b"\n"), st.sampled_from([b"\xff", b"\xc3", b"\xef\xbb\xbf"]))
        ).map(b"".join)
    )
    def check(data: bytes) -> None:
        counts["tried"] += 1
        try:
            seen = run_lines(tmp_path, data, 3)
        except ValueError as error:
            assert "line " in str(error) and "UTF-8" in str(error)
            counts["refused"] += 1
            for leftover in tmp_path.glob("out*"):
                leftover.unlink()
        else:
            assert len(seen) == number_of_lines(data)

    check()
    note("properties", "files of bytes", dict(counts))


def translate_file(model_folder: Path, folder: Path, data: bytes, *options: str) -> tuple[int, bytes | None]:
    source, output = folder / "in.txt", folder / "out.txt"
    for path in folder.glob("out*"):
        path.unlink()
    source.write_bytes(data)
    limits = ("--window", "5", "--num_beams", "1", "--max_new_tokens", "4", "--device", "cpu")
    status = main(["translate", str(model_folder), str(source), "--output", str(output), *limits, *options])
    return status, output.read_bytes() if output.exists() else None


def test_the_command_keeps_lines(model_folder, tmp_path):
    @settings(settings(), max_examples=max(3, settings().max_examples // 20))
    @given(FILES)
    def check(file: Any) -> None:
        data = encode(file)
        counts["tried"] += 1
        status, made = translate_file(model_folder, tmp_path, data)
        assert status == 0 and made is not None
        assert made.count(b"\n") == number_of_lines(data) and (not made or made.endswith(b"\n"))

    check()
    note("properties", "files through translate", dict(counts))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
GOOD = st.fixed_dictionaries({"source": LINES}, optional={"id": JSON, "\u2028": JSON})
RECORDS = st.lists(st.one_of(GOOD, GOOD, GOOD, JSON, st.fixed_dictionaries({"source": JSON})), min_size=1, max_size=4)


def test_json_lines(model_folder, tmp_path, capfd):
    @settings(settings(), max_examples=max(4, settings().max_examples // 10))
    @given(RECORDS, st.booleans())
    def check(records: list[Any], ascii_only: bool) -> None:
        counts["tried"] += 1
        data = "".join(json.dumps(record, ensure_ascii=ascii_only) + "\n" for record in records)
        capfd.readouterr()
        status, made = translate_file(model_folder, tmp_path, data.encode("utf-8", "surrogatepass"), "--jsonl")
        error = capfd.readouterr().err
        assert "Traceback" not in error
        if status == 0:
            out = [json.loads(line) for line in made.decode().split("\n")[:-1]]
            assert [{k: v for k, v in record.items() if k != "translation"} for record in out] == records
            assert all(isinstance(record["translation"], str) for record in out)
        else:
            counts["refused"] += 1
            assert status == 2 and "line " in error.strip().splitlines()[-1]

    check()
    note("properties", "JSON lines through translate", dict(counts))


@pytest.fixture(scope="module")
def translator() -> TranslationPipeline:
    tokenizer: PreTrainedTokenizerFast = tiny_tokenizer()
    return TranslationPipeline(model=tiny_model(), tokenizer=tokenizer, task="translation")


def test_pipeline(translator):
    """As many results as texts, each a string; one text alone gives a list of one."""

    @settings(settings(), max_examples=max(10, settings().max_examples // 4))
    @given(
        st.one_of(LINES, st.lists(LINES, max_size=5), st.lists(st.sampled_from(ODD), min_size=8, max_size=8)),
        st.integers(1, 3),
    )
    def check(texts: Any, batch_size: int) -> None:
        counts["tried"] += 1
        results = translator(texts, num_beams=1, max_new_tokens=4, batch_size=batch_size)
        assert len(results) == (1 if isinstance(texts, str) else len(texts))
        assert all(isinstance(result["translation_text"], str) for result in results)

    check()
    note("properties", "inputs of the pipeline", dict(counts))
