"""Modules that own the parameters of layer aggregation (Dou et al. 2019).

Shapes: B batch, S positions, L layers, d model width, N output capsules, D = d / N.
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .capsule_operators import aggregation_class, register_aggregation
from .capsule_routing import (
    RoutingOutput,
    dynamic_routing,
    dynamic_routing_capsules,
    em_routing,
    em_routing_capsules,
    inner_dtype,
    inverse_temperature_schedule,
)

# The size of the first routing logits that the votes of dynamic routing with many capsules are scaled for.
FIRST_LOGIT = 1e-3


class InitialisesItself:
    """A module that knows how its own direct parameters start.

    transformers asks module by module, skips a module whose direct parameters were all loaded, and skips modules
    without direct parameters altogether when the class is not its own: hence nothing here initialises its children.
    """

    def init_weights(self) -> None:
        """Initialises the module's direct parameters, leaving alone those that were loaded from a checkpoint."""
        raise NotImplementedError


class CapsuleLinear(InitialisesItself, nn.Linear):
    """nn.Linear with a normal weight of a given standard deviation and a constant bias, or none, at the start."""

    def __init__(self, in_features: int, out_features: int, weight_std: float, bias_value: float | None = 0.0) -> None:
        self.weight_std = weight_std
        self.bias_value = bias_value
        super().__init__(in_features, out_features, bias=bias_value is not None)

    def init_weights(self) -> None:
        init.normal_(self.weight, std=self.weight_std)
        if self.bias_value is not None:
            init.constant_(self.bias, self.bias_value)


def is_plain_projection(head: nn.Module) -> bool:
    """Whether a projection is a plain matrix product, whose weight may be read in place of a call.

    Not so where an adapter, a quantised layer, a hook or a replaced forward (offloading) stands in its place.
    """
    hooked = "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks
    return type(head) in (nn.Linear, CapsuleLinear) and head.bias is None and not hooked


