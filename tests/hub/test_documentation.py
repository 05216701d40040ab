"""The code for users of published models, in README.md and docs/hub.md, runs without this package over HTTP."""

import re

from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.hub.cards import values_names
from hf_capsule_mt.hub.export import export
from loopback import run_python
from pages import Page
from tiny_models import GUIDED, capsule_model

README, PAGE = Page("README.md"), Page("docs/hub.md")


def test_code_for_users_of_published_models(hub, tmp_path, monkeypatch):
    api = hub.attach(monkeypatch, tmp_path)
    texts = [text for pair in generate_corpus(200) for text in (pair.source, pair.target)]
    tokenizer = train_tokenizer(texts, vocab_size=500, model_max_length=41)
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    model = capsule_model(**sizes, decoder_start_token_id=tokenizer.pad_token_id, **GUIDED)
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "folder")
    api.create_repo("user/name")
    commit = api.upload_folder(repo_id="user/name", folder_path=tmp_path / "folder")
    page = PAGE.code
    assert set(page) == {"read", "pin", "finetune", "pipeline"} and PAGE.text.count("```python") == len(page)
    blocks = [README.code["published"], page["finetune"], page["pipeline"], page["read"], page["pin"]]
    code = "import os, sys; sys.modules['hf_capsule_mt'] = None\n" + f"os.chdir({str(tmp_path)!r})\n"
    code += "\nprint('---')\n".join(blocks)
    outputs = run_python(code, hub.environment(tmp_path)).split("---\n")
    assert len(outputs) == len(blocks)
    (translation,) = eval(outputs[0])
    assert isinstance(translation, str)
    assert "train_loss" in outputs[1]
    assert [list(result) for result in eval(outputs[2].splitlines()[-1])] == [["translation_text"]] * 2
    assert outputs[3].startswith(commit.oid) and "modeling_capsule_marian.py" in outputs[3]
    assert eval(outputs[4]) == [translation]
    # what was fine-tuned is complete again
    saved = {path.name for path in (tmp_path / "tuned").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "modeling_capsule_marian.py"} <= saved
    assert "pipeline_translation.py" in saved


def test_cards_of_the_page_exist():
    named = re.findall(r"--card (\w+)", PAGE.text)
    assert named and set(named) <= set(values_names())
