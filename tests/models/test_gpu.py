"""Systems compute on a GPU what they compute on a CPU: losses, gradients, translations."""

import copy

import pytest
import torch

from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from tiny_models import capsule_model, gradients, rnn_model, sentence_batch

pytestmark = pytest.mark.gpu

LOSSES = dict(bow_loss_weight=1.0, bca_loss_weight=1.0)
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
    "calibrated": {"source_memory": "capsule", **CALIBRATED},
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
    if request.param in MARIAN:
        model = capsule_model(dropout=0.0, init_std=0.02, **MARIAN[request.param])
    else:
        model = rnn_model(dropout=0.0, **RECURRENT[request.param])
    return copy.deepcopy(model).double(), model.cuda()


def test_loss_and_gradients(models):
    cpu, gpu = models
    batch = sentence_batch()
    expected = cpu.train()(**batch).loss
    found = gpu.train()(**{name: tensor.cuda() for name, tensor in batch.items()}).loss
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-4, atol=1e-5)
    expected.backward()
    found.backward()
    theirs, ours = gradients(cpu), gradients(gpu)
    assert theirs.keys() == ours.keys()
    for name, gradient in theirs.items():
        error = (ours[name].cpu().double() - gradient).norm() / gradient.norm().clamp(min=1e-4)
        assert error < 1e-3, name


def test_bfloat16_is_near(models):
    cpu, gpu = models
    batch = sentence_batch()
    expected = cpu(**batch).loss
    with torch.autocast("cuda", torch.bfloat16):
        found = gpu(**{name: tensor.cuda() for name, tensor in batch.items()}).loss
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("beams", [1, 4])
def test_translations(models, beams):
    cpu, gpu = models
    batch = sentence_batch()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = cpu.generate(**source, num_beams=beams, max_new_tokens=12)
    found = gpu.generate(
        **{name: tensor.cuda() for name, tensor in source.items()}, num_beams=beams, max_new_tokens=12
    )
    assert found.tolist() == expected.tolist()
