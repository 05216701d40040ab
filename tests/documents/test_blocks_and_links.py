"""README and documents: no code that no test knows of, no command that is not there, no link that leads nowhere."""

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from markdown_it import MarkdownIt

from hf_capsule_mt.__main__ import COMMANDS, main
from hf_capsule_mt.hub.cards import values_names
from hf_capsule_mt.recipe_files import recipe_names
from hf_capsule_mt.studies.study_file import find_study
from pages import PAGES, ROOT, Page

# generated for the site, with links of the site
WRITTEN = [name for name in PAGES if name not in ("docs/changelog.md", "docs/notebook.md")]
TESTS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def shell_lines(text: str) -> list[list[str]]:
    """The words of every command line of this package in the blocks of a page, from its name on."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            # what one command hands to another is no argument
            line = re.sub(r"\$\((.*?)\)", "X", line.partition("  #")[0])
            for command in re.split(r"\||&&", line):
                words = shlex.split(command)
                for start, word in enumerate(words):
                    if word.endswith("hf-capsule-mt") or (word == "hf_capsule_mt" and words[start - 1] == "-m"):
                        found.append(words[start + 1 :])
    return found


LINES = [(name, words) for name in WRITTEN for words in shell_lines(Page(name).text)]


@cache
def help_of(command: str) -> str:
    arguments = {"study": ["study", "run", "--help"], "train": ["train", "--help", "all"]}.get(command)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit), mock.patch.dict("os.environ"):
        main(arguments or [command, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize("page", WRITTEN)
def test_every_block_of_python_has_a_name_that_a_test_runs(page):
    text = Page(page).text
    named = re.findall(r"<!-- (?:code|file): \S+ -->\n```python\n", text)
    assert text.count("```python") == len(named)
    # a test that runs them names the page
    assert page in TESTS or not re.search(r"^<!-- (code|commands|file): ", text, re.M)


def test_commands_and_their_options_exist():
    assert len(LINES) > 30
    for page, (command, *words) in LINES:
        assert command in COMMANDS, (page, command)
        for option in (word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)):
            assert re.search(rf"{re.escape(option)}\b", help_of(command)), (page, command, option)


def test_recipes_studies_and_cards_exist():
    for page, (command, *words) in LINES:
        if command in ("train", "distill") and words and re.fullmatch(r"\w+/\w+", words[0]):
            assert words[0] in recipe_names(), (page, words[0])
        if command == "study" and re.fullmatch(r"[a-z_0-9]+", words[1]):
            find_study(words[1])
        if "--card" in words:
            assert words[words.index("--card") + 1] in values_names(), page


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading, from its text."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def parsed(path: Path) -> tuple[list[str], set[str]]:
    """The links of a page, pictures included, and its anchors."""
    links, anchors = [], set()
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        for child in token.children or ():
            links += [child.attrs[name] for name in ("href", "src") if name in child.attrs]
        if before is not None and before.type == "heading_open":
            words = "".join(child.content for child in token.children if child.type in ("text", "code_inline"))
            anchors.add(anchor(words))
    return links, anchors


@pytest.mark.parametrize("page", [*WRITTEN, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    links, _ = parsed(ROOT / page)
    for link in links:
        if link.startswith(("http://", "https://")):
            assert re.fullmatch(r"https?://[\w.-]+\.\w+(/\S*)?", link), link
            continue
        target, _, place = link.partition("#")
        path = ((ROOT / page).parent / target) if target else ROOT / page
        assert path.is_file(), f"{link} of {page}"
        assert not place or place in parsed(path)[1], f"{link} of {page}"
        # the site has the documents alone
        assert page.partition("/")[0] != "docs" or (ROOT / "docs") in path.resolve().parents, f"{link} of {page}"


def test_an_anchor_is_githubs():
    assert (
        anchor('Initialisation, and why "identity" is the default') == "initialisation-and-why-identity-is-the-default"
    )
    assert anchor("generate()") == "generate"
