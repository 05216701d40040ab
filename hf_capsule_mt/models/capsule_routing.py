"""Routing by agreement as pure functions of tensors.

Shape alphabet of the project: B batch, S source length, T target length, L input capsules (layers), N output
capsules, D size of one output capsule, R routing iterations. Every function takes any number of leading dimensions
(written ``...``), keeps no state and owns no parameters.

Inner arithmetic is float32 for float32, bfloat16 and float16 inputs and float64 for float64 inputs, under autocast as
well; results come back in the dtype of the votes, agreements in the inner dtype.

Results and gradients are finite for inputs up to 1e8, in float16 up to 1e4. A gradient that float16 cannot hold (votes
of 1e4 may have gradients of 1e8) becomes its largest number; a loss scale that is too large is noticed all the same:
the layers that make the votes sum many of these gradients.

Sources: Dou et al. 2019, "Dynamic Layer Aggregation for Neural Machine Translation with Routing-by-Agreement"
(Eq. 5-16, Alg. 1-2), with the EM details of Hinton et al. 2018, "Matrix Capsules with EM Routing"; Zheng et al. 2019,
"Dynamic Past and Future for Neural Machine Translation" (Eq. 4-7, Alg. 1, and its baselines CLF and ATTN); Wang et al.
2019, "Towards Linear Time Neural Machine Translation with Capsule Networks" (Eq. 7-14, Alg. 1).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .capsule_kernels import additive_scores, in_pieces

# Variances of EM routing never fall below this: identical votes would otherwise have infinite density.
VARIANCE_FLOOR = 1e-4
# Input activations enter through their logarithm; an activation of exactly 0 counts as this.
ACTIVATION_FLOOR = 1e-12
# Gradients of the variances of EM routing, which grow with the inverse of their squares, end here.
STEEPEST = 1e12


class RoutingOutput(NamedTuple):
    """What a routing function returns.

    Attributes:
        capsules: output capsules, [..., N, D], in the dtype of the votes.
        agreement: assignment probabilities C of the last iteration, [..., L, N], summing to one over N. The functions
            that route source words at every decoding step have [..., T, S, N].
        agreements: the assignment probabilities of every iteration (R tensors), or None unless asked for.
    """

    capsules: Tensor
    agreement: Tensor
    agreements: tuple[Tensor, ...] | None = None


def inner_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that routing computes in: float64 for float64 inputs, float32 for every other."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def squash(inputs: Tensor, dim: int = -1) -> Tensor:
    """Squashing non-linearity, Dou et al. Eq. 5: the direction of the input with a length in [0, 1).

    Written as ``s * |s| / (1 + |s|^2)``, which is the printed formula without its division by zero.

    Args:
        inputs: vectors along `dim`, such as [..., D].
        dim: their axis.

    Returns:
        The shape of the inputs.
    """
    dtype, inputs = inputs.dtype, _widened(inputs)
    norm = torch.linalg.vector_norm(inputs, dim=dim, keepdim=True) if inputs.shape[dim] > 1 else inputs.abs()
    # norm / (1 + norm^2) as 1 / (1/norm + norm) would overflow at 0; this form overflows at 1e19 only.
    return (inputs * (norm / (1 + norm.square()))).to(dtype)


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
    v, sources, spread, over_size = _by_source(votes)
    # one column that broadcasts for the uniform start
    agreement = v.new_full((*votes.shape[:-2], 1), 1 / votes.shape[-2])
    logits = v.new_zeros(())
    agreements = []
    for iteration in range(num_iterations):
        agreements.append(agreement.expand(votes.shape[:-1]))
        # of capsules of one dimension, the axis that the sum leaves takes the place of theirs
        capsules = squash((spread(agreement) * v).sum(dim=sources, keepdim=True), -2 if sources == -2 else -1)
        if iteration + 1 < num_iterations:
            logits = logits + over_size(capsules * v)
            agreement = logits.softmax(dim=-1)
    return RoutingOutput(
        capsules.reshape(*votes.shape[:-3], *votes.shape[-2:]).to(votes.dtype),
        agreements[-1],
        tuple(agreements) if return_all_agreements else None,
    )


def dynamic_routing_capsules(votes: Tensor, num_iterations: int) -> Tensor:
    """The capsules of `dynamic_routing` alone, without keeping anything of its iterations (`in_pieces`).

    Args:
        votes: [..., L, N, D].
        num_iterations: R >= 1.

    Returns:
        [..., N, D].
    """
    capsules = in_pieces(_dynamic_routing_core, [votes.flatten(0, -4)], options=(num_iterations,))
    return capsules.unflatten(0, votes.shape[:-3])


def _dynamic_routing_core(votes: Tensor, num_iterations: int) -> Tensor:
    return dynamic_routing(votes, num_iterations).capsules


def em_routing(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor | float,
    beta_mu: Tensor | float,
    inverse_temperatures: Sequence[float],
    *,
    geometric_mean: bool = False,
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
        geometric_mean: the density of a vote is the geometric mean over its D dimensions instead of their product
            (ours, not in the paper): with large D, products prefer one capsule by so much that training suffers.
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
    capsules, log_agreements = _em_iterations(
        votes, activations, beta_a, beta_mu, inverse_temperatures, geometric_mean
    )
    agreements = [step.exp().expand(votes.shape[:-1]) for step in log_agreements[0 if return_all_agreements else -1 :]]
    return RoutingOutput(capsules, agreements[-1], tuple(agreements) if return_all_agreements else None)


def _em_iterations(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor | float,
    beta_mu: Tensor | float,
    inverse_temperatures: Sequence[float],
    geometric_mean: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Capsules of `em_routing` and the logarithms of the assignment of every iteration, [..., L, N or 1]."""
    v, sources, spread, over_size = _by_source(votes)
    num_capsules, size = votes.shape[-2:]
    beta_a, beta_mu = (_widened(beta) if isinstance(beta, Tensor) else beta for beta in (beta_a, beta_mu))
    # Eq. 13 without sum_d log sigma_d: what a unit of assigned input costs with variances of one
    unit_cost = beta_mu + size * 0.5 * (1 + math.log(2 * math.pi))
    # what the density of a vote, a product over its dimensions, is raised to
    power = 1 / size if geometric_mean else 1.0
    log_activations = _widened(activations).clamp_min(ACTIVATION_FLOOR).log().unsqueeze(-1)
    # one column that broadcasts for the uniform start
    log_agreements = [v.new_full((*votes.shape[:-2], 1), -math.log(num_capsules))]
    last = len(inverse_temperatures) - 1
    for iteration, inverse_temperature in enumerate(inverse_temperatures):
        # M-step (Eq. 11-14); what belongs to an output capsule keeps an axis of length one for the input capsules
        log_weights = log_agreements[-1] + log_activations
        mass = log_weights.exp().sum(dim=-2, keepdim=True)
        share = spread(log_weights.softmax(dim=-2))
        mean = (share * v).sum(dim=sources, keepdim=True)
        squared_distance = (v - mean).square()
        variance = _limit_gradient((share * squared_distance).sum(dim=sources, keepdim=True) + VARIANCE_FLOOR)
        log_deviation = 0.5 * over_size(variance.log())
        activation_logits = inverse_temperature * (beta_a - mass * (unit_cost + log_deviation))
        if iteration < last:
            # E-step (Eq. 15-16); the factor (2 pi)^(-D/2), the same for every capsule, falls out
            log_prior = torch.nn.functional.logsigmoid(activation_logits).sub(log_deviation, alpha=power)
            exponent = over_size(squared_distance / variance)
            log_agreements.append(torch.sub(log_prior, exponent, alpha=0.5 * power).log_softmax(dim=-1))
    capsules = spread(activation_logits.sigmoid()) * mean
    return capsules.reshape(*votes.shape[:-3], *votes.shape[-2:]).to(votes.dtype), log_agreements


