"""The documentation site: pages made of code, docstrings as reStructuredText, and the whole of it, built."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_capsule_mt.__main__ import COMMANDS
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import site_pages


def rendered(docstring: str) -> str:
    lines = docstring.splitlines()
    site_pages.as_restructured_text(None, "function", "f", None, None, lines)
    return "\n".join(lines)


def test_docstrings_are_text_with_code():
    assert rendered("H~ = w * mean of |H|, `a*b` and ``c|d``, name_ too") == (
        r"H~ = w \* mean of \|H\|, `a*b` and ``c|d``, name\_ too"
    )


def test_indented_paragraphs_stand_as_they_are_and_sections_are_sections():
    text = "Do it:\n\n    do *this*\n    and that\n\nArgs:\n    x: [B, *], of\n        several lines.\n\n"
    text += "Returns:\n    A pair: x, y.\n"
    assert rendered(text) == (
        "Do it:\n\n::\n\n    do *this*\n    and that\n\nArgs:\n    x: [B, \\*], of\n        several lines.\n\n"
        "Returns:\n    : A pair: x, y."
    )


def test_arguments_under_a_title_of_their_own_are_arguments():
    assert rendered("Parameters, when it is built or called:\n    x: one.\n") == "Args:\n    x: one."


def test_a_page_that_the_navigation_does_not_name_is_in_it(tmp_path):
    for name in ("index", "start", "notebook", "new", "start_again"):
        (tmp_path / f"{name}.md").write_text("# Page\n")
    source = ["# Index\n```{toctree}\nstart\nIn short <notebook>\n*\n```\n"]
    site_pages.list_the_other_pages(SimpleNamespace(srcdir=tmp_path), "index", source)
    assert source == ["# Index\n```{toctree}\nstart\nIn short <notebook>\nnew\nstart_again\n```\n"]


def test_signatures_are_python():
    signature = "(a: list = <factory>, b: ~pathlib.Path = PosixPath('.'))"
    assert site_pages.readable_signature(None, "class", "C", None, None, signature, None) == (
        "(a: list = ..., b: ~pathlib.Path = '.')",
        None,
    )


def test_a_configuration_is_a_table_of_its_own_fields():
    from hf_capsule_mt import CapsuleRNNConfig

    lines = ["Recurrent."]
    site_pages.as_restructured_text(None, "class", "C", CapsuleRNNConfig, None, lines)
    shown = dict(zip(lines[10::3], lines[12::3], strict=False))
    assert shown["   * - `num_source_capsules`"] == "     - `6`" and shown["   * - `dropout`"] == "     - `0.3`"
    assert not any("transformers_version" in line for line in lines)
    assert site_pages.readable_signature(None, "class", "C", CapsuleRNNConfig, None, "(a, b)", None)[0] == "(a, b)"
    many = f"({', '.join('a' * 30)})"
    assert site_pages.readable_signature(None, "class", "C", CapsuleRNNConfig, None, many, None)[0] == "(**fields)"


def test_the_help_of_a_command_as_a_page():
    printed = """usage: prog [--a B]
            [x]

What it does, with a_b and `c_d`.

    prog --a 1    an example
    prog

options:
  --a B       does *this*
              and that
  --long LONG_NAME
              more, capsule-
              bart"""
    assert site_pages.as_markdown(printed) == (
        "```text\nusage: prog [--a B]\n            [x]\n```\n\nWhat it does, with a\\_b and `c_d`.\n\n"
        "```text\nprog --a 1    an example\nprog\n```\n\n**options:**\n\n"
        "- `--a B`: does \\*this\\* and that\n- `--long LONG_NAME`: more, capsule-bart\n"
    )


def test_a_page_for_every_command_and_every_public_module():
    commands, api = site_pages.command_pages(), site_pages.api_pages()
    assert set(commands) == {"commands/index.md", *(f"commands/{name}.md" for name in COMMANDS)}
    assert "--max_tokens MAX_TOKENS" in commands["commands/translate.md"]
    assert "--launcher" in commands["commands/study.md"] and "--bow_loss_weight" in commands["commands/train.md"]
    assert all("usage: hf-capsule-mt" in text for name, text in commands.items() if "index" not in name)
    modules = re.findall(r"automodule:: (\S+)", "".join(api.values()))
    assert len(modules) == len(set(modules))
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "hf_capsule_mt").rglob("*.py")
        if path.name != "__init__.py"
    }
    left_out = {name.removeprefix("hf_capsule_mt.") for name in files - set(modules)}
    assert {name for name in left_out if not name.startswith("evidence.")} == set(site_pages.INTERNAL) - {"evidence"}
    assert set(modules) <= files


class Assets(HTMLParser):
    """What a page loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("next", "prev", "search", "index", "canonical"):
            self.found.append(values.get("href") or "")


@pytest.mark.slow
def test_the_whole_site(tmp_path):
    """Built without warnings, links and anchors included; nothing in it comes from another host."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    written = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert {*written, "notebook.html", "api/models.html", "commands/train.html", "search.html"} <= pages
    for page in pages:
        assets = Assets()
        assets.feed((tmp_path / page).read_text(encoding="utf-8"))
        for asset in assets.found:
            assert not re.match(r"(https?:)?//", asset), (page, asset)
            assert not asset or asset.startswith("data:") or ((tmp_path / page).parent / asset.split("?")[0]).exists()
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", Path(sheet).read_text(encoding="utf-8")), sheet
    # what a reader looks for is there, with its shapes
    models = (tmp_path / "api/models.html").read_text(encoding="utf-8")
    for name in ("capsule_routing.em_routing", "capsule_losses", "modeling_capsule_marian.CapsuleMarianMTModel"):
        assert f'id="hf_capsule_mt.models.{name}"' in models or f'id="module-hf_capsule_mt.models.{name}"' in models
    assert "[…, L, N, D]" in models or "[..., L, N, D]" in models
