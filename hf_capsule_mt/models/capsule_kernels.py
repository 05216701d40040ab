"""What is computed in pieces, forward and backward: routing, and sums over tensors that are too large to keep.

Nothing of the size of an intermediate tensor outlives a piece. Every function has a plain way beside the fast one,
ordinary differentiable PyTorch, which `plain_kernels` selects. Shapes: M independent rows, T and S positions, H hidden
size, G scores, d width, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

logger = logging.getLogger(__name__)

# Elements of tanh(...), or of votes, held at a time: what stays in a CPU core's cache, or keeps a GPU busy.
SCORE_ELEMENTS_CPU = 2**18
SCORE_ELEMENTS = 2**24
VOTE_ELEMENTS_CPU = 2**17
VOTE_ELEMENTS = 2**24
# Keys, and queries beyond which tanh(q + k) is 1 to the last digit of float64 whatever the key is; the exponentials of
# twice as much are ordinary numbers of float32.
LARGEST_KEY, LARGEST_QUERY = 20.0, 40.0
# Logits (positions x V) held at a time.
LOGIT_ELEMENTS = 2**23
# Votes of one training step from which pieces, and compiling them (some seconds, once a process), pay.
COMPILED_VOTES = 2**19

_plain = False


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Everything inside runs as plain differentiable PyTorch operations, without pieces and without a compiler."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def is_plain() -> bool:
    """Whether the plain way is asked for, or torch.compile is tracing, which fuses and cuts by itself."""
    return _plain or torch.compiler.is_compiling()


def in_pieces(
    core: Callable[..., Tensor], by_row: Sequence[Tensor], shared: Sequence[Tensor] = (), options: tuple = ()
) -> Tensor:
    """``core(*by_row, *shared, *options)`` over a few rows at a time; backward computes each piece again.

    Only the inputs are kept for the backward pass, however many tensors `core` makes on its way. In training, `core`
    is compiled; pieces all have one shape, so that it is compiled once, whatever the shapes of the batches. Training
    steps too small for that go the plain way.

    Args:
        core: a module's function that treats every row alike.
        by_row: at least one tensor [M, ...]; the first sets the size of a piece.
        shared: tensors that are the same for every row, or broadcast over rows.
        options: anything else, without gradient.

    Returns:
        [M, ...].
    """
    inputs = (*by_row, *shared)
    if is_plain():
        return core(*inputs, *options)
    first = by_row[0]
    bound = VOTE_ELEMENTS_CPU if first.device.type == "cpu" else VOTE_ELEMENTS
    size = max(1, bound // max(1, first[:1].numel()))
    training = _wanted(*inputs)
    if first.shape[0] <= size or (training and first.numel() < COMPILED_VOTES):
        return core(*inputs, *options)
    run = _compiled(core) if training else core
    return _Pieces.apply(run, options, size, training, len(by_row), *inputs)


def additive_scores(queries: Tensor, keys: Tensor, weight: Tensor, key_exponentials: Tensor | None = None) -> Tensor:
    """Scores of additive attention, ``w_g . tanh(q_t + k_s)``, without keeping the [..., T, S, H] tensor.

    The backward pass computes the tanh again, piece by piece.

    Args:
        queries: [..., T, H].
        keys: [..., S, H].
        weight: [G, H].
        key_exponentials: `key_exponentials` of the keys, [..., S, H]; where nothing is differentiated they are read in
            place of the keys.

    Returns:
        [..., T, S, G].
    """
    if is_plain():
        return (queries.unsqueeze(-2) + keys.unsqueeze(-3)).tanh() @ weight.mT
    # autograd's bookkeeping would cost a step of decoding as much as the scores themselves
    score: Callable[..., Tensor] = _AdditiveScores.apply if _wanted(queries, keys, weight) else _additive_scores
    if key_exponentials is not None and score is _additive_scores:
        queries, keys = (-2 * queries.clamp(-LARGEST_QUERY, LARGEST_QUERY)).exp_(), key_exponentials
        score = partial(_additive_scores, sigmoids=_sigmoids_of_exponentials)
    q, k = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (queries, keys))
    scores = score(q, k, weight)
    return scores.reshape(*queries.shape[:-2], *scores.shape[1:])


def key_exponentials(keys: Tensor) -> Tensor | None:
    """``exp(-2 k)`` of keys that are read at many steps of decoding.

    With it `additive_scores` needs no exponential for each pair of a query and a key:
    ``tanh(q + k) = 2 / (1 + exp(-2 q) exp(-2 k)) - 1``.

    Args:
        keys: any shape.

    Returns:
        The shape of the keys, float64 or float32. None where gradients are kept or a compiler traces, off CPUs, whose
        arithmetic alone is slow enough for it, and with a key beyond LARGEST_KEY.
    """
    if torch.is_grad_enabled() or is_plain() or keys.device.type != "cpu" or keys.numel() == 0:
        return None
    wide = keys if keys.dtype == torch.float64 else keys.float()
    smallest, largest = wide.aminmax()
    return (-2 * wide).exp_() if max(-smallest, largest) <= LARGEST_KEY else None


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
    dtype = torch.float32 if contents.dtype == torch.float16 else contents.dtype
    contents, embedding = contents.to(dtype), embedding.to(dtype)
    with torch.autocast(contents.device.type, enabled=False):
        if is_plain():
            return (weights * (contents @ embedding.mT).to(weights.dtype).logsumexp(dim=-1)).sum()
        return _VocabularyLoss.apply(contents, embedding, None, weights, None, 0.0, _wanted(contents, embedding))[0]


def linear_cross_entropy(
    states: Tensor, embedding: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Output projection and label-smoothed cross-entropy in one; of the size of the logits there are the logits alone.

    Gradients are computed beside the loss, as in `weighted_log_normaliser`. The logits can be differentiated too; that
    costs only where it is done.

    Args:
        states: [M, d].
        embedding: E, [V, d].
        bias: of the logits, [V], without gradient, or None.
        labels: [M]; -100 is ignored.
        label_smoothing: share of the uniform distribution in the target, in [0, 1).

    Returns:
        The loss, summed over rows, in float32 (float64 for float64 states), and the logits, [M, V].
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    # in float16, gradients have to be scaled before they are rounded
    if is_plain() or dtype == torch.float16:
        logits = torch.nn.functional.linear(states, embedding)
        logits = logits if bias is None else logits + bias
        return cross_entropy(logits, labels, label_smoothing), logits
    states, embedding = states.to(dtype), embedding.to(dtype)
    weights = (labels != -100).to(torch.float64 if states.dtype == torch.float64 else torch.float32)
    with torch.autocast(device, enabled=False):
        loss, logits = _VocabularyLoss.apply(
            states, embedding, bias, weights, labels, 1 - label_smoothing, _wanted(states, embedding)
        )
        if label_smoothing > 0:
            # the mean logit of each row, summed over rows, without going through the logits
            uniform = (weights @ states.to(weights.dtype)) @ embedding.mean(dim=0, dtype=weights.dtype)
            if bias is not None:
                uniform = uniform + weights.sum() * bias.mean(dtype=weights.dtype)
            loss = loss - label_smoothing * uniform
    return loss, logits


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Label-smoothed cross-entropy of logits [..., V], summed over the labels [...] that are not -100."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(
        wide.flatten(0, -2), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )


def _wanted(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def _sigmoids(queries: Tensor, keys: Tensor) -> Tensor:
    """sigmoid(2 (q_t + k_s)), [M, T, S, H]."""
    return torch.add((2 * queries).unsqueeze(2), keys.unsqueeze(1), alpha=2).sigmoid_()


def _sigmoids_of_exponentials(queries: Tensor, keys: Tensor) -> Tensor:
    """The same of exp(-2 q_t) and exp(-2 k_s)."""
    return torch.addcmul(queries.new_ones(()), queries.unsqueeze(2), keys.unsqueeze(1)).reciprocal_()


def _additive_scores(
    queries: Tensor, keys: Tensor, weight: Tensor, sigmoids: Callable[[Tensor, Tensor], Tensor] = _sigmoids
) -> Tensor:
    """`additive_scores` of M rows, without gradient."""
    # tanh(x) = 2 sigmoid(2 x) - 1, and sigmoid is the faster kernel, on CPUs several times so
    pieces = _pieces(queries, keys)
    if len(pieces) == 1:
        scores = sigmoids(queries, keys) @ weight.mT
    else:
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1], weight.shape[0])
        for rows, steps in pieces:
            scores[rows, steps] = sigmoids(queries[rows, steps], keys[rows]) @ weight.mT
    return scores.mul_(2).sub_(weight.sum(dim=-1))


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, weight)
        return _additive_scores(queries, keys, weight)

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


class _VocabularyLoss(torch.autograd.Function):
    """``sum_m w_m (log sum_v exp z_mv - label_weight * z_m,y_m)`` with the logits z = c E^T + b, and these.

    Without labels, neither their part nor the logits.
    """

    @staticmethod
    def forward(
        ctx,
        contents: Tensor,
        embedding: Tensor,
        bias: Tensor | None,
        weights: Tensor,
        labels: Tensor | None,
        label_weight: float,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        with_contents, with_embedding = (with_gradients and wanted for wanted in ctx.needs_input_grad[:2])
        grad_contents = torch.empty_like(contents, dtype=weights.dtype) if with_contents else None
        grad_embedding = torch.zeros_like(embedding, dtype=weights.dtype) if with_embedding else None
        logits = None if labels is None else contents.new_empty(len(contents), len(embedding))
        total = weights.new_zeros(())
        size = min(len(contents), max(1, LOGIT_ELEMENTS // embedding.shape[0]))
        # memory of a piece, for all pieces: new memory for each would cost more than the arithmetic on it
        z_memory = contents.new_empty(size if logits is None else 0, len(embedding))
        slope_memory = weights.new_empty(size, len(embedding))
        for start in range(0, len(contents), max(1, size)):
            piece = slice(start, start + size)
            c, w = contents[piece], weights[piece].unsqueeze(-1)
            z = torch.mm(c, embedding.mT, out=z_memory[: len(c)] if logits is None else logits[piece])
            if bias is not None:
                z += bias
            largest = z.amax(dim=-1, keepdim=True).to(weights.dtype)
            slope = torch.sub(z, largest, out=slope_memory[: len(c)]).exp_()
            mass = slope.sum(dim=-1, keepdim=True)
            total += (w * (largest + mass.log())).sum()
            if labels is not None:
                words = labels[piece].clamp_min(0).unsqueeze(-1)
                total -= (label_weight * w * z.gather(-1, words)).sum()
            if with_gradients:
                slope *= w / mass
                if labels is not None:
                    slope.scatter_add_(-1, words, -label_weight * w)
                slope = slope.to(c.dtype)
                if grad_contents is not None:
                    grad_contents[piece] = slope @ embedding
                if grad_embedding is not None:
                    _add_product(grad_embedding, slope.mT, c)
        if with_gradients:
            ctx.save_for_backward(contents, embedding, grad_contents, grad_embedding)
        return total, logits

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor | None, grad_logits: Tensor | None) -> tuple[Tensor | None, ...]:
        contents, embedding, *beside = ctx.saved_tensors
        # scaled before they are rounded: a loss scale may be larger than the type can hold
        scale = 0.0 if grad is None else grad
        grads = [
            None if gradient is None else (scale * gradient).to(tensor.dtype)
            for gradient, tensor in zip(beside, (contents, embedding), strict=True)
        ]
        if grad_logits is not None:
            if grads[0] is not None:
                grads[0] += grad_logits @ embedding
            if grads[1] is not None:
                grads[1] += grad_logits.mT @ contents
        return *grads, None, None, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place also where total is of higher precision."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, run: Callable[..., Tensor], options: tuple, size: int, padded: bool, num_by_row: int, *inputs: Tensor
    ) -> Tensor:
        ctx.run, ctx.options, ctx.size, ctx.padded, ctx.num_by_row = run, options, size, padded, num_by_row
        ctx.save_for_backward(*inputs)
        # detached, as the compiler tells tensors with and without gradients apart
        inputs = tuple(tensor.detach() for tensor in inputs)
        by_row, shared = inputs[:num_by_row], inputs[num_by_row:]
        return torch.cat([run(*rows, *shared, *options)[:length] for rows, length in _cut(by_row, size, padded)])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, num_by_row = ctx.saved_tensors, ctx.num_by_row
        by_row, shared = inputs[:num_by_row], inputs[num_by_row:]
        wanted = ctx.needs_input_grad[5:]
        grads = [
            _gradient_buffer(tensor, index < num_by_row) if wanted[index] else None
            for index, tensor in enumerate(inputs)
        ]
        start = 0
        for (*rows, upstream), length in _cut((*by_row, grad), ctx.size, ctx.padded):
            pieces = [
                tensor.detach().requires_grad_(want) for tensor, want in zip((*rows, *shared), wanted, strict=True)
            ]
            with torch.enable_grad():
                out = ctx.run(*pieces, *ctx.options)
            found = iter(torch.autograd.grad(out, [piece for piece in pieces if piece.requires_grad], upstream))
            for index, total in enumerate(grads):
                if total is not None:
                    if index < num_by_row:
                        total[start : start + length] = next(found)[:length]
                    else:
                        total += next(found)
            start += length
        grads = [None if total is None else total.to(x.dtype) for total, x in zip(grads, inputs, strict=True)]
        return None, None, None, None, None, *grads


def _gradient_buffer(tensor: Tensor, by_row: bool) -> Tensor:
    """For the gradient of a tensor by rows, which is written once, or of a shared one, which is summed up."""
    if by_row:
        return torch.empty_like(tensor)
    return torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _cut(tensors: Sequence[Tensor], size: int, padded: bool) -> Iterator[tuple[list[Tensor], int]]:
    """Pieces of `size` rows and how many rows are in use; the last one is filled up with zeros where padded."""
    for start in range(0, tensors[0].shape[0], size):
        rows = [tensor[start : start + size] for tensor in tensors]
        length = rows[0].shape[0]
        if padded and length < size:
            rows = [torch.cat([row, row.new_zeros(size - length, *row.shape[1:])]) for row in rows]
        yield rows, length


_compiled_cores: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}
_compiler_works = True


def _compiled(core: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The compiled core, or the core itself from the moment on that the compiler fails."""
    if core not in _compiled_cores:
        logger.info("compiling the routing for this training run")
        _compiled_cores[core] = torch.compile(core, dynamic=False)
    fast = _compiled_cores[core]

    def run(*inputs) -> Tensor:
        global _compiler_works
        if _compiler_works:
            try:
                return fast(*inputs)
            except Exception as error:  # no compiler, or one that fails, has many faces
                _compiler_works = False
                reason = str(error).strip().splitlines()[0]
                logger.warning(f"routing runs uncompiled, with the same results but slower: {reason}")
        return core(*inputs)

    return run
