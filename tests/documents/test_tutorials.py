"""The code of the tutorials and guides runs, as their pages have it, on tiny models and corpora."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.data.grammar import generate_corpus, write_corpus
from hf_capsule_mt.studies import runner
from pages import Page

# a run that takes a second, over the arguments of a page
TINY = {
    "vocab_size": 400,
    "d_model": 12,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 14,
    "decoder_ffn_dim": 14,
    "max_position_embeddings": 60,
}
SHORT = {
    "max_steps": 4,
    "warmup_steps": 1,
    "eval_steps": 4,
    "save_steps": 4,
    "test_num_beams": 1,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
MARIAN = {"path/or/name/of/a/marian/model": "plain"}


@pytest.fixture
def corpus(tmp_path):
    """train, val and test of the embedded corpus in corpus/, and test.en and test.de."""
    for split, size in (("train", 150), ("val", 5), ("test", 6)):
        write_corpus(tmp_path / "corpus", split, generate_corpus(size, seed=size, max_length=8))
    for language in ("en", "de"):
        text = (tmp_path / "corpus" / f"test.{language}").read_bytes()
        (tmp_path / f"test.{language}").write_bytes(text)


@pytest.fixture
def in_this_process(monkeypatch):
    """The runs of a study are called, not started; what they print is not kept."""

    def call(command, **started):
        assert command[1:3] == ["-m", "hf_capsule_mt"]
        status = main(command[3:])
        return SimpleNamespace(args=command, pid=0, poll=lambda: status)

    monkeypatch.setattr(runner, "subprocess", SimpleNamespace(Popen=call, DEVNULL=None))


def smaller(argv: list[str]) -> list[str]:
    """With less work than the page asks for."""
    more = {"train": SHORT, "report": {"max_sentences": 2, "examples": 1}}.get(argv[0], {})
    argv = [*argv, *(word for name, value in more.items() for word in (f"--{name}", str(value)))]
    return [*argv, "--no_speed"] if argv[0] == "report" else argv


def test_first_steps(capsule_and_plain, corpus):
    """The commands as they stand, on the files that a run leaves: tests/training/test_run.py."""
    translations = capsule_and_plain / "runs/grammar/translations"
    translations.mkdir()
    for name in ("test.en", "test.de"):
        Path(name).rename(translations / name)
    page = Page("docs/start.md")
    assert [argv[0] for argv in page.commands["after_training"]] == ["translate", "score", "report"]
    page.run("after_training")
    assert Path("test.de").read_text(encoding="utf-8").count("\n") == 6
    assert Path("scores.txt").read_text(encoding="utf-8").count("\n") == 6
    assert Path("report/index.html").is_file()


@pytest.mark.slow
def test_compare_systems(tmp_path, corpus, in_this_process, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = Page("docs/compare.md")
    for name, change in (("mine.yaml", {**TINY, **SHORT}), ("compare.yaml", {"seeds": [1, 2]})):
        values = yaml.safe_load(page.files[name])
        if name == "compare.yaml":
            # a capsule as small as the model
            values["systems"]["GDR"]["guided_capsule_size"] = 6
        Path(name).write_text(yaml.safe_dump(values | change, sort_keys=False), encoding="utf-8")
    page.run("study", lambda argv: argv if argv[1] == "run" else [*argv, "--draws", "100"])
    record = json.loads(Path("runs/compare/table/record.json").read_text(encoding="utf-8"))
    assert list(record["systems"]) == ["none", "EM routing", "GDR"]
    assert "| GDR " in Path("runs/compare/table/table.md").read_text(encoding="utf-8")
    page.run("report", smaller)
    assert "plain" in Path("report/table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_fine_tune_and_publish(capsule_and_plain, corpus, capsys):
    page = Page("docs/finetune.md")
    page.run("convert", lambda argv: [word.replace("Helsinki-NLP/opus-mt-en-de", "plain") for word in argv])
    config = json.loads(Path("my-capsule-model/config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["aggregation"]) == ("capsule-marian", "em_routing")
    page.run("train", smaller)
    page.run("report", smaller)
    page.run("publish")
    assert {"README.md", "model.safetensors", "modeling_capsule_marian.py"} <= set(os.listdir("runs/tuned/hub"))
    assert Path("runs/tuned/card.yaml").is_file()
    page.execute("convert", replace=MARIAN)
    capsys.readouterr()
    page.execute("lora", replace=MARIAN)
    trainable, total = (int(n.replace(",", "")) for n in re.findall(r"params: ([\d,]+)", capsys.readouterr().out))
    assert 0 < trainable < total
    assert set(page.code) == {"convert", "lora"}


def test_read_the_routing(capsule_and_plain, corpus, capsys):
    page = Page("docs/routing.md")
    names = page.execute("agreements")
    assert re.search(r"^3 torch\.Size\(\[1, \d+, 2, 12\]\)$", capsys.readouterr().out, re.M)
    page.execute("forced", names)
    assert capsys.readouterr().out.startswith("tensor([")
    page.execute("picture", names)
    assert Path("routing.png").read_bytes().startswith(b"\x89PNG")
    page.execute("statistics", names)
    assert re.fullmatch(r"((encoder|decoder) [\d.]+ [\d.]+\n){6}", capsys.readouterr().out)
    assert set(page.code) == {"agreements", "forced", "picture", "statistics"}
    page.run("report", smaller)
    assert Path("report/index.html").is_file()
    Path("sentences.jsonl").write_text(page.files["sentences.jsonl"], encoding="utf-8")
    page.run("summary")
    first = json.loads(Path("routing.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert {"past", "encoder_entropy", "source_tokens"} <= set(first["translations"][0]["agreements"])


def test_models_in_python(capsule_and_plain, capsys):
    page = Page("docs/models.md")
    page.execute("translate")
    page.execute("guided", replace=MARIAN)
    losses, shape = capsys.readouterr().out.splitlines()[-2:]
    assert losses.count("tensor(") == 4 and re.fullmatch(r"torch\.Size\(\[1, \d+, \d+, 3\]\)", shape)
    page.execute("recurrent")
    assert re.search(r"^3 torch\.Size\(\[1, \d+, 6\]\)$", capsys.readouterr().out, re.M)
    assert set(page.code) == {"translate", "guided", "recurrent"}
