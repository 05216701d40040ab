"""For commands that turn lines into lines: windows of bounded memory, and output that survives an interruption."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tqdm.auto import tqdm

from ..files import (
    decoded_lines,
    json_text,
    one_line,
    only_writer,
    open_text,
    parse_json,
    raw_lines,
    read_json,
    write_whole,
)

# Lines that are read, sorted by length and written at a time
WINDOW = 10_000
STANDARD_STREAM = Path("-")
# Bytes of a part that are read at a time to check it
CHUNK = 2**20


class LineOutput:
    """
    Standard output, or a file that is there in whole or not at all, and that one process writes at a time.

    Until it is complete, FILE is called FILE.part; FILE.part.json says what it was made with and how far it is, and is
    written after each window. A part of the same input with the same options is gone on with. A context manager, which
    holds the lock of the file; `begin` comes before the first line.

    Args:
        path: the file; None or "-" for standard output.
        inputs: the files that are read.

    Raises:
        ValueError: the file is an input or is there already, or its folder is not; on entering, another process
            writes it.
    """

    def __init__(self, path: Path | None, inputs: Sequence[Path] = ()) -> None:
        self.path = None if path in (None, STANDARD_STREAM) else path
        self.state: dict[str, Any] = {"options": {}, "lines": 0, "bytes": 0, "input": "", "output": ""}
        self._read, self._written = hashlib.sha256(), hashlib.sha256()
        self._stream: BinaryIO = sys.stdout.buffer
        self._held = ExitStack()
        if self.path is None:
            _refuse_redirection(inputs)
            return
        self._part, self._record = Path(f"{self.path}.part"), Path(f"{self.path}.part.json")
        self._remedy = f"remove {self._part} and {self._record} to begin anew, or name another output"
        for file in inputs:
            if any(_same_file(file, written) for written in (self.path, self._part, self._record)):
                raise ValueError(f"{file} is the input, and cannot be written at the same time; name another output")
        if self.path.is_dir():
            raise ValueError(f"{self.path} is a folder; name a file")
        if self.path.exists():
            if not self._part.exists():
                # what a kill just before the end has left
                self._record.unlink(missing_ok=True)
            raise ValueError(f"{self.path} exists already; remove it or name another file")
        if not self.path.parent.is_dir():
            raise ValueError(f"there is no folder {self.path.parent}; make it, or name another output")

    def __enter__(self) -> LineOutput:
        if self.path is not None:
            self._held.enter_context(only_writer(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        if self.path is not None and self._stream is not sys.stdout.buffer:
            self._stream.close()
        self._held.close()

    def begin(self, options: Mapping[str, Any]) -> None:
        """
        Make ready for the first line, or for the first one that a part does not have.

        Args:
            options: everything that the lines depend on beside the input, for JSON.

        Raises:
            ValueError: the part was made with other options, or is not what was written.
        """
        self.state["options"] = dict(options)
        if self.path is None:
            return
        if self._record.exists():
            self._resume()
        elif self._part.exists():
            raise ValueError(f"{self._part} is there without {self._record}; remove it or name another output")
        else:
            write_whole(self._record, json_text(self.state))
        # without a buffer, whose rest could neither be written nor forgotten when the disk is full
        self._stream = self._part.open("ab", buffering=0)
        self._stream.truncate(self.state["bytes"])

    def _resume(self) -> None:
        try:
            started = read_json(self._record)
        except ValueError as error:
            raise ValueError(f"{error}; {self._remedy}") from None
        if not isinstance(started, dict) or started.keys() != self.state.keys():
            raise ValueError(f"{self._record} is not the record of a part by this version; {self._remedy}")
        options = {**started["options"], **self.state["options"]}
        differences = [name for name in options if started["options"].get(name) != self.state["options"].get(name)]
        if differences:
            raise ValueError(f"{self._part} was begun with another {', '.join(differences)}; {self._remedy}")
        if (self._part.stat().st_size if self._part.exists() else 0) < started["bytes"]:
            raise ValueError(f"{self._part} is shorter than when it was written; {self._remedy}")
        self.state = started
        self._written = self._digest_of_part()
        self._check_part()

    def _digest_of_part(self) -> Any:
        digest, left = hashlib.sha256(), self.state["bytes"]
        if left:
            with self._part.open("rb") as stream:
                while left and (chunk := stream.read(min(left, CHUNK))):
                    digest.update(chunk)
                    left -= len(chunk)
        return digest

    def _check_part(self) -> None:
        if self.state["bytes"] and self._digest_of_part().hexdigest() != self.state["output"]:
            raise ValueError(f"{self._part} is not what was written to it; {self._remedy}")

    def skip_done(self, lines: Iterator[str]) -> int:
        """
        Pass over the input lines whose results a part has already; returns their number.

        Raises:
            ValueError: they are not the lines that the part was made of.
        """
        done = self.state["lines"]
        skipped = sum(1 for _ in self._hashed(islice(lines, done)))
        if done and (skipped < done or self._read.hexdigest() != self.state["input"]):
            raise ValueError(f"{self._part} was made of another input; {self._remedy}")
        return done

    def _hashed(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._read.update(line.encode() + b"\n")
            yield line

    def write(self, inputs: Sequence[str], lines: Sequence[str]) -> None:
        """
        The results of the next input lines, one line each whatever they hold; they are safe when it returns.

        Raises:
            OSError: they cannot be written. What was written before is kept.
        """
        for _ in self._hashed(iter(inputs)):
            pass
        data = b"".join(one_line(line).encode() + b"\n" for line in lines)
        try:
            self._append(data, len(inputs))
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.path is None:
                raise OSError(error.errno, f"cannot write to standard output: {error.strerror}") from error
            done = f"{self.state['lines']} lines are done and kept, and the same command goes on from there"
            raise OSError(error.errno, f"{error.strerror}; {done}", str(self._part)) from error

    def _append(self, data: bytes, lines: int) -> None:
        left = memoryview(data)
        while left:
            # a file without a buffer may take a part only
            left = left[self._stream.write(left) :]
        self._stream.flush()
        if self.path is None:
            return
        os.fsync(self._stream.fileno())
        self._written.update(data)
        state = {
            "options": self.state["options"],
            "lines": self.state["lines"] + lines,
            "bytes": self.state["bytes"] + len(data),
            "input": self._read.hexdigest(),
            "output": self._written.hexdigest(),
        }
        write_whole(self._record, json_text(state))
        self.state = state

    def finish(self) -> None:
        """
        Everything is written: the file gets its name.

        Raises:
            ValueError: the part is not what was written to it, or the name is taken by now.
        """
        if self.path is None:
            return
        self._stream.close()
        if self._part.stat().st_size != self.state["bytes"]:
            raise ValueError(
                f"{self._part} has {self._part.stat().st_size} bytes, but {self.state['bytes']} were written; "
                f"{self._remedy}"
            )
        self._check_part()
        if self.path.exists():
            raise ValueError(
                f"{self.path} exists by now; move it away, and the same command gives {self._part} its name"
            )
        os.replace(self._part, self.path)
        self._record.unlink(missing_ok=True)


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _refuse_redirection(inputs: Sequence[Path]) -> None:
    """Raises a ValueError if standard output is a file that is read: `>` has emptied it, `>>` would never end."""
    # there is no descriptor where something has taken the place of the stream
    with suppress(OSError):
        written = os.fstat(sys.stdout.fileno())
        if not stat.S_ISREG(written.st_mode):
            return
        for file in inputs:
            read = os.fstat(sys.stdin.fileno()) if file == STANDARD_STREAM else file.stat()
            if os.path.samestat(read, written):
                raise ValueError(f"{file} is the input, and standard output goes into it as well; name another output")


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """
    The lines of a UTF-8 text file, or of standard input for "-"; see `files.raw_lines`.

    Raises:
        OSError: there is no such file.
        ValueError: it is a folder; while reading, at a line that is not UTF-8.
    """
    if path == STANDARD_STREAM:
        yield decoded_lines(sys.stdin.buffer, name_of(path))
        return
    with open_text(path) as stream:
        yield decoded_lines(stream, name_of(path))


def name_of(path: Path) -> str:
    """What messages call an input."""
    return "standard input" if path == STANDARD_STREAM else str(path)


def count_lines(path: Path) -> int | None:
    """Number of lines of a file; None for standard input, or what can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return sum(1 for _ in raw_lines(stream))


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


def json_record(line: str, place: str, fields: Mapping[str, type]) -> dict[str, Any]:
    """
    A line of a JSON lines file.

    Args:
        place: file and number of the line, for the message.
        fields: names and types of what it must have.

    Raises:
        ValueError: it is no JSON object (see `files.parse_json`), or a field is missing or of another type.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{place} is no JSON object, but a {type(record).__name__}")
    for name, kind in fields.items():
        if not isinstance(record.get(name), kind):
            found = f"a {type(record[name]).__name__}" if name in record else "missing"
            what = "a list" if kind is list else "a string"
            raise ValueError(f'{place}: the field "{name}" must be {what}, and is {found}')
    return record
