"""The code of docs/serving.md runs with an exported model."""

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.serving.export import ABSENT
from hf_capsule_mt.serving.onnx_translator import OnnxTranslator
from pages import Page
from tiny_translation import SOURCES

PAGE = Page("docs/serving.md")
FIRST = "The small dog sees the old man."


@pytest.fixture
def workplace(exported_run, tmp_path, monkeypatch):
    """A folder with the run and its export where the page has them."""
    run, exported = exported_run
    shutil.copytree(run, tmp_path / "runs" / "grammar")
    shutil.copytree(exported, tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "translator", raising=False)
    yield tmp_path
    sys.modules.pop("translator", None)


@pytest.fixture(scope="module")
def translations(exported_run):
    """Of SOURCES, with five beams; that they are those of PyTorch is shown elsewhere."""
    return OnnxTranslator(exported_run[1], threads=1).translate(SOURCES, num_beams=5)


def execute(name: str, names: dict | None = None, **replace: str) -> dict:
    return PAGE.execute(name, names, {FIRST: SOURCES[0], **replace})


def post(app, path: str, content) -> tuple[int, object]:
    """The status and the JSON of an answer, by the interface (ASGI) through which servers call an application."""
    answers = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}

    async def send(message):
        answers.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return answers[0]["status"], json.loads(b"".join(answer.get("body", b"") for answer in answers[1:]))


def test_the_class(workplace, translations, capsys):
    names = execute("translate")
    assert capsys.readouterr().out == f"{[translations[0]]}\n"
    execute("nbest", names, Der="zwei")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(re.fullmatch(r"-\d+\.\d{3} zwei.*", line) for line in lines)


@pytest.mark.parametrize("name", ["fastapi", "fastapi_pytorch"])
def test_servers(workplace, translations, name):
    pytest.importorskip("fastapi")
    # a class in the module that is executed is looked up by its name
    module = SimpleNamespace(__name__="page")
    names = execute(name, vars(module))
    content = SOURCES[:2] if name == "fastapi_pytorch" else {"sentences": SOURCES[:2]}
    assert post(names["app"], "/translate", content) == (200, translations[:2])
    status, answer = post(names["app"], "/translate", {"sentences": [1]} if name == "fastapi" else [1])
    assert status == 422 and "detail" in answer


def test_the_space(workplace, translations, monkeypatch):
    """With stand-ins for Gradio, which is no package of this environment, and for the download."""
    shutil.copytree(workplace / "exported", workplace / "model" / "onnx")
    made = []

    def interface(function, *sides, title):
        made.append((function, sides))
        return SimpleNamespace(launch=lambda: made.append("launched"))

    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace(Interface=interface))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *arguments, **options: None)
    execute("space")
    (function, sides), launched = made
    assert function("\n".join(SOURCES[:2])) == "\n".join(translations[:2])
    assert sides == ("text", "text") and launched == "launched"


def test_the_commands(workplace, translations, capsys):
    Path("test.en").write_text("".join(f"{line}\n" for line in SOURCES[:3]), encoding="utf-8")
    (line,) = re.findall(r"^hf-capsule-mt (translate .*)$", PAGE.text, re.M)
    assert main(line.split()) == 0
    assert Path("test.de").read_text(encoding="utf-8").splitlines() == translations[:3]
    shutil.rmtree("exported")
    (line,) = re.findall(r"^hf-capsule-mt (export .*)$", PAGE.text, re.M)
    assert line.split() == ["export", "runs/grammar", "exported", "--format", "onnx"]


def test_nothing_is_left_untested_or_unsaid(exported_run):
    assert set(PAGE.code) == {"translate", "nbest", "fastapi", "fastapi_pytorch", "space"}
    assert PAGE.text.count("```python") == len(PAGE.code)
    listed = set(re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^\| (.*?) \|", PAGE.text, re.M))))
    # another test may have run the program of the folder
    assert listed == {path.name for path in exported_run[1].iterdir()} - {"__pycache__"}
    assert "no_repeat_ngram_size" in ABSENT and "repetition_penalty" in ABSENT
