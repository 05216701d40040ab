"""Recurrent translation: CapsNMT (Wang et al. 2019), its baselines, attention RNMT and the combination of both.

Deviations and readings: the papers give neither the decoder's first state, which is zero here, nor the place of the
attention in RNMT and in the hybrid. Here it is a sub-layer after the bottom LSTM, whose output it takes as its query
(as GNMT does, Wu et al. 2016), without feeding its context back into that LSTM: so no LSTM depends on a later step's
input, and training runs each as one fused call over the whole sequence.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import can_return_tuple

from .capsule_cache import RecurrentCache
from .capsule_guided import guided_head
from .capsule_recurrent import AdditiveAttention, RNNDecoderLayer, RNNEncoderLayer, SourceMemory, reorder
from .capsule_seq2seq import (
    AggregatingDecoderMixin,
    AggregatingEncoderMixin,
    CapsuleEncoderOutput,
    CapsuleForConditionalGenerationMixin,
    CapsulePreTrainedMixin,
    CapsuleSeq2SeqModelMixin,
    extend_output,
    source_mask,
)
from .configuration_capsule_rnn import CapsuleRNNConfig


class CapsuleRNNPreTrainedModel(CapsulePreTrainedMixin, PreTrainedModel):
    """What all parts of the recurrent family have in common."""

    config: CapsuleRNNConfig
    config_class = CapsuleRNNConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["RNNEncoderLayer", "RNNDecoderLayer"]
    # a recurrent state cannot be taken back by some tokens, which assisted decoding would need
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # forward makes a RecurrentCache itself
        return False

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Inputs that the model runs with."""
        input_ids = torch.tensor([[0, 6, 10, 4, 2], [0, 8, 12, 2, self.config.pad_token_id]], device=self.device)
        mask = input_ids.ne(self.config.pad_token_id)
        return {"attention_mask": mask, "input_ids": input_ids, "decoder_input_ids": input_ids}


class RNNStack(CapsuleRNNPreTrainedModel):
    """What encoder and decoder begin with: scaled embeddings and dropout."""

    def __init__(self, config: CapsuleRNNConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, context: Tensor | None = None) -> Tensor:
        """Scaled embeddings [B, T, d] plus a context [B, d], after dropout."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either token ids or embeddings, and not both")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        embeddings = inputs_embeds * self.embed_scale
        return self.dropout(embeddings if context is None else embeddings + context.unsqueeze(1))


class RNNEncoder(RNNStack):
    """Stacked bidirectional LSTM layers (Wang et al. Eq. 1)."""

    def __init__(self, config: CapsuleRNNConfig) -> None:
        super().__init__(config, config.vocab_size)
        self.layers = nn.ModuleList([RNNEncoderLayer(config) for _ in range(config.encoder_layers)])
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """As in transformers' encoders.

        Args:
            attention_mask: [B, S]; 0 for padding, which may be anywhere and is skipped.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden = self.embed(input_ids, inputs_embeds)
        if attention_mask is None:
            order = None
            lengths = torch.full((hidden.shape[0], 1), hidden.shape[1], device=hidden.device)
        else:
            attention_mask = attention_mask[:, : hidden.shape[1]]
            # real words first: right-padded sentences, the usual ones, stay as they are
            order = attention_mask.long().argsort(dim=1, descending=True, stable=True).unsqueeze(-1)
            back = order.argsort(dim=1)
            lengths = attention_mask.long().sum(dim=1, keepdim=True)
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        reversal = torch.where(positions < lengths, lengths - 1 - positions, positions).unsqueeze(-1)
        states = [hidden]
        if order is not None and not output_hidden_states:
            hidden = reorder(hidden, order)
        for layer in self.layers:
            if order is None or not output_hidden_states:
                hidden = layer(hidden, reversal)
            else:
                # what is returned is what the next layer reads, so that gradients pass through it
                hidden = reorder(layer(reorder(hidden, order), reversal), back)
            states.append(hidden)
        if order is not None and not output_hidden_states:
            hidden = reorder(hidden, back)
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=tuple(states) if output_hidden_states else None)


