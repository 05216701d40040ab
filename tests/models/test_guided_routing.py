"""The guided routing functions and losses against the paper-literal reference, and at their extremes."""

import math
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_capsule_mt.models import capsule_kernels
from hf_capsule_mt.models.capsule_losses import bag_of_words_loss, content_agreement_loss
from hf_capsule_mt.models.capsule_routing import (
    guided_attention,
    guided_classifier,
    guided_dynamic_routing,
    squash,
    uniform_capsules,
)
from hf_capsule_mt.reference import guided_routing as reference


class Sizes(NamedTuple):
    """S words, T steps, P / F / Q past, future and redundant capsules of size D, H hidden units, d model width."""

    S: int
    T: int
    P: int
    F: int
    Q: int
    D: int
    H: int
    d: int

    @property
    def groups(self):
        return (self.P, self.F)

    def __str__(self):
        return "-".join(f"{name}{size}" for name, size in self._asdict().items())


# within one row S, T, N = P + F + Q, D, H and d are different, so no transposed dimension can go unnoticed
SIZES = [
    Sizes(S=7, T=5, P=1, F=1, Q=1, D=2, H=13, d=11),
    Sizes(S=1, T=3, P=2, F=2, Q=1, D=2, H=7, d=11),
    Sizes(S=5, T=1, P=1, F=1, Q=0, D=3, H=7, d=11),
    Sizes(S=3, T=2, P=2, F=3, Q=2, D=1, H=5, d=11),
    Sizes(S=5, T=3, P=3, F=4, Q=0, D=2, H=11, d=13),
]
SMALL = Sizes(S=4, T=2, P=1, F=1, Q=1, D=2, H=5, d=7)
sizes_of_a_sentence = pytest.mark.parametrize("sizes", SIZES, ids=str)
iterations = pytest.mark.parametrize("num_iterations", [1, 2, 3, 5], ids=lambda r: f"R{r}")
systems = pytest.mark.parametrize("system", ["routing", "classifier", "attention"])
baselines = pytest.mark.parametrize("system", ["classifier", "attention"])
bags = pytest.mark.parametrize("bag", ["past", "future"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])


