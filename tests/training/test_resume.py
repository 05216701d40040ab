"""A run that was interrupted ends with exactly the weights of one that was not."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_capsule_mt.loading import check_states
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.averaging import average_checkpoints
from hf_capsule_mt.training.run import build_trainer, run
from hf_capsule_mt.training.setup import prepare


class PowerCut(Exception):
    """Ends a run in the middle."""


class CutAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise PowerCut


def interrupt(arguments: list[str], step: int) -> None:
    trainer = build_trainer(prepare(parse_arguments(arguments)))
    trainer.add_callback(CutAt(step))
    with pytest.raises(PowerCut):
        trainer.train()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


# The corpus makes 6 updates an epoch.
@pytest.mark.parametrize(
    "save_steps,cut",
    [
        pytest.param(4, 5, id="within-first-epoch"),
        pytest.param(6, 8, id="between-epochs"),
        pytest.param(5, 11, id="within-second-epoch"),
    ],
)
@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_resumed_run_ends_with_identical_weights(command, tmp_path, save_steps, cut, accumulation):
    options = dict(
        save_steps=save_steps,
        eval_steps=5,
        dropout=0.2,
        gradient_accumulation_steps=accumulation,
        max_tokens_per_batch=300 // accumulation,
    )
    straight = run(prepare(parse_arguments(command(output_dir=tmp_path / "straight", **options))))

    interrupt(command(**options), cut)
    resumed = run(prepare(parse_arguments(command(**options, resume_from_checkpoint="true"))))

    assert weights(tmp_path / "run") == weights(tmp_path / "straight")
    assert files(tmp_path / "run", "*token*") == files(tmp_path / "straight", "*token*")
    assert [row["bleu"] for row in resumed["scores"]] == [row["bleu"] for row in straight["scores"]]
    # The logs of the interrupted run are kept, hence so are the tokens it counted.
    assert resumed["target_tokens"] == straight["target_tokens"]


def test_two_runs_of_one_seed_are_identical_and_another_seed_differs(command, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(prepare(parse_arguments(command(output_dir=tmp_path / name, seed=seed))))
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


def test_checkpoint_that_was_being_written_is_passed_over(command, tmp_path, caplog):
    run(prepare(parse_arguments(command(output_dir=tmp_path / "straight"))))
    interrupt(command(), 9)
    broken = tmp_path / "run" / "checkpoint-8"
    (broken / "trainer_state.json").unlink()
    truncated = (broken / "model.safetensors").read_bytes()[:1000]
    (broken / "model.safetensors").write_bytes(truncated)

    setup = prepare(parse_arguments(command(resume_from_checkpoint="true")))

    assert setup.checkpoint == tmp_path / "run" / "checkpoint-4"
    assert "checkpoint-8 is incomplete" in caplog.text
    run(setup)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_finished_run_only_makes_its_results_again(command, tmp_path, caplog):
    first = run(prepare(parse_arguments(command(average_checkpoints=2))))
    final = weights(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "model.safetensors").unlink()

    again = run(prepare(parse_arguments(command(average_checkpoints=2, resume_from_checkpoint="true"))))

    assert "is the end of this run" in caplog.text
    assert weights(tmp_path / "run") == final
    assert [row["bleu"] for row in again["scores"]] == [row["bleu"] for row in first["scores"]]
    assert again["steps"] == first["steps"] == 12
    assert json.loads((tmp_path / "run" / "results.json").read_text())["target_tokens"] == first["target_tokens"]


def test_finished_run_goes_on_with_more_updates(command, tmp_path):
    run(prepare(parse_arguments(command(output_dir=tmp_path / "straight", max_steps=16))))
    run(prepare(parse_arguments(command(max_steps=12))))
    run(prepare(parse_arguments(command(max_steps=16, resume_from_checkpoint="true"))))
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_resuming_before_the_first_checkpoint_starts_from_the_beginning(command, tmp_path, caplog):
    run(prepare(parse_arguments(command(output_dir=tmp_path / "straight"))))
    interrupt(command(), 2)
    run(prepare(parse_arguments(command(resume_from_checkpoint="true"))))
    assert "starting from the beginning" in caplog.text
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_resuming_as_another_model_is_refused(command):
    interrupt(command(), 5)
    with pytest.raises(ValueError, match=r"aggregation=linear \(checkpoint: em_routing\)"):
        prepare(parse_arguments(command(resume_from_checkpoint="true", aggregation="linear")))


def test_early_stopping_counts_on_after_an_interruption(command, tmp_path):
    # A learning rate of zero never improves: the first evaluation is the best, the third stops the run.
    options = dict(early_stopping_patience=2, learning_rate=0.0, eval_steps=3, save_steps=3, max_steps=50)
    straight = run(prepare(parse_arguments(command(output_dir=tmp_path / "straight", **options))))
    interrupt(command(**options), 7)
    resumed = run(prepare(parse_arguments(command(**options, resume_from_checkpoint="true"))))
    assert straight["steps"] == resumed["steps"] == 9
    shutil.rmtree(tmp_path / "run" / "translations")
    again = run(prepare(parse_arguments(command(**options, resume_from_checkpoint="true"))))
    assert again["steps"] == 9


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_planted_pickle_is_named_before_training(command, tmp_path, name, finished_checkpoint):
    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "mark"),)

    shutil.copytree(finished_checkpoint, tmp_path / "run")
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    torch.save(Planted(), checkpoint / name)
    with pytest.raises(ValueError, match=rf"{name} is a pickle that would call posix\.mkdir"):
        prepare(parse_arguments(command(resume_from_checkpoint="true")))
    torch.save(Planted(), checkpoint / "model.safetensors")
    for resume in ("true", str(checkpoint)):
        with pytest.raises(ValueError, match=r"model\.safetensors is a pickle and not safetensors"):
            prepare(parse_arguments(command(resume_from_checkpoint=resume)))
    with pytest.raises(ValueError, match=r"model\.safetensors is a pickle and not safetensors"):
        average_checkpoints([checkpoint])
    assert not (tmp_path / "mark").exists()


@pytest.fixture(scope="module")
def finished_checkpoint(corpus, tmp_path_factory):
    """A run's folder with one checkpoint as transformers writes it."""
    folder = tmp_path_factory.mktemp("states") / "run"
    sizes = ["--d_model=12", "--encoder_layers=1", "--decoder_layers=1", "--encoder_attention_heads=2"]
    sizes += ["--decoder_attention_heads=2", "--encoder_ffn_dim=14", "--decoder_ffn_dim=14", "--vocab_size=400"]
    run(
        prepare(
            parse_arguments(
                [
                    *(f"--output_dir={folder}", f"--data_dir={corpus}", "--train_file=train", "--source_lang=en"),
                    *("--target_lang=de", "--eval_strategy=no", "--max_steps=2", "--save_steps=2", "--report_to=none"),
                    *sizes,
                ]
            )
        )
    )
    check_states(folder / "checkpoint-2")
    return folder
