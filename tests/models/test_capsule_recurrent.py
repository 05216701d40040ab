"""Modules of the recurrent models on their own: against the reference, under padding, and at the start."""

import copy
import math

import pytest
import torch

from hf_capsule_mt.models import capsule_recurrent
from hf_capsule_mt.models.capsule_recurrent import (
    LSTM,
    AdditiveAttention,
    CapsuleMemory,
    RNNEncoderLayer,
    SimpleMemory,
    SourceMemory,
    reorder,
    sinusoids,
)
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from hf_capsule_mt.models.modeling_capsule_rnn import RecurrentCache
from hf_capsule_mt.reference import recurrent as reference
from tiny_models import rnn_config

# the default of assert_close for float64 would not tell float32 from float64
EXACT = {"rtol": 1e-10, "atol": 1e-12}
WIDTH = rnn_config().d_model
# which of 7 positions are words: padding at the end, at the start, between words, nowhere
MASK = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1], [1] * 7]).bool()


def double(module: torch.nn.Module, std: float = 0.6) -> torch.nn.Module:
    """The module in float64 with random parameters, none of them constant."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("pieces", [(5,), (1, 1, 1, 1, 1), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_lstm_is_its_equations_in_one_call_and_in_pieces(training, pieces):
    lstm = double(LSTM(7, 3)).train(training)
    inputs, upstream = normal(2, 5, 7), normal(2, 5, 3).detach()
    state, outputs = None, []
    for piece in inputs.split(pieces, dim=1):
        output, state = lstm(piece, state)
        outputs.append(output)
    ours = torch.cat(outputs, dim=1)
    weights = dict(lstm.named_parameters())
    theirs = torch.stack([torch.stack(reference.lstm(list(row), weights)) for row in inputs])
    torch.testing.assert_close(ours, theirs, **EXACT)
    torch.testing.assert_close(state[0], theirs[:, -1], **EXACT)
    leaves = [inputs, *weights.values()]
    for a, b in zip(*(torch.autograd.grad(out, leaves, upstream) for out in (ours, theirs)), strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, **EXACT)


def test_lstm_starts_with_open_forget_gates():
    torch.manual_seed(0)
    lstm = LSTM(29, 31)
    lstm.init_weights()
    bias = (lstm.bias_ih_l0 + lstm.bias_hh_l0).unflatten(0, (4, 31))
    assert (bias[1] == 1).all() and (bias[[0, 2, 3]] == 0).all()
    for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0):
        assert 0.95 / math.sqrt(31) < weight.abs().max() <= 1 / math.sqrt(31)
        assert weight.std().item() == pytest.approx(1 / math.sqrt(3 * 31), rel=0.05)


def test_a_copied_lstm_runs_on_its_own_weights():
    lstm = double(LSTM(7, 3)).train()
    twin = copy.deepcopy(lstm)
    inputs = normal(2, 5, 7)
    with torch.no_grad():
        twin.weight_hh_l0.zero_()
    assert not torch.allclose(twin(inputs)[0], lstm(inputs)[0])


def test_encoder_layer_reads_padded_sentences_as_alone():
    layer = double(RNNEncoderLayer(rnn_config()))
    hidden, lengths = normal(3, 5, WIDTH), torch.tensor([[5], [1], [3]])
    positions = torch.arange(5)
    reversal = torch.where(positions < lengths, lengths - 1 - positions, positions).unsqueeze(-1)
    out = layer(hidden, reversal)
    for row, length in enumerate(lengths.flatten().tolist()):
        alone = layer(hidden[row : row + 1, :length], positions[:length].flip(0).view(1, length, 1))
        torch.testing.assert_close(out[row, :length], alone[0], **EXACT)


def test_reorder_puts_positions_in_the_given_order():
    states = torch.arange(24).view(2, 4, 3)
    order = torch.tensor([[3, 1, 0, 2], [0, 2, 3, 1]])
    expected = torch.stack([states[row, order[row]] for row in range(2)])
    assert torch.equal(reorder(states, order.unsqueeze(-1)), expected)


@pytest.mark.parametrize("shift", [-7.0, 7.0], ids=["negative", "positive"])
def test_simple_memory_is_equations_2_to_4_of_the_words(shift):
    # all states on one side of zero: padding read as zeros would be the maximum, or pull the mean
    states = normal(4, 7, WIDTH)
    vectors, agreements = SimpleMemory(rnn_config())(states + shift, MASK)
    assert agreements is None
    expected = [torch.stack(reference.simple_memory(list((s + shift)[m]))) for s, m in zip(states, MASK, strict=True)]
    torch.testing.assert_close(vectors, torch.stack(expected), **EXACT)
    (gradient,) = torch.autograd.grad(vectors, states, torch.randn_like(vectors))
    assert gradient[~MASK].abs().max() == 0 and gradient[MASK].abs().amin(dim=-1).min() > 0


VARIANTS = {
    "base": {"share_routing_weights": True, "position_aware_routing": False, "separable_scoring": False},
    "position-aware": {"separable_scoring": False},
    "all": {},
    "balanced": {"balanced_routing": True},
    "linear": {"message_activation": "linear"},
    "linear, scalar products": {"message_activation": "linear", "separable_scoring": False},
    "mean": {"capsule_output": "mean"},
    "positions in scores": {"routing_positions": "scores"},
    "end states": {"include_end_states": True},
    "calibrated": CALIBRATED,
    "calibrated, shared": CALIBRATED | {"share_routing_weights": True},
}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


@variants
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_capsule_memory_is_algorithm_1_of_the_words(variant, rows, monkeypatch):
    config = rnn_config(**variant)
    # the reference's softmax has no protection against large scores
    memory = double(CapsuleMemory(config), std=0.4)
    # so many of the four sentences at a time
    monkeypatch.setattr(capsule_recurrent, "MESSAGE_ELEMENTS_CPU", rows * 7 * memory.message_proj.out_features)
    states = normal(4, 7, WIDTH)
    vectors, agreements = memory(states, MASK, output_agreements=True)
    weights = dict(memory.named_parameters())
    expected = [reference.capsule_memory(config, weights, list(s[m])) for s, m in zip(states, MASK, strict=True)]
    torch.testing.assert_close(vectors, torch.stack([torch.stack(row) for row in expected]), **EXACT)
    capsules = vectors[:, : config.num_source_capsules]
    assert vectors.shape[1] == capsules.shape[1] + 2 * config.include_end_states
    if config.capsule_output == "squash":  # shorter than 1, times sqrt(d)
        assert capsules.norm(dim=-1).max() < math.sqrt(WIDTH)
    assert [a.shape for a in agreements] == [(4, 7, 5)] * 3
    for agreement in agreements:
        torch.testing.assert_close(agreement.sum(-1), MASK.double(), **EXACT)
    # balanced scores lie within (-1, 1), and hardly move an assignment
    assert agreements[2][MASK].std() > (0.01 if config.balanced_routing else 0.05)
    assert memory(states, MASK)[1] is None
    (gradient,) = torch.autograd.grad(vectors, states, torch.randn_like(vectors))
    assert gradient[~MASK].abs().max() == 0 and gradient[MASK].abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("variant", ["calibrated", "linear, scalar products", "one iteration"])
def test_linear_messages_are_made_only_where_they_are_scored_or_adapted(variant, monkeypatch):
    config = rnn_config(**VARIANTS.get(variant, CALIBRATED | {"routing_iterations": 1}))
    memory, states, seen = double(CapsuleMemory(config)), normal(4, 7, WIDTH), []
    route = capsule_recurrent.sequence_routing
    monkeypatch.setattr(capsule_recurrent, "sequence_routing", lambda *a, **k: seen.append("made") or route(*a, **k))
    vectors, _ = memory(states, MASK)
    assert seen == (["made"] if variant == "linear, scalar products" else [])
    # what stands in the place of the map, or looks at what it makes, is called
    handle = memory.message_proj.register_forward_hook(lambda *_: seen.append("seen"))
    torch.testing.assert_close(memory(states, MASK)[0], vectors, **EXACT)
    handle.remove()
    memory.message_proj = torch.nn.Sequential(memory.message_proj, torch.nn.Identity())
    memory.message_proj.out_features = memory.message_proj[0].out_features
    memory.message_proj[1].register_forward_hook(lambda *_: seen.append("adapted"))
    torch.testing.assert_close(memory(states, MASK)[0], vectors, **EXACT)
    assert seen[-4:] == ["seen", "made", "adapted", "made"]


def test_only_positions_tell_the_order_of_states():
    states, everywhere = normal(1, 7, WIDTH), torch.ones(1, 7).bool()
    for aware in (True, False):
        memory = double(CapsuleMemory(rnn_config(position_aware_routing=aware)))
        forth, back = memory(states, everywhere)[0], memory(states.flip(1), everywhere)[0]
        assert torch.allclose(forth, back, rtol=1e-9, atol=1e-11) is not aware


def test_one_iteration_scores_nothing():
    memory = CapsuleMemory(rnn_config(routing_iterations=1))
    assert [name for name, _ in memory.named_parameters()] == ["message_proj.weight"]
    assert memory.message_proj.weight.shape == (5 * WIDTH, WIDTH)
    _, (agreement,) = memory(normal(4, 7, WIDTH).float(), MASK, output_agreements=True)
    torch.testing.assert_close(agreement, MASK.unsqueeze(-1) / 5 * torch.ones(5))


def test_capsules_start_with_a_say():
    # neither vanishing capsules nor one-sided assignments before training, at the paper's size
    torch.manual_seed(0)
    memory = CapsuleMemory(rnn_config(d_model=512, num_source_capsules=6))
    for module in (memory.message_proj, memory.score[0], memory.score[2]):
        module.init_weights()
    states = torch.nn.functional.layer_norm(torch.randn(3, 19, 512), (512,))
    vectors, agreements = memory(states, torch.ones(3, 19).bool(), output_agreements=True)
    assert 0.5 < vectors.square().mean().sqrt() < 1
    assert agreements[2].mean(dim=(0, 1)).min() > 0.02 and 0.02 < agreements[2].std() < 0.4


def test_attention_is_its_formula_over_the_words():
    attention = double(AdditiveAttention(rnn_config()))
    queries, keys, values = normal(4, 3, WIDTH), 2 * normal(4, 7, WIDTH), -normal(4, 7, WIDTH)
    out, weights = attention(queries, keys, values, MASK)
    parameters = dict(attention.named_parameters())
    for row, mask in enumerate(MASK):
        words = (list(keys[row, mask]), list(values[row, mask]))
        expected = torch.stack([reference.attend(q, *words, parameters) for q in queries[row]])
        torch.testing.assert_close(out[row], expected, **EXACT)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 3, dtype=torch.float64), **EXACT)
    assert weights.transpose(1, 2)[~MASK].abs().max() == 0
    everywhere = torch.ones_like(MASK)
    assert torch.equal(attention(queries, keys, values, None)[0], attention(queries, keys, values, everywhere)[0])


@pytest.mark.parametrize("source_memory", ["simple", "capsule", "attention", "hybrid"])
def test_a_sentence_of_padding_stays_finite(source_memory):
    config = rnn_config(source_memory=source_memory)
    memory, states = double(SourceMemory(config)), normal(4, 7, WIDTH)
    mask = MASK & torch.tensor([[True], [False], [True], [True]])
    fields = memory(states, mask)
    outputs = [value for value in fields.values() if value is not None]
    if "source_keys" in fields:
        attention = double(AdditiveAttention(config))
        outputs.append(attention(normal(4, 3, WIDTH), fields["source_keys"], states, mask)[0])
    leaves = [states, *memory.parameters()]
    gradients = torch.autograd.grad(sum(out.square().sum() for out in outputs), leaves)
    assert all(tensor.isfinite().all() for tensor in (*outputs, *gradients))
    if "source_context" in fields:
        assert fields["source_context"][1].abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_sinusoids_are_those_of_the_transformer(dtype):
    positions = torch.tensor([[0, 1, 2], [31, 250, 999]])
    expected = torch.stack([reference.positional_encoding(p, WIDTH) for p in positions.flatten().tolist()])
    found = sinusoids(positions, WIDTH, dtype)
    assert found.dtype == dtype and found.shape == (2, 3, WIDTH)
    # of a position near 1000, float32 has the angle to 6e-5
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 4e-3}[dtype]
    torch.testing.assert_close(found.flatten(0, 1).double(), expected, rtol=0, atol=tolerance)


def test_cache_keeps_one_state_per_layer_and_follows_the_beams():
    cache = RecurrentCache(2)
    assert cache.get_seq_length() == 0 and [layer.state() for layer in cache.layers] == [None, None]
    states = [(torch.randn(3, 5), torch.randn(3, 5)) for _ in range(4)]
    for layer in range(2):
        cache.update(*states[layer], layer, steps=3)
        cache.update(*states[2 + layer], layer)
    assert cache.get_seq_length() == 4
    beams = torch.tensor([2, 2, 0])
    cache.reorder_cache(beams)
    for layer in range(2):
        for kept, given in zip(cache.layers[layer].state(), states[2 + layer], strict=True):
            assert torch.equal(kept, given[beams])
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.layers[1].state() is None
