"""Checkpoint averages, and telling complete checkpoints from broken ones."""

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_capsule_mt.training.averaging import average_checkpoints, is_complete, last_complete_checkpoint, read_weights

RESUME_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def checkpoint(folder, step, **tensors):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    save_file(tensors or {"w": torch.full((2, 3), float(step))}, path / "model.safetensors")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for name in RESUME_FILES:
        (path / name).write_bytes(b"x")
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


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json"])
def test_checkpoint_with_a_truncated_file_is_incomplete(tmp_path, name):
    path = checkpoint(tmp_path, 1)
    (path / name).write_bytes((path / name).read_bytes()[:-2])
    assert not is_complete(path)


def test_every_process_needs_its_random_state(tmp_path):
    path = checkpoint(tmp_path, 1)
    assert not is_complete(path, world_size=2)
    for rank in range(2):
        (path / f"rng_state_{rank}.pth").write_bytes(b"x")
    assert is_complete(path, world_size=2)


def test_last_complete_checkpoint_is_by_step(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for step in (10, 9, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-100"
    (tmp_path / "checkpoint-100" / "trainer_state.json").unlink()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"
