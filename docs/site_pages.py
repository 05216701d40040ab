"""Pages of the site that are made of code: the commands' help, the modules of the API, the notebook, the changelog."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib
import io
import json
import os
import pkgutil
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from transformers import PreTrainedConfig

import hf_capsule_mt
from hf_capsule_mt.__main__ import COMMANDS, main
from hf_capsule_mt.markup import markdown_code, markdown_prose

ROOT = Path(__file__).resolve().parents[1]
# not for users: what draws the tables of this repository, word lists, and the program, whose help is a page
INTERNAL = ("evidence", "__main__", "_version", "data.grammar_lexicon", "data.grammar_syntax")
# no page is wider than this many characters of code
HELP_WIDTH = "88"
# a class with more of them is made by names, or from a file or command line
MANY_FIELDS = 20
# of a docstring: arguments under a title of its own
ARGUMENTS = re.compile(r"Parameters\b.*:$")
# a section of a docstring as Google writes them
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Note|Example):$")


def write(folder: Path) -> None:
    """
    Write the pages, those that have changed alone.

    Args:
        folder: the documents.
    """
    pages: dict[str, str | bytes] = {
        **command_pages(),
        **api_pages(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "]("),
        **notebook_pages(json.loads((folder / "tutorial.ipynb").read_text(encoding="utf-8"))),
    }
    for made in ("commands", "api"):
        (folder / made).mkdir(exist_ok=True)
        for left in (folder / made).iterdir():
            if f"{made}/{left.name}" not in pages:
                left.unlink()
    for name, content in pages.items():
        page, written = folder / name, content if isinstance(content, bytes) else content.encode()
        # Sphinx reads again what is newer than its last build
        if not page.exists() or page.read_bytes() != written:
            page.write_bytes(written)


def command_pages() -> dict[str, str]:
    """A page for every command with its help, and the index of them."""
    links = "\n".join(f"- [`{name}`]({name}.md)" for name in COMMANDS)
    pages = {"commands/index.md": f"# Commands\n\n{as_markdown(help_of())}\n{links}\n\n{toctree(COMMANDS)}"}
    for name in COMMANDS:
        text = f"# hf-capsule-mt {name}\n\n{as_markdown(help_of(name))}"
        if name == "study":
            text += "".join(
                f"\n## study {action}\n\n{as_markdown(help_of(name, action))}" for action in ("run", "table")
            )
        pages[f"commands/{name}.md"] = text
    return pages


def as_markdown(printed: str) -> str:
    """A help text with its usage and examples as code, its words as paragraphs, and its arguments as lists."""
    parts = []
    for paragraph in printed.split("\n\n"):
        title, _, rest = paragraph.partition("\n")
        if paragraph.startswith(("usage:", "    ")):
            parts.append(fenced(textwrap.dedent(paragraph)))
        elif rest.startswith("  ") and title.endswith(":"):
            parts += [f"**{title}**\n", arguments_list(rest)]
        else:
            parts.append(f"{markdown_prose(paragraph)}\n")
    return "\n".join(parts)


def arguments_list(text: str) -> str:
    """Arguments as argparse prints them, as a list."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(" " * 8):
            # the help begins on the same line where there is room
            name, _, words = line.strip().partition("  ")
            entries.append([name, words.strip()])
        else:
            entries[-1].append(line.strip())
    # lines are broken behind hyphens, too
    rows = [(name, re.sub(r"(?<=\w-)\n", "", "\n".join(filter(None, words)))) for name, *words in entries]
    return "".join(f"- {markdown_code(name)}{f': {markdown_prose(words)}' if words else ''}\n" for name, words in rows)


def help_of(*command: str) -> str:
    """What a command prints with --help."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=HELP_WIDTH, NO_COLOR="1"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return printed.getvalue().strip()


def api_pages() -> dict[str, str]:
    """A page for every package with all its modules, one for those that are in none, and the index."""
    packages: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(hf_capsule_mt.__path__, "hf_capsule_mt."):
        name = module.name.partition(".")[2]
        if not any(name == left or name.startswith(f"{left}.") for left in INTERNAL):
            package, _, inside = name.partition(".")
            # a package comes before its modules
            packages.setdefault(package if inside or module.ispkg else "", []).append(name)
    # the classes that users name come before what they are made of
    packages["models"].sort(key=lambda name: not re.match(r"models\.(modeling|configuration|pipeline)", name))
    rows, pages = [], {}
    # what is in no package comes last
    for package, names in sorted(packages.items(), key=lambda item: (not item[0], item[0])):
        page = package or "top"
        title = f"hf_capsule_mt.{package}" if package else "hf_capsule_mt"
        text = f"{heading(title, '=')}{summary(package)}\n\n" if package else heading(title, "=")
        for name in names:
            if name != package:
                text += f"{heading(name, '-')}.. automodule:: hf_capsule_mt.{name}\n\n"
        pages[f"api/{page}.rst"] = text
        shown = ", ".join(f"`{name.partition('.')[2] or name}`" for name in names if name != package)
        rows.append(f"| [{title}]({page}.rst) | {summary(package) if package else ''} | {shown} |")
    pages["api/index.md"] = "\n".join(
        [
            "# API reference",
            "",
            "Every public module, class and function, with shapes, units, errors and sources. One alphabet of shapes "
            "holds for the whole project: B sentences, S source and T target tokens, L layers, N capsules of D "
            "dimensions, R iterations.",
            "",
            "| package | what it has | modules |",
            "|---|---|---|",
            *rows,
            "",
            toctree([*sorted(filter(None, packages)), "top"]),
        ]
    )
    return pages


def heading(title: str, line: str) -> str:
    """A heading in reStructuredText."""
    return f"{title}\n{line * len(title)}\n\n"


def summary(name: str) -> str:
    """The first paragraph of a module's documentation, on one line."""
    text = importlib.import_module(f"hf_capsule_mt.{name}").__doc__ or ""
    return " ".join(text.strip().partition("\n\n")[0].split()).replace("|", r"\|")