def em_routing_capsules(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_mu: Tensor,
    inverse_temperatures: tuple[float, ...],
    geometric_mean: bool = False,
) -> Tensor:
    """The capsules of `em_routing` alone, without keeping anything of its iterations (`in_pieces`).

    Args:
        votes: [..., L, N, D].
        activations, beta_a, beta_mu, inverse_temperatures, geometric_mean: as in `em_routing`.

    Returns:
        [..., N, D].
    """
    rows = [votes.flatten(0, -4), activations.flatten(0, -2)]
    capsules = in_pieces(_em_routing_core, rows, [beta_a, beta_mu], (inverse_temperatures, geometric_mean))
    return capsules.unflatten(0, votes.shape[:-3])


def _em_routing_core(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_mu: Tensor,
    inverse_temperatures: tuple[float, ...],
    geometric_mean: bool,
) -> Tensor:
    return _em_iterations(votes, activations, beta_a, beta_mu, inverse_temperatures, geometric_mean)[0]


def guided_dynamic_routing(
    votes: Tensor,
    vote_terms: Tensor | None,
    state_terms: Tensor,
    capsule_weight: Tensor | None,
    score_weight: Tensor | None,
    num_iterations: int,
    mask: Tensor | None = None,
    *,
    first_capsules: Tensor | None = None,
    vote_exponentials: Tensor | None = None,
    return_all_agreements: bool = False,
) -> RoutingOutput:
    """Guided dynamic routing, Zheng et al. Alg. 1 and Eq. 4-7: at each decoding step t, the S source words are routed.

    The logits grow by ``w . tanh(W_b [z_t; v_ij; Omega_j])``. W_b is taken by blocks, so that only the product with
    Omega_j depends on the iteration: ``w . tanh(W_z z_t + W_v v_ij + W_o Omega_j)``. The first assignment is uniform,
    hence its capsules are those of every step (`uniform_capsules`). The logit update of the last iteration, whose
    result nothing reads, is skipped.

    The tanh of an iteration, [..., T, S, N, H], is not kept for the backward pass (`additive_scores`).

    Args:
        votes: v_ij = W_j h_i, [..., S, N, D].
        vote_terms: W_v v_ij, [..., S, N, H]; like votes, a function of the source alone.
        state_terms: W_z z_t, [..., T, H].
        capsule_weight: W_o, [H, D].
        score_weight: w, [H].
        num_iterations: R >= 1; with R = 1 the assignment is uniform and the three terms above may be None.
        mask: [..., S], True for a real source word; padding is assigned to no capsule. A softmax over capsules gives
            it a probability whatever its logits are, so the probabilities themselves are set to 0.
        first_capsules: `uniform_capsules` of the votes and the mask where these are known already, [..., N, 1, D].
        vote_exponentials: `key_exponentials` of vote_terms where these are known already, [..., S, N, H].
        return_all_agreements: also return the agreement of every iteration.

    Returns:
        RoutingOutput with capsules [..., T, N, D] and agreement c_ij [..., T, S, N].

    Raises:
        ValueError: if num_iterations < 1, a term is missing, or the mask does not fit the votes.
    """
    _check_votes(votes, num_iterations, "[..., S, N, D]")
    # once: gradients of several uses are summed before they are rounded
    wide = _widened(votes)
    v, real = _by_capsule(wide, mask)
    shape = (*v.shape[:-2], state_terms.shape[-2], v.shape[-2])
    capsules = uniform_capsules(wide, mask) if first_capsules is None else first_capsules
    # [..., 1, 1, S] stands for every capsule and every step
    agreement = real / v.shape[-3]
    agreements = [agreement.expand(shape)]
    logits: Tensor | None = None
    with _no_autocast(votes):
        if num_iterations > 1:
            if vote_terms is None or capsule_weight is None or score_weight is None:
                raise ValueError("more than 1 iteration needs vote_terms, capsule_weight and score_weight")
            states = _widened(state_terms).unsqueeze(-3)
            keys = _widened(vote_terms).transpose(-3, -2)
            exponentials = None if vote_exponentials is None else vote_exponentials.transpose(-3, -2)
            output_weight, weight = _widened(capsule_weight).mT, _widened(score_weight).unsqueeze(0)
        for _ in range(1, num_iterations):
            scores = additive_scores(states + capsules @ output_weight, keys, weight, exponentials).squeeze(-1)
            logits = scores if logits is None else logits + scores
            agreement = logits.softmax(dim=-3) * real
            agreements.append(agreement)
            capsules = squash(agreement @ v)
    capsules = capsules.expand(*shape[:-1], -1).transpose(-3, -2)
    history = tuple(step.movedim(-3, -1) for step in agreements[0 if return_all_agreements else -1 :])
    return RoutingOutput(capsules.to(votes.dtype), history[-1], history if return_all_agreements else None)


