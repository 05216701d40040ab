"""Configuration of capsule mBART models."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import MBartConfig

from .capsule_configuration import CapsuleConfigMixin


@strict
class CapsuleMBartConfig(CapsuleConfigMixin, MBartConfig):
    """An MBartConfig with layer aggregation and guided routing; CapsuleConfigMixin documents the capsule fields.

    A plain mBART or mBART-50 config is a valid starting point: `CapsuleMBartConfig.from_pretrained(plain_checkpoint,
    aggregation="em_routing")` keeps its architecture and adds the systems asked for.
    """

    model_type = "capsule-mbart"
    parent_model_type = "mbart"
    layers_are_normalized: ClassVar[bool] = False


__all__ = ["CapsuleMBartConfig"]
