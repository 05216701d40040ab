"""The code of README and documents, which tests run. A comment before a block says what it is, and names it:

<!-- code: NAME -->        Python, to be executed
<!-- commands: NAME -->    command lines of this package, to be run one after the other
<!-- file: NAME -->        a file that the page has its reader save
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from hf_capsule_mt.__main__ import main

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"<!-- (code|commands|file): (\S+) -->\n```\w+\n(.*?)```", re.S)


class Page:
    """
    A document of the repository.

    Attributes:
        text: all of it.
        code, files: blocks by name.
        commands: arguments of `hf-capsule-mt`, a list for each line, by the name of their block.
    """

    def __init__(self, name: str) -> None:
        self.name, self.text = name, (ROOT / name).read_text(encoding="utf-8")
        blocks = [(kind, title, text) for kind, title, text in _BLOCK.findall(self.text)]
        self.code = {title: text for kind, title, text in blocks if kind == "code"}
        self.files = {title: text for kind, title, text in blocks if kind == "file"}
        self.commands = {title: _lines(text) for kind, title, text in blocks if kind == "commands"}

    def execute(self, name: str, names: dict | None = None, replace: dict[str, str] | None = None) -> dict:
        """Run a block of Python with other texts in place of some; returns the names that it leaves."""
        names = {"__name__": "page"} if names is None else names
        code = self.code[name]
        for before, after in (replace or {}).items():
            code = code.replace(before, after)
        exec(compile(code, f"{self.name}:{name}", "exec"), names)
        return names

    def run(self, name: str, change: Callable[[list[str]], list[str]] = list) -> None:
        """Run the lines of a block, each of which has to succeed; `change` gets and returns their arguments."""
        for argv in self.commands[name]:
            assert main(change(argv)) == 0, argv


def _lines(text: str) -> list[list[str]]:
    found = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
    assert all(words[0].removeprefix(".venv/bin/") == "hf-capsule-mt" for words in found), found
    return [words[1:] for words in found]
