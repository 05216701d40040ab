"""Dou et al. 2019, one sentence position at a time, in the order in which the paper prints its lines.

No batching, no log domain, no shortcuts: each sum is a Python loop over scalars or D-vectors. Inputs and outputs are
float64 tensors; gradients flow through autograd.
"""

import math

import torch
from torch import Tensor


def squash(s: Tensor) -> Tensor:
    """Eq. 5 for one capsule, s: [D]."""
    squared = (s * s).sum()
    return squared / (1 + squared) * s / squared.sqrt()


def dynamic_routing(votes: Tensor, num_iterations: int) -> tuple[Tensor, list[Tensor]]:
    """Alg. 1 for one position. votes: [L, N, D]. Returns capsules [N, D] and C [L, N] of every iteration."""
    num_layers, num_capsules, _ = votes.shape
    b = [[votes.new_zeros(()) for _ in range(num_capsules)] for _ in range(num_layers)]
    history = []
    for _ in range(num_iterations):
        c = [softmax(row) for row in b]  # line 4, Eq. 9
        omega = []
        for n in range(num_capsules):  # line 5, Eq. 5-6
            s_n = sum(c[layer][n] * votes[layer, n] for layer in range(num_layers))
            omega.append(squash(s_n))
        for layer in range(num_layers):  # line 6
            for n in range(num_capsules):
                b[layer][n] = b[layer][n] + (omega[n] * votes[layer, n]).sum()
        history.append(torch.stack([torch.stack(row) for row in c]))
    return torch.stack(omega), history


def em_routing(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_mu: Tensor,
    inverse_temperatures: list[float],
    variance_floor: float,
    geometric_mean: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Alg. 2 for one position. votes: [L, N, D], activations: [L], beta_a and beta_mu: [N].

    Returns capsules [N, D] and the assignment C [L, N] of every iteration, before the M-step multiplies it by A^H.
    """
    num_layers, num_capsules, size = votes.shape
    power = 1 / size if geometric_mean else 1  # the mean is ours
    c = [[votes.new_tensor(1 / num_capsules) for _ in range(num_capsules)] for _ in range(num_layers)]  # line 2
    history = []
    for inverse_temperature in inverse_temperatures:
        history.append(torch.stack([torch.stack(row) for row in c]))
        r = [[c[layer][n] * activations[layer] for n in range(num_capsules)] for layer in range(num_layers)]
        mu, variance, omega_activation = [], [], []
        for n in range(num_capsules):  # M-step
            total = sum(r[layer][n] for layer in range(num_layers))
            mu_n = sum(r[layer][n] * votes[layer, n] for layer in range(num_layers)) / total  # Eq. 11
            variance_n = sum(r[layer][n] * (votes[layer, n] - mu_n) ** 2 for layer in range(num_layers)) / total
            variance_n = variance_n + variance_floor  # Eq. 12, with the project's floor
            cost = [
                (variance_n[h].sqrt().log() + (1 + math.log(2 * math.pi)) / 2) * total for h in range(size)
            ]  # Eq. 13
            logit = inverse_temperature * (beta_a[n] - beta_mu[n] * total - sum(cost))  # Eq. 14
            mu.append(mu_n)
            variance.append(variance_n)
            omega_activation.append(1 / (1 + torch.exp(-logit)))
        c = []
        for layer in range(num_layers):  # E-step
            weighted = []
            for n in range(num_capsules):
                density = votes.new_ones(())
                for h in range(size):  # Eq. 15, one factor per dimension
                    squared = (votes[layer, n, h] - mu[n][h]) ** 2
                    density = density * torch.exp(-power * squared / (2 * variance[n][h]))
                    density = density / (2 * math.pi * variance[n][h]) ** (power / 2)
                weighted.append(omega_activation[n] * density)
            c.append([w / sum(weighted) for w in weighted])  # Eq. 16
    return torch.stack([omega_activation[n] * mu[n] for n in range(num_capsules)]), history


def softmax(logits: list[Tensor]) -> list[Tensor]:
    """Softmax of a list of scalars, Eq. 9."""
    exponentials = [torch.exp(logit) for logit in logits]
    total = sum(exponentials)
    return [e / total for e in exponentials]