def random_tensors(shapes, seed, dtype=torch.float64):
    """Leaf tensors of the given shapes with standard normal entries, by name."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}


def detached(inputs, **changes):
    """New leaves with the values of the inputs, some of them changed."""
    return {name: changes.get(name, tensor).detach().clone().requires_grad_() for name, tensor in inputs.items()}


def random_upstream(tensor):
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(tensor.dtype)


def gradients(output, inputs, zeros=()):
    """Gradients of all inputs by name, under one random upstream gradient; only those named in zeros may vanish."""
    found = torch.autograd.grad(output, list(inputs.values()), random_upstream(output), allow_unused=True)
    result = {}
    for (name, tensor), gradient in zip(inputs.items(), found, strict=True):
        result[name] = torch.zeros_like(tensor) if gradient is None else gradient
        assert (result[name].abs().max() > 1e-6) == (name not in zeros), name
    return result


def assert_same_with_gradients(fast, slow, inputs, zeros=()):
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-11)
    expected = gradients(slow, inputs, zeros)
    found = gradients(fast, inputs, zeros)
    for name in inputs:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


def source_mask(num_words):
    """One row of real words, and one where every second word is padding (none of them if there is one word)."""
    every_second = torch.arange(num_words) % 2 == 0
    return torch.stack([torch.ones_like(every_second), every_second])


def joined(*tensors):
    """Several outputs as one vector, so that one upstream gradient reaches all of them."""
    return torch.cat([tensor.flatten() for tensor in tensors])


# --- against the reference, from encoder states h and decoder states z ---------------------------------------------


def parameter_shapes(system, sizes):
    batch, capsules = 2, sizes.P + sizes.F + (sizes.Q if system == "routing" else 0)
    shapes = {
        "h": (batch, sizes.S, sizes.d),
        "z": (batch, sizes.T, sizes.d),
        "w_votes": (capsules, sizes.D, sizes.d),
    }
    if system == "routing":
        return shapes | {"w_b": (sizes.H, sizes.d + 2 * sizes.D), "w": (sizes.H,)}
    groups = 2 + (sizes.Q > 0) if system == "classifier" else 2
    each = () if system == "classifier" else (groups,)
    return shapes | {
        "w_h": (*each, sizes.H, sizes.d),
        "w_z": (*each, sizes.H, sizes.d),
        "w": (groups, sizes.H),
    }


def make_parameters(system, sizes):
    x = random_tensors(parameter_shapes(system, sizes), seed=sum(sizes))
    # votes of about unit size, and hidden units that are not all saturated
    scales = {"w_votes": sizes.d**-0.5, "w_b": 0.5, "w_h": sizes.d**-0.5, "w_z": sizes.d**-0.5}
    return {name: (tensor.detach() * scales.get(name, 1.0)).requires_grad_() for name, tensor in x.items()}


def votes_of(x):
    return torch.einsum("njd,bsd->bsnj", x["w_votes"], x["h"])


def fast_routing(x, sizes, num_iterations, mask):
    w_z, w_v, w_o = x["w_b"].split([sizes.d, sizes.D, sizes.D], dim=1)
    votes = votes_of(x)
    return guided_dynamic_routing(
        votes, votes @ w_v.T, x["z"] @ w_z.T, w_o, x["w"], num_iterations, mask, return_all_agreements=True
    )


def fast_baseline(system, x, sizes, mask):
    if system == "classifier":
        return guided_classifier(votes_of(x), x["h"] @ x["w_h"].T, x["z"] @ x["w_z"].T, x["w"], sizes.groups, mask)
    keys = torch.einsum("ghd,bsd->bsgh", x["w_h"], x["h"])
    state_terms = torch.einsum("ghd,btd->btgh", x["w_z"], x["z"])
    return guided_attention(votes_of(x), keys, state_terms, x["w"], sizes.groups, mask)


def reference_batch(one_step, x, mask):
    """one_step(h, z) -> (capsules, tuple of agreements) for every row and step, on the real source words alone.

    Returns capsules [B, T, N, D] and a list of agreements [B, T, S, N] with zeros at padding.
    """
    capsules, histories = [], []
    for h, z, real in zip(x["h"], x["z"], mask, strict=True):
        for z_t in z:
            omega, history = one_step(h[real], z_t)
            capsules.append(omega)
            histories.append([c.new_zeros(len(real), c.shape[1]).index_put((real,), c) for c in history])
    rows_and_steps = x["z"].shape[:2]
    agreements = [torch.stack(step).unflatten(0, rows_and_steps) for step in zip(*histories, strict=True)]
    return torch.stack(capsules).unflatten(0, rows_and_steps), agreements


@sizes_of_a_sentence
@iterations
def test_guided_dynamic_routing_is_algorithm_1(sizes, num_iterations):
    x, mask = make_parameters("routing", sizes), source_mask(sizes.S)
    fast = fast_routing(x, sizes, num_iterations, mask)
    capsules, history = reference_batch(
        lambda h, z: reference.guided_dynamic_routing(h, z, x["w_votes"], x["w_b"], x["w"], num_iterations), x, mask
    )
    unused = ("z", "w_b", "w") if num_iterations == 1 else ()  # nothing guides a uniform assignment
    assert_same_with_gradients(joined(fast.capsules, fast.agreement), joined(capsules, history[-1]), x, zeros=unused)
    assert len(fast.agreements) == num_iterations
    for ours, theirs in zip(fast.agreements, history, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fast.agreement, fast.agreements[-1], rtol=0, atol=0)
    if num_iterations > 1:  # the comparison is not one of uniform assignments
        assert (fast.agreement - fast.agreements[0]).abs().max() > 0.1


@sizes_of_a_sentence
@baselines
def test_baselines_are_those_of_section_4(system, sizes):
    x, mask = make_parameters(system, sizes), source_mask(sizes.S)
    fast = fast_baseline(system, x, sizes, mask)
    one_step = getattr(reference, f"guided_{system}")

    def one_step_with_history(h, z):
        capsules, c = one_step(h, z, x["w_votes"], x["w_h"], x["w_z"], x["w"], sizes.groups)
        return capsules, [c]

    capsules, (agreement,) = reference_batch(one_step_with_history, x, mask)
    # the attention over a single word is 1
    unused = ("z", "w_h", "w_z", "w") if system == "attention" and sizes.S == 1 else ()
    assert_same_with_gradients(joined(fast.capsules, fast.agreement), joined(capsules, agreement), x, zeros=unused)
    assert fast.agreements is None


# --- properties, from the direct inputs of the fast functions ------------------------------------------------------

SOURCE_SIDE = ("votes", "vote_terms", "keys")


def make_inputs(system, sizes, leading=(2,), dtype=torch.float64):
    """The tensors that the fast function of a system takes, all independent of each other."""
    capsules = sizes.P + sizes.F + (sizes.Q if system == "routing" else 0)
    shapes = {"votes": (*leading, sizes.S, capsules, sizes.D)}
    if system == "routing":
        shapes["vote_terms"] = (*leading, sizes.S, capsules, sizes.H)
        shapes["state_terms"] = (*leading, sizes.T, sizes.H)
        shapes["capsule_weight"] = (sizes.H, sizes.D)
        shapes["score_weight"] = (sizes.H,)
    else:
        groups = 2 + (sizes.Q > 0) if system == "classifier" else 2
        each = () if system == "classifier" else (groups,)
        shapes["keys"] = (*leading, sizes.S, *each, sizes.H)
        shapes["state_terms"] = (*leading, sizes.T, *each, sizes.H)
        shapes["score_weight"] = (groups, sizes.H)
    return random_tensors(shapes, seed=sum(sizes), dtype=dtype)


def call(system, inputs, sizes, mask=None):
    if system == "routing":
        return guided_dynamic_routing(**inputs, num_iterations=3, mask=mask)
    function = guided_classifier if system == "classifier" else guided_attention
    return function(**inputs, group_sizes=sizes.groups, mask=mask)


@systems
@pytest.mark.parametrize("padded", [False, True], ids=["without mask", "with mask"])
def test_routing_gradcheck(system, padded):
    inputs = make_inputs(system, SMALL)
    mask = source_mask(SMALL.S) if padded else None

    def function(*tensors):
        return call(system, dict(zip(inputs, tensors, strict=True)), SMALL, mask)[:2]

    assert torch.autograd.gradcheck(function, tuple(inputs.values()))


@systems
def test_padding_cannot_influence_anything(system):
    sizes = SIZES[0]
    mask = source_mask(sizes.S)
    inputs = make_inputs(system, sizes)
    generator = torch.Generator().manual_seed(5)
    changes = {}
    for name in set(SOURCE_SIDE) & set(inputs):
        noise = 1e4 * torch.randn(inputs[name].shape, generator=generator, dtype=torch.float64)
        real = mask.reshape(*mask.shape, *[1] * (noise.dim() - 2))
        changes[name] = torch.where(real, inputs[name], noise)
    changed = detached(inputs, **changes)
    out, other = call(system, inputs, sizes, mask), call(system, changed, sizes, mask)
    for ours, theirs in zip(out[:2], other[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    padding = ~mask
    assert padding.any()
    assert (other.agreement.transpose(1, 2)[padding] == 0).all()
    expected = gradients(joined(*out[:2]), inputs)
    found = gradients(joined(*other[:2]), changed)
    for name in inputs:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
        if name in SOURCE_SIDE:
            assert (found[name][padding] == 0).all()
    # and without a mask the change is seen
    assert not torch.allclose(call(system, inputs, sizes).capsules, call(system, changed, sizes).capsules)


@systems
def test_padded_sentence_is_routed_like_the_sentence_alone(system):
    inputs = make_inputs(system, SIZES[0])
    mask = torch.arange(SIZES[0].S).expand(2, -1) < 4
    out = call(system, inputs, SIZES[0], mask)
    cut = {name: tensor[:, :4] if name in SOURCE_SIDE else tensor for name, tensor in inputs.items()}
    alone = call(system, cut, SIZES[0])
    torch.testing.assert_close(out.capsules, alone.capsules, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(out.agreement[:, :, :4], alone.agreement, rtol=1e-12, atol=1e-14)


@systems
def test_mask_without_padding_changes_nothing(system):
    inputs = make_inputs(system, SIZES[0])
    mask = torch.ones(2, SIZES[0].S, dtype=torch.bool)
    for ours, theirs in zip(call(system, inputs, SIZES[0], mask), call(system, inputs, SIZES[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-15, atol=0)


@systems
@dtypes
def test_row_of_padding_alone_is_zero_and_leaves_the_others_alone(system, dtype):
    inputs = make_inputs(system, SIZES[0], dtype=dtype)
    mask = source_mask(SIZES[0].S)
    mask[1] = False
    out = call(system, inputs, SIZES[0], mask)
    assert (out.capsules[1] == 0).all() and (out.agreement[1] == 0).all()
    found = gradients(joined(*(tensor.float() for tensor in out[:2])), inputs)
    for name, gradient in found.items():
        assert gradient.isfinite().all(), name
        if name in SOURCE_SIDE or name == "state_terms":
            assert (gradient[1] == 0).all() and (gradient[0] != 0).any(), name
    rows = {name: t[:1] if name in (*SOURCE_SIDE, "state_terms") else t for name, t in inputs.items()}
    alone = call(system, rows, SIZES[0], mask[:1])
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    torch.testing.assert_close(out.capsules[:1], alone.capsules, rtol=tolerance, atol=1e-6)


@systems
@sizes_of_a_sentence
def test_agreements_sum_to_one(system, sizes):
    """Over the capsules or groups at each real word; the attention over the source words."""
    inputs, mask = make_inputs(system, sizes), source_mask(sizes.S)
    agreement = call(system, inputs, sizes, mask).agreement
    capsules = {"routing": sum(sizes[2:5]), "classifier": 2 + (sizes.Q > 0), "attention": 2}[system]
    assert agreement.shape == (2, sizes.T, sizes.S, capsules)
    assert (agreement >= 0).all()
    if system == "attention":
        torch.testing.assert_close(agreement.sum(2), torch.ones(2, sizes.T, 2, dtype=torch.float64))
    else:
        torch.testing.assert_close(agreement.sum(-1), mask.double().unsqueeze(1).expand(-1, sizes.T, -1))


@pytest.mark.parametrize("given", [True, False], ids=["with terms", "without terms"])
@pytest.mark.parametrize("padded", [False, True], ids=["without mask", "with mask"])
def test_one_iteration_is_the_uniform_mixture(given, padded):
    sizes = SIZES[0]
    inputs = make_inputs("routing", sizes)
    mask = source_mask(sizes.S) if padded else None
    if not given:
        inputs |= {"vote_terms": None, "capsule_weight": None, "score_weight": None}
    out = guided_dynamic_routing(**inputs, num_iterations=1, mask=mask)
    uniform = (mask.double() if padded else torch.ones(2, sizes.S, dtype=torch.float64)) / 3
    expected = squash((inputs["votes"] * uniform[:, :, None, None]).sum(1)).unsqueeze(1)
    torch.testing.assert_close(out.capsules, expected.expand(-1, sizes.T, -1, -1))
    torch.testing.assert_close(out.agreement, uniform[:, None, :, None].expand(-1, sizes.T, -1, 3))
    assert out.agreements is None


@pytest.mark.parametrize("num_iterations", [1, 3])
@pytest.mark.parametrize("padded", [False, True], ids=["without mask", "with mask"])
def test_first_capsules_may_be_computed_before(num_iterations, padded):
    inputs = make_inputs("routing", SIZES[0])
    mask = source_mask(SIZES[0].S) if padded else None
    first = uniform_capsules(inputs["votes"], mask)
    expected = guided_dynamic_routing(**inputs, num_iterations=num_iterations, mask=mask)
    found = guided_dynamic_routing(**inputs, num_iterations=num_iterations, mask=mask, first_capsules=first)
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)
    if num_iterations > 1:
        # what is given is what is routed with
        other = guided_dynamic_routing(**inputs, num_iterations=3, mask=mask, first_capsules=2 * first)
        assert not torch.allclose(other.capsules, expected.capsules)


@systems
@pytest.mark.parametrize("leading", [(), (2, 3)], ids=["none", "two"])
@pytest.mark.parametrize("padded", [False, True], ids=["without mask", "with mask"])
def test_leading_dimensions(system, leading, padded):
    sizes = SIZES[0]
    inputs = make_inputs(system, sizes, leading)
    mask = torch.arange(sizes.S) < sizes.S - 1 - torch.arange(math.prod(leading))[:, None] % 3 if padded else None
    batched = (*SOURCE_SIDE, "state_terms")
    rows = {n: t.reshape(-1, *t.shape[len(leading) :]) if n in batched else t for n, t in inputs.items()}
    flat = call(system, rows, sizes, mask)
    out = call(system, inputs, sizes, mask.reshape(*leading, sizes.S) if padded else None)
    for ours, theirs in zip(out[:2], flat[:2], strict=True):
        torch.testing.assert_close(ours, theirs.reshape(*leading, *theirs.shape[1:]), rtol=1e-12, atol=1e-14)


@systems
@pytest.mark.parametrize(("rows", "steps"), [(0, 0), (1, 2), (1, 5), (2, 5), (99, 99)])
def test_pieces_of_the_hidden_units_change_nothing(system, rows, steps, monkeypatch):
    """Pieces of one step (where none fits), two of the five steps, one row, two rows, and everything at once."""
    sizes = SIZES[0]
    inputs, mask = make_inputs(system, sizes), source_mask(sizes.S)
    monkeypatch.setattr(capsule_kernels, "SCORE_ELEMENTS_CPU", 10**9)
    out = joined(*call(system, inputs, sizes, mask)[:2])
    expected = gradients(out, inputs)
    monkeypatch.setattr(capsule_kernels, "SCORE_ELEMENTS_CPU", rows * steps * sizes.S * sizes.H + 1)
    found_out = joined(*call(system, inputs, sizes, mask)[:2])
    torch.testing.assert_close(found_out, out, rtol=1e-12, atol=1e-14)
    found = gradients(found_out, inputs)
    for name in inputs:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-12)


EXTREMES = {
    "zero votes": lambda x: x | {"votes": torch.zeros_like(x["votes"])},
    "zero everything": lambda x: {name: torch.zeros_like(tensor) for name, tensor in x.items()},
    "identical votes": lambda x: x | {"votes": torch.full_like(x["votes"], 0.7)},
    "identical large votes": lambda x: x | {"votes": torch.full_like(x["votes"], 1e4)},
    "votes of 1e4": lambda x: x | {"votes": 1e4 * torch.sign(x["votes"])},
    "votes of 1e4 and 0": lambda x: x | {"votes": 1e4 * (x["votes"] > 0).to(x["votes"].dtype)},
    "terms of 1e4": lambda x: {n: 1e4 * torch.sign(t) if "term" in n or n == "keys" else t for n, t in x.items()},
    "everything 1e4": lambda x: {name: 1e4 * torch.sign(tensor) for name, tensor in x.items()},
}


@dtypes
@pytest.mark.parametrize("extreme", EXTREMES)
@systems
@sizes_of_a_sentence
def test_extreme_inputs_stay_finite(system, sizes, extreme, dtype):
    inputs = detached(EXTREMES[extreme](make_inputs(system, sizes, leading=(3,), dtype=dtype)))
    mask = torch.cat([source_mask(sizes.S), torch.zeros(1, sizes.S, dtype=torch.bool)])
    out = call(system, inputs, sizes, mask)
    assert out.capsules.dtype == dtype and out.agreement.dtype == torch.float32
    assert out.capsules.isfinite().all() and out.agreement.isfinite().all()
    # the upstream gradient is small: the gradients have to fit into fp16, with inputs of 1e4
    loss = (out.capsules.float().sum() + out.agreement.square().sum()) / 1e4 / out.capsules.numel()
    for name, gradient in zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True):
        assert gradient.dtype == dtype and gradient.isfinite().all(), name


@systems
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_low_precision_inputs_are_routed_in_float32(system, dtype):
    """Under autocast a model has votes and terms in low precision beside parameters in float32."""
    parameters = ("capsule_weight", "score_weight")
    inputs = make_inputs(system, SIZES[0], dtype=dtype)
    low = {name: tensor.float() if name in parameters else tensor for name, tensor in inputs.items()}
    wide = {name: tensor.float() for name, tensor in inputs.items()}
    mask = source_mask(SIZES[0].S)
    out, expected = call(system, low, SIZES[0], mask), call(system, wide, SIZES[0], mask)
    torch.testing.assert_close(out.agreement, expected.agreement, rtol=0, atol=0)
    torch.testing.assert_close(out.capsules, expected.capsules.to(dtype), rtol=0, atol=0)


@systems
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_float32_inputs_are_routed_in_float32(system, autocast):
    inputs = make_inputs(system, SIZES[0], dtype=torch.float32)
    mask = source_mask(SIZES[0].S)
    exact = call(system, {name: tensor.double() for name, tensor in inputs.items()}, SIZES[0], mask)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = call(system, inputs, SIZES[0], mask)
    for ours, theirs in zip(out[:2], exact[:2], strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@systems
def test_autocast_does_not_change_the_inner_precision(system):
    inputs = make_inputs(system, SIZES[0], dtype=torch.float32)
    mask = source_mask(SIZES[0].S)
    expected = call(system, inputs, SIZES[0], mask)
    with torch.autocast("cpu", torch.bfloat16):
        out = call(system, inputs, SIZES[0], mask)
    for ours, theirs in zip(out[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    expected, found = gradients(joined(*expected[:2]), inputs), gradients(joined(*out[:2]), inputs)
    for name in inputs:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


def routing_arguments(**changes):
    arguments = dict(make_inputs("routing", SMALL), num_iterations=2)
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_iterations": 0}, "at least 1 iteration, got 0"),
        ({"vote_terms": None}, "vote_terms"),
        ({"capsule_weight": None}, "capsule_weight"),
        ({"score_weight": None}, "score_weight"),
        ({"votes": torch.zeros(4, 2)}, r"votes must have shape \[..., S, N, D\].*\(4, 2\)"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask .*\(2, 4\).*\(2, 5\)"),
        ({"mask": torch.ones(4, dtype=torch.bool)}, r"mask .*\(2, 4\).*\(4,\)"),
    ],
    ids=["no iterations", "no vote terms", "no capsule weight", "no score weight", "votes", "mask", "mask dimensions"],
)
def test_bad_routing_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        guided_dynamic_routing(**routing_arguments(**changes))


@baselines
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"votes": torch.zeros(4, 2)}, r"votes must have shape \[..., S, N, D\].*\(4, 2\)"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask .*\(2, 4\).*\(2, 5\)"),
        ({"group_sizes": (2, 1)}, r"group_sizes \(2, 1\).* 2 capsules"),
    ],
    ids=["votes", "mask", "group sizes"],
)
def test_bad_baseline_arguments_are_named(system, changes, message):
    function = guided_classifier if system == "classifier" else guided_attention
    arguments = dict(make_inputs(system, SMALL), group_sizes=SMALL.groups) | changes
    with pytest.raises(ValueError, match=message):
        function(**arguments)


# --- losses --------------------------------------------------------------------------------------------------------


class LossSizes(NamedTuple):
    """T target length, V vocabulary, d width, K size of the concatenated capsules of a group."""

    T: int
    V: int
    d: int
    K: int

    def __str__(self):
        return "-".join(f"{name}{size}" for name, size in self._asdict().items())


# with T = 7 and V = 5 some word is more than once in a bag
LOSS_SIZES = [LossSizes(7, 5, 3, 2), LossSizes(5, 17, 7, 11), LossSizes(2, 3, 5, 7), LossSizes(1, 7, 5, 3)]
loss_sizes = pytest.mark.parametrize("sizes", LOSS_SIZES, ids=str)
losses = pytest.mark.parametrize("loss", ["bag of words", "content agreement"])
LOSSES = {"bag of words": bag_of_words_loss, "content agreement": content_agreement_loss}
REFERENCES = {"bag of words": reference.bag_of_words_loss, "content agreement": reference.content_agreement_loss}
normalizations = pytest.mark.parametrize("normalization", ["sentence", "token"])
BATCH = 4
STEPS = ("contents", "capsules", "states")  # tensors of shape [B, T, ...]; the others are parameters


def make_loss_inputs(loss, sizes, dtype=torch.float64, batch=BATCH):
    if loss == "bag of words":
        shapes = {"contents": (batch, sizes.T, sizes.d), "output_embedding": (sizes.V, sizes.d)}
    else:
        shapes = {
            "capsules": (batch, sizes.T, sizes.K),
            "states": (batch, sizes.T, sizes.d),
            "projection": (sizes.K, sizes.d),
        }
    return random_tensors(shapes, seed=sum(sizes), dtype=dtype)


def make_labels(sizes):
    """Rows: words alone; -100 at the end; -100 at the start and in the middle; nothing but -100."""
    labels = torch.randint(sizes.V, (BATCH, sizes.T), generator=torch.Generator().manual_seed(sum(sizes)))
    labels[1, (sizes.T + 1) // 2 :] = -100
    labels[2, ::2] = -100
    labels[3] = -100
    return labels


@loss_sizes
@bags
@losses
@normalizations
def test_losses_are_those_of_section_3_3(loss, bag, sizes, normalization):
    inputs, labels = make_loss_inputs(loss, sizes), make_labels(sizes)
    slow = 0 * sum(
        tensor.sum() for tensor in inputs.values()
    )  # a sentence without a bag has a loss of 0, not a constant
    for row, y in enumerate(labels):
        one = {name: tensor[row] if name in STEPS else tensor for name, tensor in inputs.items()}
        slow = slow + REFERENCES[loss](**one, labels=y, bag=bag, normalization=normalization)
    without_past = tuple(inputs) if (loss, bag, sizes.T) == ("bag of words", "past", 1) else ()
    fast = LOSSES[loss](**inputs, labels=labels, bag=bag, normalization=normalization)
    assert_same_with_gradients(fast, slow, inputs, zeros=without_past)


@bags
@losses
def test_losses_of_a_batch_are_those_of_its_sentences(loss, bag):
    sizes = LOSS_SIZES[0]
    inputs, labels = make_loss_inputs(loss, sizes), make_labels(sizes)
    alone = [
        LOSSES[loss](**{n: t[row : row + 1] if n in STEPS else t for n, t in inputs.items()}, labels=y, bag=bag)
        for row, y in enumerate(labels.split(1))
    ]
    torch.testing.assert_close(LOSSES[loss](**inputs, labels=labels, bag=bag), sum(alone), rtol=1e-12, atol=0)


@bags
@losses
def test_normalization_is_checked(loss, bag):
    inputs, labels = make_loss_inputs(loss, LOSS_SIZES[0]), make_labels(LOSS_SIZES[0])
    with pytest.raises(ValueError, match="'sentence' or 'token', not 'word'"):
        LOSSES[loss](**inputs, labels=labels, bag=bag, normalization="word")


@bags
@losses
@pytest.mark.parametrize("elements", [1, 2**23], ids=["pieces of one", "one piece"])
def test_loss_gradcheck(loss, bag, elements, monkeypatch):
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", elements)
    inputs, labels = make_loss_inputs(loss, LossSizes(3, 5, 2, 7)), make_labels(LossSizes(3, 5, 2, 7))

    def function(*tensors):
        return LOSSES[loss](**dict(zip(inputs, tensors, strict=True)), labels=labels, bag=bag)

    assert torch.autograd.gradcheck(function, tuple(inputs.values()))


def bag_of_words_example():
    """E = log (1, 2, 3) times a content of 1 or 2, so the probabilities are (1, 2, 3) / 6 or (1, 4, 9) / 14."""
    contents = torch.tensor([[[1.0], [2.0], [1.0]]], dtype=torch.float64)
    output_embedding = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64).log()
    return contents, output_embedding, torch.tensor([[2, 2, 0]])


def test_bag_of_words_loss_of_an_example():
    past = [
        [],  # step 1, {}
        [9 / 14],  # step 2, {2}
        [3 / 6, 3 / 6],  # step 3, {2, 2}
    ]
    future = [
        [3 / 6, 3 / 6, 1 / 6],  # step 1, {2, 2, 0}
        [9 / 14, 1 / 14],  # step 2, {2, 0}
        [1 / 6],  # step 3, {0}
    ]
    for bag, steps in (("past", past), ("future", future)):
        printed = -sum(math.log(math.prod(words)) for words in steps) / 3
        means = -sum(math.log(math.prod(words)) / len(words) for words in steps if words)
        assert bag_of_words_loss(*bag_of_words_example(), bag).item() == pytest.approx(printed, rel=1e-12)
        assert bag_of_words_loss(*bag_of_words_example(), bag, "token").item() == pytest.approx(means, rel=1e-12)


def test_both_bags_weigh_as_much_as_the_words():
    """With uniform predictions every word costs log V, and so does L_BOW per target word, whatever the lengths."""
    embedding, labels = torch.zeros(7, 2, dtype=torch.float64), torch.randint(7, (3, 5))
    labels[1, 2:], labels[2, 1:] = -100, -100
    contents = torch.randn(3, 5, 2, dtype=torch.float64)
    both = sum(bag_of_words_loss(contents, embedding, labels, bag) for bag in ("past", "future"))
    assert both.item() == pytest.approx((labels != -100).sum().item() * math.log(7))


def test_content_agreement_loss_of_an_example():
    capsules = torch.tensor([[[0.0], [1.0], [2.0]]], dtype=torch.float64)
    states = torch.tensor([[[1.0], [3.0], [5.0]]], dtype=torch.float64)
    arguments = capsules, states, torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[0, 0, 0]])
    # the means of the states are 1, 2, 3 up to each step and 3, 4, 5 from it on
    past, future = (0 - 2) ** 2 + (1 - 4) ** 2 + (2 - 6) ** 2, (0 - 6) ** 2 + (1 - 8) ** 2 + (2 - 10) ** 2
    assert content_agreement_loss(*arguments, "past", "token").item() == past
    assert content_agreement_loss(*arguments, "future", "token").item() == future
    assert content_agreement_loss(*arguments, "past").item() == pytest.approx(past / 3, rel=1e-12)
    assert content_agreement_loss(*arguments, "future").item() == pytest.approx(future / 3, rel=1e-12)


def test_empty_past_bag_contributes_nothing():
    sizes = LOSS_SIZES[0]
    inputs, labels = make_loss_inputs("bag of words", sizes), make_labels(sizes)
    gradient = gradients(bag_of_words_loss(**inputs, labels=labels, bag="past"), inputs)["contents"]
    first = [0, 0, 1, None]  # the first word of each row
    for row, step in enumerate(first):
        if step is not None:
            assert labels[row, step] != -100 and (labels[row, :step] == -100).all()
            assert (gradient[row, : step + 1] == 0).all()
            assert (gradient[row, step + 1 :] != 0).any()
    labels = torch.full((BATCH, sizes.T), -100)
    labels[0, 0] = labels[1, 3] = labels[2, -1] = 2  # one word each: never a past
    loss = bag_of_words_loss(**inputs, labels=labels, bag="past")
    assert loss.item() == 0
    assert all((g == 0).all() for g in gradients(loss, inputs, zeros=tuple(inputs)).values())
    assert bag_of_words_loss(**inputs, labels=labels, bag="future").item() > 0


@bags
@losses
def test_ignored_labels_are_as_if_not_there(loss, bag):
    sizes = LOSS_SIZES[0]
    inputs, labels = make_loss_inputs(loss, sizes, batch=1), make_labels(sizes)[:1]
    labels[0, [0, 3, 6]] = -100
    real = labels[0] != -100
    out = LOSSES[loss](**inputs, labels=labels, bag=bag)
    cut = {name: tensor[:, real] if name in STEPS else tensor for name, tensor in inputs.items()}
    alone = LOSSES[loss](**cut, labels=labels[:, real], bag=bag)
    torch.testing.assert_close(out, alone, rtol=1e-12, atol=0)
    found = gradients(out, inputs)
    changed = detached(inputs)
    for name in set(STEPS) & set(inputs):
        assert (found[name][:, ~real] == 0).all()
        changed[name].detach()[:, ~real] = 100.0
    torch.testing.assert_close(LOSSES[loss](**changed, labels=labels, bag=bag), out, rtol=0, atol=0)


@bags
@losses
@dtypes
def test_rows_of_padding_alone_have_no_loss(loss, bag, dtype):
    inputs = make_loss_inputs(loss, LOSS_SIZES[0], dtype=dtype)
    out = LOSSES[loss](**inputs, labels=torch.full((BATCH, LOSS_SIZES[0].T), -100), bag=bag)
    assert out.shape == () and out.item() == 0
    out.backward()
    for name, tensor in inputs.items():
        assert (tensor.grad == 0).all(), name


@bags
@pytest.mark.parametrize("elements", [1, 5, 11, 10**6])
def test_pieces_of_the_logits_change_nothing(bag, elements, monkeypatch):
    """V = 5: pieces of 1, 1 and 2 of the 28 positions, and all of them."""
    sizes = LOSS_SIZES[0]
    inputs, labels = make_loss_inputs("bag of words", sizes), make_labels(sizes)
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", 10**9)
    whole = bag_of_words_loss(**inputs, labels=labels, bag=bag)
    expected = gradients(whole, inputs)
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", elements)
    found_loss = bag_of_words_loss(**inputs, labels=labels, bag=bag)
    torch.testing.assert_close(found_loss, whole, rtol=1e-12, atol=0)
    found = gradients(found_loss, inputs)
    for name in inputs:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@bags
def test_logits_of_all_positions_never_exist(bag, monkeypatch):
    sizes = LossSizes(T=23, V=1009, d=2, K=3)
    inputs, labels = make_loss_inputs("bag of words", sizes), make_labels(sizes)
    with LargestTensor() as whole:
        bag_of_words_loss(**inputs, labels=labels, bag=bag).backward()
    assert whole.elements == BATCH * sizes.T * sizes.V
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", 3 * sizes.V)
    with LargestTensor() as pieces:
        bag_of_words_loss(**inputs, labels=labels, bag=bag).backward()
    assert pieces.elements == 3 * sizes.V


LOSS_EXTREMES = {
    "zero": lambda x: {name: torch.zeros_like(tensor) for name, tensor in x.items()},
    "identical": lambda x: {name: torch.full_like(tensor, 0.7) for name, tensor in x.items()},
    "1e4": lambda x: {n: 1e4 * torch.sign(t) if n in STEPS else 0.3 * t for n, t in x.items()},
}


@bags
@losses
@dtypes
@pytest.mark.parametrize("extreme", LOSS_EXTREMES)
def test_extreme_loss_inputs_stay_finite(loss, bag, extreme, dtype):
    sizes = LOSS_SIZES[0]
    inputs, labels = make_loss_inputs(loss, sizes, dtype=dtype), make_labels(sizes)
    inputs = detached(LOSS_EXTREMES[extreme](inputs))
    out = LOSSES[loss](**inputs, labels=labels, bag=bag)
    assert out.dtype == torch.float32 and out.isfinite()
    # the upstream gradient is small: that of a squared distance of 1e4 has to fit into fp16
    for name, gradient in zip(inputs, torch.autograd.grad(out * 1e-6, list(inputs.values())), strict=True):
        assert gradient.isfinite().all(), name


@bags
@losses
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_loss_of_a_long_target_is_summed_in_float32(loss, bag, dtype):
    """The sums run over 512 steps, where low precision would lose the last words of a bag."""
    sizes = LossSizes(T=512, V=11, d=5, K=3)
    labels = torch.randint(sizes.V, (1, sizes.T), generator=torch.Generator().manual_seed(2))
    inputs = make_loss_inputs(loss, sizes, dtype=dtype, batch=1)
    # values of a few bits: their products are exact in every dtype, and only the sums are not
    inputs = {name: tensor.detach().mul(2).round().div(2) for name, tensor in inputs.items()}
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    if loss == "content agreement":  # the mean state, which is not exact, is projected in the dtype of the projection
        inputs["projection"] = inputs["projection"].float()
    out = LOSSES[loss](**inputs, labels=labels, bag=bag)
    expected = LOSSES[loss](**wide, labels=labels, bag=bag)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=0)


@losses
def test_unknown_bag_is_named(loss):
    inputs, labels = make_loss_inputs(loss, LOSS_SIZES[0]), make_labels(LOSS_SIZES[0])
    with pytest.raises(ValueError, match="present"):
        LOSSES[loss](**inputs, labels=labels, bag="present")
