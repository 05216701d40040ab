"""Modules that own the parameters of guided routing: PAST and FUTURE source contents (Zheng et al. 2019, 2018).

Shapes: B batch, S source length, T target length, d model width, N capsules of size D (PAST, FUTURE and, with
"routing", REDUNDANT ones, in this order), G groups of capsules, K size of all capsules of PAST, or all of FUTURE, V
vocabulary.

What depends on the source alone, the votes and their part of the scores, is in `GuidedSource`, which belongs to the
encoder: it runs once per source sentence. What depends on the decoding step is in a `GuidedHead`, between the decoder
and the output projection.
"""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .capsule_cache import GuidedCacheLayer
from .capsule_layers import CapsuleLinear, CapsuleMatrix, InitialisesItself, is_plain_projection, mean_of_words
from .capsule_losses import bag_of_words_logits_loss, bag_of_words_loss, content_agreement_loss
from .capsule_past_future import attention_contexts, recurrent_states
from .capsule_routing import (
    RoutingOutput,
    guided_attention,
    guided_classifier,
    guided_dynamic_routing,
    uniform_capsules,
)


def num_guided_capsules(config) -> int:
    """N: capsules that the source words vote for; only "routing" gives the redundant ones votes of their own."""
    shown = config.num_past_capsules + config.num_future_capsules
    return shown + config.num_redundant_capsules if config.guided_routing == "routing" else shown


class GuidedSource(nn.Module):
    """The source side of guided routing: votes v_ij = W_j h_i (Eq. 5) and the terms of the scores that depend on them.

    With "routing" also the capsules of the first iteration, whose assignment is uniform at every decoding step.

    The keys are W_v v_ij, one per capsule, for "routing" (the block of W_b in Eq. 7 that reads the votes); W_h h_i for
    "classifier" and "recurrent"; W_h^g h_i, one per group, for "attention".

    "recurrent" has no vote matrices, as its attention reads h_i itself; its first FUTURE state is a summary of the
    source, ``tanh(W_0 mean_i h_i + b_0)``.

    Capsules (and groups) come before positions in memory, [B, N, S, D], as routing multiplies their matrices:
    otherwise every decoding step would reorder them.
    """

    def __init__(self, config) -> None:
        super().__init__()
        width, size = config.d_model, config.guided_capsule_size
        self.capsule_size = size
        self.system = config.guided_routing
        self.vote_proj: CapsuleLinear | None = None
        self.summary_proj: CapsuleLinear | None = None
        if self.system == "recurrent":
            self.summary_proj = CapsuleLinear(width, config.num_future_capsules * size, 1 / math.sqrt(width))
        else:
            votes = num_guided_capsules(config) * size
            self.vote_proj = CapsuleLinear(width, votes, 1 / math.sqrt(width), bias_value=None)
        self.key_proj: CapsuleLinear | None = None
        if self.system != "routing":
            outputs = size * (2 if self.system == "attention" else 1)
            self.key_proj = CapsuleLinear(width, outputs, 1 / math.sqrt(width), bias_value=None)
        elif config.routing_iterations > 1:
            self.key_proj = CapsuleLinear(size, size, 1 / math.sqrt(size), bias_value=None)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """hidden_states: encoder output h, [B, S, d]; mask: [B, S], True for a real source word.

        Returns:
            votes [B, N, S, D]; keys: [B, N, S, D] for "routing" ([B, N, S, 0] with one iteration, which scores
            nothing), [B, S, D] for "classifier", [B, 2, S, D] for "attention"; and first capsules [B, N, 1, D] for
            "routing", None otherwise. For "recurrent" h itself [B, 1, S, d], keys [B, S, D] and the first FUTURE state
            [B, K].
        """
        if self.summary_proj is not None:
            keys = cast(nn.Linear, self.key_proj)(hidden_states)
            return hidden_states.unsqueeze(1), keys, self.summary_proj(mean_of_words(hidden_states, mask)).tanh()
        votes = self._split(cast(nn.Linear, self.vote_proj)(hidden_states))
        if self.system == "routing":
            keys = votes[..., :0] if self.key_proj is None else self.key_proj(votes)
            return votes, keys, uniform_capsules(votes.transpose(1, 2), mask)
        keys = cast(nn.Linear, self.key_proj)(hidden_states)
        return votes, self._split(keys) if self.system == "attention" else keys, None

    def _split(self, inputs: Tensor) -> Tensor:
        """[B, S, N * D] as [B, N, S, D]."""
        return inputs.unflatten(-1, (-1, self.capsule_size)).transpose(1, 2).contiguous()


