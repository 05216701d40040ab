"""An exported directory is all that transformers needs, in a process where this package is not importable."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_capsule_mt
from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.hub.export import export
from tiny_models import STACKS, open_gates, rnn_model
from tiny_translation import SOURCES, tiny_model, tiny_tokenizer

FAMILIES = (*STACKS, "rnn")
SYSTEMS = {"aggregation": "em_routing", "num_capsules": 13, "guided_routing": "routing", "bow_loss_weight": 1.0}
SHARED_CODE = {
    "capsule_cache.py",
    "capsule_configuration.py",
    "capsule_guided.py",
    "capsule_kernels.py",
    "capsule_layers.py",
    "capsule_losses.py",
    "capsule_operators.py",
    "capsule_past_future.py",
    "capsule_routing.py",
    "capsule_seq2seq.py",
    "pipeline_translation.py",
    "tokenizer_languages.py",
}
CODE = {
    **{name: SHARED_CODE | {f"configuration_capsule_{name}.py", f"modeling_capsule_{name}.py"} for name in STACKS},
    "rnn": SHARED_CODE | {"configuration_capsule_rnn.py", "modeling_capsule_rnn.py", "capsule_recurrent.py"},
}
DATA = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}

# a user's script: everything that a person without this package does with a directory, and with what they save of it
SCRIPT = """
import json, os, sys
sys.modules["hf_capsule_mt"] = None
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

BEAM = {"num_beams": 3, "max_new_tokens": 12}
request = json.load(sys.stdin)
sentences, seen = request["sentences"], {}

def translations(task, folder):
    translator = pipeline(task, model=folder, trust_remote_code=True)
    return [out["translation_text"] for out in translator(sentences, batch_size=3, **BEAM)]

def refusal(load):
    try:
        load()
    except ValueError as error:
        return str(error)
    return "not refused"

for name, folder in request["folders"].items():
    found = {"refusals": [
        refusal(lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False)),
        refusal(lambda: AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)),
        refusal(lambda: pipeline("translation", model=folder, trust_remote_code=False)),
    ]}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    found["modules"] = [type(config).__module__, type(model).__module__]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
    with torch.no_grad():
        save_file({"logits": model(**inputs, labels=labels).logits}, folder + ".logits.safetensors")
    beam = model.generate(**inputs, **BEAM, output_agreements=True)
    found["beam"] = tokenizer.batch_decode(beam.sequences, skip_special_tokens=True)
    found["agreements"] = list(beam.guided_assignment.shape)
    for task in ("translation", None):
        found[str(task)] = translations(task, folder)
    model.save_pretrained(folder + "-again")
    tokenizer.save_pretrained(folder + "-again")
    found["again"] = translations("translation", folder + "-again")
    seen[name] = found
print(json.dumps(seen))
"""


def checkpoint(family, folder):
    """A capsule checkpoint whose aggregates and guided head contribute."""
    tokenizer = tiny_tokenizer()
    if family == "rnn":
        model = rnn_model(vocab_size=len(tokenizer), guided_routing="routing", bow_loss_weight=1.0)
    else:
        torch.manual_seed(4)
        sizes = dict(vocab_size=len(tokenizer), d_model=26, encoder_attention_heads=2, decoder_attention_heads=2)
        stack = STACKS[family]
        plain = tiny_model() if family == "marian" else stack.plain_class(stack.plain_config(**sizes))
        plain.save_pretrained(folder / "plain")
        tokenizer.save_pretrained(folder / "plain")
        convert(folder / "plain", folder / "converted", **SYSTEMS)
        model = open_gates(AutoModelForSeq2SeqLM.from_pretrained(folder / "converted")).eval()
    model.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    return model, folder / "checkpoint"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The models, their exported directories, and what the user's script saw of these."""
    models, folders = {}, {}
    root = tmp_path_factory.mktemp("hub")
    for family in FAMILIES:
        (root / f"{family}-source").mkdir()
        models[family], source = checkpoint(family, root / f"{family}-source")
        export(source, root / family)
        folders[family] = str(root / family)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(root / "modules")}
    finished = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT],
        input=json.dumps({"folders": folders, "sentences": SOURCES}),
        capture_output=True,
        text=True,
        cwd=root,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return models, root, json.loads(finished.stdout)


families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_the_directory_is_complete_and_safe(exported, family):
    _, root, _ = exported
    assert {path.name for path in (root / family).iterdir()} == DATA | CODE[family]
    config = json.loads((root / family / "config.json").read_text())
    assert config["auto_map"]["AutoConfig"].split(".")[0] + ".py" in CODE[family]
    assert config["auto_map"]["AutoModelForSeq2SeqLM"].split(".")[0] + ".py" in CODE[family]
    assert list(config["custom_pipelines"]) == ["translation"]


@families
def test_without_the_package_it_is_the_same_model(exported, family):
    models, root, seen = exported
    model, tokenizer = models[family], tiny_tokenizer()
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
    with torch.no_grad():
        expected = model(**inputs, labels=labels).logits
    assert torch.equal(load_file(root / f"{family}.logits.safetensors")["logits"], expected)
    beam = model.generate(**inputs, num_beams=3, max_new_tokens=12)
    texts = tokenizer.batch_decode(beam, skip_special_tokens=True)
    for way in ("beam", "translation", "None", "again"):
        assert seen[family][way] == texts, way
    assert len(set(texts)) > 1
    assert seen[family]["agreements"][0] == len(SOURCES)
    assert all(module.startswith("transformers_modules.") for module in seen[family]["modules"])


@families
def test_without_trust_it_is_refused(exported, family):
    _, _, seen = exported
    for refusal in seen[family]["refusals"]:
        assert "trust_remote_code=True" in refusal


@families
def test_saving_it_again_keeps_it_complete(exported, family):
    _, root, _ = exported
    again = root / f"{family}-again"
    assert {path.name for path in again.iterdir()} == DATA | CODE[family]
    first, last = (json.loads((folder / "config.json").read_text()) for folder in (root / family, again))
    assert first == last
    for name in CODE[family]:
        assert (again / name).read_bytes() == (root / family / name).read_bytes()


def test_with_the_package_installed_its_own_code_is_used(exported):
    _, root, _ = exported
    hf_capsule_mt.register()
    # the languages in the task pass the pipeline in the directory by, and need no trust
    translator = pipeline("translation_en_to_de", model=str(root / "marian"))
    assert type(translator.model) is hf_capsule_mt.CapsuleMarianMTModel
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("translation", model=str(root / "marian"))
    trusted = pipeline("translation", model=str(root / "marian"), trust_remote_code=True)
    assert type(trusted.model) is hf_capsule_mt.CapsuleMarianMTModel
    assert translator(SOURCES[0]) == trusted(SOURCES[0])
    trusted.save_pretrained(str(root / "from-pipeline"))
    assert {path.name for path in (root / "from-pipeline").iterdir()} >= DATA | CODE["marian"]


def test_a_plain_checkpoint_is_not_exported(tmp_path):
    tiny_model().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="of type 'marian', which transformers loads and uploads by itself"):
        export(tmp_path / "plain", tmp_path / "exported")
