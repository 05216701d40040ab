"""Every system computes on a GPU what it computes on a CPU: losses, gradients, translations."""

import copy

import pytest
import torch

from hf_capsule_mt import (
    CapsuleMarianConfig,
    CapsuleMarianMTModel,
    CapsuleRNNConfig,
    CapsuleRNNForConditionalGeneration,
)

pytestmark = pytest.mark.gpu

SIZES = dict(vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, pad_token_id=0, eos_token_id=1)
SIZES |= dict(decoder_start_token_id=0, forced_eos_token_id=1, dropout=0.0)
LOSSES = dict(guided_capsule_size=8, bow_loss_weight=1.0, bca_loss_weight=1.0)
MARIAN = {
    "none": {},
    "linear": {"aggregation": "linear"},
    "dynamic": {"aggregation": "dynamic"},
    "dynamic_routing": {"aggregation": "dynamic_routing"},
    "em_routing": {"aggregation": "em_routing"},
    "guided_routing": {"guided_routing": "routing", **LOSSES},
    "guided_classifier": {"guided_routing": "classifier", **LOSSES},
    "guided_attention": {"guided_routing": "attention", **LOSSES},
    "guided_recurrent": {"guided_routing": "recurrent", **LOSSES},
    "everything": {"aggregation": "em_routing", "guided_routing": "routing", **LOSSES},
}
RECURRENT = {
    "simple": {"source_memory": "simple"},
    "capsule": {"source_memory": "capsule"},
    "calibrated": {
        "source_memory": "capsule",
        "capsule_output": "mean",
        "message_activation": "linear",
        "routing_positions": "scores",
        "balanced_routing": True,
    },
    "attention": {"source_memory": "attention", "guided_routing": "routing", **LOSSES},
    "hybrid": {"source_memory": "hybrid"},
}


@pytest.fixture(params=[*MARIAN, *RECURRENT])
def models(request, monkeypatch):
    """A system with its gates open, on a CPU in float64 and on a GPU in float32."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    # the matrix units' short float32, which cuDNN takes unasked
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    if request.param in MARIAN:
        sizes = dict(encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4)
        model = CapsuleMarianMTModel(
            CapsuleMarianConfig(**SIZES, **sizes, max_position_embeddings=64, **MARIAN[request.param])
        )
    else:
        model = CapsuleRNNForConditionalGeneration(CapsuleRNNConfig(**SIZES, **RECURRENT[request.param]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate", "guided_head.output_proj.weight")):
                parameter.normal_(std=0.3)
    return copy.deepcopy(model).double(), model.cuda()


def batch() -> dict[str, torch.Tensor]:
    """Three padded sentences with their translations."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(3, 60, (3, 9), generator=generator)
    labels = torch.randint(3, 60, (3, 7), generator=generator)
    source[1, 5:], labels[2, 4:] = 0, -100
    return {"input_ids": source, "attention_mask": source.ne(0).long(), "labels": labels}


def test_loss_and_gradients(models):
    cpu, gpu = models
    expected = cpu.train()(**batch()).loss
    found = gpu.train()(**{name: tensor.cuda() for name, tensor in batch().items()}).loss
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-4, atol=1e-5)
    expected.backward()
    found.backward()
    for (name, theirs), ours in zip(cpu.named_parameters(), gpu.parameters(), strict=True):
        assert (theirs.grad is None) == (ours.grad is None), name
        if theirs.grad is not None:
            error = (ours.grad.cpu().double() - theirs.grad).norm() / theirs.grad.norm().clamp(min=1e-4)
            assert error < 1e-3, name


def test_bfloat16_is_near(models):
    cpu, gpu = models
    expected = cpu.eval()(**batch()).loss
    with torch.autocast("cuda", torch.bfloat16):
        found = gpu.eval()(**{name: tensor.cuda() for name, tensor in batch().items()}).loss
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("beams", [1, 4])
def test_translations(models, beams):
    cpu, gpu = models
    source = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    expected = cpu.eval().generate(**source, num_beams=beams, max_new_tokens=12)
    found = gpu.eval().generate(
        **{name: tensor.cuda() for name, tensor in source.items()}, num_beams=beams, max_new_tokens=12
    )
    assert found.tolist() == expected.tolist()
