"""What an exported model computes: the source once, and a step of decoding for all beams of every sentence.

Shapes: B sentences, K beams, S source length, T steps so far, d model width, H heads, V vocabulary. Rows are the beams
of all sentences, B * K of them, those of a sentence side by side.

The modules here hold the parts of a model and run them as the model does, with two differences. The beams of a
sentence take the place of target positions wherever the source is read (attention over it, guided routing): so the
source is never repeated for them. And what has an operator of its own in ONNX Runtime is that operator; these compute
nothing under PyTorch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic, symbolic_multi_out
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

from ..models.capsule_guided import RecurrentHead
from ..models.capsule_past_future import attention_contexts, recurrent_states
from ..models.capsule_recurrent import LSTM

# what a padded source word adds to its score
MASKED = -1e30
# of the encoder's output, what guided routing reads
GUIDED_FIELDS = ("guided_votes", "guided_keys", "guided_capsules")


class State(NamedTuple):
    """What a step leaves for the next one.

    Attributes:
        name: of the tensor.
        shape: without the rows, before the first step: the axis that grows with the steps is 0.
        first: the tensor of the source that it is before the first step, for every beam; None for zeros.
    """

    name: str
    shape: tuple[int, ...]
    first: str | None = None


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    mask: Tensor | None = None,
    past: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Multi-head attention as one operator.

    Args:
        queries: [B, T, d].
        keys, values: [B, S, d], or by heads, [B, H, S, d / H].
        heads: H.
        mask: [B, S] of type int32, 0 for padding.
        past: keys and values of the positions before, [B, H, P, d / H] each.

    Returns:
        contexts [B, T, d], and with a past the keys and values of all positions, [B, H, P + S, d / H] each.
    """
    name, attributes = "com.microsoft::MultiHeadAttention", {"num_heads": heads, "mask_filter_value": MASKED}
    inputs = [queries, keys, values, None, mask, None]
    shape = queries.shape
    if past is None:
        return symbolic(name, inputs, attributes, dtype=queries.dtype, shape=shape, version=1), None
    batch, width = shape[0], shape[2] // heads
    present = (batch, heads, past[0].shape[2] + keys.shape[1], width)
    contexts, *states = symbolic_multi_out(
        name,
        [*inputs, *past],
        attributes,
        dtypes=[queries.dtype] * 3,
        shapes=[shape, present, present],
        version=1,
    )
    return contexts, (states[0], states[1])


class LSTMOperator(nn.Module):
    """LSTMs over the same inputs as one operator: one, or two of which the second runs backwards."""

    def __init__(self, *lstms: LSTM) -> None:
        super().__init__()
        self.hidden_size = lstms[0].hidden_size
        self.directions = len(lstms)
        for name, weights in {
            "input_weight": [self._gates(lstm.weight_ih_l0) for lstm in lstms],
            "hidden_weight": [self._gates(lstm.weight_hh_l0) for lstm in lstms],
            "bias": [torch.cat([self._gates(lstm.bias_ih_l0), self._gates(lstm.bias_hh_l0)]) for lstm in lstms],
        }.items():
            self.register_buffer(name, torch.stack(weights))

    @staticmethod
    def _gates(weight: Tensor) -> Tensor:
        """PyTorch's order of the gates, input, forget, cell, output, as ONNX's: input, output, forget, cell."""
        i, f, c, o = weight.detach().chunk(4)
        return torch.cat([i, o, f, c])

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """inputs: [B, T, d]; lengths: [B] of type int32; state: h and c, [B, hidden] each (one direction only).

        Returns:
            outputs [B, T, directions * hidden], and the state after the last step.
        """
        batch, steps, _ = inputs.shape
        before = [None, None] if state is None else [part.unsqueeze(0) for part in state]
        weights = [self.input_weight, self.hidden_weight, self.bias]
        end = (self.directions, batch, self.hidden_size)
        outputs, hidden, cell = symbolic_multi_out(
            "LSTM",
            [inputs.transpose(0, 1), *weights, lengths, *before],
            {"hidden_size": self.hidden_size, "direction": "forward" if self.directions == 1 else "bidirectional"},
            dtypes=[inputs.dtype] * 3,
            shapes=[(steps, self.directions, batch, self.hidden_size), end, end],
            version=14,
        )
        outputs = outputs.permute(2, 0, 1, 3).reshape(batch, steps, -1)
        return outputs, (hidden.squeeze(0), cell.squeeze(0))