def mean_of_words(states: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real words, [B, d], of states [B, S, d]; zero for a row of padding alone."""
    if mask is None:
        return states.mean(dim=1)
    real = mask.unsqueeze(-1)
    return (states * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)


class CapsuleMatrix(InitialisesItself, nn.Module):
    """A matrix that enters a formula as it is, with a normal start of a given standard deviation.

    Calling it returns it: what loads weights for a call (offloading) reaches it, and what replaces maps by others
    (adapters, quantisation), which would not, leaves it alone. In a checkpoint it is like a `CapsuleLinear`.
    """

    def __init__(self, in_features: int, out_features: int, weight_std: float) -> None:
        super().__init__()
        self.weight_std = weight_std
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        # draws as nn.Linear does, here and below, so that one seed gives one model whichever of the two is used
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self) -> Tensor:
        """Returns the matrix, [out, in]."""
        return self.weight

    def init_weights(self) -> None:
        # transformers draws the weight of an nn.Linear once before the module itself does
        init.normal_(self.weight)
        init.normal_(self.weight, std=self.weight_std)


class LayerFeedForward(nn.Module):
    """L distinct feed-forward networks, one per layer, with one hidden layer each.

    Their first maps are F_l of Dou et al. Eq. 8 (the input capsules are the hidden activations); first and second
    map together are FFN_l of Eq. 4, or the votes W_{l->n} F_l of Eq. 7. The networks read all layers ("all_layers")
    or their own ("own_layer"). The first maps of "all_layers" share their input and are one nn.Linear.
    """

    def __init__(self, config, num_layers: int, output_std: float = 1.0, output_bias: float = 0.0) -> None:
        super().__init__()
        width, hidden = config.d_model, config.aggregation_hidden_size
        self.num_layers = num_layers
        self.all_layers = config.capsule_inputs == "all_layers"
        self.activation_fn = ACT2FN[config.activation_function]
        # Layer outputs are layer-normalised, hence of unit variance; He initialisation keeps the hidden activations
        # at unit second moment, so that output_std is about the standard deviation of the outputs.
        self.input_proj: nn.Module
        if self.all_layers:
            inputs = num_layers * width
            self.input_proj = CapsuleLinear(inputs, num_layers * hidden, weight_std=math.sqrt(2 / inputs))
        else:
            self.input_proj = nn.ModuleList(
                [CapsuleLinear(width, hidden, weight_std=math.sqrt(2 / width)) for _ in range(num_layers)]
            )
        self.output_proj = nn.ModuleList(
            [CapsuleLinear(hidden, width, output_std / math.sqrt(hidden), output_bias) for _ in range(num_layers)]
        )

    def forward(self, layers: Tensor) -> tuple[Tensor, Tensor]:
        """layers: [..., L, d]. Returns hidden activations [..., L, hidden] and outputs [..., L, d]."""
        if self.all_layers:
            hidden = self.input_proj(layers.flatten(-2)).unflatten(-1, (self.num_layers, -1))
        else:
            hidden = _per_layer(self.input_proj, layers)
        hidden = self.activation_fn(hidden)
        return hidden, _per_layer(self.output_proj, hidden)


def _per_layer(projections: nn.Module, inputs: Tensor) -> Tensor:
    """Applies the l-th map to the l-th slice of inputs [..., L, in]. Returns [..., L, out]."""
    return torch.stack([proj(inputs[..., i, :]) for i, proj in enumerate(projections.children())], dim=-2)


@register_aggregation("linear")
class LinearCombination(InitialisesItself, nn.Module):
    """Static linear combination, Eq. 3: H~ = sum_l W_l * H^l with one weight vector per layer.

    With linear_inputs="votes" it combines the votes of the routing systems, a control with their parameters.
    """

    def __init__(self, config, num_layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_layers, config.d_model))
        self.votes = LayerFeedForward(config, num_layers) if config.linear_inputs == "votes" else None

    def forward(self, layers: Tensor, output_agreements: bool = False) -> tuple[Tensor, None]:
        """layers: [..., L, d]. Returns the combination [..., d]; there is no agreement."""
        inputs = layers if self.votes is None else self.votes(layers)[1]
        return (self.weight * inputs).sum(dim=-2), None

    def init_weights(self) -> None:
        """Starts as the mean of the layers."""
        init.constant_(self.weight, 1 / self.weight.shape[0])


@register_aggregation("dynamic")
class DynamicCombination(nn.Module):
    """Dynamic combination, Eq. 4: H~ = sum_l FFN_l(H^1..H^L) * H^l, weights computed for every position."""

    def __init__(self, config, num_layers: int) -> None:
        super().__init__()
        # starts near the mean of the layers
        mean = 1 / num_layers
        self.weights = LayerFeedForward(config, num_layers, output_std=0.1 * mean, output_bias=mean)

    def forward(self, layers: Tensor, output_agreements: bool = False) -> tuple[Tensor, None]:
        """layers: [..., L, d]. Returns the combination [..., d]; there is no agreement."""
        return (self.weights(layers)[1] * layers).sum(dim=-2), None


class RoutingAggregation(nn.Module):
    """Layers as input capsules, routed to N output capsules whose concatenation is H~ (Eq. 5-16).

    Args:
        config: reads d_model, num_capsules, routing_iterations and the fields of LayerFeedForward.
        num_layers: L.
    """

    routes = True

    def __init__(self, config, num_layers: int) -> None:
        super().__init__()
        self.num_capsules = config.num_capsules
        self.num_iterations = config.routing_iterations
        self.votes = LayerFeedForward(config, num_layers, output_std=self.initial_vote_std(config, num_layers))

    @staticmethod
    def initial_vote_std(config, num_layers: int) -> float:
        """Standard deviation of the votes at the start."""
        return 1.0

    def forward(self, layers: Tensor, output_agreements: bool = False) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """layers: [..., L, d]. Returns H~ [..., d] and, if asked for, R agreements [..., L, N]."""
        hidden, votes = self.votes(layers)
        votes = votes.unflatten(-1, (self.num_capsules, -1))
        if not output_agreements:
            return self.capsules(hidden, votes).flatten(-2), None
        routed = self.route(hidden, votes)
        return routed.capsules.flatten(-2), routed.agreements

    def capsules(self, hidden: Tensor, votes: Tensor) -> Tensor:
        """hidden: input capsules [..., L, hidden], votes: [..., L, N, D]. Returns [..., N, D]."""
        raise NotImplementedError

    def route(self, hidden: Tensor, votes: Tensor) -> RoutingOutput:
        """The same, with the agreements of every iteration."""
        raise NotImplementedError


@register_aggregation("dynamic_routing")
class DynamicRoutingAggregation(RoutingAggregation):
    """Dynamic routing, Alg. 1."""

    @staticmethod
    def initial_vote_std(config, num_layers: int) -> float:
        """Scales the votes of many capsules up, but to where routing starts near the uniform assignment.

        With votes of size v and uniform assignment 1/N, a capsule's input has length v sqrt(L D) / N; squash squares
        it, and a first logit is about v^3 sqrt(L) D^1.5 / N^2: 1e-5 for v = 1 and N = d = 512, so that output and
        gradients nearly vanish. The scale solves that expression for FIRST_LOGIT. Not for 1: such a logit is a
        product of three normal numbers, the largest of 128 is near 20, and by the second iteration each input gives
        everything to one capsule, all others stay at zero, and no gradient changes that.
        """
        capsule_size = config.d_model / config.num_capsules
        scale = (FIRST_LOGIT * config.num_capsules**2 / (math.sqrt(num_layers) * capsule_size**1.5)) ** (1 / 3)
        return max(1.0, scale)

    def capsules(self, hidden: Tensor, votes: Tensor) -> Tensor:
        return dynamic_routing_capsules(votes, self.num_iterations)

    def route(self, hidden: Tensor, votes: Tensor) -> RoutingOutput:
        return dynamic_routing(votes, self.num_iterations, return_all_agreements=True)


@register_aggregation("em_routing")
class EMRoutingAggregation(InitialisesItself, RoutingAggregation):
    """EM routing, Alg. 2, with activations A_l = logistic(w_l . H^_l) (Eq. 10, read as a probability).

    beta_A and beta_mu are learned per output capsule, as in Hinton et al. 2018, and start at zero.
    """

    def __init__(self, config, num_layers: int) -> None:
        super().__init__(config, num_layers)
        self.inverse_temperatures = inverse_temperature_schedule(self.num_iterations, config.em_inverse_temperature)
        self.geometric_mean = config.em_density == "geometric_mean"
        self.activation_weight = nn.Parameter(torch.empty(num_layers, config.aggregation_hidden_size))
        self.beta_a = nn.Parameter(torch.empty(self.num_capsules))
        self.beta_mu = nn.Parameter(torch.empty(self.num_capsules))

    def capsules(self, hidden: Tensor, votes: Tensor) -> Tensor:
        activations = self.activations(hidden)
        return em_routing_capsules(
            votes, activations, self.beta_a, self.beta_mu, self.inverse_temperatures, self.geometric_mean
        )

    def route(self, hidden: Tensor, votes: Tensor) -> RoutingOutput:
        activations = self.activations(hidden)
        return em_routing(
            votes,
            activations,
            self.beta_a,
            self.beta_mu,
            self.inverse_temperatures,
            geometric_mean=self.geometric_mean,
            return_all_agreements=True,
        )

    def activations(self, hidden: Tensor) -> Tensor:
        """A_l, [..., L], of the input capsules [..., L, hidden]."""
        logits = (hidden * self.activation_weight).sum(dim=-1)
        return logits.to(inner_dtype(logits.dtype)).sigmoid()

    def init_weights(self) -> None:
        """Activations spread around one half, both costs zero."""
        init.normal_(self.activation_weight, std=1 / math.sqrt(self.activation_weight.shape[-1]))
        init.zeros_(self.beta_a)
        init.zeros_(self.beta_mu)


class LayerAggregation(InitialisesItself, nn.Module):
    """Combines the outputs of a stack's layers into the stack's output.

    aggregation_init="identity": H^L + gate * LayerNorm(H~), the gate [d] starting at zero. aggregation_init="paper":
    H~ itself. With layer_normalization="own", H~ is of the layers after a layer norm each.

    Args:
        config: a capsule configuration with aggregation other than "none".
        num_layers: L of this stack.
    """

    def __init__(self, config, num_layers: int) -> None:
        super().__init__()
        operator = aggregation_class(config.aggregation)
        self.input_norms: nn.ModuleList | None = None
        if config.layer_normalization == "own":
            self.input_norms = nn.ModuleList([nn.LayerNorm(config.d_model) for _ in range(num_layers)])
        self.combine = operator(config, num_layers, **(config.aggregation_options or {}))
        self.gated = config.aggregation_init == "identity"
        if self.gated:
            self.layer_norm = nn.LayerNorm(config.d_model)
            self.gate = nn.Parameter(torch.empty(config.d_model))

    def forward(
        self, hidden_states: tuple[Tensor, ...], output_agreements: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """hidden_states: H^1..H^L, each [B, S, d].

        Returns:
            The aggregate [B, S, d] and, for the routing systems and if asked for, R agreements [B, S, L, N].
        """
        layers = hidden_states
        if self.input_norms is not None:
            layers = tuple(norm(layer) for norm, layer in zip(self.input_norms, layers, strict=True))
        aggregate, agreements = self.combine(torch.stack(layers, dim=-2), output_agreements)
        if self.gated:
            aggregate = hidden_states[-1] + self.gate * self.layer_norm(aggregate)
        return aggregate, agreements

    def init_weights(self) -> None:
        """The gate starts closed."""
        if self.gated:
            init.zeros_(self.gate)
