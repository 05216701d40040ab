"""Marian with dynamic layer aggregation (Dou et al. 2019) and guided dynamic routing (Zheng et al. 2019)."""

from typing import ClassVar

import torch
from torch import nn
from transformers import MarianMTModel
from transformers.models.marian.modeling_marian import (
    MarianDecoder,
    MarianEncoder,
    MarianModel,
    MarianPreTrainedModel,
)

from .capsule_guided import guided_head
from .capsule_seq2seq import (
    AggregatingDecoderMixin,
    AggregatingEncoderMixin,
    CapsuleForConditionalGenerationMixin,
    CapsuleSeq2SeqModelMixin,
)
from .configuration_capsule_marian import CapsuleMarianConfig


class CapsuleMarianEncoder(AggregatingEncoderMixin, MarianEncoder):
    """Marian's encoder; its output aggregates its layers."""

    config_class = CapsuleMarianConfig


class CapsuleMarianDecoder(AggregatingDecoderMixin, MarianDecoder):
    """Marian's decoder; its output aggregates its layers."""

    config_class = CapsuleMarianConfig


class CapsuleMarianModel(CapsuleSeq2SeqModelMixin, MarianModel):
    """Encoder and decoder without a head."""

    config_class = CapsuleMarianConfig
    _no_split_modules: ClassVar[list[str]] = ["MarianEncoderLayer", "MarianDecoderLayer"]

    def __init__(self, config: CapsuleMarianConfig) -> None:
        # MarianModel.__init__ would build the plain stacks first, only to throw them away
        MarianPreTrainedModel.__init__(self, config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
            self._tied_weights_keys = {
                "decoder.embed_tokens.weight": "shared.weight",
                "encoder.embed_tokens.weight": "shared.weight",
            }
        else:
            self._tied_weights_keys = None
        self.encoder = CapsuleMarianEncoder(config)
        self.decoder = CapsuleMarianDecoder(config)
        self.post_init()


class CapsuleMarianMTModel(CapsuleForConditionalGenerationMixin, MarianMTModel):
    """Marian for translation with layer aggregation and guided routing; every system by its config.

    `from_pretrained` also takes a plain Marian checkpoint and capsule options:
    `CapsuleMarianMTModel.from_pretrained(plain, aggregation="em_routing")`.
    """

    config_class = CapsuleMarianConfig
    _no_split_modules: ClassVar[list[str]] = ["MarianEncoderLayer", "MarianDecoderLayer"]

    def __init__(self, config: CapsuleMarianConfig) -> None:
        MarianPreTrainedModel.__init__(self, config)
        self.model = CapsuleMarianModel(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {
                "lm_head.weight": "model.shared.weight",
                "model.decoder.embed_tokens.weight": "model.shared.weight",
                "model.encoder.embed_tokens.weight": "model.shared.weight",
            }
        target_vocab_size = config.vocab_size if config.share_encoder_decoder_embeddings else config.decoder_vocab_size
        self.final_logits_bias = nn.Buffer(torch.zeros((1, target_vocab_size)))
        self.lm_head = nn.Linear(config.d_model, target_vocab_size, bias=False)
        self.guided_head = guided_head(config)
        self.post_init()

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As in the parent, whose bias of the logits would not follow an embedding that is padded to a multiple."""
        if new_num_tokens is None:
            new_num_tokens = self.get_input_embeddings().num_embeddings
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            self._resize_final_logits_bias(embeddings.num_embeddings)
        return embeddings


__all__ = ["CapsuleMarianMTModel", "CapsuleMarianModel"]