def merged(*projections: nn.Linear) -> nn.Linear:
    """Linear maps of the same inputs as one."""
    weight = torch.cat([projection.weight for projection in projections]).detach()
    result = nn.Linear(weight.shape[1], weight.shape[0], bias=projections[0].bias is not None)
    result.weight = nn.Parameter(weight, requires_grad=False)
    if result.bias is not None:
        result.bias = nn.Parameter(torch.cat([projection.bias for projection in projections]).detach(), False)
    return result


class Source(nn.Module):
    """Everything that depends on the source alone, as tensors with names.

    Attributes:
        packs: whether the layers run on the words alone, without the padding between them.
    """

    packs = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.get_encoder()
        self.guided_head = model.guided_head

    def names(self) -> list[str]:
        """What `forward` returns, in this order."""
        return ["source_mask", *self.read_names(), *self.guided_names()]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        words: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The tensors of `names`; the first one is the mask, of type int32.

        Args:
            input_ids, attention_mask: [B, S], padding on the right.
            words: where it `packs`, the places of the W words of all sentences among the B * S, [W], and
            places: the word of each of these places, whatever it is where there is none, [B * S].
        """
        layers = self.layers(input_ids, attention_mask, words, places)
        states = layers[-1]
        if self.encoder.aggregation is not None:
            states = self.encoder.aggregate_layers(tuple(layers))[0]
        packed = states
        if places is not None:
            states = states.index_select(0, places).unflatten(0, input_ids.shape)
        real = attention_mask.bool()
        guided: list[Tensor] = []
        if self.guided_head is not None:
            votes, keys, first = self.encoder.guided_source(states, real)
            if self.guided_head.recurrent:
                first = torch.cat([torch.zeros_like(first), first], dim=-1)
            fields = dict(zip(GUIDED_FIELDS, (votes, keys, first), strict=True))
            guided = [fields[name] for name in self.guided_names()]
        return (attention_mask.to(torch.int32), *self.read(states, real, packed, places), *guided)

    def guided_names(self) -> list[str]:
        """Fields of guided routing."""
        if self.guided_head is None:
            return []
        source = self.encoder.guided_source
        present = (True, source.key_proj is not None, source.system in ("routing", "recurrent"))
        return [field for field, there in zip(GUIDED_FIELDS, present, strict=True) if there]

    def read_names(self) -> list[str]:
        """What the decoder reads, beside the guided fields."""
        raise NotImplementedError

    def read(self, states: Tensor, real: Tensor, packed: Tensor, places: Tensor | None) -> list[Tensor]:
        """The tensors of `read_names`.

        Args:
            states: [B, S, d].
            real: [B, S], True for a word.
            packed: where it `packs`, the states of the words, [W, d].
            places: as in `forward`.
        """
        raise NotImplementedError

    def layers(
        self, input_ids: Tensor, attention_mask: Tensor, words: Tensor | None, places: Tensor | None
    ) -> list[Tensor]:
        """Outputs of the encoder's layers, [W, d] each where it `packs`, otherwise [B, S, d]."""
        raise NotImplementedError


