"""What is measured of NLLB's size is what the systems are called."""

import pytest
import torch

import nllb_memory


@pytest.mark.parametrize("name", nllb_memory.SYSTEMS)
def test_every_system_trains_in_bfloat16(name):
    model = nllb_memory.build(name, nllb_memory.TINY)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.is_gradient_checkpointing
    trained = {parameter_name for parameter_name, p in model.named_parameters() if p.requires_grad}
    if name.endswith("LoRA"):
        assert all("lora_" in parameter_name or "modules_to_save" in parameter_name for parameter_name in trained)
        assert any("guided_head" in n for n in trained) and any("decoder.aggregation" in n for n in trained)
    else:
        assert len(trained) == len(list(model.parameters()))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    nllb_memory.train(model, sentences=2, length=3)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and moved <= trained
