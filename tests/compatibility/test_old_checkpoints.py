"""Checkpoints of earlier versions load without missing weights and translate as they did."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import hf_capsule_mt  # noqa: F401 (registers the models)
from tiny_models import PAD

CHECKPOINTS = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))


def test_there_are_checkpoints():
    assert len(CHECKPOINTS) >= 4


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: folder.name)
def test_old_checkpoint_translates_the_same(folder):
    expected = json.loads((folder / "expected.json").read_text())
    model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    source = torch.tensor(expected["input_ids"])
    mask = source.ne(PAD).long()
    generated = model.generate(source, attention_mask=mask, max_new_tokens=8)
    assert generated.tolist() == expected["generated"]
    loss = model(input_ids=source, attention_mask=mask, labels=torch.tensor(expected["labels"])).loss.item()
    assert loss == pytest.approx(expected["loss"], rel=1e-4)