def uniform_capsules(votes: Tensor, mask: Tensor | None = None) -> Tensor:
    """Capsules of the first iteration of `guided_dynamic_routing`: a function of the source alone.

    Args:
        votes: [..., S, N, D].
        mask: [..., S], True for a real source word.

    Returns:
        [..., N, 1, D], in the inner dtype.
    """
    v, real = _by_capsule(votes, mask)
    with _no_autocast(votes):
        return squash((real / v.shape[-3]).expand(*v.shape[:-2], 1, v.shape[-2]) @ v)


def guided_classifier(
    votes: Tensor,
    keys: Tensor,
    state_terms: Tensor,
    score_weight: Tensor,
    group_sizes: Sequence[int],
    mask: Tensor | None = None,
) -> RoutingOutput:
    """The baseline CLF of Zheng et al. (footnote 5): an MLP classifies each source word at each decoding step.

    Group probabilities are ``softmax_g(w_g . tanh(W_z z_t + W_h h_i))``, and a capsule of group g is the squashed sum
    of its votes with the probabilities of g as weights (Eq. 4).

    Args:
        votes: v_ij of the capsules of all groups that have any, in order, [..., S, sum(group_sizes), D].
        keys: W_h h_i, [..., S, H].
        state_terms: W_z z_t, [..., T, H].
        score_weight: w_g, [G, H]; G may exceed len(group_sizes), by groups without capsules (REDUNDANT).
        group_sizes: number of capsules of each group, such as (PAST, FUTURE).
        mask: [..., S], True for a real source word.

    Returns:
        RoutingOutput with capsules [..., T, sum(group_sizes), D] and agreement [..., T, S, G], summing to one over G.

    Raises:
        ValueError: if the mask or the group sizes do not fit the votes.
    """
    _check_groups(votes, group_sizes)
    v, real = _by_capsule(votes, mask)
    with _no_autocast(votes):
        logits = additive_scores(_widened(state_terms), _widened(keys), _widened(score_weight))
        agreement = logits.softmax(dim=-1).movedim(-1, -3) * real
        capsules = _group_capsules(agreement, v, group_sizes)
    return RoutingOutput(capsules.to(votes.dtype), agreement.movedim(-3, -1))


