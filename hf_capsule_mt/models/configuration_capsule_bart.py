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


__all__ = ["CapsuleBartConfig"]
