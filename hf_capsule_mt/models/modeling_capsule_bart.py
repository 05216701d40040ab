"""BART with dynamic layer aggregation (Dou et al. 2019) and guided dynamic routing (Zheng et al. 2019)."""

import math

import torch
from torch import nn
from transformers import BartForConditionalGeneration
from transformers.models.bart.modeling_bart import (
    BartDecoder,
    BartEncoder,
    BartModel,
    BartPreTrainedModel,
    BartScaledWordEmbedding,
    shift_tokens_right,
)

from .capsule_guided import guided_head
from .capsule_seq2seq import (
    AggregatingDecoderMixin,
    AggregatingEncoderMixin,
    CapsuleForConditionalGenerationMixin,
    CapsuleSeq2SeqModelMixin,
)
from .configuration_capsule_bart import CapsuleBartConfig


class CapsuleBartEncoder(AggregatingEncoderMixin, BartEncoder):
    """BART's encoder; its output aggregates its layers."""

    config_class = CapsuleBartConfig


class CapsuleBartDecoder(AggregatingDecoderMixin, BartDecoder):
    """BART's decoder; its output aggregates its layers."""

    config_class = CapsuleBartConfig


class CapsuleBartModel(CapsuleSeq2SeqModelMixin, BartModel):
    """Encoder and decoder without a head."""

    config_class = CapsuleBartConfig

    def __init__(self, config: CapsuleBartConfig) -> None:
        # BartModel.__init__ would build the plain stacks first, only to throw them away
        BartPreTrainedModel.__init__(self, config)
        scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.shared = BartScaledWordEmbedding(config.vocab_size, config.d_model, config.pad_token_id, scale)
        self.encoder = CapsuleBartEncoder(config)
        self.decoder = CapsuleBartDecoder(config)
        self.post_init()

    def default_decoder_input_ids(self, input_ids: torch.LongTensor | None) -> torch.LongTensor | None:
        """As in BART: without decoder inputs the decoder reads the source, shifted to the right."""
        if input_ids is None:
            return None
        return shift_tokens_right(input_ids, self.config.pad_token_id, self.config.decoder_start_token_id)


class CapsuleBartForConditionalGeneration(CapsuleForConditionalGenerationMixin, BartForConditionalGeneration):
    """BART for translation with layer aggregation and guided routing; every system by its config.

    `from_pretrained` also takes a plain BART checkpoint and capsule options:
    `CapsuleBartForConditionalGeneration.from_pretrained(plain, aggregation="em_routing")`.
    """

    config_class = CapsuleBartConfig

    def __init__(self, config: CapsuleBartConfig) -> None:
        BartPreTrainedModel.__init__(self, config)
        self.model = CapsuleBartModel(config)
        self.final_logits_bias = nn.Buffer(torch.zeros((1, config.vocab_size)))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.guided_head = guided_head(config)
        self.post_init()


__all__ = ["CapsuleBartForConditionalGeneration", "CapsuleBartModel"]
