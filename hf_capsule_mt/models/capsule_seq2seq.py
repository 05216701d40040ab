"""What capsule Transformers add to the encoder, decoder, model and head of their parents.

Each mixin stands before the parent's class in the bases, so that one implementation serves every stack that is built
like Marian: `class CapsuleMarianEncoder(AggregatingStackMixin, MarianEncoder)`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .capsule_layers import InitialisesItself, LayerAggregation

Agreements = tuple[torch.FloatTensor, ...]


@dataclass
class CapsuleEncoderOutput(BaseModelOutput):
    """Encoder output; agreements: R tensors [B, S, L, N], or None."""

    agreements: Agreements | None = None


@dataclass
class CapsuleDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Decoder output; agreements: R tensors [B, T, L, N], or None."""

    agreements: Agreements | None = None


@dataclass
class CapsuleSeq2SeqModelOutput(Seq2SeqModelOutput):
    """Model output with the agreements of both stacks."""

    encoder_agreements: Agreements | None = None
    decoder_agreements: Agreements | None = None


@dataclass
class CapsuleSeq2SeqLMOutput(Seq2SeqLMOutput):
    """Output with logits.

    Attributes:
        encoder_agreements: assignment probabilities of each routing iteration in the encoder, R tensors
            [B, S, L, N]; only with output_agreements=True and a routing aggregation.
        decoder_agreements: the same in the decoder, R tensors [B, T, L, N].
    """

    encoder_agreements: Agreements | None = None
    decoder_agreements: Agreements | None = None


class CapsulePreTrainedMixin:
    """Initialisation; it has to be in every PreTrainedModel of the tree, as transformers asks the nearest one."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, InitialisesItself):
            module.init_weights()


class AggregatingStackMixin(CapsulePreTrainedMixin):
    """An encoder or decoder whose output is the aggregate of its layers (Dou et al. 2019).

    `hidden_states`, when asked for, are the parent's: the last one is the un-aggregated H^L.
    """

    stack_name: str
    stack_output_class: type

    def __init__(self, config) -> None:
        super().__init__(config)
        self.aggregation = None
        if config.aggregates(self.stack_name):
            self.aggregation = LayerAggregation(config, len(self.layers))
            # post_init ran in the parent's __init__, before this module existed
            self.post_init()
            # installed now, not at the first call: hooks cannot be installed while torch.compile traces
            maybe_install_capturing_hooks(self)

    def forward(self, *args: Any, output_agreements: bool | None = None, **kwargs: Any):
        """As the parent's forward, with the layers aggregated into `last_hidden_state`.

        Args:
            output_agreements (`bool`, *optional*): also return the routing agreements of every iteration.
        """
        if self.aggregation is None:
            return super().forward(*args, **kwargs)
        requested = kwargs.pop("output_hidden_states", None)
        if requested is None:
            requested = getattr(self.config, "output_hidden_states", False)
        return_dict = kwargs.pop("return_dict", None)
        outputs = super().forward(*args, output_hidden_states=True, return_dict=True, **kwargs)
        layers = outputs.hidden_states[1:]
        aggregate, agreements = self.aggregation(layers, output_agreements=bool(output_agreements))
        fields = dict(outputs.items())
        fields.update(
            last_hidden_state=aggregate,
            hidden_states=_select(outputs.hidden_states, requested),
            agreements=agreements,
        )
        outputs = self.stack_output_class(**fields)
        return outputs.to_tuple() if return_dict is False else outputs


class AggregatingEncoderMixin(AggregatingStackMixin):
    """Aggregation for an encoder."""

    stack_name = "encoder"
    stack_output_class = CapsuleEncoderOutput


class AggregatingDecoderMixin(AggregatingStackMixin):
    """Aggregation for a decoder."""

    stack_name = "decoder"
    stack_output_class = CapsuleDecoderOutput


def _select(hidden_states: tuple[Tensor, ...], requested: bool | int | list[int] | None):
    """The hidden states that the caller asked for: all, none, or those at the given indices."""
    if requested is True:
        return hidden_states
    if not requested:
        return None
    indices = {i % len(hidden_states) for i in ([requested] if isinstance(requested, int) else requested)}
    return tuple(state if i in indices else None for i, state in enumerate(hidden_states))


class CapsuleSeq2SeqModelMixin(CapsulePreTrainedMixin):
    """The encoder-decoder without a head: runs both stacks and passes their agreements on."""

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values=None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_agreements: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CapsuleSeq2SeqModelOutput | tuple:
        """Arguments as in the parent's forward; output_agreements as in the head's."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_agreements=output_agreements,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_agreements=output_agreements,
            **kwargs,
        )
        outputs = CapsuleSeq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            encoder_agreements=getattr(encoder_outputs, "agreements", None),
            decoder_agreements=getattr(decoder_outputs, "agreements", None),
        )
        return outputs.to_tuple() if return_dict is False else outputs


