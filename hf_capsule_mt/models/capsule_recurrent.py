"""Modules of the recurrent models: LSTM layers, source memories of a fixed size, and additive attention.

Shapes: B batch, S source length, T target length, d model width, M output capsules of size d (Wang et al. 2019).

What depends on the source alone, the memory and the keys of the attention, is in `SourceMemory`, which belongs to the
encoder: it runs once per source sentence.
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .capsule_kernels import additive_scores, is_plain
from .capsule_layers import CapsuleLinear, InitialisesItself, is_plain_projection, mean_of_words
from .capsule_routing import inner_dtype, linear_sequence_routing, sequence_routing

State = tuple[Tensor, Tensor]

# Messages (positions x capsules x d) that a CPU routes at a time: larger tensors come as new pages from the system and
# go back to it with every batch, which costs more than the arithmetic on them.
MESSAGE_ELEMENTS_CPU = 2**22


class LSTM(InitialisesItself, nn.LSTM):
    """One layer in one direction over [B, T, d]; over a whole sequence it is the library's fused kernel."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, batch_first=True)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """inputs: [B, T, d]; state: h and c after the step before, [B, hidden] each, zero if None.

        Returns:
            h of every step [B, T, hidden], and h and c after the last one, [B, hidden] each.
        """
        if inputs.device.type != "cpu":
            return self._run(inputs, state)
        # oneDNN has LSTMs of low precision for some CPUs only: autocast must not decide whether a model runs
        with torch.autocast("cpu", enabled=False):
            dtype = self.weight_hh_l0.dtype
            return self._run(inputs.to(dtype), None if state is None else (state[0].to(dtype), state[1].to(dtype)))

    def _run(self, inputs: Tensor, state: State | None) -> tuple[Tensor, State]:
        if inputs.shape[1] == 1 and not self.training:
            # a step of decoding: the fused kernels arrange the weights anew in every call, which costs more than the
            # step itself
            if state is None:
                state = (inputs.new_zeros(inputs.shape[0], self.hidden_size),) * 2
            weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
            hidden, cell = torch.lstm_cell(inputs.squeeze(1), state, *weights)
            return hidden.unsqueeze(1), (hidden, cell)
        stacked = None if state is None else (state[0].unsqueeze(0), state[1].unsqueeze(0))
        outputs, (hidden, cell) = super().forward(inputs, stacked)
        return outputs, (hidden.squeeze(0), cell.squeeze(0))

    def init_weights(self) -> None:
        """As torch does, but with open forget gates (Jozefowicz et al. 2015): their bias is 1, all others 0."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in (self.weight_ih_l0, self.weight_hh_l0):
            init.uniform_(weight, -bound, bound)
        bias = torch.zeros(4, self.hidden_size)
        init.copy_(self.bias_hh_l0, bias.flatten())
        bias[1] = 1.0
        init.copy_(self.bias_ih_l0, bias.flatten())


class RNNEncoderLayer(GradientCheckpointingLayer):
    """A bidirectional LSTM (Eq. 1; d / 2 per direction), residual connection and layer norm."""

    def __init__(self, config) -> None:
        super().__init__()
        width = config.d_model
        self.forward_lstm = LSTM(width, width // 2)
        self.backward_lstm = LSTM(width, width // 2)
        self.layer_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states: Tensor, reversal: Tensor) -> Tensor:
        """hidden_states: [B, S, d], padding at the end; reversal: [B, S, 1], the order that reverses each sentence.

        The backward LSTM reads each sentence reversed, so that neither direction meets padding before a word.
        """
        ahead, _ = self.forward_lstm(hidden_states)
        back, _ = self.backward_lstm(reorder(hidden_states, reversal))
        outputs = torch.cat([ahead, reorder(back, reversal)], dim=-1)
        return self.layer_norm(hidden_states + self.dropout(outputs))


class RNNDecoderLayer(GradientCheckpointingLayer):
    """An LSTM (Eq. 6), residual connection and layer norm."""

    def __init__(self, config) -> None:
        super().__init__()
        self.lstm = LSTM(config.d_model, config.d_model)
        self.layer_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """hidden_states: [B, T, d]; state: of the steps before. Returns the output and the state after it."""
        outputs, state = self.lstm(hidden_states, state)
        return self.layer_norm(hidden_states + self.dropout(outputs)), state


class AdditiveAttention(InitialisesItself, nn.Module):
    """Attention of Bahdanau et al. 2015, ``softmax_s(w . tanh(W_q q_t + W_k h_s))``, over the encoder's states.

    A sub-layer as the others: its output is added to the queries, and layer-normalised. The keys W_k h_s come from
    `SourceMemory`.
    """

    def __init__(self, config) -> None:
        super().__init__()
        width = config.d_model
        self.query_proj = CapsuleLinear(width, width, 1 / math.sqrt(width), bias_value=0.0)
        self.score_weight = nn.Parameter(torch.empty(width))
        self.output_proj = CapsuleLinear(width, width, 1 / math.sqrt(width), bias_value=0.0)
        self.layer_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """queries: [B, T, d]; keys, values: [B, S, d]; mask: [B, S], True for a real source word.

        Returns:
            the output [B, T, d] and the attention weights [B, T, S].
        """
        dtype = inner_dtype(queries.dtype)
        projected = self.query_proj(queries)
        with torch.autocast(queries.device.type, enabled=False):
            scores = additive_scores(projected.to(dtype), keys.to(dtype), self.score_weight.unsqueeze(0).to(dtype))
        scores = scores.squeeze(-1)
        if mask is not None:
            # the lowest number, not -inf: a row of padding alone must stay finite
            scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(dtype).min)
        weights = scores.softmax(dim=-1).to(values.dtype)
        context = self.output_proj(weights @ values)
        return self.layer_norm(queries + self.dropout(context)), weights

    def init_weights(self) -> None:
        """Scores start with a standard deviation of about one."""
        init.normal_(self.score_weight, std=1 / math.sqrt(self.score_weight.shape[-1]))