def guided_attention(
    votes: Tensor,
    keys: Tensor,
    state_terms: Tensor,
    score_weight: Tensor,
    group_sizes: Sequence[int],
    mask: Tensor | None = None,
) -> RoutingOutput:
    """The baseline ATTN of Zheng et al. (section 4.3): one attention per group retrieves its source words.

    The weights ``softmax_i(w_g . tanh(W_z^g z_t + W_h^g h_i))`` are distributed over the source words, so that groups
    do not compete for a word; a capsule of group g is the squashed sum of its votes with these weights.

    Args:
        votes: v_ij of the capsules of all groups, in order, [..., S, sum(group_sizes), D].
        keys: W_h^g h_i, [..., S, G, H].
        state_terms: W_z^g z_t, [..., T, G, H].
        score_weight: w_g, [G, H].
        group_sizes: number of capsules of each of the G groups.
        mask: [..., S], True for a real source word.

    Returns:
        RoutingOutput with capsules [..., T, sum(group_sizes), D] and weights [..., T, S, G], summing to one over S.

    Raises:
        ValueError: if the mask or the group sizes do not fit the votes.
    """
    _check_groups(votes, group_sizes)
    v, real = _by_capsule(votes, mask)
    with _no_autocast(votes):
        logits = torch.stack(
            [
                additive_scores(queries, group_keys, weight.unsqueeze(0)).squeeze(-1)
                for queries, group_keys, weight in zip(
                    _widened(state_terms).unbind(-2),
                    _widened(keys).unbind(-2),
                    _widened(score_weight),
                    strict=True,
                )
            ],
            dim=-3,
        )
        # the lowest number, not -inf: a row of padding alone must stay finite
        weights = logits.masked_fill(real == 0, torch.finfo(v.dtype).min).softmax(dim=-1) * real
        capsules = _group_capsules(weights, v, group_sizes)
    return RoutingOutput(capsules.to(votes.dtype), weights.movedim(-3, -1))


