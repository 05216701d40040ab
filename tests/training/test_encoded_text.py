"""A second run reads the encoded training text of the first, and trains on the same batches."""

import datasets
import pytest
import torch

from hf_capsule_mt.data import batching
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.setup import prepare


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_new_output_folder_reads_the_text_that_another_run_encoded(command, tmp_path, monkeypatch):
    first = build_trainer(prepare(parse_arguments(command(output_dir=tmp_path / "first"))))

    def refuse(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(batching, "_encode", refuse)
    second = build_trainer(prepare(parse_arguments(command(output_dir=tmp_path / "second"))))
    for batch, other in zip(first.get_train_dataloader(), second.get_train_dataloader(), strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)
    with pytest.raises(AssertionError, match="encoded again"):
        prepare(parse_arguments(command(output_dir=tmp_path / "third", max_target_length=9)))
