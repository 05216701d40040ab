"""What cannot be exported is refused in one line, before anything is written."""

import json

import pytest
import torch
from exported import word_tokenizer
from torch import nn
from transformers import GenerationConfig, NllbMoeConfig, T5Config, T5ForConditionalGeneration

import hf_capsule_mt.serving.export as export_module
from hf_capsule_mt.__main__ import main
from hf_capsule_mt.models.capsule_operators import AGGREGATION_CLASSES, register_aggregation
from hf_capsule_mt.serving.export import export_onnx
from tiny_models import bart_model, capsule_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused") / "model"
    capsule_model(aggregation="none").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch):
    """Refused before graphs are made; where a test gets there, it has failed."""

    def made(*_, **__):
        raise AssertionError("graphs were made")

    monkeypatch.setattr(export_module, "trace", made)


def assert_refused(checkpoint, output, capsys, *words):
    """By the command: one line with these words, exit status 1 or 2, and nothing beside the output's place."""
    before = sorted(output.parent.iterdir())
    assert main(["export", str(checkpoint), str(output), "--format", "onnx"]) != 0
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("hf-capsule-mt export: error: ")
    assert all(word in message for word in words), message
    assert sorted(output.parent.iterdir()) == before


@pytest.mark.parametrize(
    "field, value",
    [
        ("do_sample", True),
        ("no_repeat_ngram_size", 3),
        ("repetition_penalty", 1.2),
        ("renormalize_logits", True),
        ("sequence_bias", [[[3], 2.0]]),
        ("bad_words_ids", [[3, 4]]),
        ("begin_suppress_tokens", [3]),
        ("eos_token_id", None),
    ],
)
def test_generation_configs(tmp_path, checkpoint, capsys, monkeypatch, field, value):
    changed = {**GenerationConfig.from_pretrained(checkpoint).to_dict(), field: value}
    monkeypatch.setattr(GenerationConfig, "from_pretrained", lambda *_, **__: GenerationConfig.from_dict(changed))
    assert_refused(checkpoint, tmp_path / "out", capsys, field)


def test_other_models(tmp_path, capsys):
    sizes = dict(vocab_size=47, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    word_tokenizer().save_pretrained(tmp_path / "t5")
    assert_refused(tmp_path / "t5", tmp_path / "out", capsys, "type 't5'", "Marian, BART")


def test_mixtures_of_experts(tmp_path, capsys):
    NllbMoeConfig(d_model=8).save_pretrained(tmp_path / "moe")
    assert_refused(tmp_path / "moe", tmp_path / "out", capsys, "mixture of experts", "'m2m_100'")


def test_quantised_models(tmp_path, capsys):
    bart_model(aggregation="none").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path.write_text(json.dumps(config), encoding="utf-8")
    assert_refused(tmp_path / "model", tmp_path / "out", capsys, "quantised", "--int8")


def test_adapters(tmp_path, capsys):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(capsule_model(aggregation="none"), LoraConfig(target_modules=["q_proj"], r=2))
    adapted.save_pretrained(tmp_path / "adapters")
    word_tokenizer().save_pretrained(tmp_path / "adapters")
    assert_refused(tmp_path / "adapters", tmp_path / "out", capsys, "adapters", "merge_and_unload")


def test_a_folder_with_files(tmp_path, checkpoint, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x", encoding="utf-8")
    assert_refused(checkpoint, tmp_path / "out", capsys, "out")
    assert (tmp_path / "out" / "mine.txt").read_text(encoding="utf-8") == "x"


def test_without_the_extra(tmp_path, checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(export_module, "MISSING", ImportError("No module named 'onnxscript'"))
    assert_refused(checkpoint, tmp_path / "out", capsys, "hf_capsule_mt[onnx]", "onnxscript")


def test_int8_is_of_onnx(tmp_path, checkpoint, capsys):
    argv = ["export", str(checkpoint), str(tmp_path / "out"), "--format", "transformers", "--int8"]
    assert main(argv) != 0
    assert "--int8 needs --format onnx" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def untraceable(layers):
    """Decides by a value, which no graph can."""
    return layers[..., -1, :] if layers.sum() > 0 else layers[..., 0, :]


def without_operator(layers):
    """Computes something that ONNX has no operator for."""
    return layers[..., -1, :] + torch.linalg.eigvals(torch.eye(3)).real.sum()


@pytest.mark.parametrize("function", [untraceable, without_operator])
def test_operators_that_cannot_be_graphs(tmp_path, monkeypatch, function):
    class Untraceable(nn.Module):
        def __init__(self, config, num_layers):
            super().__init__()

        def forward(self, layers, output_agreements=False):
            return function(layers), None

    register_aggregation("untraceable")(Untraceable)
    monkeypatch.undo()
    try:
        model = capsule_model(aggregation="untraceable")
        with pytest.raises(ValueError, match="aggregation 'untraceable' cannot become an ONNX graph") as error:
            export_module.trace(model)
    finally:
        del AGGREGATION_CLASSES["untraceable"]
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_on_the_way_leaves_nothing(tmp_path, checkpoint, monkeypatch, failure):
    """The disk is full, or the user stops it, when the tokenizers have been written already."""
    seen = []

    def fail(*_, **__):
        seen.extend(path.name for path in (tmp_path / ".out.partial").iterdir())
        raise failure

    monkeypatch.setattr(export_module, "trace", fail)
    # what a kill has left is no hindrance, and goes
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "left").write_text("x", encoding="utf-8")
    with pytest.raises(type(failure)):
        export_onnx(checkpoint, tmp_path / "out")
    assert "translator.json" in seen and "left" not in seen
    assert [path.name for path in tmp_path.iterdir() if "lock" not in path.name] == []