def toctree(names: Iterable[str]) -> str:
    """Pages in the navigation that the page itself does not list."""
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```", ""])


def fenced(text: str) -> str:
    """Text as it was printed."""
    return f"```text\n{text}\n```\n"


def notebook_pages(notebook: dict) -> dict[str, str | bytes]:
    """A notebook as a page: its text, its code, and what the code gave, pictures in files of their own."""
    parts: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"notebook_{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![The picture of the code above]({name})")
            else:
                parts.append(fenced("".join(output.get("text") or data["text/plain"]).strip()))
    note = "*This page is the notebook* [tutorial.ipynb](tutorial.ipynb)*, to be downloaded and run.*"
    return {"notebook.md": "\n\n".join([*parts[:1], note, *parts[1:]]) + "\n", **pictures}


def list_the_other_pages(app, docname: str, source: list[str]) -> None:
    """In the navigation of the first page, the line `*` stands for the pages beside it that no line names."""
    if docname == "index":
        pages = {path.stem for path in Path(app.srcdir).glob("*.md")} - {docname}
        others = sorted(name for name in pages if not re.search(rf"^(.*<)?{re.escape(name)}>?$", source[0], re.M))
        source[0] = re.sub(r"^\*$", "\n".join(others), source[0], flags=re.M)


def as_restructured_text(app, what, name, obj, options, lines: list[str]) -> None:
    """
    A docstring, which is plain text with `code` and Google's sections, as reStructuredText: characters that would mean
    something there are escaped, and indented paragraphs are shown as they stand.
    """
    made: list[str] = []
    section = literal = False
    before = ""
    for line in lines:
        line = ARGUMENTS.sub("Args:", line)
        indented = line.startswith("    ")
        if line and not indented:
            section, literal = bool(SECTION.match(line)), False
        elif indented and not section and not literal and not before.strip():
            literal = True
            made += ["::", ""]
        if literal or not line.strip() or SECTION.match(line.strip()):
            made.append(line)
        elif before.strip() in ("Returns:", "Yields:"):
            # what stands before a colon would be the type
            made.append(f"    : {escaped(line.strip())}")
        else:
            made.append(escaped(line))
        before = line
    lines[:] = made
    if isinstance(obj, type) and issubclass(obj, PreTrainedConfig):
        lines += fields_table(obj)


def fields_table(config: type[PreTrainedConfig]) -> list[str]:
    """The fields that a configuration has and transformers' own of the same kind has not, with their defaults."""
    theirs = {
        field.name
        for parent in config.__mro__
        if parent.__module__.startswith("transformers.") and dataclasses.is_dataclass(parent)
        for field in dataclasses.fields(parent)
    }
    lines = ["", "Fields and their defaults:", "", ".. list-table::", "   :header-rows: 1", ""]
    lines += ["   * - field", "     - type", "     - default"]
    for field in dataclasses.fields(config):
        if field.name not in theirs:
            kind = getattr(field.type, "__name__", None) if isinstance(field.type, type) else str(field.type)
            lines += [f"   * - `{field.name}`", f"     - `{kind}`", f"     - `{field.default!r}`"]
    return [*lines, ""]


def readable_signature(app, what, name, obj, options, signature: str | None, returns: str | None):
    """A signature without the representations of defaults that are no Python; none of a class of many fields."""
    if isinstance(obj, type) and (signature or "").count(",") > MANY_FIELDS:
        signature = "(**fields)"
    if signature is not None:
        signature = re.sub(r"PosixPath\((.*?)\)", r"\1", signature.replace("<factory>", "..."))
    return signature, returns


def says_nothing(app, what, name, obj, skip: bool, options) -> bool | None:
    """Whether to leave out a field of a named tuple, whose documentation is in that of the tuple."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def escaped(line: str) -> str:
    """A line of text without reStructuredText's emphasis, substitutions and references, but for its `code`."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", line)
    pieces[::2] = [re.sub(r"[*|\\]|_(?=\W|$)", r"\\\g<0>", piece) for piece in pieces[::2]]
    return "".join(pieces)
