"""The README's Python code runs, and its commands, paths and recipes exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import MarianMTModel

from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.recipe_files import recipe_names
from tiny_models import capsule_model, plain_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", README, re.S))


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for pair in generate_corpus(200) for text in (pair.source, pair.target)]
    return train_tokenizer(texts, vocab_size=500, model_max_length=41)


@pytest.fixture
def workplace(tmp_path, tokenizer, monkeypatch):
    """A folder with a capsule model in runs/grammar and a plain one in plain, both with a tokenizer."""
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    sizes["decoder_start_token_id"] = tokenizer.pad_token_id
    torch.manual_seed(0)
    for name, model in (("runs/grammar", capsule_model(**sizes)), ("plain", MarianMTModel(plain_config(**sizes)))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, capsys) -> str:
    code = CODE[name].replace("path/or/name/of/a/marian/model", "plain")
    exec(compile(code, f"README:{name}", "exec"), {"__name__": "readme"})
    return capsys.readouterr().out


def test_translating_takes_six_lines(workplace, capsys):
    assert len([line for line in CODE["translate"].splitlines() if line.strip()]) <= 6
    assert run("translate", capsys).endswith("\n")


def test_conversion(workplace, capsys):
    run("convert", capsys)
    assert (workplace / "my-capsule-model" / "model.safetensors").exists()
    assert '"model_type": "capsule-marian"' in (workplace / "my-capsule-model" / "config.json").read_text()


def test_lora(workplace, capsys):
    trainable, total = (int(n.replace(",", "")) for n in re.findall(r"params: ([\d,]+)", run("lora", capsys)))
    assert 0 < trainable < total


def test_reading_agreements(workplace, capsys):
    assert re.search(r"^3 torch\.Size\(\[1, \d+, 2, 12\]\)$", run("agreements", capsys), re.M)


def test_guided_routing(workplace, capsys):
    losses, shape = run("guided", capsys).splitlines()[-2:]
    assert losses.count("tensor(") == 4 and re.fullmatch(r"torch\.Size\(\[1, \d+, \d+, 3\]\)", shape)


def test_recurrent_models(workplace, capsys):
    assert re.search(r"^3 torch\.Size\(\[1, \d+, 6\]\)$", run("recurrent", capsys), re.M)


def test_every_code_block_is_tested():
    here = {"translate", "convert", "agreements", "guided", "lora", "recurrent"}
    # those of published models are tested where there is a Hub: tests/hub/test_documentation.py; exported ones in
    # tests/serving/test_serving_page.py
    assert set(CODE) == here | {"published", "finetune", "pipeline", "onnx"}
    assert README.count("```python") == len(CODE)


def test_recipes_links_and_commands_exist():
    # behind their commands, and in tables
    recipes = re.findall(r"hf[-_]capsule[-_]mt (?:train|distill) (\w+/\w+)|^- `(\w+/\w+)`:", README, re.M)
    assert len(recipes) > 5
    for recipe in {name for found in recipes for name in found if name}:
        assert recipe in recipe_names(), recipe
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link
    commands = re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)\n```", README, re.S)
    assert [name for name, _ in commands] == ["run", "test"]
    assert all("-c constraints.txt" in command and "\n" not in command for _, command in commands)


def test_commands_after_the_first_run(workplace, tokenizer):
    """As they stand, but for the folder of the environment."""
    from hf_capsule_mt.__main__ import main

    lines = re.findall(r"<!-- lines: after_training -->\n```bash\n(.*?)\n```", README, re.S)[0].splitlines()
    folder = workplace / "runs" / "grammar"
    # where a run writes them: tests/training/test_run.py
    for name, side in (("test.en", "source"), ("test.de", "target")):
        (folder / "translations").mkdir(exist_ok=True)
        text = "".join(f"{getattr(pair, side)}\n" for pair in generate_corpus(3, seed=5))
        (folder / "translations" / name).write_text(text, encoding="utf-8")
    called = []
    for line in lines:
        program, *argv = shlex.split(line)
        assert program == ".venv/bin/hf-capsule-mt"
        called.append(argv[0])
        assert main(argv) == 0, line
    assert called == ["translate", "score", "report"]
    assert Path("test.de").read_text(encoding="utf-8").count("\n") == 3
    assert Path("scores.txt").read_text(encoding="utf-8").count("\n") == 3
    assert Path("report/index.html").is_file()


def test_quoted_end_of_the_default_run_is_the_recorded_one():
    results = json.loads((ROOT / "hf_capsule_mt/evidence/records/grammar/em_routing.json").read_text(encoding="utf-8"))
    assert results["recipe"].endswith("recipes/grammar.yaml") and len(results["scores"]) == 2
    for row in results["scores"]:
        assert f"{row['bleu']:8.2f}{row['chrf']:8.2f}{row['ter']:8.2f}{row['sentences']:11,}" in README
