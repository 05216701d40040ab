"""Routing functions with inputs of extreme sizes: random cases, and what is wrong with what comes out of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.models import capsule_routing as routing

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# largest size of an input by dtype; float16 ends at 65504
LARGEST = {torch.float32: 1e8, torch.bfloat16: 1e8, torch.float16: 1e4}
SIZES = (0.0, 1e-45, 1e-40, 1e-30, 1e-20, 1e-10, 1e-7, 1e-4, 1.0, 30.0, 1e3, 1e4, 1e6, 1e8)
# how the numbers of a tensor lie
PATTERNS = ("normal", "constant", "identical rows", "one-hot", "mixed sizes", "signs")


@dataclass(frozen=True)
class Case:
    """One call of a routing function, which `draw` makes from its seed."""

    function: str
    dtype: torch.dtype
    seed: int

    def __str__(self) -> str:
        return f"{self.function}, {str(self.dtype).removeprefix('torch.')}, seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """What a function returned: capsules, and the assignment, which sums to one over a dimension where it is real."""

    capsules: Tensor
    agreement: Tensor | None = None
    over: int = -1
    mask: Tensor | None = None


class Inputs:
    """Random tensors of extreme sizes and patterns; `leaves` are those that get gradients."""

    def __init__(self, case: Case) -> None:
        self.random = random.Random(f"{case.function} {case.dtype} {case.seed}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        self.dtype = case.dtype
        self.leaves: dict[str, Tensor] = {}

    def size(self) -> int:
        """A dimension; 1 is frequent."""
        return self.random.choice((1, 1, 2, 3, 5, 7))

    def tensor(self, name: str, *shape: int, largest: float | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """A leaf of a random size and pattern."""
        dtype = dtype or self.dtype
        bound = min(LARGEST[dtype], largest or float("inf"))
        sizes = [size for size in SIZES if size <= bound]
        magnitude, pattern = self.random.choice(sizes), self.random.choice(PATTERNS)
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64).clamp(-3, 3) / 3
        if pattern == "constant":
            values = torch.ones(shape, dtype=torch.float64)
        elif pattern == "signs":
            values = values.sign()
        elif pattern == "identical rows" and len(shape) > 1:
            values = values[:1].expand(shape)
        elif pattern == "one-hot":
            values = torch.nn.functional.one_hot(values.abs().argmax(-1), shape[-1]).double()
        if pattern == "mixed sizes":
            chosen = torch.randint(len(sizes), shape, generator=self.generator)
            values = values * torch.tensor(sizes, dtype=torch.float64)[chosen]
        else:
            values = values * magnitude
        leaf = values.to(dtype).requires_grad_()
        assert leaf.isfinite().all()
        self.leaves[name] = leaf
        return leaf

    def mask(self, sentences: int, words: int) -> Tensor | None:
        """None, or a mask of sentences whose words are all real, or some, or one, or none of them."""
        kind = self.random.choice(("none", "all", "some", "one", "padding"))
        if kind == "none":
            return None
        lengths = {"all": words, "one": 1, "padding": 0}
        mask = torch.zeros(sentences, words, dtype=torch.bool)
        for row in mask:
            row[: lengths.get(kind, self.random.randint(1, words))] = True
        return mask


def _dynamic_routing(inputs: Inputs) -> Result:
    shape = [inputs.size() for _ in range(4)]
    out = routing.dynamic_routing(inputs.tensor("votes", *shape), inputs.random.randint(1, 4))
    return Result(out.capsules, out.agreement)


def _em_routing(inputs: Inputs, geometric_mean: bool = False) -> Result:
    b, num_in, num_out, size = (inputs.size() for _ in range(4))
    votes = inputs.tensor("votes", b, num_in, num_out, size)
    activations = inputs.tensor("activations", b, num_in, largest=1.0)
    with torch.no_grad():
        activations.abs_()
    schedule = routing.inverse_temperature_schedule(inputs.random.randint(1, 4))
    betas = [inputs.tensor(name, num_out, largest=1e4) for name in ("beta_a", "beta_mu")]
    out = routing.em_routing(votes, activations, *betas, schedule, geometric_mean=geometric_mean)
    return Result(out.capsules, out.agreement)


def _guided_dynamic_routing(inputs: Inputs) -> Result:
    b, s, t, n, size, hidden = (inputs.size() for _ in range(6))
    mask = inputs.mask(b, s)
    out = routing.guided_dynamic_routing(
        inputs.tensor("votes", b, s, n, size),
        inputs.tensor("vote_terms", b, s, n, hidden),
        inputs.tensor("state_terms", b, t, hidden),
        inputs.tensor("capsule_weight", hidden, size, largest=1e4),
        inputs.tensor("score_weight", hidden, largest=1e4),
        inputs.random.randint(1, 4),
        mask,
    )
    return Result(out.capsules, out.agreement, mask=None if mask is None else mask[:, None].expand(b, t, s))


def _guided_classifier(inputs: Inputs) -> Result:
    b, s, t, size, hidden = (inputs.size() for _ in range(5))
    group_sizes = [inputs.size() for _ in range(2)]
    mask = inputs.mask(b, s)
    out = routing.guided_classifier(
        inputs.tensor("votes", b, s, sum(group_sizes), size),
        inputs.tensor("keys", b, s, hidden),
        inputs.tensor("state_terms", b, t, hidden),
        inputs.tensor("score_weight", inputs.random.randint(2, 3), hidden, largest=1e4),
        group_sizes,
        mask,
    )
    return Result(out.capsules, out.agreement, mask=None if mask is None else mask[:, None].expand(b, t, s))


def _guided_attention(inputs: Inputs) -> Result:
    b, s, t, size, hidden = (inputs.size() for _ in range(5))
    group_sizes = [inputs.size() for _ in range(2)]
    mask = inputs.mask(b, s)
    out = routing.guided_attention(
        inputs.tensor("votes", b, s, sum(group_sizes), size),
        inputs.tensor("keys", b, s, 2, hidden),
        inputs.tensor("state_terms", b, t, 2, hidden),
        inputs.tensor("score_weight", 2, hidden, largest=1e4),
        group_sizes,
        mask,
    )
    # sentences without words have no weights
    has_words = None if mask is None else mask.any(-1)[:, None, None].expand(b, t, 2)
    return Result(out.capsules, out.agreement, over=-2, mask=has_words)


def _sequence_routing(inputs: Inputs, **options: bool) -> Result:
    b, s, m, size, g = (inputs.size() for _ in range(5))
    iterations = inputs.random.randint(1, 4)
    messages = [inputs.tensor(f"messages {t}", b, s, m, size) for t in range(iterations)]
    scoring = _scoring(inputs, b, s, m, size, g, inputs.random.random() < 0.5)
    mask = inputs.mask(b, s)
    out = routing.sequence_routing(messages, iterations, mask, **scoring, **options)
    return Result(out.capsules, out.agreement, mask=mask)


def _linear_sequence_routing(inputs: Inputs, **options: bool) -> Result:
    b, s, m, size, states_size, g = (inputs.size() for _ in range(6))
    iterations = inputs.random.randint(1, 4)
    states = inputs.tensor("states", b, s, states_size)
    matrices = [
        inputs.tensor(f"matrices {t}", m, size, states_size, largest=1e4)
        for t in range(inputs.random.choice((1, iterations)))
    ]
    scoring = _scoring(inputs, b, s, m, size, g, separable=iterations > 1)
    mask = inputs.mask(b, s)
    out = routing.linear_sequence_routing(states, matrices, iterations, mask, **scoring, **options)
    return Result(out.capsules, out.agreement, mask=mask)


def _scoring(inputs: Inputs, b: int, s: int, m: int, size: int, g: int, separable: bool) -> dict[str, Any]:
    """Options of routing over a sentence that say how capsules are scored."""
    options: dict[str, Any] = {"balanced": inputs.random.random() < 0.5}
    if inputs.random.random() < 0.5:
        options["parent_positions"] = inputs.tensor("parent_positions", m, size, largest=1e4)
    if separable:
        # not an input of the function: what is done to its gradient is the caller's
        weight = inputs.tensor("parent weight", g, size, largest=1e4, dtype=torch.float32)
        options["child_scores"] = inputs.tensor("child_scores", b, s, g)
        options["parent_scores"] = lambda capsules: capsules @ weight.mT
    return options


def _squash(inputs: Inputs) -> Result:
    return Result(routing.squash(inputs.tensor("inputs", inputs.size(), inputs.size())))


FUNCTIONS: dict[str, Callable[[Inputs], Result]] = {
    "dynamic_routing": _dynamic_routing,
    "em_routing": _em_routing,
    "guided_dynamic_routing": _guided_dynamic_routing,
    "guided_classifier": _guided_classifier,
    "guided_attention": _guided_attention,
    "sequence_routing": _sequence_routing,
    "sequence_routing(mean_output)": partial(_sequence_routing, mean_output=True),
    "linear_sequence_routing": _linear_sequence_routing,
    "linear_sequence_routing(mean_output)": partial(_linear_sequence_routing, mean_output=True),
    "em_routing(geometric_mean)": partial(_em_routing, geometric_mean=True),
    "squash": _squash,
}

# not means in float16, whose range nothing keeps them in (docs/reliability.md)
PROMISED = [
    (name, dtype) for name in FUNCTIONS for dtype in DTYPES if "mean_output" not in name or dtype != torch.float16
]


def faults(case: Case) -> list[str]:
    """Runs a case forward and backward; what is not finite, and assignments that do not sum to one."""
    inputs = Inputs(case)
    result = FUNCTIONS[case.function](inputs)
    found = [] if result.capsules.isfinite().all() else ["capsules"]
    total = (result.capsules.float() * torch.randn(result.capsules.shape, generator=inputs.generator)).sum()
    if result.agreement is not None:
        if not result.agreement.isfinite().all():
            found.append("agreement")
        sums = result.agreement.sum(dim=result.over)
        expected = torch.ones_like(sums) if result.mask is None else result.mask.to(sums.dtype)
        if not torch.allclose(sums, expected, atol=1e-5):
            found.append("sum of the agreement")
        total = total + (result.agreement * torch.randn(result.agreement.shape, generator=inputs.generator)).sum()
    total.backward()
    gradients = {name: leaf.grad for name, leaf in inputs.leaves.items() if leaf.grad is not None}
    return found + [f"gradient of {name}" for name, grad in gradients.items() if not grad.isfinite().all()]