class RNNDecoder(RNNStack):
    """Stacked LSTM layers over u_t = W_c C + y_t (Wang et al. Eq. 5-6), with attention after the bottom layer."""

    def __init__(self, config: CapsuleRNNConfig) -> None:
        super().__init__(config, config.decoder_vocab_size)
        self.layers = nn.ModuleList([RNNDecoderLayer(config) for _ in range(config.decoder_layers)])
        self.attention = AdditiveAttention(config) if config.attends() else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        source_context: Tensor | None = None,
        source_keys: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """As in transformers' decoders.

        Args:
            attention_mask: without effect: padding belongs on the right, where no real step reads it.
            source_context: W_c C, [B, d], and
            source_keys: keys of the attention, [B, S, d], as far as the source memory has them.

        Raises:
            ValueError: if past_key_values is not a RecurrentCache.
        """
        if past_key_values is not None and not isinstance(past_key_values, RecurrentCache):
            raise ValueError(
                f"a recurrent decoder keeps its states in a RecurrentCache, not in a "
                f"{type(past_key_values).__name__}; leave past_key_values out, and the model makes its own"
            )
        hidden = self.embed(input_ids, inputs_embeds, source_context)
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if use_cache and past_key_values is None:
            past_key_values = RecurrentCache(len(self.layers))
        mask = None
        if self.attention is not None:
            mask = source_mask(encoder_attention_mask, encoder_hidden_states.shape[1])
        states, weights = [hidden], None
        for index, layer in enumerate(self.layers):
            state = None if past_key_values is None else past_key_values.layers[index].state()
            hidden, state = layer(hidden, state)
            if past_key_values is not None:
                past_key_values.update(*state, index, steps=hidden.shape[1])
            if index == 0 and self.attention is not None:
                hidden, weights = self.attention(hidden, source_keys, encoder_hidden_states, mask)
            states.append(hidden)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
            cross_attentions=(weights.unsqueeze(1),) if output_attentions and weights is not None else None,
        )


class CapsuleRNNEncoder(AggregatingEncoderMixin, RNNEncoder):
    """The encoder and the source memory; its output carries what the decoder reads."""

    def __init__(self, config: CapsuleRNNConfig) -> None:
        super().__init__(config)
        self.source_memory = SourceMemory(config)
        self.post_init()

    def add_source(
        self, outputs: BaseModelOutput, attention_mask: Tensor | None, output_agreements: bool = False
    ) -> CapsuleEncoderOutput:
        """As in the mixin, with the source memory."""
        outputs = super().add_source(outputs, attention_mask, output_agreements)
        if any(getattr(outputs, name, None) is not None for name in ("source_context", "source_keys")):
            return outputs
        states = outputs.last_hidden_state
        mask = source_mask(attention_mask, states.shape[1])
        return extend_output(outputs, **self.source_memory(states, mask, output_agreements))


class CapsuleRNNDecoder(AggregatingDecoderMixin, RNNDecoder):
    """The decoder; its output may aggregate its layers."""


class CapsuleRNNModel(CapsuleSeq2SeqModelMixin, CapsuleRNNPreTrainedModel):
    """Encoder and decoder without a head."""

    def __init__(self, config: CapsuleRNNConfig) -> None:
        super().__init__(config)
        self.encoder = CapsuleRNNEncoder(config)
        self.decoder = CapsuleRNNDecoder(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def decoder_source(self, encoder_outputs: CapsuleEncoderOutput) -> dict[str, Tensor | None]:
        """The source memory."""
        return {name: getattr(encoder_outputs, name) for name in ("source_context", "source_keys")}

    def get_input_embeddings(self) -> nn.Embedding:
        """The encoder's."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Sets the encoder's, and the decoder's where they are shared."""
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value


class CapsuleRNNForConditionalGeneration(
    CapsuleForConditionalGenerationMixin, CapsuleRNNPreTrainedModel, GenerationMixin
):
    """Recurrent translation with a source memory by choice, and guided routing on top; every system by its config."""

    def __init__(self, config: CapsuleRNNConfig) -> None:
        super().__init__(config)
        self.model = CapsuleRNNModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        shared = config.share_encoder_decoder_embeddings
        decoder = "model.decoder.embed_tokens.weight"
        source = "model.encoder.embed_tokens.weight" if shared else decoder
        self._tied_weights_keys = {"lm_head.weight": source} | ({decoder: source} if shared else {})
        self.guided_head = guided_head(config)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """labels: [B, T], -100 for padding. Returns them shifted to the right, behind the start token."""
        inputs = labels.new_empty(labels.shape)
        inputs[:, 1:] = labels[:, :-1]
        inputs[:, 0] = self.config.decoder_start_token_id
        return inputs.masked_fill(inputs == -100, self.config.pad_token_id)

    def get_decoder(self) -> CapsuleRNNDecoder:
        """The decoder."""
        return self.model.decoder

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As in transformers.

        Raises:
            ValueError: if source and target have embeddings of their own: it is not said which one is meant.
        """
        if not self.config.share_encoder_decoder_embeddings:
            raise ValueError("resize_token_embeddings needs share_encoder_decoder_embeddings=True in the config")
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.decoder_vocab_size = embeddings.num_embeddings
        return embeddings


__all__ = ["CapsuleRNNForConditionalGeneration", "CapsuleRNNModel"]