def sequence_routing(
    messages: Tensor | Sequence[Tensor],
    num_iterations: int,
    mask: Tensor | None = None,
    *,
    parent_positions: Tensor | None = None,
    child_scores: Tensor | None = None,
    parent_scores: Callable[[Tensor], Tensor] | None = None,
    balanced: bool = False,
    mean_output: bool = False,
    return_all_agreements: bool = False,
) -> RoutingOutput:
    """Dynamic routing of a sentence's positions to M capsules, Wang et al. Alg. 1 and Eq. 7-14.

    Every position shares itself out among the M parents (Eq. 11), so a sentence of any length becomes M vectors. The
    logit update of the last iteration, whose result nothing reads, is skipped.

    Args:
        messages: f(h_i, W_j), [..., S, M, D], or R such tensors, f(h_i, W_j^t), for weights that are not shared
            between the iterations.
        num_iterations: R >= 1; with R = 1 every position is shared out evenly.
        mask: [..., S], True for a real source word; padding sends nothing. A softmax over parents gives it a
            probability whatever its logits are, so the probabilities themselves are set to 0.
        parent_positions: encodings of the parents' positions, [M, D], added to the capsules where they are scored
            ("position-aware"; those of the children belong to h).
        child_scores, parent_scores: for separable scoring (Eq. 14), g(h_i), [..., S, G], and g as a function of
            capsules, [..., M, D] -> [..., M, G]. Without them the score is c_j . f(h_i, W_j) (Eq. 12).
        balanced: not in the paper; keeps one parent from winning every word of every sentence. Both factors of a score
            are squashed, so it lies within (-1, 1), and what a parent's logits have in common over the words of a
            sentence, their mean, is taken off before Eq. 11.
        mean_output: not in the paper; the capsules that are returned are (M / n) sum_i alpha_ij f(h_i, W_j), n being
            the number of real words, in place of the squashed sum, whose length is 1 as soon as a few words are
            received. Where capsules are scored, they stay squashed.
        return_all_agreements: also return the agreement of every iteration.

    Returns:
        RoutingOutput with capsules c_j [..., M, D] and agreement alpha_ij [..., S, M].

    Raises:
        ValueError: if num_iterations < 1, there is not one tensor of messages per iteration, the mask does not fit, or
            only one half of the separable scores is given.
    """
    _check_iterations(num_iterations)
    if not isinstance(messages, Tensor) and len(messages) != num_iterations:
        raise ValueError(f"{num_iterations} iterations need as many tensors of messages, not {len(messages)}")
    first = messages if isinstance(messages, Tensor) else messages[0]
    _check_votes(first, num_iterations, "[..., S, M, D]")
    # once each: gradients of several uses are summed before they are rounded
    steps = [_widened(first)] * num_iterations if first is messages else [_widened(step) for step in messages]
    bound = squash if balanced else _unchanged

    def receive(agreement: Tensor, iteration: int) -> Tensor:
        return (agreement.unsqueeze(-1) * steps[iteration]).sum(dim=-3)

    def scalar_product(capsules: Tensor, iteration: int) -> Tensor:
        return (bound(capsules).unsqueeze(-3) * bound(steps[iteration])).sum(dim=-1)

    return _route_sequence(
        receive,
        _separable_score(child_scores, parent_scores, bound) or scalar_product,
        first[..., 0, 0],
        first.shape[-2],
        num_iterations,
        mask,
        parent_positions=parent_positions,
        balanced=balanced,
        mean_output=mean_output,
        return_all_agreements=return_all_agreements,
    )


