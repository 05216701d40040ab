"""PAST and FUTURE layers, recurrences over the contexts of an attention (Zheng et al. 2018): functions of tensors.

Shapes: B batch, S source length, T target length, d model width, H hidden size of the attention, K size of a state.
Where there is a mask, True is a real word. Scores and recurrences are in float32 or float64, whatever the inputs are.
"""

import torch
from torch import Tensor

from .capsule_kernels import additive_scores
from .capsule_routing import inner_dtype


def attention_contexts(
    values: Tensor, keys: Tensor, state_terms: Tensor, score_weight: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Contexts ``c_t = sum_i a_ti h_i`` with ``a_t = softmax_i(w . tanh(W_z z_t + W_h h_i))`` (Bahdanau et al. 2015).

    Args:
        values: h_i, [B, S, d].
        keys: W_h h_i, [B, S, H].
        state_terms: W_z z_t, [B, T, H].
        score_weight: w, [H].
        mask: [B, S]; a row of padding alone has contexts of zeros.

    Returns:
        Contexts [B, T, d], in the dtype of the values, and weights a, [B, T, S].
    """
    dtype = inner_dtype(values.dtype)
    with torch.autocast(values.device.type, enabled=False):
        scores = additive_scores(state_terms.to(dtype), keys.to(dtype), score_weight.unsqueeze(0).to(dtype))
        scores = scores.squeeze(-1)
        if mask is None:
            weights = scores.softmax(dim=-1)
        else:
            real = mask.unsqueeze(1)
            # the lowest number, not -inf: a row of padding alone must stay finite
            weights = scores.masked_fill(~real, torch.finfo(dtype).min).softmax(dim=-1) * real
        return weights.to(values.dtype) @ values, weights


# traced, the loop would be unrolled, and compiled anew for every length
@torch.compiler.disable
def recurrent_states(
    inputs: Tensor, transition: Tensor, first: Tensor, subtracts: bool = False, real_steps: Tensor | None = None
) -> Tensor:
    """A GRU, or one that takes its input away from its state ("GRU with inside minus").

    With W c_t + b = (x^r, x^u, x^n) and U s_(t-1) = (y^r, y^u, y^n), reset gate r = sigmoid(x^r + y^r) and update
    gate u = sigmoid(x^u + y^u):

        s_t = u * s_(t-1) + (1 - u) * tanh(x^n + r * y^n)    GRU
        s_t = u * s_(t-1) + (1 - u) * tanh(y^n - r * x^n)    inside minus

    Args:
        inputs: W c_t + b, [B, T, 3 K].
        transition: U, [3 K, K].
        first: s_0, [B, K].
        subtracts: "inside minus".
        real_steps: [B, T]; a step that is none leaves the state as it is.

    Returns:
        s_0..s_T, [B, T + 1, K].
    """
    dtype = inner_dtype(inputs.dtype)
    with torch.autocast(inputs.device.type, enabled=False):
        weight, state = transition.to(dtype).mT, first.to(dtype)
        states = [state]
        for step, terms in enumerate(inputs.to(dtype).unbind(dim=1)):
            (x_gates, x), (y_gates, y) = (_gates_and_rest(a, state.shape[-1]) for a in (terms, state @ weight))
            reset, update = (x_gates + y_gates).sigmoid().chunk(2, dim=-1)
            candidate = torch.tanh(y - reset * x if subtracts else x + reset * y)
            after = candidate + update * (state - candidate)
            state = after if real_steps is None else torch.where(real_steps[:, step].unsqueeze(-1), after, state)
            states.append(state)
        return torch.stack(states, dim=1)


def _gates_and_rest(terms: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """terms: [B, 3 K]. Returns those of both gates [B, 2 K], and those of the candidate [B, K]."""
    return terms[..., : 2 * size], terms[..., 2 * size :]
