"""What a trained model makes of the parts that were added to it: the loss of given translations without each of them.

A part that routes and a part that is used are two things: a gate may have stayed shut, and capsules may go unread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import IGNORE_INDEX
from ..models.pipeline_translation import evaluation_mode
from .routing_statistics import check_pairs, forced_batches

GATE, READER = "aggregation.gate", "guided_head.input_proj.weight"


def removable_parts(model: PreTrainedModel) -> dict[str, dict[str, Tensor]]:
    """
    The parts that a model can do without, and the parameters with which it does.

    Returns:
        By part, the parameters that take the place of the model's own, by name: of "encoder" and "decoder", the gate
        of the stack's aggregate, at zero (the output is then the top layer's); of "guided", the weights that read PAST
        and FUTURE, at zero. Aggregates that replace the top layer (`aggregation_init="paper"`) are no such part, nor
        is the source memory of a recurrent model.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        for stack in ("encoder", "decoder"):
            if name.endswith(f"{stack}.{GATE}"):
                parts[stack] = {name: torch.zeros_like(parameter)}
        if name.endswith(READER):
            without = parameter.detach().clone()
            # the columns of z come first
            without[:, model.config.d_model :] = 0
            parts["guided"] = {name: without}
    return parts


def contributions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[str],
    *,
    max_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
    warn: bool = True,
) -> dict[str, float]:
    """
    Loss of given translations (the references, say), whole and without each part that was added to the model.

    It says what the trained model makes of a part; a model that was trained without it may do as well. The model's
    mode (training or evaluation) and parameters are kept.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer.
        sources, translations: raw text, line by line, as in `routing_statistics.collect`.
        max_tokens, progress: as there.
        warn: say how many pairs were cut to what the model can read.

    Returns:
        "loss", nats per target token, the ends of the sentences included, without label smoothing, and
        "without_encoder", "without_decoder" and "without_guided", as far as the model has them (`removable_parts`);
        empty for a model that has none, which is not run.

    Raises:
        ValueError: not as many translations as sources, no pair, or `max_tokens` below one.
    """
    check_pairs(sources, translations, max_tokens)
    without = removable_parts(model)
    if not without:
        return {}
    losses = dict.fromkeys(["loss", *(f"without_{part}" for part in without)], 0.0)
    num_tokens = 0
    with evaluation_mode(model), torch.no_grad():
        for batch in forced_batches(model, tokenizer, sources, translations, max_tokens, progress, warn):
            num_tokens += int((batch["labels"] != IGNORE_INDEX).sum())
            for name, parameters in zip(losses, [{}, *without.values()], strict=True):
                losses[name] += _loss(model, parameters, batch)
    return {name: loss / num_tokens for name, loss in losses.items()}


def _loss(model: PreTrainedModel, parameters: dict[str, Tensor], batch: dict[str, Tensor]) -> float:
    """Sum over the target tokens, with these parameters in the place of the model's own."""
    inputs: dict[str, Any] = {name: value for name, value in batch.items() if name != "labels"}
    logits = functional_call(model, parameters, kwargs={**inputs, "use_cache": False}).logits
    labels = batch["labels"]
    return float(
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
    )
