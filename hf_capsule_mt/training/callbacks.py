"""Callbacks of the Trainer: the epoch of the batch order, the speed, and the progress bar."""

from __future__ import annotations

import time
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..data.batching import TokenBatchSampler


class EpochCallback(TrainerCallback):
    """
    Tells the sampler which epoch begins.

    It counts updates, so that a resumed run is right as well: the Trainer's own `set_epoch` does not reach the
    sampler through the loader that skips the batches of a resumed epoch in every release.
    """

    def __init__(self, sampler: TokenBatchSampler) -> None:
        self.sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.sampler.set_epoch(state.global_step // self.sampler.num_updates)


class ThroughputCallback(TrainerCallback, ExportableState):
    """
    Counts target tokens (no padding, all processes) and the seconds spent on training them, evaluation and saving
    left out. Checkpoints keep both, so that a resumed run goes on counting.
    """

    def __init__(self) -> None:
        self.tokens, self.seconds = 0.0, 0.0
        self._logged_tokens, self._logged_seconds = 0.0, 0.0
        self._clock = time.perf_counter()

    def state(self) -> dict[str, dict[str, float]]:
        """What a checkpoint keeps."""
        return {"args": {}, "attributes": {"tokens": self.tokens, "seconds": self.seconds}}

    def restore(self, state: TrainerState) -> None:
        """Go on from the counts of a checkpoint, if it has any."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, dict):
            self.tokens, self.seconds = kept["attributes"]["tokens"], kept["attributes"]["seconds"]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._logged_tokens, self._logged_seconds = self.tokens, self.seconds
        self._clock = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._clock = now

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._clock = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._clock = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """For the log: target tokens per second since the last call, and all target tokens so far."""
        speed = (self.tokens - self._logged_tokens) / max(self.seconds - self._logged_seconds, 1e-9)
        self._logged_tokens, self._logged_seconds = self.tokens, self.seconds
        return {"tokens_per_second": round(speed, 1), "target_tokens": self.tokens}


def evaluation_line(step: int, logs: dict[str, float]) -> str:
    """The scores of an evaluation, on one line."""
    loss = f"loss {logs['eval_loss']:.3f}, " if "eval_loss" in logs else ""
    return (
        f"step {step}: {loss}BLEU {logs['eval_bleu']:.2f}, chrF {logs['eval_chrf']:.2f}, "
        f"TER {logs['eval_ter']:.2f} ({logs['eval_runtime']:.0f} s)"
    )


class LineCallback(TrainerCallback):
    """One line for every logging step and every evaluation in the place of a bar: for logs that are files."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "tokens_per_second" in logs:
            self.show_progress(state, f"loss {logs['loss']:.3f}, {logs['tokens_per_second']:,.0f} tokens/s")
        elif "eval_bleu" in logs:
            self.show_scores(evaluation_line(state.global_step, logs))

    def show_progress(self, state: TrainerState, text: str) -> None:
        """Loss and speed at a logging step."""
        of = f" of {state.max_steps}" if state.max_steps > 0 else ""
        print(f"step {state.global_step}{of}: training {text}", flush=True)

    def show_scores(self, line: str) -> None:
        """The scores of an evaluation."""
        print(line, flush=True)


class TokenProgressCallback(LineCallback, ProgressCallback):
    """The Trainer's progress bar with loss and tokens per second on it; only evaluations print a line."""

    def show_progress(self, state: TrainerState, text: str) -> None:
        if self.training_bar is not None:
            self.training_bar.set_postfix_str(text, refresh=False)

    def show_scores(self, line: str) -> None:
        if self.training_bar is not None:
            self.training_bar.write(line)