class Step(nn.Module):
    """One step of decoding for the beams of every sentence."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decoder = model.get_decoder()
        self.guided_head = model.guided_head
        self.lm_head = model.lm_head
        bias = getattr(model, "final_logits_bias", None)
        self.register_buffer("logits_bias", None if bias is None else bias[0].detach().clone())
        self.width = model.config.d_model

    def states(self) -> list[State]:
        """What is known after the steps before, in the order of `forward`."""
        head = self.guided_head
        if head is None or not head.recurrent:
            return self.decoder_states()
        size = (head.num_past + head.num_future) * head.capsule_size
        return [*self.decoder_states(), State("state_guided", (size,), "guided_capsules")]

    def forward(
        self, tokens: Tensor, position: Tensor, source: dict[str, Tensor], states: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """tokens: [B, K]; position: of these tokens, [1]; source: from `Source`; states: of the steps before, by rows.

        Returns:
            logits [B * K, V] and the states after this step.
        """
        layers, after = self.layers(tokens, position, source, states)
        hidden = layers[-1]
        if self.decoder.aggregation is not None:
            hidden = self.decoder.aggregate_layers(tuple(layers))[0]
        if self.guided_head is not None:
            hidden, guided = self.guide(hidden.unflatten(0, tokens.shape), source, states)
            after = after + guided
        return nn.functional.linear(hidden, self.lm_head.weight, self.logits_bias), after

    def guide(
        self, hidden: Tensor, source: dict[str, Tensor], states: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The guided head over the beams [B, K, d]. Returns o, [B * K, d], and the head's states, if it has any."""
        head, votes = self.guided_head, source["guided_votes"]
        keys = source.get("guided_keys", votes[..., :0])
        mask = source["source_mask"].bool()
        if not isinstance(head, RecurrentHead):
            context = head(hidden, votes, keys, source.get("guided_capsules"), mask).context
            return context.flatten(0, 1), []
        contexts, _ = attention_contexts(votes.squeeze(1), keys, head.state_proj(hidden), head.score_weight, mask)
        before, contexts = states[-1], contexts.flatten(0, 1).unsqueeze(1)
        after = []
        for layer, start in zip(("past", "future"), before.chunk(2, dim=-1), strict=True):
            inputs, transition = head.context_proj[layer](contexts), head.transition[layer]()
            after.append(recurrent_states(inputs, transition, start, layer == "future")[:, 1])
        read = torch.cat([hidden.flatten(0, 1), before], dim=-1)
        context = head.output_proj(head.activation_fn(head.input_proj(read))) + hidden.flatten(0, 1)
        return context, [torch.cat(after, dim=-1)]

    def decoder_states(self) -> list[State]:
        """The decoder's own states."""
        raise NotImplementedError

    def layers(
        self, tokens: Tensor, position: Tensor, source: dict[str, Tensor], states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of the decoder's layers, [B * K, d] each, and its states after this step."""
        raise NotImplementedError


def embed(stack: nn.Module, tokens: Tensor, positions: Tensor) -> Tensor:
    """Embeddings of tokens at positions, as the Transformers' stacks make them; their shapes may broadcast."""
    embeddings = stack.embed_tokens(tokens) * getattr(stack, "embed_scale", 1.0)
    table = stack.embed_positions
    if isinstance(table, M2M100SinusoidalPositionalEmbedding):
        # counted from that of padding, which every padding token has
        padding = table.padding_idx
        embeddings = embeddings + table.weights[torch.where(tokens == padding, padding, positions + padding + 1)]
    else:
        embeddings = embeddings + table.weight[positions + getattr(table, "offset", 0)]
    norm = getattr(stack, "layernorm_embedding", None)
    return embeddings if norm is None else norm(embeddings)


def lengthen_positions(stack: nn.Module) -> None:
    """Makes M2M100's computed positions as many as the model has, as its forward does when it needs them."""
    table = stack.embed_positions
    if isinstance(table, M2M100SinusoidalPositionalEmbedding):
        rows = stack.config.max_position_embeddings + table.padding_idx + 1
        if rows > len(table.weights):
            table.make_weights(rows, table.embedding_dim, table.padding_idx)


class Residual(nn.Module):
    """The parts of a layer around its sub-layers, where the stack normalises after them or before.

    A stack that normalises before its sub-layers does so after the last layer, too.
    """

    def __init__(self, stack: nn.Module) -> None:
        super().__init__()
        self.after = stack.config.layers_are_normalized
        self.final_norm = None if self.after else stack.layer_norm

    def enter(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        """What a sub-layer reads."""
        return hidden if self.after else norm(hidden)

    def leave(self, norm: nn.Module, hidden: Tensor, update: Tensor) -> Tensor:
        """hidden and what a sub-layer made of it."""
        return norm(hidden + update) if self.after else hidden + update

    def feed_forward(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """The last sub-layer of every layer."""
        norm = layer.final_layer_norm
        inner = layer.fc2(layer.activation_fn(layer.fc1(self.enter(norm, hidden))))
        return self.leave(norm, hidden, inner)

    def outputs(self, layers: list[Tensor]) -> list[Tensor]:
        """The outputs of the layers as transformers returns them."""
        return layers if self.final_norm is None else [*layers[:-1], self.final_norm(layers[-1])]


class AttentionSource(Source):
    """The source for Transformers: keys and values of every layer of the decoder."""

    packs = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.qkv = nn.ModuleList(
            [merged(a.q_proj, a.k_proj, a.v_proj) for a in (layer.self_attn for layer in self.encoder.layers)]
        )
        readers = [layer.encoder_attn for layer in model.get_decoder().layers]
        self.heads = [reader.num_heads for reader in readers]
        self.residual = Residual(self.encoder)
        lengthen_positions(self.encoder)
        self.memory_proj = nn.ModuleList([merged(reader.k_proj, reader.v_proj) for reader in readers])

    def read_names(self) -> list[str]:
        return [f"{part}_{layer}" for layer in range(len(self.heads)) for part in ("source_keys", "source_values")]

    def read(self, states: Tensor, real: Tensor, packed: Tensor, places: Tensor | None) -> list[Tensor]:
        tensors = []
        for heads, projection in zip(self.heads, self.memory_proj, strict=True):
            both = projection(packed).index_select(0, places).unflatten(0, real.shape).unflatten(-1, (2, heads, -1))
            tensors += [part.transpose(1, 2) for part in both.unbind(2)]
        return tensors

    def layers(
        self, input_ids: Tensor, attention_mask: Tensor, words: Tensor | None, places: Tensor | None
    ) -> list[Tensor]:
        shape = input_ids.shape
        mask = attention_mask.to(torch.int32)
        positions = torch.arange(shape[1]).expand(shape).flatten().index_select(0, words)
        hidden = embed(self.encoder, input_ids.flatten().index_select(0, words), positions)
        outputs = []
        for layer, projection in zip(self.encoder.layers, self.qkv, strict=True):
            attn = layer.self_attn
            norm = layer.self_attn_layer_norm
            # attention alone needs every word in its place
            placed = projection(self.residual.enter(norm, hidden)).index_select(0, places).unflatten(0, shape)
            contexts, _ = attention(*placed.split(hidden.shape[-1], dim=-1), attn.num_heads, mask)
            contexts = contexts.flatten(0, 1).index_select(0, words)
            hidden = self.residual.leave(norm, hidden, attn.out_proj(contexts))
            hidden = self.residual.feed_forward(layer, hidden)
            outputs.append(hidden)
        return self.residual.outputs(outputs)


class AttentionStep(Step):
    """A step of a Transformer's decoder; its states are the keys and values of the steps before."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.qkv = nn.ModuleList(
            [merged(a.q_proj, a.k_proj, a.v_proj) for a in (layer.self_attn for layer in self.decoder.layers)]
        )
        self.residual = Residual(self.decoder)
        lengthen_positions(self.decoder)

    def decoder_states(self) -> list[State]:
        states = []
        for index, layer in enumerate(self.decoder.layers):
            heads = layer.self_attn.num_heads
            shape = (heads, 0, self.width // heads)
            states += [State(f"state_{part}_{index}", shape) for part in ("keys", "values")]
        return states

    def layers(
        self, tokens: Tensor, position: Tensor, source: dict[str, Tensor], states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        shape, width = tokens.shape, self.width
        hidden = embed(self.decoder, tokens, position).flatten(0, 1)
        outputs: list[Tensor] = []
        after: list[Tensor] = []
        for index, (layer, projection) in enumerate(zip(self.decoder.layers, self.qkv, strict=True)):
            own, across = layer.self_attn, layer.encoder_attn
            norm = layer.self_attn_layer_norm
            read = self.residual.enter(norm, hidden)
            queries, keys, values = projection(read).unsqueeze(1).split(width, dim=-1)
            past = (states[2 * index], states[2 * index + 1])
            contexts, present = attention(queries, keys, values, own.num_heads, past=past)
            after += present or ()
            hidden = self.residual.leave(norm, hidden, own.out_proj(contexts.flatten(0, 1)))
            norm = layer.encoder_attn_layer_norm
            queries = across.q_proj(self.residual.enter(norm, hidden)).unflatten(0, shape)
            memory = source[f"source_keys_{index}"], source[f"source_values_{index}"]
            contexts, _ = attention(queries, *memory, across.num_heads, source["source_mask"])
            hidden = self.residual.leave(norm, hidden, across.out_proj(contexts.flatten(0, 1)))
            hidden = self.residual.feed_forward(layer, hidden)
            outputs.append(hidden)
        return self.residual.outputs(outputs), after


class RecurrentSource(Source):
    """The source for the recurrent family: what its memory gives the decoder, and the states that attention reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.lstms = nn.ModuleList(
            [LSTMOperator(layer.forward_lstm, layer.backward_lstm) for layer in self.encoder.layers]
        )

    def read_names(self) -> list[str]:
        memory = self.encoder.source_memory
        names = ["source_context"] if memory.aggregation is not None else []
        return names + (["source_keys", "source_states"] if memory.key_proj is not None else [])

    def read(self, states: Tensor, real: Tensor, packed: Tensor, places: Tensor | None) -> list[Tensor]:
        fields = self.encoder.source_memory(states, real)
        fields["source_states"] = states
        return [fields[name] for name in self.read_names()]

    def layers(
        self, input_ids: Tensor, attention_mask: Tensor, words: Tensor | None, places: Tensor | None
    ) -> list[Tensor]:
        lengths = attention_mask.sum(dim=1).to(torch.int32)
        hidden = self.encoder.embed_tokens(input_ids) * self.encoder.embed_scale
        outputs = []
        for layer, lstm in zip(self.encoder.layers, self.lstms, strict=True):
            hidden = layer.layer_norm(hidden + lstm(hidden, lengths)[0])
            outputs.append(hidden)
        return outputs


class RecurrentStep(Step):
    """A step of the recurrent decoder; its states are those of its LSTMs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.lstms = nn.ModuleList([LSTMOperator(layer.lstm) for layer in self.decoder.layers])

    def decoder_states(self) -> list[State]:
        lstms = enumerate(self.lstms)
        return [State(f"state_{part}_{i}", (lstm.hidden_size,)) for i, lstm in lstms for part in ("hidden", "cell")]

    def layers(
        self, tokens: Tensor, position: Tensor, source: dict[str, Tensor], states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        shape = tokens.shape
        hidden = self.decoder.embed_tokens(tokens) * self.decoder.embed_scale
        if "source_context" in source:
            hidden = hidden + source["source_context"].unsqueeze(1)
        hidden = hidden.flatten(0, 1)
        outputs: list[Tensor] = []
        after: list[Tensor] = []
        for index, (layer, lstm) in enumerate(zip(self.decoder.layers, self.lstms, strict=True)):
            out, state = lstm(hidden.unsqueeze(1), state=(states[2 * index], states[2 * index + 1]))
            after += state
            hidden = layer.layer_norm(hidden + out.squeeze(1))
            if index == 0 and self.decoder.attention is not None:
                memory = source["source_keys"], source["source_states"], source["source_mask"].bool()
                hidden = self.decoder.attention(hidden.unflatten(0, shape), *memory)[0].flatten(0, 1)
            outputs.append(hidden)
        return outputs, after
