"""The mean of the top k layers, each with a learned weight: an operator as users write them."""

import torch
from torch import nn
from transformers import initialization as init

from hf_capsule_mt.models.capsule_layers import InitialisesItself
from hf_capsule_mt.models.capsule_operators import register_aggregation


@register_aggregation("mean_top")
class MeanOfTopLayers(InitialisesItself, nn.Module):
    """H~ = w * mean of H^(L-k+1)..H^L, with a learned w [d]."""

    def __init__(self, config, num_layers: int, top: int = 2) -> None:
        super().__init__()
        self.top = min(top, num_layers)
        self.weight = nn.Parameter(torch.empty(config.d_model))

    def forward(self, layers, output_agreements: bool = False):
        """layers: [..., L, d]. Returns the mean [..., d]; there is no agreement."""
        return self.weight * layers[..., -self.top :, :].mean(dim=-2), None

    def init_weights(self) -> None:
        init.ones_(self.weight)
