"""Models whose parameters are spread over processes (FSDP, ZeRO-3): what they need, and what they cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from ..evaluation.checkpoints import absent_weights

if TYPE_CHECKING:
    from .setup import Setup
    from .trainer import CapsuleSeq2SeqTrainer


def prepare_sharding(trainer: CapsuleSeq2SeqTrainer, setup: Setup) -> None:
    """
    Make a model ready to be sharded, if it is to be, and refuse what it cannot do then, before it is trained.

    Raises:
        ValueError: says what to leave out.
    """
    check_sharding(trainer, setup)
    if trainer.is_fsdp_enabled:
        join_embeddings(setup.model)


def check_sharding(trainer: CapsuleSeq2SeqTrainer, setup: Setup) -> None:
    """
    Refuse what a model cannot do while its parameters are spread over processes.

    Raises:
        ValueError: says what to leave out.
    """
    training = setup.arguments.training
    if trainer.is_deepspeed_enabled:
        kind = "DeepSpeed ZeRO-3"
        sharded = trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    else:
        kind, sharded = "FSDP", trainer.is_fsdp_enabled
    asked = [f"{name}_file" for name in ("validation", "test") if getattr(setup, name) is not None]
    asked += ["average_checkpoints"] if training.average_checkpoints > 1 else []
    if sharded and asked:
        raise ValueError(
            f"{kind}: a sharded model can be trained, but neither translates nor is averaged; leave out "
            f"{', '.join(asked)} (and eval_strategy), and score the finished model with the command translate"
        )


def join_embeddings(model: PreTrainedModel) -> None:
    """
    Make one module of all embeddings that have the same weight.

    accelerate puts the input embedding and the output projection into one FSDP2 group, and PyTorch (2.13) refuses a
    parameter that modules of two groups have; the embeddings of encoder and decoder would be in that of the model.
    """
    shared = model.get_input_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is type(shared) and child.weight is shared.weight:
                setattr(module, name, shared)


def load_whole(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """
    Load the weights of a whole model into a sharded one; all processes do it together.

    Args:
        weights: by the names of `model.named_parameters()` and of the buffers that are saved; others are passed over.

    Raises:
        ValueError: a weight is missing.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    absent = absent_weights(model, [name for name, _ in model.named_parameters() if name not in weights])
    if absent:
        raise ValueError(f"the checkpoint lacks weights of the model: {', '.join(absent)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name not in weights:
                continue
            whole = weights[name].to(tensor.device, tensor.dtype)
            if isinstance(tensor, DTensor):
                whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.copy_(whole)


def own_part(parameter: Tensor) -> Tensor:
    """What this process has of a parameter: all of it, or its shard."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
