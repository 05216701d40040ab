"""The recurrent family through train.py: by arguments alone, and with everything that a run can do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_resume import interrupt, weights
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_capsule_mt import CapsuleRNNForConditionalGeneration
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.averaging import average_checkpoints
from hf_capsule_mt.training.run import run
from hf_capsule_mt.training.setup import prepare

LOSSES = {"bow_loss_weight": 1, "bca_loss_weight": 0.5, "guided_capsule_size": 5}
SYSTEMS = {
    "simple": {"source_memory": "simple"},
    "capsnmt base": {
        "share_routing_weights": "true",
        "position_aware_routing": "false",
        "separable_scoring": "false",
    },
    "capsnmt": {"num_source_capsules": 3},
    "rnmt + gdr": {"source_memory": "attention", "guided_routing": "routing", **LOSSES},
    "rnmt + pfrnn": {"source_memory": "attention", "guided_routing": "recurrent", **LOSSES},
    "hybrid + em": {"source_memory": "hybrid", "aggregation": "em_routing"},
}


def train(arguments: list[str]) -> dict:
    return run(prepare(parse_arguments(arguments)), arguments)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_runs_of_mixed_precision_end_with_a_model(recurrent, tmp_path, precision):
    options = {precision: "true", "max_steps": 4, "source_memory": "hybrid"}
    train(recurrent(**options))
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in saved.values())


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_run_by_arguments_alone(recurrent, corpus, tmp_path, system, capsys):
    options = dict(average_checkpoints=2, save_total_limit=3, test_num_beams=[1, 3], max_steps=8)
    results = train(recurrent(**options, **system))
    folder = tmp_path / "run"
    assert results["final_weights"] == ["checkpoint-4", "checkpoint-8"]
    saved, averaged = (
        load_file(folder / "model.safetensors"),
        average_checkpoints([folder / "checkpoint-4", folder / "checkpoint-8"]),
    )
    assert all(torch.equal(saved[name], averaged[name]) for name in saved)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, CapsuleRNNForConditionalGeneration)
    for name, value in system.items():
        assert str(getattr(model.config, name)).lower() == str(
            float(value) if "weight" in name and name in LOSSES else value
        )
    model.generation_config.max_new_tokens = None
    for row in results["scores"]:
        source = lines(corpus / f"{'val' if row['split'] == 'validation' else row['split']}.en")
        assert lines(folder / row["file"]) == translate(model, tokenizer, source, num_beams=row["beams"])
    output = capsys.readouterr().out
    assert f"source memory {model.config.source_memory}" in output
    assert ("bow_loss" in output) == ("guided_routing" in system)


def test_resumed_run_ends_with_identical_weights(recurrent, tmp_path):
    options = dict(save_steps=5, eval_steps=5, dropout=0.2)
    train(recurrent(output_dir=tmp_path / "straight", **options))
    interrupt(recurrent(**options), 8)
    train(recurrent(**options, resume_from_checkpoint="true"))
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_trained_model_takes_new_systems(recurrent, tmp_path):
    train(recurrent(source_memory="attention", output_dir=tmp_path / "rnmt", max_steps=2))
    start = dict(model_name_or_path=tmp_path / "rnmt", model_type=None, d_model=None, max_steps=2)
    guided = prepare(parse_arguments(recurrent(**start, guided_routing="routing", **LOSSES))).model
    kept = load_file(tmp_path / "rnmt" / "model.safetensors")
    for name, weight in kept.items():
        assert torch.equal(guided.state_dict()[name], weight)
    assert guided.config.d_model == 12 and guided.guided_head is not None
    hybrid = train(recurrent(**start, source_memory="hybrid"))
    assert hybrid["steps"] == 2


def test_long_sentences_have_no_positions_to_run_out_of(recurrent, tmp_path):
    train(recurrent(max_steps=2, max_source_length=700))
    model, tokenizer = (c.from_pretrained(tmp_path / "run") for c in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert tokenizer.model_max_length == model.generation_config.max_new_tokens + 1 == 700


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"encoder_ffn_dim": 14}, "encoder_ffn_dim: a capsule-rnn model has no such field; leave it out"),
        ({"model_type": "capsule-marian", "source_memory": "simple"}, "source_memory: a capsule-marian model has no"),
        ({"d_model": 13}, "d_model=13 must be even"),
        ({"source_memory": "capsules"}, "invalid choice: 'capsules'"),
        ({"source_memory": "simple", "bow_loss_weight": 1}, "needs PAST and FUTURE contents"),
    ],
    ids=["foreign field", "foreign field of the other", "odd width", "unknown memory", "loss without routing"],
)
def test_mistakes_end_before_any_work(recurrent, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        prepare(parse_arguments(recurrent(**overrides)))
    assert not (tmp_path / "run").exists()


def test_family_is_that_of_the_checkpoint(recurrent, command, tmp_path):
    train(recurrent(max_steps=2, save_steps=2))
    checkpoint = tmp_path / "run"
    new = dict(model_name_or_path=checkpoint, output_dir=tmp_path / "new")
    with pytest.raises(ValueError, match="is of model_type capsule-rnn, not capsule-marian"):
        prepare(parse_arguments(recurrent(**new, model_type="capsule-marian")))
    with pytest.raises(ValueError, match=r"model_type=capsule-marian \(checkpoint: capsule-rnn\)"):
        prepare(parse_arguments(command(resume_from_checkpoint="true")))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ValueError, match="a model of type 'bert', but training can start from marian, capsule-marian"):
        prepare(parse_arguments(recurrent(**new)))
