"""For commands that turn lines into lines: windows of bounded memory, and output that survives an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tqdm.auto import tqdm

# Lines that are read, sorted by length and written at a time
WINDOW = 10_000
STANDARD_STREAM = Path("-")


def one_line(text: str) -> str:
    """The text with its line breaks (a tokenizer with byte pieces can produce some) as spaces."""
    return re.sub(r"\r\n?|\n", " ", text)


class LineOutput:
    """
    Standard output, or a file that is there in whole or not at all.

    Until it is complete, FILE is called FILE.part; FILE.part.json says what it was made with and how far it is, and is
    written after each window. A part of the same input with the same options is gone on with.

    Args:
        path: the file; None or "-" for standard output.
        options: everything that the lines depend on beside the input, for JSON.

    Raises:
        ValueError: the file is there already, or its part was made with other options.
    """

    def __init__(self, path: Path | None, options: Mapping[str, Any]) -> None:
        self.path = None if path in (None, STANDARD_STREAM) else path
        self.state: dict[str, Any] = {"options": dict(options), "lines": 0, "bytes": 0, "input": ""}
        self._digest = hashlib.sha256()
        self._stream: BinaryIO = sys.stdout.buffer
        if self.path is None:
            return
        if self.path.exists():
            raise ValueError(f"{self.path} exists already; remove it or name another file")
        self._part = Path(f"{self.path}.part")
        self._record = Path(f"{self.path}.part.json")
        if self._record.exists():
            self._resume()
        elif self._part.exists():
            raise ValueError(f"{self._part} is there without {self._record}; remove it or name another output")
        else:
            self._write_record()
        self._stream = self._part.open("ab")
        self._stream.truncate(self.state["bytes"])

    def _resume(self) -> None:
        started = json.loads(self._record.read_text(encoding="utf-8"))
        options = {**started["options"], **self.state["options"]}
        differences = [name for name in options if started["options"].get(name) != self.state["options"].get(name)]
        remedy = f"remove {self._part} and {self._record} to begin anew, or name another output"
        if differences:
            raise ValueError(f"{self._part} was begun with another {', '.join(differences)}; {remedy}")
        if (self._part.stat().st_size if self._part.exists() else 0) < started["bytes"]:
            raise ValueError(f"{self._part} is shorter than when it was written; {remedy}")
        self.state = started

    def skip_done(self, lines: Iterator[str]) -> int:
        """
        Pass over the input lines whose results a part has already; returns their number.

        Raises:
            ValueError: they are not the lines that the part was made of.
        """
        done = self.state["lines"]
        skipped = list(self._hashed(islice(lines, done)))
        if done and (len(skipped) < done or self._digest.hexdigest() != self.state["input"]):
            raise ValueError(
                f"{self._part} was made of another input; remove it and {self._record} to begin anew, or name another "
                "output"
            )
        return done

    def _hashed(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._digest.update(line.encode() + b"\n")
            yield line

    def write(self, inputs: Sequence[str], lines: Sequence[str]) -> None:
        """The results of the next input lines; they are safe when it returns."""
        for _ in self._hashed(iter(inputs)):
            pass
        self._stream.write(b"".join(line.encode() + b"\n" for line in lines))
        self._stream.flush()
        if self.path is None:
            return
        os.fsync(self._stream.fileno())
        self.state["lines"] += len(inputs)
        self.state["bytes"] = self._stream.tell()
        self.state["input"] = self._digest.hexdigest()
        self._write_record()

    def _write_record(self) -> None:
        temporary = Path(f"{self._record}.tmp")
        temporary.write_text(json.dumps(self.state), encoding="utf-8")
        os.replace(temporary, self._record)

    def finish(self) -> None:
        """Everything is written: the file gets its name."""
        if self.path is None:
            return
        self._stream.close()
        os.replace(self._part, self.path)
        self._record.unlink()


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """
    The lines of a UTF-8 text file, or of standard input for "-", without their ends.

    Raises:
        OSError: there is no such file.
        ValueError: while reading, at a line that is not UTF-8.
    """
    stream = sys.stdin.buffer if path == STANDARD_STREAM else path.open("rb")
    try:
        yield _decoded(stream, "standard input" if path == STANDARD_STREAM else str(path))
    finally:
        if path != STANDARD_STREAM:
            stream.close()


def _decoded(stream: BinaryIO, name: str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason})") from error


def count_lines(path: Path) -> int | None:
    """Number of lines of a file; None for standard input, or what can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def process_lines(
    lines: Iterator[str],
    output: LineOutput,
    function: Callable[[list[str], int, Callable[[int, int], None]], list[str]],
    *,
    total: int | None,
    window: int,
    title: str,
) -> None:
    """
    Read windows of lines, and write what becomes of each before the next one is read; a bar on standard error.

    Args:
        function: gets the lines of a window, the number of the first (from 1), and a function to call with how many
            of them are done and how many there are; returns the lines to write.
        total: number of lines, if it is known.
        window: lines at a time.
    """
    done = output.skip_done(lines)
    with tqdm(total=total, initial=done, desc=title, unit=" lines", dynamic_ncols=True, file=sys.stderr) as bar:
        while inputs := list(islice(lines, window)):

            def show(finished: int, _: int, before: int = done) -> None:
                bar.update(before + finished - bar.n)

            output.write(inputs, function(inputs, done + 1, show))
            done += len(inputs)
            bar.update(done - bar.n)
    output.finish()


def json_record(line: str, number: int, fields: Mapping[str, type]) -> dict[str, Any]:
    """
    A line of a JSON lines file.

    Args:
        number: of the line, for the message.
        fields: names and types of what it must have.

    Raises:
        ValueError: it is no JSON object, or a field is missing or of another type.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"line {number} is no JSON object, but a {type(record).__name__}")
    for name, kind in fields.items():
        if not isinstance(record.get(name), kind):
            found = f"a {type(record[name]).__name__}" if name in record else "missing"
            what = "a list" if kind is list else "a string"
            raise ValueError(f'line {number}: the field "{name}" must be {what}, and is {found}')
    return record