class GuidedOutput(NamedTuple):
    """What a guided head computes for every decoding step.

    Attributes:
        context: the holistic context o, [B, T, d].
        past, future: concatenated PAST and FUTURE capsules, [B, T, K] with K = D * the number of capsules.
        agreement: of the routing, [B, T, S, N] or [B, T, S, G]; `GuidedHead.group_probabilities` sums it up.
    """

    context: Tensor
    past: Tensor
    future: Tensor
    agreement: Tensor


class GuidedHead(InitialisesItself, nn.Module):
    """o = FeedForward(z, PAST, FUTURE) + z, and the guided losses on PAST and FUTURE (section 3.2-3.3).

    The feed-forward network has one hidden layer of guided_hidden_size; its last map starts at zero with
    aggregation_init="identity", so that o = z. Capsules, whose length is below 1, are read times sqrt(D): then their
    dimensions are of the size of z's, and the weights can absorb the factor.

    The losses' projections exist only where the loss has a weight.
    """

    # whether a step needs the steps before it
    recurrent = False

    def __init__(self, config) -> None:
        super().__init__()
        width, size = config.d_model, config.guided_capsule_size
        self.num_past, self.num_future = config.num_past_capsules, config.num_future_capsules
        # dimensions over which a length of about one is spread; the dimensions of a recurrent state are of unit size
        spread = 1 if self.recurrent else size
        self.scale = math.sqrt(spread)
        self.normalization = config.guided_loss_normalization
        # w of the scores, [D] or [G, D]; None where nothing is scored
        self.score_weight: nn.Parameter | None = None
        self.activation_fn = ACT2FN[config.activation_function]
        capsules = {"past": self.num_past * size, "future": self.num_future * size}
        inputs, hidden = width + sum(capsules.values()), config.guided_hidden_size
        self.input_proj = CapsuleLinear(inputs, hidden, math.sqrt(2 / inputs), bias_value=0.0)
        output_std = 0.0 if config.aggregation_init == "identity" else 1 / math.sqrt(hidden)
        self.output_proj = CapsuleLinear(hidden, width, output_std, bias_value=0.0)
        self.bow_proj: nn.ModuleDict | None = None
        if config.bow_loss_weight > 0:
            self.bow_proj = nn.ModuleDict(
                {
                    bag: CapsuleLinear(features, width, 1 / math.sqrt(features), bias_value=None)
                    for bag, features in capsules.items()
                }
            )
        self.bca_proj: nn.ModuleDict | None = None
        if config.bca_loss_weight > 0:
            # z has dimensions of unit size, a capsule has a length of about one
            std = 1 / math.sqrt(width * spread)
            self.bca_proj = nn.ModuleDict(
                {bag: CapsuleMatrix(width, features, std) for bag, features in capsules.items()}
            )

    def init_weights(self) -> None:
        """Scores start with a standard deviation of about one."""
        if self.score_weight is not None:
            init.normal_(self.score_weight, std=1 / math.sqrt(self.score_weight.shape[-1]))

    def forward(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        exponentials: Tensor | None = None,
    ) -> GuidedOutput:
        """states: z, [B, T, d]; votes, keys, first_capsules: from GuidedSource; mask: [B, S], True for a real word;
        exponentials: of the keys, which only "routing" reads.

        Of several beams for each sentence, z is [B * beams, T, d], and only z: to the routing, which treats every step
        alike, beams that read one source are more steps.
        """
        votes = votes.transpose(1, 2)
        if states.shape[0] == votes.shape[0]:
            return self.read(states, self.route(states, votes, keys, first_capsules, mask, exponentials))
        by_sentence = states.reshape(votes.shape[0], -1, states.shape[-1])
        routed = self.route(by_sentence, votes, keys, first_capsules, mask, exponentials)
        capsules, agreement = (x.reshape(*states.shape[:2], *x.shape[2:]) for x in (routed.capsules, routed.agreement))
        return self.read(states, RoutingOutput(capsules, agreement))

    def read(self, states: Tensor, routed: RoutingOutput) -> GuidedOutput:
        """states: z, [B, T, d]; routed: with capsules [B, T, >= P + F, D]."""
        past = routed.capsules[..., : self.num_past, :].flatten(-2)
        future = routed.capsules[..., self.num_past : self.num_past + self.num_future, :].flatten(-2)
        inputs = torch.cat([states, self.scale * past, self.scale * future], dim=-1)
        context = self.output_proj(self.activation_fn(self.input_proj(inputs))) + states
        return GuidedOutput(context, past, future, routed.agreement)

    def route(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        exponentials: Tensor | None = None,
    ) -> RoutingOutput:
        """Routes the source words at each decoding step; votes: [B, S, N, D].

        Returns capsules [B, T, >= P + F, D] and agreement.
        """
        raise NotImplementedError

    def group_probabilities(self, agreement: Tensor) -> Tensor:
        """agreement: of `route`. Returns the probability of each source word in each group, [B, T, S, G]."""
        return agreement

    def losses(
        self, guided: GuidedOutput, states: Tensor, labels: Tensor, output_projection: nn.Module
    ) -> dict[str, Tensor]:
        """The guided losses that have a weight, unweighted sums over the sentences.

        Args:
            guided: from forward.
            states: z, [B, T, d].
            labels: [B, T]; -100 is ignored.
            output_projection: of the model, [..., d] -> [..., V], whose weight E is shared; called as it is where
                it is anything but a plain `nn.Linear`.

        Returns:
            "bow_loss" and "bca_loss", as far as configured.
        """
        groups = {"past": guided.past, "future": guided.future}
        losses = {}
        if self.bow_proj is not None:
            plain = is_plain_projection(output_projection)
            bags = []
            for bag, capsules in groups.items():
                contents = self.bow_contents(bag, capsules)
                if plain:
                    weight = cast(nn.Linear, output_projection).weight
                    bags.append(bag_of_words_loss(contents, weight, labels, bag, self.normalization))
                else:
                    logits = output_projection(contents)
                    bags.append(bag_of_words_logits_loss(logits, labels, bag, self.normalization))
            losses["bow_loss"] = torch.stack(bags).sum()
        if self.bca_proj is not None:
            sides = [
                content_agreement_loss(capsules, states, self.bca_proj[bag](), labels, bag, self.normalization)
                for bag, capsules in groups.items()
            ]
            losses["bca_loss"] = torch.stack(sides).sum()
        return losses

    def bow_contents(self, bag: str, capsules: Tensor) -> Tensor:
        """W_BOW Omega, [B, T, d], of the capsules of a group [B, T, K]."""
        if self.bow_proj is None:
            raise ValueError("the model has no bag-of-words predictor: its config has bow_loss_weight=0")
        return self.bow_proj[bag](self.scale * capsules)


