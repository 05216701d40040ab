"""Checkpoint averages, and telling complete checkpoints from broken ones."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from hf_capsule_mt.training.averaging import (
    average_checkpoints,
    checkpoint_step,
    checkpoints_by_step,
    find_damage,
    is_complete,
    last_complete_checkpoint,
    read_weights,
    rotate_checkpoints,
)

RESUME_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def checkpoint(folder, step, **tensors):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    save_file(tensors or {"w": torch.full((2, 3), float(step))}, path / "model.safetensors")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for name in RESUME_FILES:
        torch.save({"step": step}, path / name)
    return path


def test_average_is_taken_in_float64(tmp_path):
    # In float32 the small terms would be lost against the large one.
    values = [2.0**24, 1.0, 1.0, 1.0]
    paths = [checkpoint(tmp_path, step, w=torch.tensor([value])) for step, value in enumerate(values, 1)]
    assert average_checkpoints(paths)["w"].equal(torch.tensor([(2.0**24 + 3) / 4]))


def test_average_keeps_types_and_takes_integers_from_the_last(tmp_path):
    paths = [
        checkpoint(tmp_path, step, half=torch.full((3,), step, dtype=torch.bfloat16), count=torch.tensor([step]))
        for step in (1, 2)
    ]
    average = average_checkpoints(paths)
    assert average["half"].dtype == torch.bfloat16 and average["half"].tolist() == [1.5] * 3
    assert average["count"].dtype == torch.int64 and average["count"].tolist() == [2]


def test_average_of_one_is_that_one(tmp_path):
    weights = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(average_checkpoints([checkpoint(tmp_path, 1, w=weights)])["w"], weights)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"w": torch.zeros(3)}, id="shape"),
        pytest.param({"v": torch.zeros(2)}, id="name"),
        pytest.param({"w": torch.zeros(2, dtype=torch.float64)}, id="type"),
    ],
)
def test_checkpoints_of_different_models_are_refused(tmp_path, other):
    paths = [checkpoint(tmp_path, 1, w=torch.zeros(2)), checkpoint(tmp_path, 2, **other)]
    with pytest.raises(ValueError, match="are not checkpoints of one model"):
        average_checkpoints(paths)


def test_nothing_to_average():
    with pytest.raises(ValueError, match="no checkpoints to average"):
        average_checkpoints([])


def test_truncated_weights_are_named(tmp_path):
    path = checkpoint(tmp_path, 1)
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"checkpoint-1/model\.safetensors is truncated or damaged"):
        read_weights(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no weights in .*checkpoint-1: model\.safetensors is missing"):
        read_weights(path)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json", *RESUME_FILES])
def test_checkpoint_without_a_file_is_incomplete(tmp_path, name):
    path = checkpoint(tmp_path, 1)
    assert is_complete(path)
    (path / name).unlink()
    assert not is_complete(path)
    assert is_complete(path, resumable=False) == (name in RESUME_FILES)


DAMAGES = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[:-2],
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json", *RESUME_FILES])
def test_checkpoint_with_a_damaged_file_is_incomplete(tmp_path, name, damage):
    path = checkpoint(tmp_path, 1)
    (path / name).write_bytes(damage((path / name).read_bytes()))
    assert find_damage(path) == f"{name} is truncated or damaged"
    assert is_complete(path, resumable=False) == (name in RESUME_FILES)


def test_one_wrong_bit_of_an_optimizer_is_damage(tmp_path):
    path = checkpoint(tmp_path, 1)
    torch.save({"w": torch.arange(100.0)}, path / "optimizer.pt")
    content = bytearray((path / "optimizer.pt").read_bytes())
    content[content.index(torch.arange(100.0).numpy().tobytes()) + 40] ^= 1
    (path / "optimizer.pt").write_bytes(content)
    assert find_damage(path) == "optimizer.pt is truncated or damaged"


@pytest.mark.parametrize(
    "state", ["{}", "[]", '{"global_step": null}', "[" * 100_000], ids=["none", "list", "null", "deep"]
)
def test_state_that_is_none_is_damage(tmp_path, state):
    path = checkpoint(tmp_path, 1)
    (path / "trainer_state.json").write_text(state)
    assert find_damage(path).startswith("trainer_state.json is")


def test_state_of_another_checkpoint_is_damage(tmp_path):
    path = checkpoint(tmp_path, 7)
    shutil.copy(checkpoint(tmp_path, 8) / "trainer_state.json", path)
    assert find_damage(path) == "trainer_state.json is that of update 8"
    # a copy of a checkpoint may have any name
    assert find_damage(path.rename(tmp_path / "kept")) is None


def steps(folder) -> list[int]:
    return [checkpoint_step(path) for path in checkpoints_by_step(folder)]


def test_rotation_goes_by_the_step_and_not_by_the_time(tmp_path):
    for step in (120, 150, 180, 90):
        checkpoint(tmp_path, step)
    os.utime(tmp_path / "checkpoint-180", (0, 0))
    rotate_checkpoints(tmp_path, 2, step=180, protected=())
    assert steps(tmp_path) == [150, 180]


def test_rotation_takes_what_is_not_whole_first_and_keeps_the_best(tmp_path):
    for step in (30, 60, 90, 120, 150):
        checkpoint(tmp_path, step)
    # interrupted while it was deleted, and while it was written
    (tmp_path / "checkpoint-90" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-120" / "model.safetensors").write_bytes(b"")
    rotate_checkpoints(tmp_path, 3, step=150, protected={30})
    assert steps(tmp_path) == [30, 60, 150]
    rotate_checkpoints(tmp_path, 1, step=150, protected={30})
    assert steps(tmp_path) == [30, 150]


def test_rotation_takes_later_checkpoints_of_a_run_that_was_taken_back(tmp_path):
    for step in (30, 60, 75, 90):
        checkpoint(tmp_path, step)
    rotate_checkpoints(tmp_path, 3, step=75, protected=())
    assert steps(tmp_path) == [30, 60, 75]


@pytest.mark.parametrize("limit", [None, 0, 4, 9])
def test_rotation_within_the_limit_deletes_nothing(tmp_path, limit):
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-2" / "model.safetensors").unlink()
    rotate_checkpoints(tmp_path, limit, step=4, protected=())
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_deletion_that_is_interrupted_leaves_nothing_that_passes_for_whole(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint(tmp_path, step)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    rotate_checkpoints(tmp_path, 1, step=2, protected=())
    assert not is_complete(tmp_path / "checkpoint-1", resumable=False)


def test_every_process_needs_its_random_state(tmp_path):
    path = checkpoint(tmp_path, 1)
    assert not is_complete(path, world_size=2)
    for rank in range(2):
        torch.save({}, path / f"rng_state_{rank}.pth")
    assert is_complete(path, world_size=2)


def test_last_complete_checkpoint_is_by_step(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for step in (10, 9, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-100"
    (tmp_path / "checkpoint-100" / "trainer_state.json").unlink()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"
