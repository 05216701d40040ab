"""docs/demo.md: its code runs, its commands are commands, its links lead somewhere."""

import re
import shlex
import shutil
from pathlib import Path

import httpx
import pytest

pytest.importorskip("gradio", reason="needs gradio")

from hf_capsule_mt.demo import command
from hf_capsule_mt.hub import publishing
from tiny_translation import SOURCES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))
SHELL = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_code_runs(runs, tmp_path, monkeypatch, capsys):
    assert set(CODE) == {"python", "data"} and PAGE.count("```python") == 2
    shutil.copytree(runs.guided, tmp_path / "runs" / "gdr")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in CODE.values():
        exec(compile(code.replace("The small dog sees the old man.", SOURCES[0]), "docs/demo.md", "exec"), names)
    try:
        with httpx.Client(trust_env=False) as client:
            assert client.get(names["page"].local_url).status_code == 200
    finally:
        names["page"].close()
    routing = names["routing"]
    assert len(names["assignment"]) == len(routing["target_tokens"])
    assert len(names["assignment"][0]) == len(routing["source_tokens"])
    assert names["text"] in capsys.readouterr().out


def test_commands_are_commands():
    parsers = {"demo": command._parser(), "publish": publishing._parser()}
    lines = [shlex.split(line)[1:] for line in SHELL if line.startswith("hf-capsule-mt ")]
    assert len(lines) > 5
    for name, *arguments in lines:
        parsers[name].parse_args(arguments)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert link.startswith("https://") or (ROOT / "docs" / link).is_file(), link
    assert (ROOT / "docs" / "demo.png").stat().st_size < 200_000
