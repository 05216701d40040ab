"""Routing of source positions to capsules (Wang et al. 2019) against the paper-literal reference, and its padding."""

import pytest
import torch

from hf_capsule_mt.models.capsule_routing import linear_sequence_routing, sequence_routing, squash
from hf_capsule_mt.reference import sequence_routing as reference

S, M, D, WIDTH, G, ROWS = 5, 3, 7, 11, 2, 2
VARIANTS = {
    "shared": {},
    "non-shared": {"shared": False},
    "position-aware": {"positions": True},
    "separable": {"separable": True},
    "all": {"shared": False, "positions": True, "separable": True},
}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
scores = pytest.mark.parametrize("balanced", [False, True], ids=["printed", "balanced"])
outputs = pytest.mark.parametrize("mean_output", [False, True], ids=["squash", "mean"])
iterations = pytest.mark.parametrize("num_iterations", [1, 2, 3, 5], ids=lambda r: f"R{r}")


def tensors(num_iterations, shared=True, positions=False, separable=False, length=S, dtype=torch.float64):
    """Leaves by name; weights is one matrix per capsule and, unless shared, per iteration."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    leaves = {"h": normal(ROWS, length, WIDTH)}
    leaves |= {f"w{t}": normal(M, WIDTH, D) for t in range(1 if shared else num_iterations)}
    if positions:
        leaves["positions"] = normal(M, D)
    if separable:
        leaves |= {"g_child": normal(WIDTH, G), "g_parent": normal(D, G)}
    return leaves


def fast(leaves, num_iterations, mask=None, **options):
    weights = [value for name, value in leaves.items() if name.startswith("w")]
    messages = [torch.relu(torch.einsum("bsd,mdk->bsmk", leaves["h"], w)) for w in weights]
    separable = "g_child" in leaves
    return sequence_routing(
        messages[0] if len(messages) == 1 else messages,
        num_iterations,
        mask,
        parent_positions=leaves.get("positions"),
        child_scores=torch.tanh(leaves["h"] @ leaves["g_child"]) if separable else None,
        parent_scores=(lambda c: torch.tanh(c @ leaves["g_parent"])) if separable else None,
        **options,
    )


def linear(leaves, num_iterations, mask=None, **options):
    """As `fast`, for messages without a ReLU."""
    return linear_sequence_routing(
        leaves["h"],
        [value.mT for name, value in leaves.items() if name.startswith("w")],
        num_iterations,
        mask,
        parent_positions=leaves.get("positions"),
        child_scores=torch.tanh(leaves["h"] @ leaves["g_child"]),
        parent_scores=lambda c: torch.tanh(c @ leaves["g_parent"]),
        **options,
    )


def slow(leaves, num_iterations, lengths, **options):
    weights = [value for name, value in leaves.items() if name.startswith("w")]
    weights = weights * num_iterations if len(weights) == 1 else weights
    options |= {"parent_positions": leaves.get("positions")}
    if "g_child" in leaves:
        options["g_parent"] = lambda c: torch.tanh(c @ leaves["g_parent"])
        options["g_child"] = lambda h: torch.tanh(h @ leaves["g_child"])
    return [reference.sequence_routing(h[:n], weights, **options) for h, n in zip(leaves["h"], lengths, strict=True)]


@variants
@scores
@outputs
@iterations
def test_sequence_routing_is_algorithm_1(variant, balanced, mean_output, num_iterations):
    assert_is_algorithm_1(fast, variant, num_iterations, balanced=balanced, mean_output=mean_output)


@pytest.mark.parametrize("variant", [v for v in VARIANTS.values() if "separable" in v], ids=["separable", "all"])
@scores
@outputs
@iterations
def test_linear_sequence_routing_is_algorithm_1(variant, balanced, mean_output, num_iterations):
    options = {"balanced": balanced, "mean_output": mean_output}
    assert_is_algorithm_1(linear, variant, num_iterations, linear=True, **options)


def assert_is_algorithm_1(function, variant, num_iterations, linear=False, **options):
    leaves = tensors(num_iterations, **variant)
    lengths = [S, 3]
    mask = torch.arange(S) < torch.tensor(lengths).unsqueeze(-1)
    out = function(leaves, num_iterations, mask, return_all_agreements=True, **options)
    expected = slow(leaves, num_iterations, lengths, linear=linear, **options)
    capsules = torch.stack([capsules for capsules, _ in expected])
    torch.testing.assert_close(out.capsules, capsules, rtol=1e-9, atol=1e-11)
    for row, (_, history) in enumerate(expected):
        for ours, theirs in zip(out.agreements, history, strict=True):
            torch.testing.assert_close(ours[row, : lengths[row]], theirs, rtol=1e-9, atol=1e-12)
            assert ours[row, lengths[row] :].abs().sum() == 0
    torch.testing.assert_close(out.agreement, out.agreements[-1], rtol=0, atol=0)
    upstream = torch.randn(capsules.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs = list(leaves.values())
    ours = torch.autograd.grad(out.capsules, inputs, upstream, allow_unused=True)
    theirs = torch.autograd.grad(capsules, inputs, upstream, allow_unused=True)
    for name, a, b in zip(leaves, ours, theirs, strict=True):
        zero = torch.zeros_like(leaves[name])
        a, b = (zero if gradient is None else gradient for gradient in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
        # what only enters the scores matters from the second iteration on
        assert b.abs().max() > 1e-6 or (num_iterations == 1 and name in ("positions", "g_child", "g_parent"))


@variants
@scores
def test_gradcheck(variant, balanced):
    leaves = tensors(3, **variant, length=3)
    names = list(leaves)
    assert torch.autograd.gradcheck(
        lambda *values: fast(dict(zip(names, values, strict=True)), 3, balanced=balanced)[:2], tuple(leaves.values())
    )


@pytest.mark.parametrize("function", [fast, linear])
@scores
@outputs
def test_padding_sends_nothing(function, balanced, mean_output):
    leaves = tensors(3, **VARIANTS["all"])
    options = {"balanced": balanced, "mean_output": mean_output}
    mask = torch.tensor([[True] * S, [True, True, False, False, False]])
    out = function(leaves, 3, mask, **options)
    changed = dict(leaves)
    changed["h"] = torch.where(mask.unsqueeze(-1), leaves["h"], 1e3)
    other = function(changed, 3, mask, **options)
    torch.testing.assert_close(other.capsules, out.capsules, rtol=0, atol=0)
    out.capsules.sum().backward()
    assert leaves["h"].grad[1, 2:].abs().max() == 0
    nothing = function(leaves, 3, torch.zeros(ROWS, S, dtype=torch.bool), **options)
    assert nothing.capsules.abs().max() == 0
    nothing.capsules.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves.values())


@pytest.mark.parametrize("separable", [False, True], ids=["scalar-product", "separable"])
def test_a_parent_that_all_words_prefer_wins_them_all_unless_balanced(separable):
    # the first parent's messages are much longer for every word
    messages = torch.rand(S, M, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    messages[:, 0] += 4
    scores = {"child_scores": messages[:, 0], "parent_scores": lambda c: 20 * c} if separable else {}
    printed = sequence_routing(messages, 3, **scores).agreement.mean(dim=0)
    balanced = sequence_routing(messages, 3, balanced=True, **scores).agreement.mean(dim=0)
    assert printed[0] > 0.99
    torch.testing.assert_close(balanced, torch.full((M,), 1 / M, dtype=torch.float64), rtol=0.1, atol=0)


def test_one_iteration_is_the_squashed_even_share():
    messages = torch.randn(S, M, D, dtype=torch.float64)
    out = sequence_routing(messages, 1)
    torch.testing.assert_close(out.capsules, squash(messages.sum(0) / M))
    torch.testing.assert_close(out.agreement, torch.full((S, M), 1 / M, dtype=torch.float64))
    mean = sequence_routing(messages, 1, mean_output=True)
    torch.testing.assert_close(mean.capsules, messages.mean(0))


@outputs
def test_one_iteration_of_linear_messages_needs_no_scores(mean_output):
    leaves = tensors(1)
    matrices, options = [leaves["w0"].mT], {"mean_output": mean_output}
    messages = torch.einsum("bsd,mdk->bsmk", leaves["h"], leaves["w0"])
    expected = sequence_routing(messages, 1, **options)
    out = linear_sequence_routing(leaves["h"], matrices, 1, **options)
    torch.testing.assert_close(out.capsules, expected.capsules, rtol=1e-12, atol=1e-14)
    assert torch.equal(out.agreement, expected.agreement)
    with pytest.raises(ValueError, match="need child_scores and parent_scores"):
        linear_sequence_routing(leaves["h"], matrices, 2, **options)
    with pytest.raises(ValueError, match="needs both child_scores and parent_scores"):
        linear_sequence_routing(leaves["h"], matrices, 1, child_scores=leaves["h"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("value", [0.0, 1e4])
def test_extremes_stay_finite_and_inner_arithmetic_is_float32(dtype, value):
    messages = torch.full((2, S, M, D), value, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = sequence_routing(messages, 3)
    assert out.capsules.dtype == dtype and out.agreement.dtype == torch.float32
    (out.capsules.float() / out.capsules.numel()).sum().backward()
    assert out.capsules.isfinite().all() and messages.grad.isfinite().all()


MESSAGES = torch.zeros(S, M, D)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequence_routing(MESSAGES, 0), "at least 1 iteration, got 0"),
        (lambda: sequence_routing(MESSAGES[0], 2), r"\[..., S, M, D\]"),
        (lambda: sequence_routing([MESSAGES] * 2, 3), "3 iterations need as many tensors of messages, not 2"),
        (
            lambda: linear(tensors(2, shared=False, separable=True), 3),
            "3 iterations need as many matrices, or one, not 2",
        ),
        (lambda: sequence_routing([], 3), "3 iterations need as many tensors of messages, not 0"),
        (lambda: sequence_routing(MESSAGES, 2, torch.ones(S + 1)), "mask must have one value per source word"),
        (lambda: sequence_routing(MESSAGES, 2, child_scores=torch.ones(S, G)), "needs both child_scores and parent"),
    ],
    ids=[
        "no iterations",
        "too few dimensions",
        "too few messages",
        "matrices",
        "no messages",
        "mask",
        "half of the scores",
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
