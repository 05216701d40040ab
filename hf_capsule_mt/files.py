"""Text as lines and as JSON, files and folders that are there in whole or not at all, outputs with one writer."""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout


def raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """
    The lines of a stream from its beginning, without their ends, as all of this project reads lines.

    Only a line feed ends a line, and a carriage return before it goes with it: what str.splitlines takes for further
    ends (U+2028, form feeds, ...) is text, and cutting there would misalign two files. A byte order mark at the
    beginning of the stream is no text; elsewhere it is.
    """
    for number, line in enumerate(stream):
        if number == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line:
                return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def decoded_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """
    The lines of a stream of UTF-8, see `raw_lines`.

    Args:
        name: what an error calls the stream.

    Raises:
        ValueError: a line is not UTF-8.
    """
    for number, line in enumerate(raw_lines(stream), start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason}); convert it to UTF-8") from None


def open_text(path: Path) -> BinaryIO:
    """
    Open a text file for `raw_lines` and `decoded_lines`.

    Raises:
        ValueError: it is a folder.
        OSError: there is no such file, or it cannot be read.
    """
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; name a text file") from None


def read_lines(path: Path) -> list[str]:
    """All lines of a UTF-8 text file, see `raw_lines`; errors are those of `open_text` and `decoded_lines`."""
    with open_text(path) as stream:
        return list(decoded_lines(stream, str(path)))


def one_line(text: str) -> str:
    """The text with its line breaks (a tokenizer with byte pieces can produce some) as spaces."""
    return re.sub(r"\r\n?|\n", " ", text)


def write_lines(path: Path, texts: Iterable[str]) -> None:
    """Write each text as one line as it comes, see `one_line` and `write_whole`."""
    with _whole_file(path) as stream:
        for text in texts:
            stream.write(f"{one_line(text)}\n".encode())


def parse_json(text: str) -> Any:
    """
    A value from JSON that can be written as JSON again.

    Raises:
        ValueError: the text is no JSON (NaN and Infinity are none), is nested too deeply, or has strings that are no
            text.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        json_text(value).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply; write it flatter") from None
    except UnicodeEncodeError:
        raise ValueError(r"it has half of a surrogate pair (\ud800 to \udfff), which is no text; remove it") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"there is no {name} in JSON; write null")


def json_text(value: Any, indent: int | None = None) -> str:
    """
    The value as JSON, with letters of all languages as they are.

    Raises:
        ValueError: a number is not finite, which JSON cannot express.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError as error:
        raise ValueError("a number is not finite, or too large, and JSON has none of these") from error


def read_json(path: Path) -> Any:
    """
    The value in a JSON file.

    Raises:
        ValueError: see `parse_json`; the message names the file.
        OSError: it cannot be read.
    """
    with open_text(path) as stream:
        try:
            return parse_json(stream.read().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error.reason})") from None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """
    Write a file in one step: a crash, a kill or a full disk leaves the old one or the new one, and nothing beside it.

    Args:
        path: the file; its folder is made if there is none.
        content: bytes, or text that is written as UTF-8 with its line ends as they are.

    Raises:
        OSError: it cannot be written.
        UnicodeEncodeError: the text has lone surrogates.
    """
    data = content.encode() if isinstance(content, str) else content
    with _whole_file(path) as stream:
        stream.write(data)


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        # that of a full disk has no name
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def system_error(error: Exception) -> int | None:
    """The system's number of an error, if it has one; libraries in Rust put it into their text."""
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said else getattr(error, "errno", None)


def empty_folder(output: str | Path) -> Path:
    """The path, if a new directory can be written there; a ValueError says what to do otherwise."""
    output = Path(output)
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise ValueError(f"{output} exists already; name a new directory, or remove it first")
    return output


@contextmanager
def only_writer(output: Path) -> Iterator[None]:
    """
    Hold an output, a file or a folder, for this process; the system lets go of it when the process ends, however.

    The lock is a file beside the output, `.NAME.lock`, which stays behind empty.

    Raises:
        ValueError: another process holds it.
        OSError: nothing can be written there.
    """
    output = output.absolute()
    name = output.with_name(f".{output.name}.lock")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(name, timeout=0)
        lock.acquire()
    except Timeout as error:
        # so it ends, too, where the lock cannot be made
        if not name.exists():
            raise OSError(f"cannot write to {output.parent}; name another output") from error
        raise ValueError(
            f"{output} is being written by another process; wait until that has ended, or name another output"
        ) from error
    except OSError as error:
        raise OSError(f"cannot write to {output.parent} ({error.strerror}); name another output") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """
    A fresh folder that takes the place of `path` when the block ends without an error; if not, `path` stays as it is.

    Both are renamed, so that nobody sees a part. A kill between the two renames leaves the old folder as `.NAME.old`;
    the next call puts it back.

    Raises:
        ValueError: another process writes there.
        OSError: it cannot be written.
    """
    path = path.absolute()
    fresh, old = (path.with_name(f".{path.name}.{state}") for state in ("partial", "old"))
    with only_writer(path):
        _put_back(old, path)
        for left in (fresh, old):
            _remove(left)
        fresh.mkdir()
        try:
            yield fresh
            if path.is_dir():
                os.replace(path, old)
            os.replace(fresh, path)
        except BaseException:
            _put_back(old, path)
            _remove(fresh)
            raise
        _remove(old)


def _put_back(old: Path, path: Path) -> None:
    if old.is_dir() and not path.exists():
        os.replace(old, path)


def _remove(path: Path) -> None:
    """A folder, or a link in its place but not what that leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
