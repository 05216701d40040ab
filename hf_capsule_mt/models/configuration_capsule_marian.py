"""Configuration of capsule Marian models."""

from huggingface_hub.dataclasses import strict
from transformers import MarianConfig

from .capsule_configuration import CapsuleConfigMixin


@strict
class CapsuleMarianConfig(CapsuleConfigMixin, MarianConfig):
    """A MarianConfig with layer aggregation and guided routing; CapsuleConfigMixin documents the capsule fields.

    A plain Marian config is a valid starting point: `CapsuleMarianConfig.from_pretrained(plain_checkpoint,
    aggregation="em_routing")` keeps its architecture and adds the systems asked for.
    """

    model_type = "capsule-marian"
    parent_model_type = "marian"


__all__ = ["CapsuleMarianConfig"]
