"""Checkpoints on disk: which of them are complete, which go, and the average of several."""

from __future__ import annotations

import json
import logging
import re
import shutil
import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..loading import check_is_no_pickle

logger = logging.getLogger(__name__)

WEIGHTS, STATE = "model.safetensors", "trainer_state.json"


def checkpoint_step(checkpoint: Path) -> int:
    """STEP of a folder checkpoint-STEP; -1 for one of another name."""
    name = re.fullmatch(r"checkpoint-([0-9]+)", checkpoint.name)
    return int(name[1]) if name else -1


def checkpoints_by_step(output_dir: str | Path) -> list[Path]:
    """The folders checkpoint-STEP of a run, complete or not, by step."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if checkpoint_step(path) >= 0 and path.is_dir()]
    return sorted(found, key=checkpoint_step)


def find_damage(checkpoint: Path, world_size: int = 1, *, resumable: bool = True) -> str | None:
    """
    What keeps a checkpoint from being whole, as where the run was killed while saving or deleting it.

    Args:
        checkpoint: its folder.
        world_size: number of processes of the run to be resumed, each with its own random state.
        resumable: also require what only a resumed run needs (not there with --save_only_model).

    Returns:
        The file at fault and what is wrong with it, or None.
    """
    archives = []
    if resumable:
        random_states = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{r}.pth" for r in range(world_size)]
        # that of a sharded model has another name
        optimizer = "optimizer.bin" if (checkpoint / "optimizer.bin").is_file() else "optimizer.pt"
        archives = [optimizer, "scheduler.pt", *random_states]
    for name in (WEIGHTS, *archives, STATE):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    try:
        # Written last, hence whole only if everything before it is.
        step = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"{STATE} is truncated or damaged"
    if not isinstance(step, int) or checkpoint_step(checkpoint) not in (step, -1):
        return f"{STATE} is that of update {step}"
    try:
        check_weights_file(checkpoint / WEIGHTS)
    except (OSError, ValueError):
        return f"{WEIGHTS} is truncated or damaged"
    return next((f"{name} is truncated or damaged" for name in archives if not _is_whole(checkpoint / name)), None)


def _is_whole(archive: Path) -> bool:
    """Whether a file of torch.save, a zip archive, has its end and the right checksums."""
    try:
        with zipfile.ZipFile(archive) as content:
            return content.testzip() is None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError):
        return False


def is_complete(checkpoint: Path, world_size: int = 1, *, resumable: bool = True) -> bool:
    """Whether a checkpoint was written to the end; see `find_damage`."""
    return find_damage(checkpoint, world_size, resumable=resumable) is None


def last_complete_checkpoint(output_dir: str | Path, world_size: int = 1) -> Path | None:
    """The latest checkpoint that a run can be resumed from; a warning names later ones that are incomplete."""
    for checkpoint in reversed(checkpoints_by_step(output_dir)):
        damage = find_damage(checkpoint, world_size)
        if damage is None:
            return checkpoint
        logger.warning(f"{checkpoint} is incomplete ({damage}; killed while it was saved?) and is passed over")
    return None


def rotate_checkpoints(output_dir: str | Path, limit: int | None, step: int, protected: Collection[int]) -> None:
    """
    Delete checkpoints until no more than `limit` are left.

    First go those that are not whole, then those of later updates, which are from before the run was taken back to an
    earlier checkpoint, then the oldest ones. The order is that of the steps: a time of change says nothing in a copied
    folder, nor of a checkpoint whose deletion was interrupted.

    Args:
        output_dir: the folder of the run.
        limit: how many to keep; None or 0 keeps all.
        step: that of the checkpoint just saved, which is never deleted.
        protected: steps of others that are never deleted.
    """
    if not limit:
        return
    checkpoints = checkpoints_by_step(output_dir)
    kept = {step, *protected}
    order = [path for path in checkpoints if checkpoint_step(path) not in kept]
    # stable: within each kind by step
    order.sort(key=lambda path: (is_complete(path, resumable=False), checkpoint_step(path) < step))
    for checkpoint in order[: max(0, len(checkpoints) - limit)]:
        # what is deleted in part must not pass for whole
        (checkpoint / STATE).unlink(missing_ok=True)
        shutil.rmtree(checkpoint, ignore_errors=True)


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