def linear_sequence_routing(
    states: Tensor,
    matrices: Sequence[Tensor],
    num_iterations: int,
    mask: Tensor | None = None,
    *,
    child_scores: Tensor | None = None,
    parent_scores: Callable[[Tensor], Tensor] | None = None,
    parent_positions: Tensor | None = None,
    balanced: bool = False,
    mean_output: bool = False,
    return_all_agreements: bool = False,
) -> RoutingOutput:
    """`sequence_routing` of linear messages W_j h_i with separable scoring, without ever making the messages.

    What parent j receives is ``sum_i alpha_ij W_j h_i = W_j sum_i alpha_ij h_i``: matrices meet M vectors per sentence
    instead of S x M.

    Args:
        states: h, [..., S, d].
        matrices: W_j of every iteration, R tensors [M, D, d], or one for all.
        child_scores, parent_scores: needed from the second iteration on; one has no scores.

    The other arguments, results and errors are those of `sequence_routing`.

    Raises:
        ValueError: Several iterations without separable scoring, whose scores are of messages.
    """
    _check_iterations(num_iterations)
    if len(matrices) not in (1, num_iterations):
        raise ValueError(f"{num_iterations} iterations need as many matrices, or one, not {len(matrices)}")
    score = _separable_score(child_scores, parent_scores, squash if balanced else _unchanged)
    if score is None and num_iterations > 1:
        raise ValueError(
            "linear messages that are not made need child_scores and parent_scores for several iterations"
        )
    inputs = _widened(states)
    steps = [_widened(matrix) for matrix in matrices] * (num_iterations if len(matrices) == 1 else 1)

    def receive(agreement: Tensor, iteration: int) -> Tensor:
        return torch.einsum("mde,...me->...md", steps[iteration], agreement.mT @ inputs)

    return _route_sequence(
        receive,
        score,
        states[..., 0],
        steps[0].shape[0],
        num_iterations,
        mask,
        parent_positions=parent_positions,
        balanced=balanced,
        mean_output=mean_output,
        return_all_agreements=return_all_agreements,
    )


def _separable_score(
    child_scores: Tensor | None,
    parent_scores: Callable[[Tensor], Tensor] | None,
    bound: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, int], Tensor] | None:
    """Eq. 14 as a function of capsules [..., M, D] that gives [..., S, M]; None without the scores of both."""
    if (child_scores is None) != (parent_scores is None):
        raise ValueError("separable scoring needs both child_scores and parent_scores")
    if child_scores is None or parent_scores is None:
        return None
    children = _widened(child_scores)
    return lambda capsules, iteration: bound(children) @ bound(_widened(parent_scores(capsules))).mT


def _route_sequence(
    receive: Callable[[Tensor, int], Tensor],
    score: Callable[[Tensor, int], Tensor] | None,
    like: Tensor,
    num_capsules: int,
    num_iterations: int,
    mask: Tensor | None,
    *,
    parent_positions: Tensor | None,
    balanced: bool,
    mean_output: bool,
    return_all_agreements: bool,
) -> RoutingOutput:
    """Alg. 1 with what parents receive, [..., S, M] -> [..., M, D], and scores, [..., M, D] -> [..., S, M].

    score: None for one iteration, whose capsules are not scored.
    like: any tensor [..., S] of the dtype that the capsules are to have.
    """
    positions = None if parent_positions is None else _widened(parent_positions)
    real = _as_weights(like, mask).unsqueeze(-1)
    words = real.sum(dim=-2, keepdim=True).clamp_min(1)
    agreement = (real / num_capsules).expand(*like.shape, num_capsules)
    agreements = []
    with _no_autocast(like):
        logits = real.new_zeros(())
        for iteration in range(num_iterations):
            agreements.append(agreement)
            received = receive(agreement, iteration)
            if score is None or iteration + 1 == num_iterations:
                capsules = received * (num_capsules / words) if mean_output else squash(received)
                break
            capsules = squash(received)
            logits = logits + score(capsules if positions is None else capsules + positions, iteration)
            shared = (logits * real).sum(dim=-2, keepdim=True) / words if balanced else 0.0
            agreement = (logits - shared).softmax(dim=-1) * real
    history = tuple(agreements) if return_all_agreements else None
    return RoutingOutput(capsules.to(like.dtype), agreements[-1], history)


