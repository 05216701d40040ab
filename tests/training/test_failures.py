"""Runs that cannot go on: they end with one line, and leave what they had saved as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from hf_capsule_mt.files import only_writer
from hf_capsule_mt.training import command as command_module
from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments, parse_arguments
from hf_capsule_mt.training.averaging import is_complete
from hf_capsule_mt.training.divergence import MAX_SKIPPED_UPDATES, DivergenceCallback
from hf_capsule_mt.training.failures import RunFailure, explain_failed_writes
from hf_capsule_mt.training.run import build_trainer, run
from hf_capsule_mt.training.setup import prepare

ROOT = Path(__file__).parents[2]
FULL_DEVICE = Path("/dev/full")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main(arguments: list[str], capsys) -> tuple[int, str]:
    """Exit status and standard error of the command, which is one line."""
    status = command_module.main(arguments)
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("hf-capsule-mt train: error: ")]
    assert len(lines) == (status != 0) and "Traceback" not in error
    return status, lines[0] if lines else ""


class BreakWeights(TrainerCallback):
    """Spoils one weight in the update after so many."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.after:
            model.model.encoder.layers[1].fc1.bias.data[3] = float("nan")


class TestDivergence:
    @pytest.mark.parametrize("inputs_filter", ["true", "false"])
    def test_run_that_diverges_stops_before_anything_is_saved(self, command, tmp_path, capsys, inputs_filter):
        arguments = command(learning_rate=1e30, warmup_steps=0, logging_nan_inf_filter=inputs_filter)
        status, line = main(arguments, capsys)
        assert status == 1
        assert "the run has diverged: the loss of one of the updates 1 to 2 is not finite" in line
        assert "lower learning_rate (now 1e+30)" in line and "max_grad_norm (now 1)" in line
        left = {path.name for path in (tmp_path / "run").iterdir()}
        assert not any(name.startswith("checkpoint") for name in left)
        assert not left & {"model.safetensors", "results.json", "translations"}

    def test_earlier_checkpoints_are_left_alone(self, command, tmp_path):
        run(prepare(parse_arguments(command(max_steps=4, eval_strategy="no"))))
        before = contents(tmp_path / "run")
        setup = prepare(parse_arguments(command(max_steps=8, eval_strategy="no", resume_from_checkpoint="true")))
        trainer = build_trainer(setup)
        trainer.add_callback(BreakWeights(after=6))
        with pytest.raises(RunFailure, match="the loss of one of the updates 7 to 8 is not finite"):
            trainer.train(resume_from_checkpoint=str(setup.checkpoint))
        assert contents(tmp_path / "run") == before

    @pytest.mark.parametrize("strategy", ["epoch", "best"])
    def test_other_strategies_of_saving_too(self, command, tmp_path, strategy):
        options = dict(save_strategy=strategy, eval_strategy="epoch", logging_steps=50)
        with pytest.raises(RunFailure, match="one of the updates 1 to 6"):
            run(prepare(parse_arguments(command(learning_rate=1e30, warmup_steps=0, **options))))
        assert not list((tmp_path / "run").glob("checkpoint-*"))

    def test_run_that_neither_logs_nor_saves_ends_with_it_as_well(self, command, tmp_path):
        options = dict(save_strategy="no", eval_strategy="no", logging_strategy="no", max_steps=3)
        with pytest.raises(RunFailure, match="diverged"):
            run(prepare(parse_arguments(command(learning_rate=1e30, warmup_steps=0, **options))))
        assert not (tmp_path / "run" / "model.safetensors").exists()

    def test_weights_are_named_where_the_loss_is_finite(self, command):
        trainer = build_trainer(prepare(parse_arguments(command(max_steps=2))))
        trainer.add_callback(BreakWeights(after=1))
        with pytest.raises(
            RunFailure, match=r"weights that are not finite, such as model\.encoder\.layers\.1\.fc1\.bias"
        ):
            trainer.train()

    def test_average_of_broken_checkpoints_is_refused(self, command, tmp_path):
        options = dict(average_checkpoints=2, eval_strategy="no")
        run(prepare(parse_arguments(command(**options))))
        good = (tmp_path / "run" / "model.safetensors").read_bytes()
        path = tmp_path / "run" / "checkpoint-8" / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-4:] = b"\xff\xff\xff\xff"
        path.write_bytes(content)
        with pytest.raises(RunFailure, match=r"checkpoint-8, checkpoint-12 in .* weights that are not finite"):
            run(prepare(parse_arguments(command(**options, resume_from_checkpoint="true"))))
        assert (tmp_path / "run" / "model.safetensors").read_bytes() == good

    def test_updates_that_a_gradient_scaler_skips_are_none(self):
        model, callback = torch.nn.Linear(2, 2), DivergenceCallback(lambda tensor: tensor)
        args = SimpleNamespace(fp16=True, learning_rate=1e-3, warmup_steps=0, max_grad_norm=1)
        state, control = TrainerState(), TrainerControl(should_log=True)

        def update(loss: float, skipped: bool) -> None:
            state.global_step += 1
            callback.observe(torch.tensor(loss))
            optimizer = SimpleNamespace(step_was_skipped=skipped)
            callback.on_step_end(args, state, control, model=model, optimizer=optimizer)

        for _ in range(3):
            update(float("inf"), skipped=True)
            update(float("nan"), skipped=True)
            update(1.0, skipped=False)
        with pytest.raises(RunFailure, match=r"the loss of update 10 is not finite.* or bf16 in the place"):
            update(float("nan"), skipped=False)
        for _ in range(MAX_SKIPPED_UPDATES - 1):
            update(float("nan"), skipped=True)
        with pytest.raises(RunFailure, match="the last 40 updates had gradients that are not finite"):
            update(float("nan"), skipped=True)

    def test_a_finite_run_waits_for_the_device_at_logging_steps_alone(self):
        model, looks = torch.nn.Linear(2, 2), []
        callback = DivergenceCallback(lambda tensor: looks.append(tensor) or tensor)
        args = SimpleNamespace(fp16=False, learning_rate=1e-3, warmup_steps=0, max_grad_norm=1)
        state = TrainerState()
        for step in range(1, 13):
            state.global_step = step
            callback.observe(torch.tensor(1.0))
            callback.on_step_end(args, state, TrainerControl(should_log=step % 4 == 0), model=model, optimizer=None)
        assert len(looks) == 3


