"""The recurrent models (Wang et al. 2019, section 2, and their attention baseline), one sentence at a time.

No batching, no padding, no fused kernels: each recurrence and each sum over positions is a Python loop over vectors.
Inputs and outputs are float64 tensors; gradients flow through autograd. Shapes: S source and T target positions, d
width, M capsules. Weights are the parameters of a model or of a part of it, by their names.
"""

import math

import torch
from torch import Tensor

from .layer_routing import softmax
from .sequence_routing import sequence_routing

Weights = dict[str, Tensor]


def sentence_logits(config, weights: Weights, source: list[int], target: list[int]) -> Tensor:
    """Logits of every target position, [T, V], of a model without aggregation and guided routing.

    source: token ids of the sentence; target: token ids that the decoder reads.
    """
    encoder, decoder = part(weights, "model.encoder"), part(weights, "model.decoder")
    if config.share_encoder_decoder_embeddings:
        decoder["embed_tokens.weight"] = encoder["embed_tokens.weight"]
    h = encode(config, encoder, source)
    context, keys = memory(config, part(encoder, "source_memory"), h)
    states = decode(config, decoder, target, context, keys, h)
    return torch.stack([decoder["embed_tokens.weight"] @ s for s in states])  # softmax(W_o s_t)


def part(weights: Weights, prefix: str) -> Weights:
    """The weights of a part of the model, without its name."""
    return {name[len(prefix) + 1 :]: weight for name, weight in weights.items() if name.startswith(prefix + ".")}


