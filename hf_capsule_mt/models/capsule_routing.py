"""Routing by agreement as pure functions of tensors.

Shape alphabet of the project: B batch, S source length, T target length, L input capsules (layers), N output
capsules, D size of one output capsule, R routing iterations. Every function takes any number of leading dimensions
(written ``...``), keeps no state and owns no parameters.

Inner arithmetic is float32 for float32, bfloat16 and float16 inputs and float64 for float64 inputs; results come back
in the dtype of the votes, agreements in the inner dtype. Only element-wise operations and reductions are used, so
autocast does not change the precision.

Source: Dou et al. 2019, "Dynamic Layer Aggregation for Neural Machine Translation with Routing-by-Agreement"
(Eq. 5-16, Alg. 1-2), with the EM details of Hinton et al. 2018, "Matrix Capsules with EM Routing".
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Variances of EM routing never fall below this: identical votes would otherwise have infinite density.
VARIANCE_FLOOR = 1e-4
# Input activations enter through their logarithm; an activation of exactly 0 counts as this.
ACTIVATION_FLOOR = 1e-12


class RoutingOutput(NamedTuple):
    """What a routing function returns.

    Attributes:
        capsules: output capsules, [..., N, D], in the dtype of the votes.
        agreement: assignment probabilities C of the last iteration, [..., L, N], summing to one over N.
        agreements: the assignment probabilities of every iteration (R tensors), or None unless asked for.
    """

    capsules: Tensor
    agreement: Tensor
    agreements: tuple[Tensor, ...] | None = None


def inner_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that routing computes in: float64 for float64 inputs, float32 for every other."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def squash(inputs: Tensor) -> Tensor:
    """Squashing non-linearity, Dou et al. Eq. 5: the direction of the input with a length in [0, 1).

    Written as ``s * |s| / (1 + |s|^2)``, which is the printed formula without its division by zero.

    Args:
        inputs: [..., D].

    Returns:
        [..., D].
    """
    norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True) if inputs.shape[-1] > 1 else inputs.abs()
    # norm / (1 + norm^2) as 1 / (1/norm + norm) would overflow at 0; this form overflows at 1e19 only.
    return inputs * (norm / (1 + norm.square()))


def inverse_temperature_schedule(num_iterations: int, final: float = 1.0) -> tuple[float, ...]:
    """Inverse temperatures of EM routing, rising over the iterations: ``final * (1 - 0.95 ** (t + 1))``.

    Args:
        num_iterations: R >= 1.
        final: value that the schedule tends to, dimensionless.

    Returns:
        R floats (schedule of Hinton et al. 2018; Dou et al. refer to it below Eq. 14).
    """
    return tuple(final * (1.0 - 0.95 ** (iteration + 1)) for iteration in range(num_iterations))


def dynamic_routing(votes: Tensor, num_iterations: int, *, return_all_agreements: bool = False) -> RoutingOutput:
    """Iterative dynamic routing, Dou et al. Alg. 1 and Eq. 5-9 (Sabour et al. 2017).

    The first assignment is uniform over the N output capsules. The logit update of the last iteration, whose result
    nothing reads, is skipped.

    Args:
        votes: V_{l->n}, [..., L, N, D].
        num_iterations: R >= 1; R = 1 is the uniform control.
        return_all_agreements: also return the agreement of every iteration.

    Returns:
        RoutingOutput with capsules [..., N, D] and agreement [..., L, N].

    Raises:
        ValueError: if num_iterations < 1 or the votes have fewer than three dimensions.
    """
    _check_votes(votes, num_iterations)
    dtype = inner_dtype(votes.dtype)
    v = votes.to(dtype)
    # one column that broadcasts for the uniform start
    agreement = v.new_full((*v.shape[:-2], 1), 1 / v.shape[-2])
    logits = v.new_zeros(())
    agreements = []
    for iteration in range(num_iterations):
        agreements.append(agreement.expand(v.shape[:-1]))
        capsules = squash((agreement.unsqueeze(-1) * v).sum(dim=-3))
        if iteration + 1 < num_iterations:
            logits = logits + _sum_last(capsules.unsqueeze(-3) * v)
            agreement = logits.softmax(dim=-1)
    return RoutingOutput(
        capsules.to(votes.dtype), agreements[-1], tuple(agreements) if return_all_agreements else None
    )


def em_routing(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor | float,
    beta_mu: Tensor | float,
    inverse_temperatures: Sequence[float],
    *,
    return_all_agreements: bool = False,
) -> RoutingOutput:
    """Iterative EM routing, Dou et al. Alg. 2 and Eq. 10-16 (Hinton et al. 2018).

    Fits one Gaussian with diagonal covariance per output capsule to the votes of the input capsules. Everything is
    in the log domain, the normalisation over input capsules included, so that a capsule that is assigned almost
    nothing keeps a proper mean. The E-step after the last M-step, whose result nothing reads, is skipped.

    Readings of the printed formulas: Eq. 15 is the density of one dimension, normalised by sigma (as in Hinton et
    al.; the print has sigma squared), and a vote's density is the product over its D dimensions; variances have the
    floor VARIANCE_FLOOR added (a clamp would cut the gradient of a collapsed capsule).

    Args:
        votes: V_{l->n}, [..., L, N, D].
        activations: A_l of the input capsules in [0, 1], [..., L].
        beta_a: cost beta_A of coding a capsule's mean and variance when it is active, scalar or [N].
        beta_mu: cost beta_mu per unit of assigned input, scalar or [N].
        inverse_temperatures: lambda of Eq. 14 for each of the R iterations.
        return_all_agreements: also return the agreement of every iteration.

    Returns:
        RoutingOutput with capsules A_n * mu_n [..., N, D]; the agreement [..., L, N] is C before the M-step
        multiplies it by the activations.

    Raises:
        ValueError: if there are no iterations or the shapes do not fit.
    """
    _check_votes(votes, len(inverse_temperatures))
    if activations.shape != votes.shape[:-2]:
        raise ValueError(
            f"activations must have one value per input capsule, shape {tuple(votes.shape[:-2])}, "
            f"but have shape {tuple(activations.shape)}"
        )
    dtype = inner_dtype(votes.dtype)
    v = votes.to(dtype)
    num_capsules = v.shape[-2]
    log_activations = activations.to(dtype).clamp_min(ACTIVATION_FLOOR).log().unsqueeze(-1)
    # one column that broadcasts for the uniform start
    log_agreement = v.new_full((*v.shape[:-2], 1), -math.log(num_capsules))
    agreements = []
    last = len(inverse_temperatures) - 1
    for iteration, inverse_temperature in enumerate(inverse_temperatures):
        if iteration == last or return_all_agreements:
            agreements.append(log_agreement.exp().expand(v.shape[:-1]))
        # M-step (Eq. 11-14)
        log_weights = log_agreement + log_activations
        mass = log_weights.exp().sum(dim=-2)
        share = log_weights.softmax(dim=-2).unsqueeze(-1)
        mean = (share * v).sum(dim=-3)
        squared_distance = (v - mean.unsqueeze(-3)).square()
        variance = (share * squared_distance).sum(dim=-3) + VARIANCE_FLOOR
        log_variance = variance.log()
        cost = mass * _sum_last(0.5 * log_variance + 0.5 * (1 + math.log(2 * math.pi)))
        activation_logits = inverse_temperature * (beta_a - beta_mu * mass - cost)
        if iteration < last:
            # E-step (Eq. 15-16)
            exponent = _sum_last(squared_distance / variance.unsqueeze(-3))
            log_normaliser = _sum_last(log_variance + math.log(2 * math.pi)).unsqueeze(-2)
            log_density = -0.5 * (exponent + log_normaliser)
            log_prior = torch.nn.functional.logsigmoid(activation_logits).unsqueeze(-2)
            log_agreement = (log_prior + log_density).log_softmax(dim=-1)
    capsules = activation_logits.sigmoid().unsqueeze(-1) * mean
    return RoutingOutput(
        capsules.to(votes.dtype), agreements[-1], tuple(agreements) if return_all_agreements else None
    )


def _sum_last(inputs: Tensor) -> Tensor:
    """Sum over the D dimensions of a capsule; for D = 1, the usual case, no copy."""
    return inputs.squeeze(-1) if inputs.shape[-1] == 1 else inputs.sum(dim=-1)


def _check_votes(votes: Tensor, num_iterations: int) -> None:
    if votes.dim() < 3:
        raise ValueError(f"votes must have shape [..., L, N, D], but have shape {tuple(votes.shape)}")
    if num_iterations < 1:
        raise ValueError(f"routing needs at least 1 iteration, got {num_iterations}")
