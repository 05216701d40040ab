"""Configuration of capsule M2M100 models, NLLB's dense ones among them."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import M2M100Config

from .capsule_configuration import CapsuleConfigMixin, check_minimum


@strict
class CapsuleM2M100Config(CapsuleConfigMixin, M2M100Config):
    """An M2M100Config with layer aggregation and guided routing; CapsuleConfigMixin documents the capsule fields.

    A plain M2M100 or NLLB config is a valid starting point: `CapsuleM2M100Config.from_pretrained(plain_checkpoint,
    aggregation="em_routing")` keeps its architecture and adds the systems asked for.
    """

    model_type = "capsule-m2m100"
    parent_model_type = "m2m_100"
    layers_are_normalized: ClassVar[bool] = False

    # the parent's default is 0.05
    encoder_layerdrop: float | int = 0.0
    decoder_layerdrop: float | int = 0.0

    def validate_positions(self) -> None:
        """Checks what M2M100's computed positions need, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        # sines and cosines, the slowest of which is a fraction of their number less one
        check_minimum("d_model", self.d_model, 4)
        if self.decoder_start_token_id is not None and self.decoder_start_token_id == self.pad_token_id:
            raise ValueError(
                f"decoder_start_token_id={self.decoder_start_token_id} is pad_token_id, which has no position in "
                "M2M100: generation would count the words differently than training; take eos_token_id"
            )
        rows = self.max_position_embeddings + 2
        if self.pad_token_id is None or self.pad_token_id >= rows:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} must be less than max_position_embeddings + 2 = {rows}: the "
                "positions of M2M100 are counted from it"
            )


__all__ = ["CapsuleM2M100Config"]
