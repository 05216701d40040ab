"""Text in Markdown and LaTeX that stays text: sentences, names and command lines, whatever is in them."""

from __future__ import annotations

import json
import re
from typing import Any

import jinja2
import jinja2.meta

# GitHub's Markdown and its formulas; a backslash makes text of any of them.
_MARKDOWN_SPECIAL = re.compile(r"[\\`*_\[\]<>{}|~$@]|&(?=[#\w])|!(?=\[)|(?<=:)/(?=/)|(?<=\bwww)\.")
# Control characters, those that turn the direction of what follows, and halves of characters.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CODE_SPAN = re.compile(r"(?<![`\\])`([^`]+)`(?!`)")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # signatures are long, and have no spaces to break a line at
    "|": r"\textbar\allowbreak{}",
    # would be taken for arguments of the end of the row before
    "[": "{[}",
    "*": "{*}",
    # two would become a dash
    "-": "-{}",
}


class Verbatim(str):
    """Markdown that is put into a template as it is."""


def without_breaks(text: Any) -> str:
    """The text on one line, without control characters: line ends and tabs become spaces, others are left out."""
    return _CONTROLS.sub("", " ".join(str(text).split()))


def markdown_inline(text: Any) -> Verbatim:
    """Plain text as Markdown where no block can begin, as in a cell of a table; it becomes one line."""
    return Verbatim(_escaped(without_breaks(text)))


def markdown_text(text: Any) -> Verbatim:
    """Plain text as Markdown, also at the beginning of a paragraph, heading or item; it becomes one line."""
    return Verbatim(_no_block(markdown_inline(text)))


def markdown_prose(text: Any) -> Verbatim:
    """Sentences as Markdown, in which `code` between single backticks stays code."""
    pieces = _CODE_SPAN.split(without_breaks(text))
    pieces[::2] = map(_escaped, pieces[::2])
    pieces[1::2] = map(markdown_code, pieces[1::2])
    return Verbatim(_no_block("".join(pieces)))


def markdown_code(text: Any) -> Verbatim:
    """Text as code within a line; it becomes one line."""
    code = without_breaks(text)
    fence = "`" * (_longest_run(code) + 1)
    # One space on either side is not shown.
    space = " " if not code or code.startswith("`") or code.endswith("`") else ""
    return Verbatim(f"{fence}{space}{code}{space}{fence}")


def markdown_block(text: Any, language: str = "", indent: int = 0) -> Verbatim:
    """
    Text as a block of code, from its fence to its fence.

    Args:
        text: its lines, without the last line's end.
        language: for colours.
        indent: spaces before every line but the first, for a block in a list.
    """
    # Each of these ends a line somewhere; a line feed is the one that does so everywhere.
    lines = [_CONTROLS.sub("", line) for line in str(text).splitlines()]
    fence = "`" * max(3, _longest_run(str(text)) + 1)
    return Verbatim(f"\n{' ' * indent}".join([f"{fence}{language}", *lines, fence]))


def python_string(text: Any) -> Verbatim:
    """Text as a string of Python, for a block of code."""
    return Verbatim(json.dumps(str(text), ensure_ascii=False))


def link_address(text: Any) -> Verbatim:
    """
    The address of a link of Markdown.

    Raises:
        ValueError: it is neither one of the web nor a relative path, or has characters that would end it.
    """
    address = str(text)
    if not re.fullmatch(r"(?:https?://)?[\w.~/?#=&%+,;@-]+", address):
        raise ValueError(f"{address!r} cannot be the address of a link")
    return Verbatim(address)


def latex_text(text: Any) -> str:
    """Plain text as LaTeX, on one line."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in without_breaks(text))


def markdown_template(text: str) -> tuple[jinja2.Template, set[str]]:
    """
    A Jinja template of Markdown, which takes what it is given for text, and the names of what it asks for.

    Values are escaped like `markdown_text` unless they are `Verbatim`, which these filters make: prose, code, block,
    str, url.

    Raises:
        ValueError: it is no template.
    """
    # Jinja's own escaping is HTML's, which Markdown shows as it stands within code; `finalize` escapes every value.
    environment = jinja2.Environment(finalize=_finalize, undefined=jinja2.StrictUndefined)  # nosec B701
    environment.filters.update(
        prose=markdown_prose, code=markdown_code, block=markdown_block, str=python_string, url=link_address
    )
    try:
        return environment.from_string(text), jinja2.meta.find_undeclared_variables(environment.parse(text))
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error


def _finalize(value: Any) -> Any:
    return value if isinstance(value, (Verbatim, jinja2.Undefined)) else markdown_text(value)


def _escaped(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", text)


def _no_block(escaped: str) -> str:
    """Without what makes a heading, a list, a rule or the line under a heading of a paragraph's beginning."""
    number = re.match(r"\d{1,9}(?=[.)](?:\s|$))", escaped)
    at = number.end() if number else 0
    return f"{escaped[:at]}\\{escaped[at:]}" if number or escaped.startswith(("#", "+", "=", "-")) else escaped


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
