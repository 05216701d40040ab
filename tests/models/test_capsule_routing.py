"""The routing functions against the paper-literal reference, in outputs and gradients, and at their extremes."""

import itertools
import math

import pytest
import torch

from hf_capsule_mt.models.capsule_routing import (
    VARIANCE_FLOOR,
    dynamic_routing,
    em_routing,
    inverse_temperature_schedule,
    squash,
)
from hf_capsule_mt.reference import layer_routing as reference

SHAPES = [(1, 1, 1), (1, 5, 1), (3, 1, 2), (3, 7, 1), (6, 5, 3), (2, 4, 5)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=[f"L{s[0]}-N{s[1]}-D{s[2]}" for s in SHAPES])
densities = pytest.mark.parametrize("geometric_mean", [False, True], ids=["product", "geometric-mean"])
iterations = pytest.mark.parametrize("num_iterations", [1, 2, 3, 5], ids=lambda r: f"R{r}")


def make_inputs(shape, leading=(2, 3), dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape))
    num_layers, num_capsules, _ = shape
    votes = scale * torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)
    activations = torch.rand(*leading, num_layers, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    beta_a, beta_mu = torch.randn(2, num_capsules, generator=generator, dtype=torch.float64)
    inputs = [votes.to(dtype), activations.to(dtype), beta_a.to(dtype), beta_mu.to(dtype)]
    return [tensor.clone().requires_grad_() for tensor in inputs]


def reference_dynamic(votes, num_iterations):
    rows = [reference.dynamic_routing(row, num_iterations) for row in votes.flatten(0, -4)]
    capsules = torch.stack([capsules for capsules, _ in rows]).unflatten(0, votes.shape[:-3])
    history = [torch.stack(step).unflatten(0, votes.shape[:-3]) for step in zip(*[h for _, h in rows], strict=True)]
    return capsules, history


def reference_em(votes, activations, beta_a, beta_mu, temperatures, geometric_mean):
    rows = [
        reference.em_routing(v, a, beta_a, beta_mu, list(temperatures), VARIANCE_FLOOR, geometric_mean)
        for v, a in zip(votes.flatten(0, -4), activations.flatten(0, -2), strict=True)
    ]
    capsules = torch.stack([capsules for capsules, _ in rows]).unflatten(0, votes.shape[:-3])
    history = [torch.stack(step).unflatten(0, votes.shape[:-3]) for step in zip(*[h for _, h in rows], strict=True)]
    return capsules, history


def assert_same_with_gradients(fast, slow, inputs):
    """Outputs agree, and so do all gradients under one random upstream gradient."""
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-11)
    upstream = torch.randn(fast.shape, generator=torch.Generator().manual_seed(1), dtype=fast.dtype)
    fast_gradients = torch.autograd.grad(fast, inputs, upstream, allow_unused=True)
    slow_gradients = torch.autograd.grad(slow, inputs, upstream, allow_unused=True)
    for a, b, tensor in zip(fast_gradients, slow_gradients, inputs, strict=True):
        zero = torch.zeros_like(tensor)
        a, b = (zero if g is None else g for g in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    assert any(g is not None and g.abs().max() > 1e-6 for g in slow_gradients)


@shapes
@iterations
def test_dynamic_routing_is_algorithm_1(shape, num_iterations):
    votes = make_inputs(shape, scale=3.0)[0]
    fast = dynamic_routing(votes, num_iterations, return_all_agreements=True)
    capsules, history = reference_dynamic(votes, num_iterations)
    assert_same_with_gradients(fast.capsules, capsules, [votes])
    for ours, theirs in zip(fast.agreements, history, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fast.agreement, fast.agreements[-1], rtol=0, atol=0)


@shapes
@iterations
@densities
def test_em_routing_is_algorithm_2(shape, num_iterations, geometric_mean):
    inputs = make_inputs(shape)
    temperatures = inverse_temperature_schedule(num_iterations, final=3.0)
    fast = em_routing(*inputs, temperatures, geometric_mean=geometric_mean, return_all_agreements=True)
    capsules, history = reference_em(*inputs, temperatures, geometric_mean)
    assert_same_with_gradients(fast.capsules, capsules, inputs)
    for ours, theirs in zip(fast.agreements, history, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def test_dynamic_routing_gradcheck():
    votes = make_inputs((3, 4, 2), leading=(2,))[0]
    assert torch.autograd.gradcheck(lambda v: dynamic_routing(v, 3)[:2], (votes,))


@densities
def test_em_routing_gradcheck(geometric_mean):
    inputs = make_inputs((3, 4, 2), leading=(2,))
    temperatures = inverse_temperature_schedule(3, 2.0)
    assert torch.autograd.gradcheck(lambda *x: em_routing(*x, temperatures, geometric_mean=geometric_mean)[:2], inputs)


def test_densities_differ_for_capsules_of_several_dimensions_alone():
    for shape, differ in (((3, 6, 1), False), ((3, 2, 3), True)):
        inputs = make_inputs(shape)
        product, mean = (em_routing(*inputs, [1.0, 1.0], geometric_mean=g).agreement for g in (False, True))
        assert torch.equal(product, mean) is not differ


def test_few_large_capsules_pass_on_smaller_gradients_with_the_geometric_mean():
    # the assignments of products jump from one capsule to another, and gradients with them
    inputs = make_inputs((2, 4, 32), leading=(64,))
    sizes = []
    for geometric_mean in (False, True):
        out = em_routing(*inputs, inverse_temperature_schedule(3), geometric_mean=geometric_mean).capsules
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        sizes.append(torch.autograd.grad(out, inputs[0], upstream)[0].norm().item())
    assert sizes[0] > 2 * sizes[1]


def test_squash_gradcheck_and_length():
    s = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (s,))
    q = s.detach().square().sum(-1)
    torch.testing.assert_close(squash(s).detach().norm(dim=-1), q / (1 + q))


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_entropy_starts_at_log_n_for_512_capsules(routing):
    votes, activations, beta_a, beta_mu = make_inputs((6, 512, 1), leading=(2,))
    if routing == "dynamic":
        agreements = dynamic_routing(votes * 40, 3, return_all_agreements=True).agreements
    else:
        temperatures = inverse_temperature_schedule(3)
        agreements = em_routing(
            votes, activations, beta_a, beta_mu, temperatures, return_all_agreements=True
        ).agreements
    entropies = [-(c * c.log()).sum(-1).mean().item() for c in agreements]
    assert entropies[0] == pytest.approx(math.log(512), abs=1e-12)
    assert round(entropies[0], 2) == 6.24
    assert entropies[1] < entropies[0] - 0.01 and entropies[2] < entropies[1]


def test_agreements_sum_to_one_over_output_capsules():
    inputs = make_inputs((3, 7, 2))
    for agreement in em_routing(*inputs, [0.5, 1.0, 2.0], return_all_agreements=True).agreements:
        torch.testing.assert_close(agreement.sum(-1), torch.ones_like(agreement.sum(-1)))


def test_one_iteration_of_dynamic_routing_is_the_uniform_mixture():
    votes = make_inputs((3, 4, 2))[0]
    torch.testing.assert_close(dynamic_routing(votes, 1).capsules, squash(votes.sum(-3) / 4))


def test_em_mean_of_starved_capsule_is_not_pulled_to_zero():
    # capsule 1 loses every input to capsule 0 after one iteration, yet its mean stays among its votes
    votes = torch.tensor([[[1.0], [500.0]], [[1.0], [900.0]]])
    out = em_routing(votes, torch.full((2,), 0.5), 0.0, 0.0, [1.0, 1.0, 1.0])
    assert out.agreement[:, 1].max() < 1e-2
    activation = torch.sigmoid(torch.tensor(0.0))  # mass 0: no cost, beta_a 0
    assert 500 * activation <= out.capsules[1, 0] <= 900 * activation


EXTREMES = {
    "identical votes": lambda v, a: (torch.ones_like(v) * 0.7, a),
    "zero votes": lambda v, a: (torch.zeros_like(v), a),
    "votes of 1e4": lambda v, a: (1e4 * torch.sign(v), a),
    "votes of 1e4 and 0": lambda v, a: (1e4 * (v > 0).to(v.dtype), a),
    "activations 0": lambda v, a: (v, torch.zeros_like(a)),
    "activations 1": lambda v, a: (v, torch.ones_like(a)),
    "activations 0 and 1": lambda v, a: (v, (a > 0.5).to(a.dtype)),
    "identical large votes": lambda v, a: (torch.full_like(v, 1e4), a),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 6, 2), (4, 1, 3), (3, 6, 1), (2, 64, 1)], ids=str)
