"""Two processes on the CPU train and score as one process with twice the tokens."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import run
from hf_capsule_mt.training.setup import prepare
from launching import torchrun
from tiny_models import GUIDED


def losses(folder: Path) -> list[dict[str, float]]:
    state = json.loads((folder / "checkpoint-12" / "trainer_state.json").read_text())
    entries = [entry for entry in state["log_history"] if "loss" in entry]
    return [{name: value for name, value in entry.items() if name.endswith("loss")} for entry in entries]


GUIDED_PARTS = ("translation_loss", "bow_loss", "bca_loss")
RECURRENT = {"source_memory": "hybrid", "num_source_capsules": 3}
SYSTEMS = {"em": {}, "guided": GUIDED, "recurrent": RECURRENT}
# without being told, processes have to find out that there is no accelerator
USE_CPU = "true" if torch.accelerator.is_available() else None


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_two_processes_equal_one_with_twice_the_tokens(command, recurrent, tmp_path, system):
    command = recurrent if system is RECURRENT else command
    # With a small epsilon Adam would turn the rounding of gradients that are nearly zero into full steps; with large
    # steps the gradients of EM routing would make more of it from update to update.
    options = dict(dropout=0.0, adam_epsilon=1e-2, learning_rate=0.03, logging_steps=1, test_num_beams=[1, 2])
    options |= system
    options |= dict(report_to="tensorboard", disable_tqdm="false")
    one, two = tmp_path / "one", tmp_path / "two"
    results = run(prepare(parse_arguments(command(output_dir=one, max_tokens_per_batch=300, **options))))
    process = torchrun(command(output_dir=two, max_tokens_per_batch=150, use_cpu=USE_CPU, **options), tmp_path)
    assert process.returncode == 0, process.stderr

    for logged, expected in zip(losses(two), losses(one), strict=True):
        assert logged == pytest.approx(expected, rel=1e-5, abs=2e-4 if system is GUIDED else 0)
    assert set(losses(two)[0]) == ({"loss", *GUIDED_PARTS} if system is GUIDED else {"loss"})
    alone, together = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name in alone:
        torch.testing.assert_close(together[name], alone[name], rtol=1e-4, atol=1e-4)

    distributed = json.loads((two / "results.json").read_text())
    assert distributed["processes"] == 2
    assert distributed["target_tokens"] == results["target_tokens"]
    for row, expected in zip(distributed["scores"], results["scores"], strict=True):
        assert row["sentences"] == expected["sentences"]
        assert (row["bleu"], row["chrf"]) == pytest.approx((expected["bleu"], expected["chrf"]), abs=0.1)
        translations = (two / row["file"]).read_text().splitlines()
        assert len(translations) == expected["sentences"]
    # One process writes, and prints.
    assert process.stdout.count("Translate with it") == 1
    assert process.stdout.count("training pairs") == 1
    assert len(list(two.rglob("events.out.tfevents.*"))) == 1


@pytest.mark.slow
def test_two_processes_resume_with_identical_weights(command, tmp_path):
    options = dict(dropout=0.2, max_tokens_per_batch=150)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for arguments in (
        command(output_dir=straight, **options),
        command(output_dir=resumed, max_steps=8, **options),
        command(output_dir=resumed, resume_from_checkpoint="true", **options),
    ):
        process = torchrun(arguments, tmp_path)
        assert process.returncode == 0, process.stderr
    assert (resumed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
