"""Two sums whose intermediate tensors are too large to keep: forward and backward pass by hand, in pieces.

Nothing of the size of an intermediate tensor outlives a piece. Shapes: M independent rows, T and S positions, H hidden
size, G scores, d width, V vocabulary.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Elements of tanh(...) held at a time: what stays in a CPU core's cache, or keeps a GPU busy.
SCORE_ELEMENTS_CPU = 2**18
SCORE_ELEMENTS = 2**24
# Logits (positions x V) held at a time.
LOGIT_ELEMENTS = 2**23


def additive_scores(queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Scores of additive attention, ``w_g . tanh(q_t + k_s)``, without keeping the [..., T, S, H] tensor.

    The backward pass computes the tanh again, piece by piece.

    Args:
        queries: [..., T, H].
        keys: [..., S, H].
        weight: [G, H].

    Returns:
        [..., T, S, G].
    """
    rows = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (queries, keys)]
    scores = _AdditiveScores.apply(*rows, weight)
    return scores.reshape(*queries.shape[:-2], *scores.shape[1:])


def weighted_log_normaliser(contents: Tensor, embedding: Tensor, weights: Tensor) -> Tensor:
    """``sum_m weights_m * log sum_v exp(E_v . c_m)`` without keeping the [M, V] logits.

    As the result is one number, its gradients are computed beside it while the logits are there; the backward pass
    only scales them. float16 is computed in float32: probabilities of rare words are below its range.

    Args:
        contents: c, [M, d].
        embedding: E, [V, d].
        weights: [M], without gradient.

    Returns:
        Scalar in the dtype of the weights.
    """
    wanted = torch.is_grad_enabled() and (contents.requires_grad or embedding.requires_grad)
    dtype = torch.float32 if contents.dtype == torch.float16 else contents.dtype
    return _WeightedLogNormaliser.apply(contents.to(dtype), embedding.to(dtype), weights, wanted)


class _AdditiveScores(torch.autograd.Function):
    # tanh(x) = 2 sigmoid(2 x) - 1, and sigmoid is the faster kernel, on CPUs several times so

    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, weight)
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1], weight.shape[0])
        for rows, steps in _pieces(queries, keys):
            scores[rows, steps] = _sigmoids(queries[rows, steps], keys[rows]) @ weight.mT
        return scores.mul_(2).sub_(weight.sum(dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, weight = ctx.saved_tensors
        grad_queries, grad_keys = torch.empty_like(queries), torch.zeros_like(keys)
        grad_weight = -grad.sum(dim=(0, 1, 2)).unsqueeze(-1).expand_as(weight)
        for rows, steps in _pieces(queries, keys):
            sigmoids, piece = _sigmoids(queries[rows, steps], keys[rows]), grad[rows, steps]
            grad_weight = grad_weight + 2 * piece.flatten(0, 2).mT @ sigmoids.flatten(0, 2)
            inner = torch.ops.aten.sigmoid_backward(piece @ weight, sigmoids)
            grad_queries[rows, steps] = inner.sum(dim=2)
            grad_keys[rows] += inner.sum(dim=1)
        # 2 from the sigmoid's argument, 2 from its factor
        return grad_queries.mul_(4), grad_keys.mul_(4), grad_weight


def _sigmoids(queries: Tensor, keys: Tensor) -> Tensor:
    """sigmoid(2 (q_t + k_s)), [M, T, S, H]."""
    return torch.add((2 * queries).unsqueeze(2), keys.unsqueeze(1), alpha=2).sigmoid_()


def _pieces(queries: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    """Cuts M rows and T steps so that a piece of M x T x S x H has a bounded size."""
    bound = SCORE_ELEMENTS_CPU if queries.device.type == "cpu" else SCORE_ELEMENTS
    num_rows, num_steps, _ = queries.shape
    per_step = max(1, keys.shape[1] * keys.shape[2])
    steps = min(num_steps, max(1, bound // per_step))
    rows = max(1, bound // (per_step * steps))
    return [
        (slice(row, row + rows), slice(step, step + steps))
        for row in range(0, num_rows, rows)
        for step in range(0, num_steps, steps)
    ]


class _WeightedLogNormaliser(torch.autograd.Function):
    @staticmethod
    def forward(ctx, contents: Tensor, embedding: Tensor, weights: Tensor, with_gradients: bool) -> Tensor:
        total = weights.new_zeros(())
        rows = None if with_gradients else 0
        grad_contents = torch.empty_like(contents[:rows], dtype=weights.dtype)
        grad_embedding = torch.zeros_like(embedding[:rows], dtype=weights.dtype)
        size = max(1, LOGIT_ELEMENTS // embedding.shape[0])
        with torch.autocast(contents.device.type, enabled=False):
            for start in range(0, len(contents), size):
                c, w = contents[start : start + size], weights[start : start + size].unsqueeze(-1)
                logits = (c @ embedding.mT).to(weights.dtype)
                normaliser = logits.logsumexp(dim=-1, keepdim=True)
                total = total + (w * normaliser).sum()
                if with_gradients:
                    probabilities = logits.sub_(normaliser).exp_().mul_(w).to(c.dtype)
                    grad_contents[start : start + size] = probabilities @ embedding
                    _add_product(grad_embedding, probabilities.mT, c)
        if with_gradients:
            ctx.save_for_backward(grad_contents, grad_embedding)
            ctx.dtype = contents.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_contents, grad_embedding = ctx.saved_tensors
        # scaled before they are rounded: a loss scale may be larger than the type can hold
        return (grad * grad_contents).to(ctx.dtype), (grad * grad_embedding).to(ctx.dtype), None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place also where total is of higher precision."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