def test_extreme_inputs_stay_finite(shape, extreme, dtype):
    votes, activations, beta_a, beta_mu = (x.detach() for x in make_inputs(shape, dtype=dtype))
    votes, activations = EXTREMES[extreme](votes, activations)
    for routing in ("dynamic", "em"):
        inputs = [x.clone().requires_grad_() for x in (votes, activations, beta_a, beta_mu)]
        if routing == "dynamic":
            out = dynamic_routing(inputs[0], 3)
        else:
            out = em_routing(*inputs, inverse_temperature_schedule(3))
        assert out.capsules.dtype == dtype and out.agreement.dtype == torch.float32
        # divided before the sum: the loss itself must not overflow in fp16
        (out.capsules.float() / out.capsules.numel()).sum().backward()
        assert out.capsules.isfinite().all() and out.agreement.isfinite().all()
        for tensor in inputs:
            assert tensor.grad is None or tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_low_precision_inputs_are_routed_in_float32(dtype):
    inputs = [x.detach() for x in make_inputs((3, 8, 2), dtype=dtype)]
    wide = [x.float() for x in inputs]
    temperatures = inverse_temperature_schedule(3)
    low, high = em_routing(*inputs, temperatures), em_routing(*wide, temperatures)
    torch.testing.assert_close(low.agreement, high.agreement, rtol=0, atol=0)
    torch.testing.assert_close(low.capsules, high.capsules.to(dtype), rtol=0, atol=0)


