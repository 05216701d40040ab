"""mBART with dynamic layer aggregation (Dou et al. 2019) and guided dynamic routing (Zheng et al. 2019)."""

import math

import torch
from torch import nn
from transformers import MBartForConditionalGeneration
from transformers.models.mbart.modeling_mbart import (
    MBartDecoder,
    MBartEncoder,
    MBartModel,
    MBartPreTrainedModel,
    MBartScaledWordEmbedding,
)

from .capsule_guided import guided_head
from .capsule_seq2seq import (
    AggregatingDecoderMixin,
    AggregatingEncoderMixin,
    CapsuleForConditionalGenerationMixin,
    CapsuleSeq2SeqModelMixin,
)
from .configuration_capsule_mbart import CapsuleMBartConfig


def wrap_last_token(tokens: torch.Tensor, pad_token_id: int | None) -> torch.Tensor:
    """tokens: [B, T], -100 for padding too. Returns them behind their last one, the end of the sentence or a language.

    As transformers' `shift_tokens_right` of mBART, which fails for a row of padding alone.
    """
    if pad_token_id is None:
        raise ValueError("config.pad_token_id has to be defined to make decoder inputs of the target")
    tokens = tokens.masked_fill(tokens == -100, pad_token_id)
    last = (tokens.ne(pad_token_id).sum(dim=1, keepdim=True) - 1).clamp_min(0)
    return torch.cat([tokens.gather(1, last), tokens[:, :-1]], dim=1)


class CapsuleMBartEncoder(AggregatingEncoderMixin, MBartEncoder):
    """mBART's encoder; its output aggregates its layers."""

    config_class = CapsuleMBartConfig


class CapsuleMBartDecoder(AggregatingDecoderMixin, MBartDecoder):
    """mBART's decoder; its output aggregates its layers."""

    config_class = CapsuleMBartConfig


class CapsuleMBartModel(CapsuleSeq2SeqModelMixin, MBartModel):
    """Encoder and decoder without a head."""

    config_class = CapsuleMBartConfig

    def __init__(self, config: CapsuleMBartConfig) -> None:
        # MBartModel.__init__ would build the plain stacks first, only to throw them away
        MBartPreTrainedModel.__init__(self, config)
        scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.shared = MBartScaledWordEmbedding(config.vocab_size, config.d_model, config.pad_token_id, scale)
        self.encoder = CapsuleMBartEncoder(config)
        self.decoder = CapsuleMBartDecoder(config)
        self.post_init()

    def default_decoder_input_ids(self, input_ids: torch.LongTensor | None) -> torch.LongTensor | None:
        """As in mBART: without decoder inputs the decoder reads the source, behind its last token."""
        return None if input_ids is None else wrap_last_token(input_ids, self.config.pad_token_id)


class CapsuleMBartForConditionalGeneration(CapsuleForConditionalGenerationMixin, MBartForConditionalGeneration):
    """mBART for translation with layer aggregation and guided routing; every system by its config.

    `from_pretrained` also takes a plain mBART checkpoint and capsule options:
    `CapsuleMBartForConditionalGeneration.from_pretrained(plain, aggregation="em_routing")`.
    """

    config_class = CapsuleMBartConfig

    def __init__(self, config: CapsuleMBartConfig) -> None:
        MBartPreTrainedModel.__init__(self, config)
        self.model = CapsuleMBartModel(config)
        self.final_logits_bias = nn.Buffer(torch.zeros((1, config.vocab_size)))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.guided_head = guided_head(config)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """As in mBART: the labels [B, T] behind their last token."""
        return wrap_last_token(labels, self.config.pad_token_id)


__all__ = ["CapsuleMBartForConditionalGeneration", "CapsuleMBartModel"]
