"""Configuration of capsule BART models."""

from huggingface_hub.dataclasses import strict
from transformers import BartConfig

from .capsule_configuration import CapsuleConfigMixin


@strict
class CapsuleBartConfig(CapsuleConfigMixin, BartConfig):
    """A BartConfig with layer aggregation and guided routing; CapsuleConfigMixin documents the capsule fields.

    A plain BART config is a valid starting point: `CapsuleBartConfig.from_pretrained(plain_checkpoint,
    aggregation="em_routing")` keeps its architecture and adds the systems asked for.
    """

    model_type = "capsule-bart"
    parent_model_type = "bart"

    aggregation: str = "em_routing"
    aggregate_encoder: bool = True
    aggregate_decoder: bool = True
    capsule_inputs: str = "all_layers"
    linear_inputs: str = "layers"
    num_capsules: int | None = None
    routing_iterations: int = 3
    aggregation_init: str = "identity"
    aggregation_hidden_size: int | None = None
    em_inverse_temperature: float | int = 1.0
    guided_routing: str = "none"
    num_past_capsules: int = 2
    num_future_capsules: int = 2
    num_redundant_capsules: int = 2
    guided_capsule_size: int = 256
    guided_hidden_size: int | None = None
    bow_loss_weight: float | int = 0.0
    bca_loss_weight: float | int = 0.0
    label_smoothing: float | int = 0.0


__all__ = ["CapsuleBartConfig"]