class SimpleMemory(nn.Module):
    """Simple aggregation, C = [h_max, h_avg, h_1, h_last] (Eq. 2-4)."""

    def __init__(self, config) -> None:
        super().__init__()
        self.num_vectors = 4

    def forward(self, states: Tensor, mask: Tensor, output_agreements: bool = False) -> tuple[Tensor, None]:
        """states: h, [B, S, d]; mask: [B, S], True for a real source word. Returns C [B, 4, d]; no agreement."""
        vectors = [
            states.masked_fill(~mask.unsqueeze(-1), torch.finfo(states.dtype).min).amax(dim=1),
            mean_of_words(states, mask),
        ]
        # a row of padding alone has nothing to remember
        vectors = torch.stack(vectors, dim=1) * mask.any(dim=1).view(-1, 1, 1)
        return torch.cat([vectors, end_states(states, mask)], dim=1), None


class CapsuleMemory(nn.Module):
    """The capsule encoder: the source positions are routed to M capsules, C = [c_1..c_M] (Eq. 7-14, Alg. 1).

    A capsule is shorter than 1; times sqrt(d) its dimensions are of the size of h's, and of the positions' encodings
    that are added to both. So g of Eq. 14 reads them, and so they are returned as printed (capsule_output="squash").
    The product of Eq. 12 has c_j + PE(j) / sqrt(d), the same up to that factor.

    With include_end_states, h_1 and h_last follow the capsules, as in simple aggregation.
    """

    def __init__(self, config) -> None:
        super().__init__()
        width = config.d_model
        self.num_capsules = config.num_source_capsules
        self.num_iterations = config.routing_iterations
        self.position_aware = config.position_aware_routing
        self.positions_in_messages = config.routing_positions == "states"
        self.rectified = config.message_activation == "relu"
        self.mean_output = config.capsule_output == "mean"
        self.balanced = config.balanced_routing
        self.end_states = config.include_end_states
        self.num_vectors = self.num_capsules + 2 * self.end_states
        self.scale = math.sqrt(width)
        matrices = 1 if config.share_routing_weights else self.num_iterations
        # W_j, or W_j^t; He initialisation for the ReLU of Eq. 8
        gain = 2 if self.rectified else 1
        self.message_proj = CapsuleLinear(
            width, matrices * self.num_capsules * width, math.sqrt(gain / width), bias_value=None
        )
        self.score: nn.Module | None = None
        if config.separable_scoring and self.num_iterations > 1:
            # g of Eq. 14; the product of two outputs starts with a standard deviation of about one
            self.score = nn.Sequential(
                CapsuleLinear(width, width, math.sqrt(2 / width)),
                ACT2FN["relu"],
                CapsuleLinear(width, width, width**-0.75),
            )

    def forward(
        self, states: Tensor, mask: Tensor, output_agreements: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """states: h, [B, S, d]; mask: [B, S], True for a real source word.

        Returns:
            C [B, M, d], or [B, M + 2, d], and, if asked for, alpha_ij of every iteration, R tensors [B, S, M].
        """
        rows = states.shape[0]
        if not (is_plain() or states.device.type != "cpu" or self._makes_no_messages()):
            rows = max(1, MESSAGE_ELEMENTS_CPU // max(1, states.shape[1] * self.message_proj.out_features))
        if states.shape[0] <= rows:
            return self._route(states, mask, output_agreements)
        pieces = [
            self._route(*piece, output_agreements) for piece in zip(states.split(rows), mask.split(rows), strict=True)
        ]
        capsules, agreements = zip(*pieces, strict=True)
        if not output_agreements:
            return torch.cat(capsules), None
        return torch.cat(capsules), tuple(torch.cat(iteration) for iteration in zip(*agreements, strict=True))

    def _makes_no_messages(self) -> bool:
        """Whether linear messages need not be made one by one; not so where an adapter stands in their place."""
        scored_apart = self.score is not None or self.num_iterations == 1
        return not self.rectified and scored_apart and is_plain_projection(self.message_proj)

    def _route(
        self, states: Tensor, mask: Tensor, output_agreements: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """`forward` for a few sentences."""
        placed, parents = states, None
        if self.position_aware:
            # positions count real words, wherever the padding is
            words = mask.long().cumsum(dim=1) - 1
            placed = states + sinusoids(words, states.shape[-1], states.dtype)
            capsules = torch.arange(self.num_capsules, device=states.device)
            parents = sinusoids(capsules, states.shape[-1], states.dtype) / self.scale
        sent = placed if self.positions_in_messages else states
        scores = {}
        if self.score is not None:
            score = self.score
            scores = {"child_scores": score(placed), "parent_scores": lambda c: score(self.scale * c.to(states.dtype))}
        options = {
            "parent_positions": parents,
            "balanced": self.balanced,
            "mean_output": self.mean_output,
            "return_all_agreements": output_agreements,
        }
        by_capsule = (-1, self.num_capsules, states.shape[-1])
        if self._makes_no_messages():
            matrices = self.message_proj.weight.unflatten(0, by_capsule).unbind()
            routed = linear_sequence_routing(sent, matrices, self.num_iterations, mask, **scores, **options)
        else:
            messages = self.message_proj(sent)
            messages = messages.relu() if self.rectified else messages
            steps = messages.unflatten(-1, by_capsule).unbind(dim=-3)
            routed = sequence_routing(
                steps[0] if len(steps) == 1 else steps, self.num_iterations, mask, **scores, **options
            )
        vectors = routed.capsules if self.mean_output else self.scale * routed.capsules
        if self.end_states:
            vectors = torch.cat([vectors, end_states(states, mask)], dim=1)
        return vectors, routed.agreements


MEMORIES = {"simple": SimpleMemory, "capsule": CapsuleMemory, "hybrid": CapsuleMemory}


class SourceMemory(nn.Module):
    """What the decoder reads of the source, computed once per sentence.

    "simple" and "capsule" read it as one vector W_c C of Eq. 5, whatever its length; "attention" reads every position,
    and "hybrid" both.
    """

    def __init__(self, config) -> None:
        super().__init__()
        width = config.d_model
        self.aggregation: nn.Module | None = None
        if config.source_memory in MEMORIES:
            self.aggregation = MEMORIES[config.source_memory](config)
            features = self.aggregation.num_vectors * width
            self.context_proj = CapsuleLinear(features, width, 1 / math.sqrt(features), bias_value=None)
        self.key_proj: CapsuleLinear | None = None
        if config.attends():
            self.key_proj = CapsuleLinear(width, width, 1 / math.sqrt(width), bias_value=None)

    def forward(
        self, states: Tensor, mask: Tensor | None, output_agreements: bool = False
    ) -> dict[str, Tensor | tuple[Tensor, ...] | None]:
        """states: h, [B, S, d]; mask: [B, S], True for a real source word.

        Returns:
            Those of "source_context" W_c C [B, d], "source_keys" W_k h [B, S, d] and "source_agreements", alpha_ij of
            every iteration, R tensors [B, S, M], that the memory has.
        """
        fields: dict[str, Tensor | tuple[Tensor, ...] | None] = {}
        if self.aggregation is not None:
            if mask is None:
                mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            vectors, agreements = self.aggregation(states, mask, output_agreements)
            fields["source_context"] = self.context_proj(vectors.flatten(-2))
            fields["source_agreements"] = agreements
        if self.key_proj is not None:
            fields["source_keys"] = self.key_proj(states)
        return fields


def end_states(states: Tensor, mask: Tensor) -> Tensor:
    """h_1 and h_last, [B, 2, d], of states [B, S, d] with mask [B, S]; zero for a row of padding alone."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    first = torch.where(mask, positions, mask.shape[1] - 1).amin(dim=1)
    last = torch.where(mask, positions, 0).amax(dim=1)
    rows = torch.arange(states.shape[0], device=states.device)
    return torch.stack([states[rows, first], states[rows, last]], dim=1) * mask.any(dim=1).view(-1, 1, 1)


def reorder(states: Tensor, order: Tensor) -> Tensor:
    """states: [B, S, d]; order: [B, S, 1], positions. Returns the states in this order."""
    return states.gather(1, order.expand_as(states))


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Encodings of positions by sines and cosines (Vaswani et al. 2017, section 3.5).

    Args:
        positions: [...], integers.
        width: d.
        dtype: of the result.

    Returns:
        [..., d]: the sines of ceil(d / 2) frequencies, then the cosines.
    """
    half = (width + 1) // 2
    steps = torch.arange(half, device=positions.device, dtype=inner_dtype(dtype))
    frequencies = 10_000 ** (-2 * steps / width)
    angles = positions.unsqueeze(-1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width].to(dtype)
