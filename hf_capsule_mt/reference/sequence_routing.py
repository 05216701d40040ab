"""Wang et al. 2019, one sentence at a time, in the order in which the paper prints its lines.

No batching, no padding, no shortcuts: each sum is a Python loop over scalars or vectors. Inputs and outputs are
float64 tensors; gradients flow through autograd. Shapes: S source positions, M capsules of size D, d width, G size of
g.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .layer_routing import softmax, squash


def sequence_routing(
    h: Tensor,
    w: list[Tensor],
    parent_positions: Tensor | None = None,
    g_parent: Callable[[Tensor], Tensor] | None = None,
    g_child: Callable[[Tensor], Tensor] | None = None,
    balanced: bool = False,
    linear: bool = False,
    mean_output: bool = False,
    h_scored: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Alg. 1 for one sentence.

    h: [S, d], with the encodings of positions added if the routing is position-aware; w: the matrices W_j of every
    iteration, R times [M, d, D] (R times the same one where they are shared); parent_positions: [M, D]; g_parent,
    g_child: g of Eq. 14 for a capsule [D] and for a position [d].

    Not in the paper: balanced: squash both factors of a score, and take a parent's mean logit off its logits; linear:
    messages without the ReLU of Eq. 8; mean_output: return (M / S) sum_i alpha_ij f(h_i, W_j) of the last iteration;
    h_scored: what g_child reads in place of h.

    Returns capsules [M, D] and alpha [S, M] of every iteration.
    """
    children, parents = range(len(h)), range(len(w[0]))
    bound = squash if balanced else (lambda vector: vector)
    b = [[h.new_zeros(()) for _ in parents] for _ in children]  # line 2
    scored_h = h if h_scored is None else h_scored
    history = []
    for w_t in w:  # line 3
        shared = [sum(b[i][j] for i in children) / len(h) if balanced else 0.0 for j in parents]
        alpha = [softmax([b[i][j] - shared[j] for j in parents]) for i in children]  # line 4, Eq. 11
        f = [[h[i] @ w_t[j] if linear else torch.relu(h[i] @ w_t[j]) for j in parents] for i in children]  # Eq. 8
        received = [sum(alpha[i][j] * f[i][j] for i in children) for j in parents]  # Eq. 9, 10
        c = [squash(received[j]) for j in parents]  # line 5, Eq. 7
        for i in children:  # line 6
            for j in parents:
                scored = c[j] if parent_positions is None else c[j] + parent_positions[j]
                if g_parent is None or g_child is None:
                    b[i][j] = b[i][j] + (bound(scored) * bound(f[i][j])).sum()  # Eq. 12
                else:
                    b[i][j] = b[i][j] + (bound(g_parent(scored)) * bound(g_child(scored_h[i]))).sum()  # Eq. 14
        history.append(torch.stack([torch.stack(row) for row in alpha]))
    if mean_output:
        c = [len(c) / len(h) * received[j] for j in parents]
    return torch.stack(c), history