class CapsuleForConditionalGenerationMixin(CapsulePreTrainedMixin):
    """The head: logits, the label-smoothed loss, and generation with agreements."""

    # tells the Trainer that the loss is normalised by num_items_in_batch here
    accepts_loss_kwargs = True

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values=None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_agreements: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CapsuleSeq2SeqLMOutput | tuple:
        """Arguments as in the parent's forward, and:

        Args:
            labels (`torch.LongTensor`, [B, T], *optional*): target tokens; -100 is ignored.
            output_agreements (`bool`, *optional*): return the routing agreements of every iteration.
            num_items_in_batch (`int`, *optional*): number of target tokens that the loss is divided by, the whole
                batch's under gradient accumulation or several processes (the Trainer passes it). Defaults to the
                number of labels that are not ignored.

        Raises:
            ValueError: if the Trainer asks for a loss but keeps the labels to itself.
        """
        if labels is None and num_items_in_batch is not None:
            raise ValueError(
                "the Trainer took the labels away from the model, whose own loss would be lost: set "
                "label_smoothing in the model's config instead of label_smoothing_factor (or compute_loss_func) in "
                "the Trainer"
            )
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            decoder_attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_agreements=output_agreements,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state) + self.final_logits_bias
        loss = None
        if labels is not None:
            loss = self.label_smoothed_loss(logits, labels, num_items_in_batch)
        fields = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        result = CapsuleSeq2SeqLMOutput(loss=loss, logits=logits, **fields)
        return result.to_tuple() if return_dict is False else result

    def label_smoothed_loss(
        self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Cross-entropy with config.label_smoothing, summed over target tokens and divided by their number.

        Args:
            logits: [B, T, V].
            labels: [B, T]; -100 is ignored.
            num_items_in_batch: the divisor; defaults to the number of labels that are not ignored.
        """
        labels = labels.to(logits.device)
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1).float() if logits.dtype != torch.float64 else logits.flatten(0, 1),
            labels.flatten(),
            reduction="sum",
            label_smoothing=float(self.config.label_smoothing),
        )
        if num_items_in_batch is None:
            num_items_in_batch = (labels != -100).sum().clamp_min(1)
        elif isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(total.device)
        return total / num_items_in_batch

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, output_agreements: bool | None = None, **kwargs: Any):
        """As transformers' generate, and:

        Args:
            output_agreements (`bool`, *optional*): also return `encoder_agreements` and `decoder_agreements` of the
                returned sequences; implies return_dict_in_generate. Position t of decoder_agreements belongs to the
                step that produced token t + 1. They come from one more forward pass over the finished sequences, so
                that they follow the chosen beams and cost nothing otherwise.

        Raises:
            ValueError: if agreements are asked for without input_ids.
        """
        if not output_agreements:
            return super().generate(inputs, *args, **kwargs)
        source = inputs if inputs is not None else kwargs.get("input_ids")
        if source is None:
            raise ValueError("generate(output_agreements=True) needs input_ids, not embeddings or encoder outputs")
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = source.ne(self.config.pad_token_id).long()
        kwargs["return_dict_in_generate"] = True
        generated = super().generate(inputs, *args, **kwargs)
        copies = generated.sequences.shape[0] // source.shape[0]
        forced = self(
            input_ids=source.repeat_interleave(copies, dim=0),
            attention_mask=kwargs["attention_mask"].repeat_interleave(copies, dim=0),
            decoder_input_ids=generated.sequences[:, :-1],
            output_agreements=True,
            use_cache=False,
        )
        generated["encoder_agreements"] = forced.encoder_agreements
        generated["decoder_agreements"] = forced.decoder_agreements
        return generated