def embed(config, matrix: Tensor, ids: list[int]) -> list[Tensor]:
    """Scaled embeddings; that of padding is constant."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    return [scale * (matrix[i].detach() if i == config.pad_token_id else matrix[i]) for i in ids]


def encode(config, weights: Weights, ids: list[int]) -> list[Tensor]:
    """Eq. 1 for every layer: h_s, S vectors [d]."""
    x = embed(config, weights["embed_tokens.weight"], ids)
    for layer in range(config.encoder_layers):
        w = part(weights, f"layers.{layer}")
        ahead = lstm(x, part(w, "forward_lstm"))
        back = lstm(x[::-1], part(w, "backward_lstm"))[::-1]
        x = [add_and_norm(x[s], torch.cat([ahead[s], back[s]]), part(w, "layer_norm")) for s in range(len(x))]
    return x


def decode(
    config, weights: Weights, ids: list[int], context: Tensor | None, keys: list[Tensor] | None, h: list[Tensor]
) -> list[Tensor]:
    """Eq. 5-6 for every layer, attention after the bottom one: T vectors [d]."""
    y = embed(config, weights["embed_tokens.weight"], ids)
    u = y if context is None else [context + y_t for y_t in y]  # Eq. 5
    for layer in range(config.decoder_layers):
        w = part(weights, f"layers.{layer}")
        s = lstm(u, part(w, "lstm"))  # Eq. 6
        u = [add_and_norm(u[t], s[t], part(w, "layer_norm")) for t in range(len(u))]
        if layer == 0 and keys is not None:
            u = [attend(u_t, keys, h, part(weights, "attention")) for u_t in u]
    return u


def lstm(x: list[Tensor], w: Weights) -> list[Tensor]:
    """h of every step, from a state of zeros; the rows of the matrices belong to the gates i, f, g, o in turn."""
    size = w["weight_hh_l0"].shape[1]
    h = c = x[0].new_zeros(size)
    outputs = []
    for x_t in x:
        gates = w["weight_ih_l0"] @ x_t + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"]
        i = torch.sigmoid(gates[:size])
        f = torch.sigmoid(gates[size : 2 * size])
        g = torch.tanh(gates[2 * size : 3 * size])
        o = torch.sigmoid(gates[3 * size :])
        c = f * c + i * g
        h = o * torch.tanh(c)
        outputs.append(h)
    return outputs


def add_and_norm(x: Tensor, output: Tensor, w: Weights) -> Tensor:
    """Residual connection and layer norm of one vector."""
    z = x + output
    z = z - z.mean()
    return w["weight"] * z / torch.sqrt((z * z).mean() + 1e-5) + w["bias"]


def attend(q: Tensor, keys: list[Tensor], h: list[Tensor], w: Weights) -> Tensor:
    """``softmax_s(w . tanh(W_q q + W_k h_s))``, its mean of h, a linear map, residual and norm."""
    query = w["query_proj.weight"] @ q + w["query_proj.bias"]
    a = softmax([(w["score_weight"] * torch.tanh(query + key)).sum() for key in keys])
    mean = sum(a_s * h_s for a_s, h_s in zip(a, h, strict=True))
    return add_and_norm(q, w["output_proj.weight"] @ mean + w["output_proj.bias"], part(w, "layer_norm"))


def memory(config, w: Weights, h: list[Tensor]) -> tuple[Tensor | None, list[Tensor] | None]:
    """W_c C of Eq. 5, [d], and the keys W_k h_s of the attention, as far as the system has them."""
    context = keys = None
    if config.source_memory == "simple":
        context = w["context_proj.weight"] @ torch.cat(simple_memory(h))
    elif config.source_memory in ("capsule", "hybrid"):
        context = w["context_proj.weight"] @ torch.cat(capsule_memory(config, part(w, "aggregation"), h))  # Eq. 13
    if config.source_memory in ("attention", "hybrid"):
        keys = [w["key_proj.weight"] @ h_s for h_s in h]
    return context, keys


def simple_memory(h: list[Tensor]) -> list[Tensor]:
    """Eq. 2-4."""
    largest, total = h[0], h[0]
    for h_s in h[1:]:
        largest = torch.maximum(largest, h_s)
        total = total + h_s
    return [largest, total / len(h), h[0], h[-1]]


def capsule_memory(config, w: Weights, h: list[Tensor]) -> list[Tensor]:
    """Eq. 7-14, M vectors [d]: the capsules times sqrt(d), as g of Eq. 14 reads them, too.

    So positions are added to sqrt(d) c_j, and divided by sqrt(d) here, where they are added to c_j. The options that
    are not in the paper are those of the config; with include_end_states h_1 and h_S follow.
    """
    d, num_capsules = config.d_model, config.num_source_capsules
    scale = math.sqrt(d)
    matrices = [m.T for m in w["message_proj.weight"].split(d)]
    steps = 1 if config.share_routing_weights else config.routing_iterations
    w_t = [torch.stack(matrices[t * num_capsules : (t + 1) * num_capsules]) for t in range(steps)]
    w_t = w_t * config.routing_iterations if steps == 1 else w_t
    parents, placed = None, h
    if config.position_aware_routing:
        placed = [h_s + positional_encoding(s, d).to(h_s) for s, h_s in enumerate(h)]
        parents = torch.stack([positional_encoding(j, d).to(h[0]) for j in range(num_capsules)]) / scale
    g = [None, None]
    if "score.0.weight" in w:
        g = [lambda c: feed_forward(scale * c, w), lambda h_s: feed_forward(h_s, w)]
    sent = placed if config.routing_positions == "states" else h
    linear, mean = config.message_activation == "linear", config.capsule_output == "mean"
    options = (config.balanced_routing, linear, mean, torch.stack(placed))
    capsules, _ = sequence_routing(torch.stack(sent), w_t, parents, *g, *options)
    return [c if mean else scale * c for c in capsules] + ([h[0], h[-1]] if config.include_end_states else [])


def feed_forward(x: Tensor, w: Weights) -> Tensor:
    """g of Eq. 14."""
    hidden = torch.relu(w["score.0.weight"] @ x + w["score.0.bias"])
    return w["score.2.weight"] @ hidden + w["score.2.bias"]


def positional_encoding(position: int, d: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5, in float64; the sines come before the cosines, d is even."""
    angles = [position / 10_000 ** (2 * i / d) for i in range(d // 2)]
    values = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return torch.tensor(values, dtype=torch.float64)