def test_autocast_does_not_change_the_inner_precision():
    inputs = [x.detach().float() for x in make_inputs((3, 8, 2))]
    expected = em_routing(*inputs, [1.0, 1.0])
    with torch.autocast("cpu", torch.bfloat16):
        ours = em_routing(*inputs, [1.0, 1.0])
        dynamic = dynamic_routing(inputs[0], 3)
    torch.testing.assert_close(ours.capsules, expected.capsules, rtol=0, atol=0)
    torch.testing.assert_close(dynamic.capsules, dynamic_routing(inputs[0], 3).capsules, rtol=0, atol=0)


def test_schedule_rises_towards_its_final_value():
    schedule = inverse_temperature_schedule(200, final=2.0)
    assert schedule[0] == pytest.approx(2.0 * 0.05) and schedule[1] == pytest.approx(2.0 * (1 - 0.95**2))
    assert all(a < b for a, b in itertools.pairwise(schedule)) and 1.99 < schedule[-1] < 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dynamic_routing(torch.zeros(3, 4, 2), 0), "at least 1 iteration, got 0"),
        (lambda: dynamic_routing(torch.zeros(4, 2), 1), r"\[..., L, N, D\]"),
        (lambda: em_routing(torch.zeros(3, 4, 2), torch.zeros(3), 0.0, 0.0, []), "at least 1 iteration, got 0"),
        (lambda: em_routing(torch.zeros(3, 4, 2), torch.zeros(4), 0.0, 0.0, [1.0]), r"shape \(3,\)"),
    ],
    ids=["no iterations", "too few dimensions", "no temperatures", "activation shape"],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
