"""Routing with numbers of any size: everything finite, forward and backward, and every assignment a distribution."""

from __future__ import annotations

import pytest
import torch

from hf_capsule_mt.models import capsule_routing as routing
from numeric_cases import DTYPES, PROMISED, Case, faults
from record import note

QUICK, THOROUGH = 40, 20_000
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
each_function = pytest.mark.parametrize(
    ("function", "dtype"), PROMISED, ids=lambda value: str(value).removeprefix("torch.")
)


def check(function: str, dtype: torch.dtype, seeds: range) -> None:
    cases = [Case(function, dtype, seed) for seed in seeds]
    failed = [f"{case}: {', '.join(found)}" for case in cases if (found := faults(case))]
    if len(seeds) == THOROUGH:
        note(
            "numerics",
            f"{function}, {str(dtype).removeprefix('torch.')}",
            {"cases": len(cases), "failed": len(failed)},
        )
    assert not failed, f"{len(failed)} of {len(cases)}\n" + "\n".join(failed[:50])


@each_function
def test_finite(function, dtype):
    check(function, dtype, range(QUICK))


@pytest.mark.slow
@each_function
def test_finite_in_many_cases(function, dtype):
    check(function, dtype, range(THOROUGH))


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e4, 1e8])
def test_squash_of_any_size_is_what_float64_says(dtype, size):
    torch.manual_seed(0)
    inputs = torch.randn(5, 7, dtype=torch.float64).clamp(-2, 2) * min(size, 3e4 if dtype == torch.float16 else size)
    inputs = inputs.to(dtype)
    norm = torch.linalg.vector_norm(inputs.double(), dim=-1, keepdim=True)
    torch.testing.assert_close(routing.squash(inputs), (inputs.double() * norm / (1 + norm.square())).to(dtype))


def test_a_loss_scale_that_is_too_large_is_still_noticed():
    """Gradients of votes end at float16's largest number; that of the layer which makes the votes does not."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 8, dtype=torch.float16)
    states = torch.randn(64, 4, 6, dtype=torch.float16)
    for scale, finite in ((1.0, True), (1e8, False)):
        layer.zero_grad()
        votes = layer(states).unflatten(-1, (4, 2))
        (routing.dynamic_routing(votes, 3).capsules.float() * scale).sum().backward()
        assert bool(layer.weight.grad.isfinite().all()) is finite
