"""Zheng et al. 2019, one sentence and one decoding step at a time, in the order in which the paper prints its lines.

No batching, no padding of source words, no shortcuts: each sum is a Python loop over scalars or vectors. Inputs and
outputs are float64 tensors; gradients flow through autograd.

Shapes: S source words, T target length, N output capsules, D size of a capsule, d model width, H hidden size, V
vocabulary. CLF and ATTN are described in prose only (section 4.3 and footnote 5); their formulas are the project's.
PFRNN is Zheng et al. 2018, with K for the size of a state.
"""

import torch
from torch import Tensor

from .layer_routing import softmax, squash


def guided_dynamic_routing(
    h: Tensor, z: Tensor, w_votes: Tensor, w_b: Tensor, w: Tensor, num_iterations: int
) -> tuple[Tensor, list[Tensor]]:
    """Alg. 1 for one decoding step.

    h: [S, d], z: [d], w_votes (the W_j of Eq. 5): [N, D, d], w_b: [H, d + 2 D], w: [H]. Returns capsules [N, D] and C
    [S, N] of every iteration.
    """
    words, capsules = range(len(h)), range(len(w_votes))
    b = [[h.new_zeros(()) for _ in capsules] for _ in words]  # line 1
    v = [[w_votes[j] @ h[i] for j in capsules] for i in words]  # line 1, Eq. 5
    history = []
    for _ in range(num_iterations):  # line 2
        c = [softmax(b[i]) for i in words]  # line 3, Eq. 6
        omega = []
        for j in capsules:  # line 4, Eq. 4
            omega.append(squash(sum(c[i][j] * v[i][j] for i in words)))
        for i in words:  # line 5, Eq. 7
            for j in capsules:
                b[i][j] = b[i][j] + (w * torch.tanh(w_b @ torch.cat([z, v[i][j], omega[j]]))).sum()
        history.append(torch.stack([torch.stack(row) for row in c]))
    return torch.stack(omega), history