class RoutingHead(GuidedHead):
    """Guided dynamic routing, Alg. 1: W_b and w of Eq. 7, by blocks; none of them exists with one iteration."""

    def __init__(self, config) -> None:
        super().__init__(config)
        width, size = config.d_model, config.guided_capsule_size
        self.num_redundant = config.num_redundant_capsules
        self.num_iterations = config.routing_iterations
        if self.num_iterations > 1:
            self.state_proj = CapsuleLinear(width, size, 1 / math.sqrt(width), bias_value=None)
            # a capsule's length is about one, so its product has dimensions of unit size
            self.capsule_proj = CapsuleMatrix(size, size, 1.0)
            self.score_weight = nn.Parameter(torch.empty(size))

    def route(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        exponentials: Tensor | None = None,
    ) -> RoutingOutput:
        if self.score_weight is None:
            # nothing is scored; only the number of steps counts
            return guided_dynamic_routing(votes, None, states, None, None, 1, mask, first_capsules=first_capsules)
        return guided_dynamic_routing(
            votes,
            keys.transpose(1, 2),
            self.state_proj(states),
            self.capsule_proj(),
            self.score_weight,
            self.num_iterations,
            mask,
            first_capsules=first_capsules,
            vote_exponentials=None if exponentials is None else exponentials.transpose(1, 2),
        )

    def group_probabilities(self, agreement: Tensor) -> Tensor:
        """Sums over the capsules of a group."""
        sizes = [self.num_past, self.num_future] + [self.num_redundant] * (self.num_redundant > 0)
        return torch.stack([group.sum(dim=-1) for group in agreement.split(sizes, dim=-1)], dim=-1)


class ClassifierHead(GuidedHead):
    """CLF: one hidden layer over (z_t, h_i) and a softmax over PAST, FUTURE and, if configured, REDUNDANT."""

    score_weight: nn.Parameter

    def __init__(self, config) -> None:
        super().__init__(config)
        width, size = config.d_model, config.guided_capsule_size
        self.state_proj = CapsuleLinear(width, size, 1 / math.sqrt(width), bias_value=None)
        self.score_weight = nn.Parameter(torch.empty(3 if config.num_redundant_capsules > 0 else 2, size))

    def route(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        exponentials: Tensor | None = None,
    ) -> RoutingOutput:
        sizes = (self.num_past, self.num_future)
        return guided_classifier(votes, keys, self.state_proj(states), self.score_weight, sizes, mask)


