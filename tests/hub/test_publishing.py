"""Publishing to a Hub on this machine over HTTP, and using what was published in fresh processes."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.hub import publishing
from hf_capsule_mt.hub.cards import load_values
from hf_capsule_mt.hub.license_file import license_text
from hf_capsule_mt.hub.publishing import check, check_files, prepare, upload
from loopback import READER_TOKEN, run_python
from tiny_models import capsule_config
from tiny_translation import SOURCES, tiny_tokenizer

NAME = "user/tiny"
# put together here, so that no scanner takes this file for a leak
TOKEN = "hf_" + "aB3" * 12
DATA = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
# first lines of a process in which this package cannot be imported
WITHOUT_PACKAGE = "import sys; sys.modules['hf_capsule_mt'] = None\n"


@pytest.fixture(scope="module")
def folder(finished_run, values_file, tmp_path_factory):
    """The folder that is to be published."""
    values = load_values(values_file)
    return prepare(finished_run, values, NAME, tmp_path_factory.mktemp("prepared") / "hub")


def publish(run, values_file, *arguments) -> int:
    return main(["publish", str(run), NAME, "--card", str(values_file), *map(str, arguments)])


def examples(card: str) -> dict[str, str]:
    """The code of a card, by name."""
    return dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", card, re.S))


def test_the_folder_is_complete_and_nothing_else(folder, finished_run, values_file):
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    code = {name for name in names if name.endswith(".py")}
    assert {"modeling_capsule_marian.py", "configuration_capsule_marian.py", "pipeline_translation.py"} <= code
    translations = {f"translations/{path.name}" for path in (finished_run / "translations").iterdir()}
    assert names - code == DATA | translations | {"README.md", "LICENSE", "results.json", "agreements.png"}
    values = load_values(values_file)
    assert (folder / "LICENSE").read_text(encoding="utf-8") == license_text(values.license)
    assert f"license: {values.license}" in (folder / "README.md").read_text(encoding="utf-8")
    published, recorded = (json.loads((path / "results.json").read_text()) for path in (folder, finished_run))
    assert published == recorded
    check(folder, SOURCES[:2])


def test_without_matplotlib_the_card_has_no_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    model = SimpleNamespace(config=capsule_config(aggregation="em_routing"))
    assert publishing._draw(model, tiny_tokenizer(), SOURCES[0], tmp_path / "agreements.png") is None
    assert capsys.readouterr().err == (
        'hf-capsule-mt publish: the card has no agreement figure: figures need matplotlib: pip install "hf_capsule_mt['
        'plots]"\n'
    )
    assert list(tmp_path.iterdir()) == []


def test_dry_run_writes_and_checks_but_uploads_nothing(finished_run, values_file, hub, tmp_path, capsys, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    assert publish(finished_run, values_file, "--dry_run", "--output", tmp_path / "dry") == 0
    printed = capsys.readouterr().out
    assert "written: " in printed and "checked: " in printed
    assert (tmp_path / "dry" / "README.md").is_file()
    assert hub.requests == [] and hub.repos == {}


def test_published_and_used_by_name_and_revision(finished_run, values_file, hub, tmp_path, capsys, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    run = shutil.copytree(finished_run, tmp_path / "run")
    assert publish(run, values_file, "--tag", "v1.0", "--private") == 0
    repo = hub.repos[NAME]
    assert repo.private and repo.tags == {"v1.0": repo.head.sha}
    assert f"published: {hub.endpoint}/{NAME}/commit/{repo.head.sha}" in capsys.readouterr().out
    # one commit after the one that makes the repository
    assert len(repo.commits) == 2
    # a second version: other translations, and the old one's files are gone from it
    (run / "translations" / "test.greedy.de").unlink()
    assert publish(run, values_file) == 0
    assert "translations/test.greedy.de" in repo.find("v1.0").files
    assert "translations/test.greedy.de" not in repo.head.files
    # the examples of the card, as they stand there, in a process without this package
    card = repo.find("v1.0").files["README.md"].decode()
    code = examples(card)
    assert sorted(code) == ["automodel", "pipeline"] and all('"v1.0"' in text for text in code.values())
    environment = hub.environment(tmp_path)
    printed = run_python(WITHOUT_PACKAGE + code["automodel"] + code["pipeline"], environment).splitlines()
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(finished_run), tiny_tokenizer()
    inputs = tokenizer(SOURCES[0], return_tensors="pt", return_token_type_ids=False)
    expected = tokenizer.decode(model.generate(**inputs, num_beams=5)[0], skip_special_tokens=True)
    assert printed == [expected, expected]
    assert f"| {SOURCES[0]} | {expected} |" in card
    # main, a task with no name, and what is refused
    pinned = f"revision={repo.commits[1].sha!r}"
    printed = run_python(
        WITHOUT_PACKAGE + "from transformers import AutoConfig, AutoModelForSeq2SeqLM, pipeline\n"
        f"translator = pipeline(model={NAME!r}, trust_remote_code=True)\n"
        f"print(translator({SOURCES[0]!r}, num_beams=5)[0]['translation_text'])\n"
        f"print(type(AutoConfig.from_pretrained({NAME!r}, {pinned}, trust_remote_code=True)).__module__)\n"
        "for load in (AutoConfig, AutoModelForSeq2SeqLM):\n"
        "    try:\n"
        f"        load.from_pretrained({NAME!r}, trust_remote_code=False)\n"
        "    except ValueError as error:\n"
        "        print('trust_remote_code=True' in str(error))\n",
        environment,
    )
    again, module, *refused = printed.splitlines()
    assert again == expected and f".{repo.commits[1].sha}." in module and refused == ["True", "True"]


@pytest.mark.slow
def test_published_for_onnx_runtime_too(finished_run, values_file, hub, tmp_path, capsys, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    assert publish(finished_run, values_file, "--onnx", "--tag", "v1.0", "--output", tmp_path / "out") == 0
    assert "so does one without PyTorch and transformers, with onnx/" in capsys.readouterr().out
    files = hub.repos[NAME].head.files
    onnx = {name for name in files if name.startswith("onnx/")}
    assert onnx == {
        *(f"onnx/{name}.onnx" for name in ("encoder", "decoder_step", "greedy_search", "beam_search")),
        *(f"onnx/{name}" for name in ("weights.onnx_data", "translator.py", "translator.json", "README.md")),
        *("onnx/source_tokenizer.json", "onnx/target_tokenizer.json"),
    }
    card = files["README.md"].decode()
    code = examples(card)
    assert sorted(code) == ["automodel", "onnx", "pipeline"]
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in ("hf_capsule_mt", "torch", "transformers"))
    there = f"import os, sys\nos.chdir({str(tmp_path)!r})\n"
    printed = run_python(there + blocked + code["onnx"], hub.environment(tmp_path)).strip()
    assert printed and f"| {SOURCES[0]} | {printed} |" in card
    # a folder that translates otherwise than the card says, and one that does not translate
    folder = shutil.copytree(tmp_path / "out", tmp_path / "other")
    monkeypatch.setattr(publishing, "_run_clean", only_onnx(publishing._run_clean))
    (folder / "onnx" / "target_tokenizer.json").write_bytes(b"{}")
    with pytest.raises(
        ValueError, match=r"a process without this package cannot load and use .*onnx: ValueError: .* cannot be"
    ):
        check(folder, SOURCES[:2])
    tokenizer = json.loads((tmp_path / "out" / "onnx" / "target_tokenizer.json").read_text(encoding="utf-8"))
    (folder / "onnx" / "target_tokenizer.json").write_text(
        json.dumps({**tokenizer, "decoder": None}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"OnnxTranslator translates .* which is not what the card says"):
        check(folder, SOURCES[:2])


def only_onnx(run_clean):
    """Without the process that needs transformers, and seconds."""
    return lambda *arguments, **more: run_clean(*arguments, **more) if "onnx" in arguments else {}


def test_push_to_hub_of_transformers_is_loadable_by_name(finished_run, hub, tmp_path, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(finished_run), AutoTokenizer.from_pretrained(finished_run)
    model.push_to_hub(NAME)  # weights and code; what a card says is for its author to write
    tokenizer.push_to_hub(NAME)
    assert {"modeling_capsule_marian.py", "model.safetensors", "tokenizer.json"} <= set(hub.repos[NAME].head.files)
    load = f"AutoModelForSeq2SeqLM.from_pretrained({NAME!r}, trust_remote_code=True)"
    printed = run_python(
        WITHOUT_PACKAGE + "from transformers import AutoModelForSeq2SeqLM\n"
        f"model = {load}\n"
        "print(type(model).__name__, float(sum(p.detach().double().sum() for p in model.parameters())))",
        hub.environment(tmp_path),
    )
    total = float(sum(p.detach().double().sum() for p in model.parameters()))
    assert printed.split() == ["CapsuleMarianMTModel", str(total)]


@pytest.mark.parametrize("route", ["lfs", "commit"])
def test_an_upload_that_is_cut_off_leaves_no_half_and_can_be_repeated(folder, hub, tmp_path, monkeypatch, route):
    hub.attach(monkeypatch, tmp_path)
    hub.cut_off(route)
    with pytest.raises(RuntimeError, match="the upload was cut off, and nothing of it is published; repeat it: "):
        upload(folder, NAME, tag="v1.0")
    repo = hub.repos[NAME]
    assert set(repo.head.files) == {".gitattributes"} and repo.tags == {}
    hub.cut_off(route, times=0)
    upload(folder, NAME, tag="v1.0")
    assert set(repo.head.files) - {".gitattributes"} == {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }
    # the published version stays as it is when the upload of the next one is cut off
    hub.cut_off("commit")
    before = repo.head
    changed = shutil.copytree(folder, tmp_path / "changed")
    (changed / "results.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RuntimeError, match="cut off"):
        upload(changed, NAME)
    assert repo.head is before


def test_to_a_branch(folder, hub, tmp_path, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    upload(folder, NAME, revision="tuned", message="Tuned")
    repo = hub.repos[NAME]
    assert repo.find("tuned").message == "Tuned" and "model.safetensors" in repo.find("tuned").files
    assert set(repo.head.files) == {".gitattributes"}


def test_what_the_hub_refuses_is_reported(folder, finished_run, values_file, hub, tmp_path, monkeypatch, capsys):
    hub.attach(monkeypatch, tmp_path, token=None)
    with pytest.raises(ValueError, match="not logged in to the Hub: run `hf auth login`, or set HF_TOKEN"):
        upload(folder, NAME)
    hub.attach(monkeypatch, tmp_path, token=READER_TOKEN)
    with pytest.raises(HfHubHTTPError, match="403"):
        upload(folder, NAME)
    assert publish(finished_run, values_file, "--output", tmp_path / "mine") == 2
    assert "hf-capsule-mt publish: error: " in capsys.readouterr().err
    assert hub.repos == {}
    hub.attach(monkeypatch, tmp_path)
    upload(folder, NAME, tag="v1.0")
    with pytest.raises(ValueError, match=r"user/tiny has a tag v1\.0 already"):
        upload(folder, NAME, tag="v1.0")
    assert len(hub.repos[NAME].commits) == 2


def broken(folder, path):
    """A copy of the folder to break."""
    return shutil.copytree(folder, path)


def test_checks_find_what_is_wrong_with_a_folder(folder, tmp_path):
    pickled = broken(folder, tmp_path / "pickled")
    (pickled / "training_args.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"training_args\.bin may run code when loaded"):
        check(pickled, SOURCES[:2])
    unlicensed = broken(folder, tmp_path / "unlicensed")
    card = ModelCard.load(unlicensed / "README.md")
    card.data.license = card.data.language = None
    card.save(unlicensed / "README.md")
    with pytest.raises(ValueError, match=r"language is missing.*license is missing"):
        check(unlicensed, SOURCES[:2])
    incomplete = broken(folder, tmp_path / "incomplete")
    (incomplete / "capsule_layers.py").unlink()
    with pytest.raises(ValueError, match=r"a process without this package cannot load and use .*capsule_layers"):
        check(incomplete, SOURCES[:2])
    other = broken(folder, tmp_path / "other")
    text = (other / "README.md").read_text(encoding="utf-8")
    translation = re.search(rf"\| {re.escape(SOURCES[0])} \| (.*?) \|", text)[1]
    (other / "README.md").write_text(text.replace(translation, "Etwas anderes ."), encoding="utf-8")
    with pytest.raises(ValueError, match="which is not what the card says"):
        check(other, SOURCES[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: [(run / name).unlink() for name in ("results.json", "model.safetensors")],
            "not the output folder of a finished hf-capsule-mt train",
        ),
        (lambda run: (run / "results.json").write_text(json.dumps({"scores": []})), "no scores"),
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors"),
        (lambda run: (run / "config.json").unlink(), "config"),
    ],
    ids=["unfinished", "no scores", "no weights", "no config"],
)
def test_what_is_no_finished_run_is_refused(finished_run, values_file, tmp_path, capsys, change, message):
    run = shutil.copytree(finished_run, tmp_path / "run")
    change(run)
    assert publish(run, values_file, "--dry_run") == 2
    error = capsys.readouterr().err
    assert "hf-capsule-mt publish: error: " in error and message in error
    assert not (run / "hub" / "README.md").exists()


@pytest.mark.parametrize("name", ["no spaces allowed", "a/b/c"])
def test_a_name_that_no_repository_can_have_is_refused(finished_run, values_file, tmp_path, capsys, name):
    arguments = ["--card", str(values_file), "--dry_run", "--output", str(tmp_path / "out")]
    assert main(["publish", str(finished_run), name, *arguments]) == 2
    assert name in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the run to change."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture
def quick(monkeypatch):
    """Without the process in which the folder is used, and which other tests start."""
    monkeypatch.setattr(publishing, "run_clean", lambda *arguments: {})


def change_results(run, **values):
    path = run / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}), encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["translations/x", "translations/test.greedy.de", "translations", "config.json", "hub"][:]
)
def test_links_are_refused_by_name(run, values_file, tmp_path, capsys, quick, name):
    secret = tmp_path / "secret"
    if name in ("translations", "hub"):
        secret.mkdir()
        (secret / "id_rsa").write_text("mine", encoding="utf-8")
        shutil.rmtree(run / name, ignore_errors=True)
    else:
        secret.write_text("mine", encoding="utf-8")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    assert publish(run, values_file, "--dry_run") == 2
    assert f"{run / name} is a link, and no link is published" in capsys.readouterr().err
    assert name == "hub" or not (run / "hub").exists()


def test_only_what_the_results_name_is_copied(run, values_file, tmp_path):
    (run / "translations" / "notes.txt").write_text("mine", encoding="utf-8")
    (run / "translations" / "more").mkdir()
    (run / "translations" / "more" / "x").write_text("mine", encoding="utf-8")
    folder = prepare(run, load_values(values_file), NAME, tmp_path / "hub")
    named = {score["file"] for score in json.loads((run / "results.json").read_text())["scores"]}
    assert {path.relative_to(folder).as_posix() for path in (folder / "translations").rglob("*")} == named


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "translations/../secret", "translations/a/b", "x", 3])
def test_results_name_files_of_their_translations(run, values_file, tmp_path, file):
    results = json.loads((run / "results.json").read_text())
    results["scores"][0]["file"] = file
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (tmp_path / "secret").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"names .* no file of translations/|scores\.file of the wrong type"):
        prepare(run, load_values(values_file), NAME, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_one_cleaned_record_is_published(run, values_file, tmp_path):
    results = json.loads((run / "results.json").read_text())
    arguments = {"output_dir": "/home/lena/run", "hub_token": TOKEN, "train_file": r"\\server\share\lena\train"}
    arguments |= {"data_dir": "file:///home/lena/my data", "logging_dir": "logs:/home/lena/logs"}
    change_results(
        run,
        arguments={**results["arguments"], **arguments},
        recipe="/home/lena/recipe.yaml",
        command=f"python train.py /home/lena/recipe.yaml --hub_token {TOKEN} --data_dir '/home/lena/my data'",
    )
    folder = prepare(run, load_values(values_file), NAME, tmp_path / "hub")
    check_files(folder)
    for path in folder.rglob("*"):
        text = path.read_bytes() if path.is_file() else b""
        assert b"lena" not in text and TOKEN.encode() not in text and str(tmp_path).encode() not in text, path
    record, card = json.loads((folder / "results.json").read_text()), (folder / "README.md").read_text()
    assert record["command"] == "python train.py path/to/recipe.yaml --data_dir 'path/to/my data'"
    assert record["command"] in card and "`path/to/recipe.yaml`" in card
    assert record["arguments"]["train_file"] == "path/to/train" and "train_file: path/to/train" in card
    # the run's own record stays as it is
    assert json.loads((run / "results.json").read_text())["recipe"] == "/home/lena/recipe.yaml"


@pytest.mark.parametrize("name", ["translations/test.greedy.de", "config.json", "README.md", "model.safetensors"])
def test_a_token_in_any_file_is_named(folder, tmp_path, name):
    leaky = broken(folder, tmp_path / "leaky")
    path = leaky / name
    if name == "model.safetensors":
        save_file(load_file(path), path, metadata={"format": "pt", "note": TOKEN})
        line = 1
    elif name == "config.json":
        path.write_text(json.dumps({"note": TOKEN, **json.loads(path.read_text())}, indent=1))
        line = 2
    else:
        text = path.read_text(encoding="utf-8").rstrip("\n")
        path.write_text(f"{text}\nsee {TOKEN}\n", encoding="utf-8")
        line = text.count("\n") + 2
    for refused in (check, lambda folder, _: upload(folder, NAME)):
        with pytest.raises(ValueError, match=rf"{name}, line {line}, has what looks like a token"):
            refused(leaky, SOURCES[:2])


def test_paths_links_and_pickles_in_a_folder_are_named(folder, tmp_path):
    changed = broken(folder, tmp_path / "changed")
    config = json.loads((changed / "tokenizer_config.json").read_text())
    (changed / "tokenizer_config.json").write_text(json.dumps({**config, "name_or_path": "/home/lena/run"}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json has /home/lena/run, a path of some machine"):
        check_files(changed)
    changed = broken(folder, tmp_path / "linked")
    (changed / "translations" / "x").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="translations/x: links must not be published"):
        check_files(changed)
    changed = broken(folder, tmp_path / "pickled")
    (changed / "model.safetensors").write_bytes(b"\x80\x04\x95.")
    with pytest.raises(ValueError, match=r"model\.safetensors is a pickle"):
        check_files(changed)
    changed = broken(folder, tmp_path / "unclean")
    change_results(changed, recipe="/home/lena/recipe.yaml")
    with pytest.raises(ValueError, match=r"results\.json has a path of some machine or a secret"):
        check_files(changed)


def test_an_export_that_fails_leaves_the_one_before(run, values_file, quick, capsys):
    assert publish(run, values_file, "--dry_run") == 0
    (run / "hub" / "mark").write_text("old", encoding="utf-8")
    (run / "translations" / "test.greedy.de").write_text(f"{TOKEN}\n", encoding="utf-8")
    assert publish(run, values_file, "--dry_run") == 2
    assert "test.greedy.de, line 1, has what looks like a token" in capsys.readouterr().err
    assert (run / "hub" / "mark").is_file() and not list(run.glob(".hub.[!l]*"))
    # the next one takes its place
    (run / "translations" / "test.greedy.de").write_text("Ein Hund.\n", encoding="utf-8")
    assert publish(run, values_file, "--dry_run") == 0
    assert not (run / "hub" / "mark").exists() and not list(run.glob(".hub.[!l]*"))


@pytest.fixture
def plain_run(run):
    """As another trainer leaves a folder: a model, a tokenizer, and no record."""
    (run / "results.json").unlink()
    shutil.rmtree(run / "translations")
    return run


def test_a_model_without_a_record_says_what_is_not_known(plain_run, values_file, tmp_path, capsys):
    assert main(["publish", str(plain_run), NAME, "--dry_run"]) == 2
    out, error = capsys.readouterr()
    card = plain_run / "card.yaml"
    assert f"written: {card}" in out and "the card will say that scores and training are not known" in out
    assert f"does not say its languages: add a line such as `languages: [en, de]` to {card}" in error
    values = load_values(card)
    assert values.license == "unknown" and values.papers == ["dou2019"] and values.languages == []
    # what was filled in is used, and not written over
    text = card.read_text(encoding="utf-8") + "languages: [en, de]\n"
    card.write_text(text.replace("A man is walking down the street.", SOURCES[0]), encoding="utf-8")
    assert main(["publish", str(plain_run), NAME, "--dry_run"]) == 0
    published = plain_run / "hub"
    assert not (published / "results.json").exists() and not (published / "translations").exists()
    card = ModelCard.load(published / "README.md")
    assert card.data.language == ["en", "de"] and card.data.license == "unknown" and not card.data.eval_results
    assert "came without recorded scores: how well it translates is not known" in card.text
    assert "How it was trained was not recorded" in card.text and "| BLEU |" not in card.text


def test_a_starter_card_is_gone_over_before_anything_is_published(run, quick, hub, tmp_path, capsys, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    assert main(["publish", str(run), NAME]) == 2
    out, error = capsys.readouterr()
    path = run / "card.yaml"
    assert out == f"written: {path}, the values of the card, with what is known\n"
    keys = "title, description, license, dataset, samples, limitations, languages"
    assert f"nothing is published yet: go over {keys} in {path}, and give the same command again" in error
    assert hub.requests == [] and not (run / "hub").exists()
    path.write_text(path.read_text(encoding="utf-8").replace("license: unknown", "license: mit"), encoding="utf-8")
    assert main(["publish", str(run), NAME]) == 0
    assert "license: mit" in hub.repos[NAME].head.files["README.md"].decode()


def test_a_starter_card_of_a_recorded_run_knows_what_the_record_says(run, quick, capsys):
    assert main(["publish", str(run), NAME, "--dry_run"]) == 0
    values = load_values(run / "card.yaml")
    assert values.languages == ["en", "de"] and values.dataset.name == "grammar"
    card = ModelCard.load(run / "hub" / "README.md")
    assert card.data.license == "unknown" and card.data.eval_results and "## Citation" in card.text