def guided_classifier(
    h: Tensor, z: Tensor, w_votes: Tensor, w_h: Tensor, w_z: Tensor, w: Tensor, group_sizes: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """CLF (footnote 5) for one decoding step: each source word is PAST, FUTURE or, with a third row of w, REDUNDANT.

    h: [S, d], z: [d], w_votes: [P + F, D, d], w_h and w_z: [H, d], w: [G, H], group_sizes: (P, F). Returns capsules
    [P + F, D] and probabilities [S, G], which sum to one over the groups.
    """
    p = []
    for h_i in h:
        hidden = torch.tanh(w_z @ z + w_h @ h_i)
        p.append(softmax([(w_g * hidden).sum() for w_g in w]))  # "similar to Equation 6"
    return _weighted_votes(h, w_votes, p, group_sizes), torch.stack([torch.stack(row) for row in p])


def guided_attention(
    h: Tensor, z: Tensor, w_votes: Tensor, w_h: Tensor, w_z: Tensor, w: Tensor, group_sizes: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """ATTN (section 4.3) for one decoding step: "two individual attention modules" over the source words.

    h: [S, d], z: [d], w_votes: [P + F, D, d], w_h and w_z: [2, H, d], w: [2, H], group_sizes: (P, F). Returns capsules
    [P + F, D] and weights [S, 2], which sum to one over the source words.
    """
    attentions = []
    for g in range(len(group_sizes)):
        attentions.append(softmax([(w[g] * torch.tanh(w_z[g] @ z + w_h[g] @ h_i)).sum() for h_i in h]))
    a = [[attention[i] for attention in attentions] for i in range(len(h))]
    return _weighted_votes(h, w_votes, a, group_sizes), torch.stack([torch.stack(row) for row in a])


def past_and_future_layers(
    h: Tensor, z: Tensor, attention: dict[str, Tensor], past: dict[str, Tensor], future: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """PFRNN: the PAST layer, a GRU, and the FUTURE layer, a GRU with inside minus, for all steps of one sentence.

    h: [S, d], z: [T, d]; attention: "w_h" and "w_z" [H, d], "w" [H]; past and future: "w_r", "w_u", "w_n" [K, d],
    "u_r", "u_u", "u_n" [K, K], "b_r", "b_u", "b_n" [K], and in future "w_0" [K, d] and "b_0" [K]. Returns the PAST and
    FUTURE states that a step reads, [T, K] each, and the attention that each source word had before it, [T, S].
    """
    s_past = h.new_zeros(len(past["b_r"]))  # nothing is translated
    s_future = torch.tanh(future["w_0"] @ (sum(h_i for h_i in h) / len(h)) + future["b_0"])  # everything is left
    covered = [h.new_zeros(()) for _ in h]
    read: list[tuple[Tensor, Tensor, Tensor]] = []
    for z_t in z:
        read.append((s_past, s_future, torch.stack(covered)))
        a = softmax(
            [(attention["w"] * torch.tanh(attention["w_z"] @ z_t + attention["w_h"] @ h_i)).sum() for h_i in h]
        )
        c = sum(a_i * h_i for a_i, h_i in zip(a, h, strict=True))
        covered = [covered_i + a_i for covered_i, a_i in zip(covered, a, strict=True)]

        r, u = _gates(past, c, s_past)
        candidate = torch.tanh(past["w_n"] @ c + past["b_n"] + r * (past["u_n"] @ s_past))
        s_past = u * s_past + (1 - u) * candidate

        r, u = _gates(future, c, s_future)
        candidate = torch.tanh(future["u_n"] @ s_future - r * (future["w_n"] @ c + future["b_n"]))
        s_future = u * s_future + (1 - u) * candidate
    states = [torch.stack(values) for values in zip(*read, strict=True)]
    return states[0], states[1], states[2]


def _gates(w: dict[str, Tensor], c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Reset and update gate of a GRU, [K] each."""
    r = torch.sigmoid(w["w_r"] @ c + w["u_r"] @ s + w["b_r"])
    u = torch.sigmoid(w["w_u"] @ c + w["u_u"] @ s + w["b_u"])
    return r, u


def bag_of_words_loss(
    contents: Tensor, output_embedding: Tensor, labels: Tensor, bag: str, normalization: str = "sentence"
) -> Tensor:
    """One of the two terms of L_BOW (section 3.3) for one sentence, 1/T sum_t -log p(bag_t).

    contents W_BOW Omega_t: [T, d], output_embedding E: [V, d], labels: [T], where -100 is no word. The PAST bag is
    y_{<t} and the FUTURE bag y_{>=t}, because y_t is still to be produced at step t, and an empty bag contributes
    nothing. "token", not in the paper, is sum_t of the mean over the words of the bag.
    """
    steps = [t for t, label in enumerate(labels.tolist()) if label != -100]
    total = contents.new_zeros(())
    for t in steps:
        p = softmax([(e * contents[t]).sum() for e in output_embedding])
        bag_of_t = [labels[tau] for tau in steps if ((tau < t) if bag == "past" else (tau >= t))]
        if not bag_of_t:
            continue
        probability = contents.new_ones(())
        for word in bag_of_t:
            probability = probability * p[word]
        total = total - torch.log(probability) / (len(steps) if normalization == "sentence" else len(bag_of_t))
    return total


def content_agreement_loss(
    capsules: Tensor, states: Tensor, projection: Tensor, labels: Tensor, bag: str, normalization: str = "sentence"
) -> Tensor:
    """One of the two terms of L_BCA (section 3.3) for one sentence, 1/T sum_t.

    capsules Omega_t, concatenated: [T, K], states z: [T, d], projection W_BCA: [K, d], labels: [T], where -100 is no
    word. As printed, z_t belongs to both sides. "token", not in the paper, is sum_t.
    """
    steps = [t for t, label in enumerate(labels.tolist()) if label != -100]
    total = capsules.new_zeros(())
    for t in steps:
        side = [states[tau] for tau in steps if ((tau <= t) if bag == "past" else (tau >= t))]
        difference = capsules[t] - projection @ (sum(side) / len(side))
        total = total + (difference * difference).sum() / (len(steps) if normalization == "sentence" else 1)
    return total


def _weighted_votes(h: Tensor, w_votes: Tensor, weights: list[list[Tensor]], group_sizes: tuple[int, int]) -> Tensor:
    """Eq. 4, where all capsules of a group share its weights. weights: S lists of at least two. Returns [P + F, D]."""
    group_of_capsule = [g for g, size in enumerate(group_sizes) for _ in range(size)]
    omega = []
    for j, g in enumerate(group_of_capsule):
        omega.append(squash(sum(weights[i][g] * (w_votes[j] @ h[i]) for i in range(len(h)))))
    return torch.stack(omega)
