"""The Space of a model: what its folder holds, and that it runs where this package is not."""

import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.hub import publishing, space
from hf_capsule_mt.hub.cards import load_values
from hf_capsule_mt.hub.publishing import check_space, prepare, upload
from hf_capsule_mt.hub.space import ENTRY, NAME, PACKAGE, PAGE, PAGE_FILES, REQUIREMENTS, travelling, write_space
from loopback import run_python
from tiny_translation import SOURCES

pytest.importorskip("gradio", reason="needs gradio")

MODEL, SPACE = "user/tiny", "user/demo"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders(finished_run, values_file, tmp_path_factory):
    """Of the model, and of its Space."""
    values, root = load_values(values_file), tmp_path_factory.mktemp("prepared")
    model = prepare(finished_run, values, MODEL, root / "hub")
    return model, write_space(root / "space", MODEL, "v1.0", values, "aggregation=em_routing")


def test_the_folder_is_complete(folders):
    _, folder = folders
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = {"app.py", "README.md", "requirements.txt", "settings.json", "LICENSE"}
    modules = {f"{NAME}/{path}" for path in travelling(ENTRY)}
    packages = {f"{NAME}/{part}__init__.py" for part in ("", "analysis/", "demo/", "models/")}
    page = {f"{NAME}/{PAGE}/{name}" for name in PAGE_FILES}
    assert names == own | modules | packages | page
    for path in travelling(ENTRY):
        assert (folder / NAME / path).read_bytes() == (PACKAGE / path).read_bytes()
    assert json.loads((folder / "settings.json").read_text()) == {
        **{"model": MODEL, "revision": "v1.0", "name": "tiny", "title": "A tiny model"},
        **{"examples": SOURCES[:2], "description": "aggregation=em_routing", "languages": [None, None]},
    }


def test_the_card_says_what_the_hub_has_to_know(folders):
    card = SpaceCard.load(folders[1] / "README.md")
    assert card.data.to_dict() == {
        **{"title": "A tiny model", "sdk": "gradio", "sdk_version": sys.modules["gradio"].__version__},
        **{"app_file": "app.py", "models": [MODEL], "license": "apache-2.0", "pinned": False},
    }
    assert f"https://huggingface.co/{MODEL}" in card.text


def test_what_travels_imports_what_is_required_and_nothing_else():
    standard = {*sys.stdlib_module_names, "__future__"}
    required = {re.split("[<>=]", line)[0] for line in REQUIREMENTS} | {"gradio"}
    for path in travelling(ENTRY):
        text = (PACKAGE / path).read_text(encoding="utf-8")
        imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
        assert imported - standard <= required, path
    # with the ranges of this package, which depends on numpy through others
    ours = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{line}",' in ours for line in REQUIREMENTS if line != "numpy")


def test_what_names_this_package_cannot_travel(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "PACKAGE", tmp_path)
    (tmp_path / "entry.py").write_text("from .other import name\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("import hf_capsule_mt.files\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.py imports hf_capsule_mt"):
        travelling("entry.py")


def test_checks_find_what_is_wrong(folders, tmp_path):
    model, folder = folders
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / NAME / ENTRY).write_text("import hf_capsule_mt\n", encoding="utf-8")
    with pytest.raises(ValueError, match="without this package cannot load and use"):
        check_space(broken, model, SOURCES[:1])
    (broken / "notes.txt").write_text("hf_" + "aB3" * 12, encoding="utf-8")
    with pytest.raises(ValueError, match="looks like a token"):
        check_space(broken, model, SOURCES[:1])


@pytest.mark.slow
def test_published_beside_its_model_and_pinned_to_it(finished_run, values_file, hub, tmp_path, capsys, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    # the model's own checks are tested elsewhere
    monkeypatch.setattr(publishing, "run_clean", lambda *arguments: {})
    arguments = ["publish", str(finished_run), MODEL, "--card", str(values_file), "--space", SPACE]
    assert main([*arguments, "--output", str(tmp_path / "dry"), "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert f"written: {tmp_path / 'dry_space'}\n" in printed
    assert "makes its page, and translates the samples as the card says" in printed
    assert hub.repos == {}
    assert json.loads((tmp_path / "dry_space" / "settings.json").read_text())["revision"] == "main"

    monkeypatch.setattr(publishing, "check_space", lambda *arguments: None)
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    model, published = hub.repos[MODEL], hub.repos[f"spaces/{SPACE}"]
    assert f"published: {hub.endpoint}/spaces/{SPACE}/commit/{published.head.sha}" in capsys.readouterr().out
    # one commit after the one that makes the repository
    assert len(published.commits) == 2
    settings = json.loads(published.head.files["settings.json"])
    assert (settings["model"], settings["revision"]) == (MODEL, model.head.sha)
    assert published.head.files["app.py"].decode() == space.APP
    # as the Hub runs it: what was uploaded, with the model that was uploaded, and without this package
    for path, content in published.head.files.items():
        (tmp_path / "running" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "running" / path).write_bytes(content)
    code = f"""
        import sys
        sys.modules["hf_capsule_mt"] = None
        sys.path.insert(0, {str(tmp_path / "running")!r})
        import app
        from capsule_demo.demo import space
        settings = space.read_settings()
        system = space.load(settings)
        space.make_page(settings, system)
        *_, (text, _) = system.translate({SOURCES[0]!r}, 5)
        print(text)"""
    text = run_python(textwrap.dedent(code), hub.environment(tmp_path)).splitlines()[-1]
    assert f"| {SOURCES[0]} | {text} |" in model.head.files["README.md"].decode()


def test_an_upload_that_is_cut_off_leaves_no_half(folders, hub, tmp_path, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    hub.cut_off("commit")
    with pytest.raises(RuntimeError, match="nothing of it is published"):
        upload(folders[1], SPACE, repo_type="space")
    assert len(hub.repos[f"spaces/{SPACE}"].commits) == 1


def test_bad_names_and_no_gradio(finished_run, values_file, capsys, monkeypatch):
    arguments = ["publish", str(finished_run), MODEL, "--card", str(values_file), "--space"]
    assert main([*arguments, "no//name"]) == 2
    assert "no//name" in capsys.readouterr().err
    monkeypatch.setattr(space, "version", lambda name: (_ for _ in ()).throw(space.PackageNotFoundError(name)))
    assert main([*arguments, SPACE]) == 2
    assert 'pip install "hf_capsule_mt[demo]"' in capsys.readouterr().err