class AttentionHead(GuidedHead):
    """ATTN: two additive attentions, one for PAST and one for FUTURE."""

    score_weight: nn.Parameter

    def __init__(self, config) -> None:
        super().__init__(config)
        width, size = config.d_model, config.guided_capsule_size
        self.state_proj = CapsuleLinear(width, 2 * size, 1 / math.sqrt(width), bias_value=None)
        self.score_weight = nn.Parameter(torch.empty(2, size))

    def route(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        exponentials: Tensor | None = None,
    ) -> RoutingOutput:
        queries = self.state_proj(states).unflatten(-1, (2, -1))
        return guided_attention(
            votes, keys.transpose(1, 2), queries, self.score_weight, (self.num_past, self.num_future), mask
        )


class RecurrentHead(GuidedHead):
    """PFRNN (Zheng et al. 2018): PAST and FUTURE layers over the contexts of an additive attention of z over h.

    PAST is a GRU that starts at zero, FUTURE one that takes contexts away ("inside minus") from a summary of the
    source. A step reads the states before its own context: they are of the words before it and of those still to come.
    """

    recurrent = True
    score_weight: nn.Parameter

    def __init__(self, config) -> None:
        super().__init__(config)
        width, size = config.d_model, config.guided_capsule_size
        self.capsule_size = size
        self.state_proj = CapsuleLinear(width, size, 1 / math.sqrt(width), bias_value=None)
        self.score_weight = nn.Parameter(torch.empty(size))
        sizes = {"past": self.num_past * size, "future": self.num_future * size}
        # W and b of the gates and of the candidate, and U
        self.context_proj = nn.ModuleDict(
            {layer: CapsuleLinear(width, 3 * state, 1 / math.sqrt(width)) for layer, state in sizes.items()}
        )
        self.transition = nn.ModuleDict(
            {layer: CapsuleMatrix(state, 3 * state, 1 / math.sqrt(state)) for layer, state in sizes.items()}
        )

    def forward(
        self,
        states: Tensor,
        votes: Tensor,
        keys: Tensor,
        first_capsules: Tensor | None,
        mask: Tensor | None,
        real_steps: Tensor | None = None,
        memory: GuidedCacheLayer | None = None,
    ) -> GuidedOutput:
        """As in the other heads, with h [B, 1, S, d] and the first FUTURE state [B, K] from GuidedSource.

        real_steps: [B, T], False for padding of the target, which leaves the states as they are. memory: what is known
        after the steps before; it is brought up to date.

        The agreement is how much attention each source word had before a step, at most 1, and the rest of it.
        """
        values, first = votes.squeeze(1), cast(Tensor, first_capsules)
        contexts, weights = attention_contexts(values, keys, self.state_proj(states), self.score_weight, mask)
        before = None if memory is None else memory.state()
        if before is None:
            before = torch.cat([torch.zeros_like(first), first], dim=-1), torch.zeros_like(weights[:, 0])
        starts, read = before
        layers = {}
        for layer, start in zip(("past", "future"), starts.chunk(2, dim=-1), strict=True):
            inputs, transition = self.context_proj[layer](contexts), self.transition[layer]()
            layers[layer] = recurrent_states(inputs, transition, start, layer == "future", real_steps)
        if real_steps is not None:
            weights = weights * real_steps.unsqueeze(-1)
        coverage = torch.cat([read.unsqueeze(1), weights], dim=1).cumsum(dim=1)
        both = torch.cat([layers["past"], layers["future"]], dim=-1)
        if memory is not None:
            memory.update(both[:, -1], coverage[:, -1], steps=states.shape[1])
        # not the last ones, but with a gradient, if of zeros: every parameter has one in every batch
        capsules = both[:, :-1].to(states.dtype).unflatten(-1, (-1, self.capsule_size))
        done = coverage[:, :-1].clamp(max=1)
        left = 1 - done if mask is None else (1 - done) * mask.unsqueeze(1)
        return self.read(states, RoutingOutput(capsules, torch.stack([done, left], dim=-1)))


GUIDED_HEADS = {
    "routing": RoutingHead,
    "classifier": ClassifierHead,
    "attention": AttentionHead,
    "recurrent": RecurrentHead,
}


def guided_head(config) -> GuidedHead | None:
    """The head that the config asks for, or None."""
    return None if config.guided_routing == "none" else GUIDED_HEADS[config.guided_routing](config)