class TestFullDisk:
    @pytest.mark.skipif(not FULL_DEVICE.exists(), reason="there is no /dev/full")
    @pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
    def test_last_complete_checkpoint_survives(self, command, tmp_path, capsys, name):
        folder = tmp_path / "run"
        run(prepare(parse_arguments(command(max_steps=4, eval_strategy="no"))))
        before = contents(folder / "checkpoint-4")
        (folder / "checkpoint-8").mkdir()
        (folder / "checkpoint-8" / name).symlink_to(FULL_DEVICE)
        arguments = command(resume_from_checkpoint="true", eval_strategy="no")
        status, line = main(arguments, capsys)
        assert status == 1 and f"cannot write to {folder}: the disk is " in line
        assert " full (" in line and "--resume_from_checkpoint true" in line
        assert contents(folder / "checkpoint-4") == before and is_complete(folder / "checkpoint-4")
        assert not (folder / "checkpoint-8").exists()

    @pytest.mark.skipif(not FULL_DEVICE.exists(), reason="there is no /dev/full")
    def test_tokenizer_that_finds_no_room(self, command, tmp_path, capsys):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "tokenizer.json").symlink_to(FULL_DEVICE)
        status, line = main(command(), capsys)
        assert status == 2 and "the disk is full" in line

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (OSError(28, "No space left on device"), "the disk is full"),
            (OSError(122, "Disk quota exceeded"), "the disk is full"),
            (OSError(27, "File too large"), "File too large"),
            (RuntimeError("[enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0"), "probably full"),
            (RuntimeError("basic_ios::clear: iostream error"), "probably full"),
            (Exception("I/O error: No space left on device (os error 28)"), "the disk is full"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_errors_of_libraries_are_one_line(self, tmp_path, error, reason):
        with pytest.raises(RunFailure, match=reason), explain_failed_writes(tmp_path, "make room"):
            raise error

    def test_other_errors_are_not_explained_away(self, tmp_path):
        with pytest.raises(ZeroDivisionError), explain_failed_writes(tmp_path, "make room"):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ({"tf32": "true"}, "--tf32 requires"),
        ({"torch_compile": "true", "torch_compile_backend": "nope"}, "'NOPE' is not a valid DynamoBackend"),
        ({"optim": "adamw_bnb_8bit"}, "bitsandbytes"),
        ({"report_to": "nope"}, "nope is not supported"),
        ({"fsdp": "full_shard"}, "fsdp"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_the_machine_does_not_have_is_said_before_training(command, tmp_path, capsys, demand, message):
    status, line = main(command(**demand), capsys)
    assert status == 2 and message in line
    assert not list((tmp_path / "run").glob("checkpoint-*"))


class TestOneWriter:
    def test_second_run_into_a_folder_ends_before_it_has_done_anything(self, command, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("hf_capsule_mt.training.setup.prepare", None)
        with only_writer(tmp_path / "run"):
            status, line = main(command(), capsys)
        assert status == 2 and f"{tmp_path / 'run'} is being written by another process" in line
        assert not (tmp_path / "run").exists()

    def test_other_processes_of_a_distributed_run_take_no_lock(self, command, tmp_path, capsys, monkeypatch):
        def prepare(arguments):
            raise ValueError(f"prepared by process {arguments.training.process_index}")

        monkeypatch.setattr("hf_capsule_mt.training.setup.prepare", prepare)
        monkeypatch.setattr(CapsuleSeq2SeqTrainingArguments, "process_index", 1)
        with only_writer(tmp_path / "run"):
            assert main(command(), capsys) == (2, "hf-capsule-mt train: error: prepared by process 1")

    @pytest.mark.slow
    def test_lock_is_held_while_the_run_goes_on(self, command, tmp_path):
        """Two commands at once: one of them trains, and the other says so."""
        program = [sys.executable, str(ROOT / "train.py"), *command(max_steps=2, eval_strategy="no")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        both = [
            subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            for _ in range(2)
        ]
        errors = [process.communicate()[1] for process in both]
        # the second finds the lock, or, where it was late, the run
        assert sorted(process.returncode for process in both) == [0, 2], errors
        loser = next(error for process, error in zip(both, errors, strict=True) if process.returncode)
        assert loser.startswith("hf-capsule-mt train: error: ") and loser.count("\n") == 1
        assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 2

    def test_folder_that_cannot_be_made(self, command, tmp_path, capsys):
        (tmp_path / "file").touch()
        status, line = main(command(output_dir=tmp_path / "file" / "run"), capsys)
        assert status == 2 and str(tmp_path / "file") in line