class _Half(torch.autograd.Function):
    """float16 in float32; the gradient, which float16 may not hold, ends at its largest number."""

    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        return inputs.float()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        largest = torch.finfo(torch.float16).max
        return grad.clamp(-largest, largest).half()


class _Steepest(torch.autograd.Function):
    """The identity, through which no gradient beyond STEEPEST goes back."""

    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.clamp(-STEEPEST, STEEPEST)


def _limit_gradient(inputs: Tensor) -> Tensor:
    return _Steepest.apply(inputs) if inputs.requires_grad and torch.is_grad_enabled() else inputs


def _widened(inputs: Tensor) -> Tensor:
    """The inputs in the inner dtype."""
    if inputs.dtype == torch.float16 and inputs.requires_grad and torch.is_grad_enabled():
        return _Half.apply(inputs)
    return inputs.to(inner_dtype(inputs.dtype))


def _unchanged(vectors: Tensor) -> Tensor:
    return vectors


def _by_capsule(votes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Votes as [..., N, S, D] in the inner dtype, and the mask as zeros and ones [..., 1, 1, S]."""
    v = _widened(votes).transpose(-3, -2)
    return v, _as_weights(votes[..., 0, 0], mask).unsqueeze(-2).unsqueeze(-2)


def _as_weights(words: Tensor, mask: Tensor | None) -> Tensor:
    """The mask of source words [..., S] as zeros and ones in the inner dtype; ones without a mask."""
    if mask is None:
        mask = torch.ones_like(words)
    if mask.shape != words.shape:
        raise ValueError(
            f"mask must have one value per source word, shape {tuple(words.shape)}, but has {tuple(mask.shape)}"
        )
    return mask.to(inner_dtype(words.dtype))


def _group_capsules(weights: Tensor, votes: Tensor, group_sizes: Sequence[int]) -> Tensor:
    """Eq. 4 with one weight per group. weights: [..., G, T, S], votes: [..., N, S, D]. Returns [..., T, N, D]."""
    per_capsule = torch.cat(
        [
            weights[..., g : g + 1, :, :].expand(*weights.shape[:-3], size, -1, -1)
            for g, size in enumerate(group_sizes)
        ],
        dim=-3,
    )
    return squash(per_capsule @ votes).transpose(-3, -2)


def _no_autocast(votes: Tensor) -> torch.autocast:
    """Autocast would run the matrix products in low precision."""
    return torch.autocast(votes.device.type, enabled=False)


def _check_groups(votes: Tensor, group_sizes: Sequence[int]) -> None:
    _check_votes(votes, 1, "[..., S, N, D]")
    if sum(group_sizes) != votes.shape[-2]:
        raise ValueError(
            f"group_sizes {tuple(group_sizes)} must add up to the {votes.shape[-2]} capsules that the votes are for"
        )


def _by_source(votes: Tensor) -> tuple[Tensor, int, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Votes [..., L, N, D] for iterations over them; of capsules of one dimension, the usual case, as [..., L, N].

    Returns:
        The votes in the inner dtype; their axis L; functions that give a tensor [..., N] an axis for D, and that sum
        over it.
    """
    v = _widened(votes)
    if votes.shape[-1] == 1:
        return v.squeeze(-1), -2, _unchanged, _unchanged
    return v, -3, lambda x: x.unsqueeze(-1), lambda x: x.sum(dim=-1)


def _check_votes(votes: Tensor, num_iterations: int, expected: str = "[..., L, N, D]") -> None:
    if votes.dim() < 3:
        raise ValueError(f"votes must have shape {expected}, but have shape {tuple(votes.shape)}")
    _check_iterations(num_iterations)


def _check_iterations(num_iterations: int) -> None:
    if num_iterations < 1:
        raise ValueError(f"routing needs at least 1 iteration, got {num_iterations}")
