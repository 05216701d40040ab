"""What an evaluation logs beside its scores, and what a log says about the machine."""

import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType

from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.monitoring import MONITORED, describe_machine, measure, samples
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.setup import prepare
from hf_capsule_mt.training.sharding import check_sharding
from tiny_models import GUIDED, capsule_model, rnn_model
from tiny_translation import SOURCES, TARGETS, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
MODEL_OPTIONS = dict(vocab_size=len(TOKENIZER))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_that_of_the_model_without_smoothing(smoothing):
    model = capsule_model(label_smoothing=smoothing, dropout=0.5, **MODEL_OPTIONS).train()
    measured = measure(model, TOKENIZER, SOURCES, TARGETS, max_tokens=30)
    assert model.training
    model.eval().config.label_smoothing = 0.0
    batch = TOKENIZER(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = TOKENIZER(TARGETS, padding=True, return_tensors="pt").input_ids
    expected = model(**batch, labels=labels.masked_fill(labels == 0, -100)).loss.item()
    assert measured["loss"] == pytest.approx(expected, abs=2e-4)
    # Marian aggregates in both stacks
    assert set(measured) == {"loss", "encoder_entropy", "decoder_entropy"}
    limit = math.log(model.config.num_capsules)
    assert all(0 < measured[f"{stack}_entropy"] <= limit + 1e-4 for stack in ("encoder", "decoder"))


def test_each_family_measures_what_it_has():
    guided = measure(capsule_model(**GUIDED, **MODEL_OPTIONS), TOKENIZER, SOURCES, TARGETS, max_tokens=99)
    assert set(guided) == {"loss", "past", "future", "redundant"}
    assert guided["past"] + guided["future"] + guided["redundant"] == pytest.approx(1, abs=2e-4)
    plain = measure(capsule_model(aggregation="none", **MODEL_OPTIONS), TOKENIZER, SOURCES, TARGETS, max_tokens=99)
    assert set(plain) == {"loss"}


def test_a_collapse_of_the_source_capsules_shows(monkeypatch):
    model = rnn_model(source_memory="capsule", **MODEL_OPTIONS)
    healthy = measure(model, TOKENIZER, SOURCES, TARGETS, max_tokens=99)
    assert 1 < healthy["capsules_in_use"] <= model.config.num_source_capsules
    forward = type(model).forward

    def collapsed(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        alpha = torch.zeros_like(output.source_agreements[-1])
        alpha[..., 2] = 1
        output.source_agreements = (*output.source_agreements[:-1], alpha)
        return output

    monkeypatch.setattr(type(model), "forward", collapsed)
    assert measure(model, TOKENIZER, SOURCES, TARGETS, max_tokens=99)["capsules_in_use"] == 1


def test_the_cost_does_not_grow_with_the_validation_set(monkeypatch):
    model, seen = capsule_model(aggregation="none", **MODEL_OPTIONS), []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, **kwargs: seen.append(len(kwargs["input_ids"])) or forward(self, **kwargs)
    )
    many = ["", *SOURCES * 100], ["", *TARGETS * 100]
    once = measure(model, TOKENIZER, *many, max_tokens=500)
    assert sum(seen) == MONITORED
    assert once == measure(model, TOKENIZER, *(side[: MONITORED + 1] for side in many), max_tokens=100)
    assert measure(model, TOKENIZER, [" "], ["a"], max_tokens=9) == {}


def test_samples_stay_text():
    table = samples(["a | b", "<b>"] * 4, ["x"] * 8, ["y\nz"] * 8).splitlines()
    assert len(table) == 2 + 5 and table[2] == r"| a \| b | x | y z |" and table[3].startswith(r"| \<b\> |")


def test_a_log_that_is_a_file_gets_lines(command, capsys):
    # capsys is no terminal
    argv = command(max_steps=4, save_strategy="no", logging_steps=2, disable_tqdm=None)
    build_trainer(prepare(parse_arguments(argv))).train()
    output = capsys.readouterr()
    lines = [line for line in output.out.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines] == ["step 2 of 4", "step 4 of 4", "step 4"]
    assert "training loss " in lines[0] and " tokens/s" in lines[0] and "BLEU" in lines[2]
    assert "\r" not in output.err and "{'loss'" not in output.out


def machine(monkeypatch, kind=DistributedType.NO, processes=1, **environment) -> str:
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = SimpleNamespace(device=torch.device("cpu"), world_size=processes, seed=7)
    accelerator = SimpleNamespace(distributed_type=kind, mixed_precision="bf16")
    return describe_machine(SimpleNamespace(args=args, accelerator=accelerator))


def test_the_machine_is_one_line(monkeypatch):
    threads = f"{torch.get_num_threads()} threads each"
    assert machine(monkeypatch) == f"CPU, 1 process, {threads}, bfloat16, seed 7"
    assert machine(monkeypatch, DistributedType.MULTI_CPU, 2).startswith("CPU, 2 processes (DDP), ")


def test_what_accelerate_does_not_do_is_said(monkeypatch):
    fsdp = {"ACCELERATE_USE_FSDP": "true"}
    assert "NOT sharded, though" in machine(monkeypatch, DistributedType.MULTI_CPU, 2, **fsdp)
    assert "NOT sharded" not in machine(monkeypatch, DistributedType.FSDP, 2, **fsdp)
    launched = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}
    assert "ONE process, though accelerate was asked for several" in machine(monkeypatch, **launched)
    assert "ONE process" not in machine(monkeypatch, DistributedType.MULTI_CPU, 2, **launched)


def test_what_a_sharded_model_cannot_do_is_refused_before_training(command):
    setup = prepare(parse_arguments(command(average_checkpoints=2)))
    trainer = build_trainer(setup)
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="leave out validation_file, test_file, average_checkpoints"):
        check_sharding(trainer, setup)
    setup = prepare(parse_arguments(command(validation_file=None, test_file=None, eval_strategy="no")))
    check_sharding(trainer, setup)
