"""Checkpoints on disk: which of them are complete, and the average of several."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..loading import check_is_no_pickle

logger = logging.getLogger(__name__)

WEIGHTS, STATE = "model.safetensors", "trainer_state.json"


def checkpoints_by_step(output_dir: str | Path) -> list[Path]:
    """The folders checkpoint-STEP of a run, complete or not, by step."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name.rpartition("-")[2]))


def is_complete(checkpoint: Path, world_size: int = 1, *, resumable: bool = True) -> bool:
    """
    Whether a checkpoint was written to the end, i.e. the run was not killed while saving it.

    Args:
        checkpoint: its folder.
        world_size: number of processes of the run to be resumed, each with its own random state.
        resumable: also require what only a resumed run needs (not there with --save_only_model).
    """
    needed = [checkpoint / WEIGHTS]
    if resumable:
        random_states = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{r}.pth" for r in range(world_size)]
        needed += [checkpoint / name for name in ("optimizer.pt", "scheduler.pt", *random_states)]
    if not all(path.is_file() for path in needed):
        return False
    try:
        # Written last, hence whole only if everything before it is.
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        with safe_open(checkpoint / WEIGHTS, framework="pt"):
            return True
    except (OSError, ValueError, SafetensorError):
        return False


def last_complete_checkpoint(output_dir: str | Path, world_size: int = 1) -> Path | None:
    """The latest checkpoint that a run can be resumed from; a warning names later ones that are incomplete."""
    for checkpoint in reversed(checkpoints_by_step(output_dir)):
        if is_complete(checkpoint, world_size):
            return checkpoint
        logger.warning(f"{checkpoint} is incomplete (killed while it was saved?) and is passed over")
    return None


def average_checkpoints(checkpoints: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """
    The average of the weights of several checkpoints, summed in float64 and returned in their own types.

    Args:
        checkpoints: folders with a `model.safetensors`. Tensors that are not floating point are the last one's.

    Raises:
        ValueError: none given, a broken file, or checkpoints whose tensors differ in names, shapes or types.
    """
    if not checkpoints:
        raise ValueError("there are no checkpoints to average")
    first = read_weights(checkpoints[0])
    sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
    signature = {name: (tensor.shape, tensor.dtype) for name, tensor in first.items()}
    last = first
    for checkpoint in checkpoints[1:]:
        last = read_weights(checkpoint)
        if {name: (tensor.shape, tensor.dtype) for name, tensor in last.items()} != signature:
            raise ValueError(f"{checkpoints[0]} and {checkpoint} are not checkpoints of one model: tensors differ")
        for name, total in sums.items():
            total += last[name]
    return {
        name: (sums[name] / len(checkpoints)).to(tensor.dtype) if name in sums else tensor
        for name, tensor in last.items()
    }


def read_weights(checkpoint: str | Path) -> dict[str, torch.Tensor]:
    """
    The tensors of a checkpoint folder, on the CPU.

    Raises:
        ValueError: the file is missing or truncated.
    """
    path = Path(checkpoint) / WEIGHTS
    check_weights_file(path)
    with safe_open(path, framework="pt") as weights:
        return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 (not a dictionary)


def check_weights_file(path: Path) -> None:
    """
    Check the header of a safetensors file against its size.

    Raises:
        ValueError: the file is missing, truncated, or a pickle.
    """
    if not path.is_file():
        raise ValueError(f"no weights in {path.parent}: {path.name} is missing")
    check_is_no_pickle(path)
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(
            f"{path} is truncated or damaged ({error}): copy it again, or use an earlier checkpoint"
        ) from None
