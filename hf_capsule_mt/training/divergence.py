"""A run whose loss or weights are no numbers any more stops before it saves anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .failures import RunFailure
from .sharding import own_part

# Each skipped update halves the loss scale; after so many in a row, no scale is left that float16 could bear.
MAX_SKIPPED_UPDATES = 40


class DivergenceCallback(TrainerCallback):
    """
    Looks for losses and weights that are not finite.

    The losses are watched on the device, and looked at, as the weights are, where the run waits for it anyway: before
    it logs, evaluates, saves and ends. The Trainer's own log hides them (`logging_nan_inf_filter`). Updates that a
    gradient scaler skips (float16) do not count: it lowers its scale, and tries again.

    Args:
        total: adds up a tensor over all processes, so that all of them stop together.
    """

    def __init__(self, total: Callable[[Tensor], Tensor]) -> None:
        self._total = total
        # Of the micro-batches of this update; of the updates since the last look.
        self._finite: Tensor | None = None
        self._bad_updates: Tensor | None = None
        self._looked_at, self._skipped = 0, 0

    def observe(self, loss: Tensor) -> None:
        """Take note of the loss of a micro-batch, without waiting for it."""
        finite = loss.detach().isfinite().all()
        self._finite = finite if self._finite is None else self._finite & finite

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._looked_at = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        finite, self._finite = self._finite, None
        if getattr(kwargs.get("optimizer"), "step_was_skipped", False):
            self._skipped += 1
            if self._skipped >= MAX_SKIPPED_UPDATES:
                raise _diverged(f"the last {self._skipped} updates had gradients that are not finite", args, state)
        else:
            self._skipped = 0
            if finite is not None:
                bad = (~finite).float()
                self._bad_updates = bad if self._bad_updates is None else self._bad_updates + bad
        if control.should_training_stop:
            self._look(args, state, kwargs["model"])
        else:
            self.on_epoch_end(args, state, control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if control.should_log or control.should_evaluate or control.should_save:
            self._look(args, state, kwargs["model"])

    def _look(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        largest = largest_weight(model)
        bad = torch.zeros_like(largest) if self._bad_updates is None else self._bad_updates
        losses, weights = self._total(torch.stack([bad.to(largest), (~largest.isfinite()).to(largest)])).tolist()
        since, self._looked_at, self._bad_updates = self._looked_at, state.global_step, None
        when = (
            f"update {state.global_step}"
            if state.global_step <= since + 1
            else (f"one of the updates {since + 1} to {state.global_step}")
        )
        if losses:
            raise _diverged(f"the loss of {when} is not finite", args, state)
        if weights:
            names = ", ".join(nonfinite_weights(model)[:1])
            raise _diverged(f"since {when} there are weights that are not finite, such as {names}", args, state)


def largest_weight(model: nn.Module) -> Tensor:
    """
    The largest absolute value of all parameters, a float32 scalar on their device; not finite if one of them is. Of a
    sharded model, that of the parts that this process has, which are none with ZeRO-3.
    """
    parts = [own_part(parameter.detach()) for parameter in model.parameters()]
    # a parameter with few rows has none for some processes
    largest = nn.utils.get_total_norm([part for part in parts if part.numel()], float("inf"))
    return largest.to(parts[0].device, torch.float32)


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Names of the parameters that have values that are not finite; all processes of a sharded model ask together."""
    return [name for name, parameter in model.named_parameters() if not _whole(parameter.detach()).isfinite().all()]


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _diverged(what: str, args: TrainingArguments, state: TrainerState) -> RunFailure:
    precision = ", or bf16 in the place of fp16" if args.fp16 else ""
    return RunFailure(
        f"the run has diverged: {what}; nothing of it was saved, earlier checkpoints are as they were. Remedies: a "
        f"lower learning_rate (now {args.learning_rate:g}), more warmup_steps (now {args.warmup_steps:g}), a smaller "
        f"max_grad_norm (now {args.max_grad_norm:g}){precision}; --resume_from_checkpoint true goes on from the last "
        "complete checkpoint"
    )
