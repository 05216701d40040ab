"""M2M100, NLLB's dense models among them, with dynamic layer aggregation (Dou et al. 2019) and guided dynamic routing
(Zheng et al. 2019)."""

import math

import torch
from torch import nn
from transformers import M2M100ForConditionalGeneration
from transformers.models.m2m_100.modeling_m2m_100 import (
    M2M100Decoder,
    M2M100Encoder,
    M2M100Model,
    M2M100PreTrainedModel,
    M2M100ScaledWordEmbedding,
    shift_tokens_right,
)

from .capsule_guided import guided_head
from .capsule_seq2seq import (
    AggregatingDecoderMixin,
    AggregatingEncoderMixin,
    CapsuleForConditionalGenerationMixin,
    CapsuleSeq2SeqModelMixin,
)
from .configuration_capsule_m2m100 import CapsuleM2M100Config


class CapsuleM2M100Encoder(AggregatingEncoderMixin, M2M100Encoder):
    """M2M100's encoder; its output aggregates its layers."""

    config_class = CapsuleM2M100Config


class CapsuleM2M100Decoder(AggregatingDecoderMixin, M2M100Decoder):
    """M2M100's decoder; its output aggregates its layers."""

    config_class = CapsuleM2M100Config


class CapsuleM2M100Model(CapsuleSeq2SeqModelMixin, M2M100Model):
    """Encoder and decoder without a head."""

    config_class = CapsuleM2M100Config

    def __init__(self, config: CapsuleM2M100Config) -> None:
        # M2M100Model.__init__ would build the plain stacks first, only to throw them away
        M2M100PreTrainedModel.__init__(self, config)
        scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.shared = M2M100ScaledWordEmbedding(config.vocab_size, config.d_model, config.pad_token_id, scale)
        self.encoder = CapsuleM2M100Encoder(config)
        self.decoder = CapsuleM2M100Decoder(config)
        self.post_init()


class CapsuleM2M100ForConditionalGeneration(CapsuleForConditionalGenerationMixin, M2M100ForConditionalGeneration):
    """M2M100 for translation with layer aggregation and guided routing; every system by its config.

    `from_pretrained` also takes a plain M2M100 or NLLB checkpoint and capsule options:
    `CapsuleM2M100ForConditionalGeneration.from_pretrained(plain, aggregation="em_routing")`.
    """

    config_class = CapsuleM2M100Config

    def __init__(self, config: CapsuleM2M100Config) -> None:
        M2M100PreTrainedModel.__init__(self, config)
        self.model = CapsuleM2M100Model(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.guided_head = guided_head(config)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """As in M2M100's forward: the labels [B, T] behind the token that starts the decoder."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)


__all__ = ["CapsuleM2M100ForConditionalGeneration", "CapsuleM2M100Model"]
