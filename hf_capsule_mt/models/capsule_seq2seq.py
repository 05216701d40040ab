"""What capsule Transformers add to the encoder, decoder, model and head of their parents.

Each mixin stands before the parent's class in the bases, so that one implementation serves every stack that is built
like Marian: `class CapsuleMarianEncoder(AggregatingStackMixin, MarianEncoder)`.
"""

import copy
import dataclasses
import inspect
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .capsule_cache import guided_cache_layer
from .capsule_guided import GuidedOutput, GuidedSource
from .capsule_kernels import cross_entropy, key_exponentials, linear_cross_entropy
from .capsule_layers import InitialisesItself, LayerAggregation, is_plain_projection
from .capsule_operators import AFTER_SAVING, operator_file

if TYPE_CHECKING:
    # save_pretrained copies every file that is imported like this: the pipeline travels with the models
    from .pipeline_translation import TranslationPipeline  # noqa: F401

Agreements = tuple[torch.FloatTensor, ...]
# where the hooks that collect the outputs of layers are from
CAPTURE_MODULE = maybe_install_capturing_hooks.__module__


class QuickFields:
    """Sets a field as `ModelOutput` does, which lists all fields of its class anew for each of them.

    That takes as long as some layers of a small model, at every step of decoding.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and name in self.__dataclass_fields__:
            OrderedDict.__setitem__(self, name, value)
        object.__setattr__(self, name, value)


@dataclass
class CapsuleEncoderOutput(QuickFields, BaseModelOutput):
    """Encoder output.

    Attributes:
        agreements: R tensors [B, S, L, N], or None.
        guided_votes, guided_keys, guided_capsules: what guided routing needs of the source, from `GuidedSource`. As
            tensors of the encoder's output they are computed once per source; the beams of a sentence share them.
        guided_exponentials: `key_exponentials` of guided_keys where routing reads them, or None.
        source_context, source_keys: what a recurrent decoder reads of the source, from `SourceMemory`.
        source_agreements: assignment of the source words to the capsules of the memory, R tensors [B, S, M], or None.
    """

    agreements: Agreements | None = None
    guided_votes: torch.FloatTensor | None = None
    guided_keys: torch.FloatTensor | None = None
    guided_capsules: torch.FloatTensor | None = None
    guided_exponentials: torch.FloatTensor | None = None
    source_context: torch.FloatTensor | None = None
    source_keys: torch.FloatTensor | None = None
    source_agreements: Agreements | None = None


# a constant, as torch.compile does not look into dataclasses
ENCODER_FIELDS = tuple(field.name for field in dataclasses.fields(CapsuleEncoderOutput))
GUIDED_FIELDS = ("guided_votes", "guided_keys", "guided_capsules", "guided_exponentials")


@dataclass
class CapsuleDecoderOutput(QuickFields, BaseModelOutputWithPastAndCrossAttentions):
    """Decoder output; agreements: R tensors [B, T, L, N], or None."""

    agreements: Agreements | None = None


@dataclass
class CapsuleSeq2SeqModelOutput(QuickFields, Seq2SeqModelOutput):
    """Model output with the agreements of both stacks; for the head, also what guided routing needs of the source."""

    encoder_agreements: Agreements | None = None
    decoder_agreements: Agreements | None = None
    source_agreements: Agreements | None = None
    guided_votes: torch.FloatTensor | None = None
    guided_keys: torch.FloatTensor | None = None
    guided_capsules: torch.FloatTensor | None = None
    guided_exponentials: torch.FloatTensor | None = None


@dataclass
class CapsuleSeq2SeqLMOutput(QuickFields, Seq2SeqLMOutput):
    """Output with logits.

    Attributes:
        encoder_agreements: assignment probabilities of each routing iteration in the encoder, R tensors
            [B, S, L, N]; only with output_agreements=True and a routing aggregation.
        decoder_agreements: the same in the decoder, R tensors [B, T, L, N].
        source_agreements: assignment of each source word to the capsules of a capsule memory, alpha of each
            iteration, R tensors [B, S, M]; 0 for padding; only with output_agreements=True and such a memory.
        guided_assignment: probability of each source word in the groups PAST, FUTURE and REDUNDANT (if there is one)
            at each decoding step, last iteration, [B, T, S, G]; 0 for padding; only with output_agreements=True and
            guided routing. The groups of a word add up to one; with "attention" the words of a group do. With
            "recurrent" PAST is how much attention a word has had before, at most 1.
        translation_loss, bow_loss, bca_loss: the label-smoothed cross-entropy and the unweighted guided losses, each
            divided by the number of target tokens; only with labels and a guided loss in the config.
    """

    encoder_agreements: Agreements | None = None
    decoder_agreements: Agreements | None = None
    source_agreements: Agreements | None = None
    guided_assignment: torch.FloatTensor | None = None
    translation_loss: torch.FloatTensor | None = None
    bow_loss: torch.FloatTensor | None = None
    bca_loss: torch.FloatTensor | None = None


class CapsulePreTrainedMixin:
    """Initialisation; it has to be in every PreTrainedModel of the tree, as transformers asks the nearest one."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, InitialisesItself):
            module.init_weights()

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; where the code is saved too, AutoModel finds the model without its head in it.

        Raises:
            ValueError: push_to_hub=True for a model with an operator from outside, whose file would stay behind.
        """
        self.config.__dict__.pop("operator_file", None)
        name = operator_file(self.config.aggregation)
        if name is not None:
            self.config.operator_file = name
            if kwargs.get("push_to_hub"):
                raise ValueError("save_pretrained(push_to_hub=True) would upload no operator: call model.push_to_hub")
        if self._auto_class is not None:
            base = type(self.base_model)
            name = f"{base.__module__.rpartition('.')[-1]}.{base.__name__}"
            self.config.auto_map = {**(getattr(self.config, "auto_map", None) or {}), "AutoModel": name}
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            for finish in AFTER_SAVING:
                finish(self, save_directory)


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
            # kept whole on one device, as layers are
            self._no_split_modules = {*self._no_split_modules, LayerAggregation.__name__}
            # post_init ran in the parent's __init__, before this module existed
            self.post_init()
            # installed now, not at the first call: hooks cannot be installed while torch.compile traces
            maybe_install_capturing_hooks(self)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and copy.deepcopy keep: everything but the capture hooks, which are functions without a name."""
        state = self.__dict__ | {"_modules": {n: _without_capture_hooks(m) for n, m in self._modules.items()}}
        state.pop("_output_capturing_hooks_installed", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.aggregation is not None:
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
        aggregate, agreements = self.aggregate_layers(outputs.hidden_states[1:], bool(output_agreements))
        fields = dict(outputs.items())
        fields.update(
            last_hidden_state=aggregate,
            hidden_states=_select(outputs.hidden_states, requested),
            agreements=agreements,
        )
        outputs = self.stack_output_class(**fields)
        return _as_asked(outputs, return_dict, self.config)

    def aggregate_layers(
        self, layers: tuple[Tensor, ...], output_agreements: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """What `LayerAggregation` makes of the layers' outputs H^1..H^L, each [..., d], as transformers returns them.

        Of a stack that normalises before its sub-layers, these are the residual stream, but for the last one, which
        has gone through the stack's final layer norm.
        """
        if self.config.layer_normalization == "final":
            layers = (*(self.layer_norm(layer) for layer in layers[:-1]), layers[-1])
        return self.aggregation(layers, output_agreements)


class AggregatingEncoderMixin(AggregatingStackMixin):
    """Aggregation for an encoder, and the source side of guided routing."""

    stack_name = "encoder"
    stack_output_class = CapsuleEncoderOutput

    def __init__(self, config) -> None:
        super().__init__(config)
        self.guided_source = None
        if config.guided_routing != "none":
            self.guided_source = GuidedSource(config)
            self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        *args: Any,
        output_agreements: bool | None = None,
        **kwargs: Any,
    ):
        """As the stack's forward; unless it is a tuple, the output carries what `add_source` adds."""
        outputs = super().forward(input_ids, attention_mask, *args, output_agreements=output_agreements, **kwargs)
        if isinstance(outputs, tuple):
            return outputs
        return self.add_source(outputs, attention_mask, bool(output_agreements))

    def add_source(
        self, outputs: BaseModelOutput, attention_mask: Tensor | None, output_agreements: bool = False
    ) -> BaseModelOutput:
        """The output with everything else that depends on the source alone; what it has already is left as it is."""
        if self.guided_source is None or getattr(outputs, "guided_votes", None) is not None:
            return outputs
        states = outputs.last_hidden_state
        votes, keys, capsules = self.guided_source(states, source_mask(attention_mask, states.shape[1]))
        exponentials = key_exponentials(keys) if self.guided_source.system == "routing" else None
        return extend_output(
            outputs, guided_votes=votes, guided_keys=keys, guided_capsules=capsules, guided_exponentials=exponentials
        )


class AggregatingDecoderMixin(AggregatingStackMixin):
    """Aggregation for a decoder."""

    stack_name = "decoder"
    stack_output_class = CapsuleDecoderOutput


def keeps_signature(function: Any) -> Any:
    """The function, with its signature at hand: generate() asks for that of a registered model at every step."""
    function.__signature__ = inspect.signature(function)
    return function


def source_mask(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """attention_mask: [B, >= S], not 0 for a real source word. Returns [B, S], True for one; None without a mask.

    Of a mask that is longer than the source, S positions count, as in the parents' attention.
    """
    return None if attention_mask is None else attention_mask[:, :length].bool()


def _without_capture_hooks(module: nn.Module | None) -> nn.Module | None:
    """The module itself, or a copy of it, with the same parameters, if it or a part of it has capture hooks."""
    if module is None:
        return None
    parts = {name: _without_capture_hooks(part) for name, part in module._modules.items()}
    hooks = {key: hook for key, hook in module._forward_hooks.items() if hook.__module__ != CAPTURE_MODULE}
    if len(hooks) == len(module._forward_hooks) and all(parts[n] is module._modules[n] for n in parts):
        return module
    twin = copy.copy(module)
    twin._modules = parts
    twin._forward_hooks = type(module._forward_hooks)(hooks)
    return twin


def extend_output(outputs: BaseModelOutput, **fields: Any) -> CapsuleEncoderOutput:
    """The encoder's output with more fields; fields that no capsule encoder has are dropped."""
    known = {name: value for name, value in outputs.items() if name in ENCODER_FIELDS}
    return CapsuleEncoderOutput(**known, **fields)


def _as_asked(outputs: ModelOutput, return_dict: bool | None, config: Any) -> ModelOutput | tuple:
    """The output, or a tuple of it if the call, or without a word of it the config, wants one."""
    wanted = getattr(config, "return_dict", True) if return_dict is None else return_dict
    return outputs if wanted else outputs.to_tuple()


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
        output_guided_source: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CapsuleSeq2SeqModelOutput | tuple:
        """Arguments as in the parent's forward; output_agreements as in the head's.

        output_guided_source (`bool`, *optional*): also return what the head's guided routing needs of the source.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.default_decoder_input_ids(input_ids)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_agreements=output_agreements,
                return_dict=True,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        # nothing is missing unless the caller brought an encoder output of another class
        encoder_outputs = self.encoder.add_source(encoder_outputs, attention_mask, bool(output_agreements))
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_agreements=output_agreements,
            return_dict=True,
            **self.decoder_source(encoder_outputs),
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
            source_agreements=getattr(encoder_outputs, "source_agreements", None),
            **{name: getattr(encoder_outputs, name, None) for name in GUIDED_FIELDS if output_guided_source},
        )
        return _as_asked(outputs, return_dict, self.config)

    def default_decoder_input_ids(self, input_ids: torch.LongTensor | None) -> torch.LongTensor | None:
        """What the decoder reads when the caller says nothing; None where the parent has no such default either."""
        return None

    def decoder_source(self, encoder_outputs: BaseModelOutput) -> dict[str, Tensor | None]:
        """Arguments of the decoder's forward that come from the encoder's output, beside the hidden states."""
        return {}


class CapsuleForConditionalGenerationMixin(CapsulePreTrainedMixin):
    """The head: guided routing, logits, the losses, and generation with agreements.

    The model's __init__ sets `guided_head`.
    """

    # tells the Trainer that the loss is normalised by num_items_in_batch here
    accepts_loss_kwargs = True

    @keeps_signature
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
            output_agreements (`bool`, *optional*): return the routing agreements of every iteration, and the
                assignment of guided routing.
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
            output_guided_source=self.guided_head is not None,
            return_dict=True,
            **kwargs,
        )
        guided = self._guide(outputs, attention_mask, decoder_attention_mask)
        context = outputs.last_hidden_state if guided is None else guided.context
        if labels is not None:
            labels = labels.to(context.device)
        logits, loss_sum = self._project(context, labels)
        assignment = None
        if guided is not None and output_agreements:
            assignment = self.guided_head.group_probabilities(guided.agreement)
        losses = {}
        if labels is not None:
            losses = self._losses(loss_sum, guided, outputs.last_hidden_state, labels, num_items_in_batch)
        dropped = ("last_hidden_state", *GUIDED_FIELDS)
        result = CapsuleSeq2SeqLMOutput(
            logits=logits,
            guided_assignment=assignment,
            **losses,
            **{name: value for name, value in outputs.items() if name not in dropped},
        )
        return _as_asked(result, return_dict, self.config)

    @property
    def _is_stateful(self) -> bool:
        """Whether the states of generation cannot be taken back by some tokens, as assisted decoding would need."""
        return super()._is_stateful or (self.guided_head is not None and self.guided_head.recurrent)

    def _valid_auto_compile_criteria(self, *args: Any, **kwargs: Any) -> bool:
        """As in transformers; never where a head keeps states, whose tensors are new ones at every step."""
        if self.guided_head is not None and self.guided_head.recurrent:
            return False
        return super()._valid_auto_compile_criteria(*args, **kwargs)

    def _guide(
        self,
        outputs: CapsuleSeq2SeqModelOutput,
        attention_mask: Tensor | None,
        decoder_attention_mask: Tensor | None = None,
    ) -> GuidedOutput | None:
        """Guided routing on top of the decoder, if there is any.

        decoder_attention_mask: [B, >= T], whose last columns are those of these steps; a mask of another form, which
        says of every step what it may read, says nothing of padding.
        """
        if self.guided_head is None:
            return None
        states = outputs.last_hidden_state
        source = (outputs.guided_votes, outputs.guided_keys, outputs.guided_capsules)
        mask = source_mask(attention_mask, outputs.guided_votes.shape[2])
        if not self.guided_head.recurrent:
            if mask is not None and mask.shape[0] != outputs.guided_votes.shape[0]:
                # beams of a sentence, one after another, have one source
                mask = mask[:: mask.shape[0] // outputs.guided_votes.shape[0]]
            return self.guided_head(states, *source, mask, outputs.guided_exponentials)
        steps = states.shape[1]
        real_steps = None
        if decoder_attention_mask is not None and decoder_attention_mask.dim() == 2:
            real_steps = decoder_attention_mask[:, -steps:].bool()
        memory = guided_cache_layer(outputs.past_key_values, steps)
        return self.guided_head(states, *source, mask, real_steps, memory)

    def _project(self, context: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V] of the context [B, T, d], and the label-smoothed cross-entropy, summed over target tokens.

        Both in one where the projection is a plain matrix product; not where an adapter, a quantised layer or a hook
        stands in its place.
        """
        head, bias = self.lm_head, getattr(self, "final_logits_bias", None)
        smoothing = float(self.config.label_smoothing)
        if labels is not None and is_plain_projection(head):
            loss, logits = linear_cross_entropy(
                context.flatten(0, 1), head.weight, None if bias is None else bias[0], labels.flatten(), smoothing
            )
            return logits.unflatten(0, context.shape[:2]), loss
        logits = head(context) if bias is None else head(context) + bias
        return logits, None if labels is None else cross_entropy(logits, labels, smoothing)

    def _losses(
        self,
        loss_sum: Tensor,
        guided: GuidedOutput | None,
        states: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
    ) -> dict[str, Tensor]:
        """The total "loss" and, if there are guided losses, its parts; each a sum over target tokens, divided by their
        number.
        """
        if num_items_in_batch is None:
            num_items_in_batch = (labels != -100).sum().clamp_min(1)
        elif isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(labels.device)
        loss = loss_sum / num_items_in_batch
        if guided is None:
            return {"loss": loss}
        sums = self.guided_head.losses(guided, states, labels, self.lm_head)
        if not sums:
            return {"loss": loss}
        parts = {name: total / num_items_in_batch for name, total in sums.items()}
        weighted = [getattr(self.config, f"{name}_weight") * part for name, part in parts.items()]
        return {"loss": loss + sum(weighted), "translation_loss": loss, **parts}

    def _expand_inputs_for_generation(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """As in transformers; but the beams of a sentence share what guided routing needs of the source.

        Not so with a recurrent head, whose states differ by beam.
        """
        outputs = kwargs.get("encoder_outputs")
        shared: dict[str, Tensor] = {}
        if (
            self.guided_head is not None
            and not self.guided_head.recurrent
            and isinstance(outputs, CapsuleEncoderOutput)
        ):
            shared = {name: value for name, value in outputs.items() if name in GUIDED_FIELDS}
            others = {name: value for name, value in outputs.items() if name not in shared}
            kwargs["encoder_outputs"] = CapsuleEncoderOutput(**others)
        input_ids, kwargs = super()._expand_inputs_for_generation(*args, **kwargs)
        for name, value in shared.items():
            kwargs["encoder_outputs"][name] = value
        return input_ids, kwargs

    def _reorder_cache(self, past_key_values: Cache, beam_idx: Tensor) -> Cache:
        """For beam search: the beams of a sentence share its source, whose keys and values stay where they are."""
        own = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            own = past_key_values.self_attention_cache
        own.reorder_cache(beam_idx)
        return past_key_values

    @torch.no_grad()
    def bag_of_words_log_probs(
        self,
        input_ids: torch.LongTensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the PAST and FUTURE capsules predict: log p_PRE and log p_SUB of every word (section 3.3).

        Args:
            input_ids, attention_mask: source, [B, S].
            decoder_input_ids: target shifted to the right, [B, T].

        Returns:
            Two tensors [B, T, V].

        Raises:
            ValueError: if the model was built without the bag-of-words loss.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
            output_guided_source=True,
            return_dict=True,
        )
        guided = self._guide(outputs, attention_mask)
        if guided is None:
            raise ValueError("the model has no bag-of-words predictor: its config has guided_routing='none'")
        past = self.lm_head(self.guided_head.bow_contents("past", guided.past))
        future = self.lm_head(self.guided_head.bow_contents("future", guided.future))
        return past.log_softmax(dim=-1), future.log_softmax(dim=-1)

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, output_agreements: bool | None = None, **kwargs: Any):
        """As transformers' generate, and:

        Args:
            output_agreements (`bool`, *optional*): also return `encoder_agreements`, `decoder_agreements`,
                `source_agreements` and `guided_assignment` of the returned sequences, as far as the model has them;
                implies return_dict_in_generate. Position t of decoder_agreements and guided_assignment belongs to the
                step that produced token t + 1. They come from one more forward pass over the finished sequences, so
                that they follow the chosen beams and cost nothing otherwise.

        A `max_length` of the caller holds; a `max_new_tokens` of the saved generation config would win over it.

        Raises:
            ValueError: if agreements are asked for without input_ids.
        """
        given = kwargs.get("generation_config")
        if kwargs.get("max_length") is not None or getattr(given, "max_length", None) is not None:
            kwargs.setdefault("max_new_tokens", getattr(given, "max_new_tokens", None))
        if not output_agreements:
            return super().generate(inputs, *args, **kwargs)
        source = inputs if inputs is not None else kwargs.get("input_ids")
        if source is None:
            raise ValueError("generate(output_agreements=True) needs input_ids, not embeddings or encoder outputs")
        kwargs["return_dict_in_generate"] = True
        generated = super().generate(inputs, *args, **kwargs)
        copies = generated.sequences.shape[0] // source.shape[0]
        mask = kwargs.get("attention_mask")
        forced = self(
            input_ids=source.repeat_interleave(copies, dim=0),
            attention_mask=None if mask is None else mask.repeat_interleave(copies, dim=0),
            decoder_input_ids=generated.sequences[:, :-1],
            output_agreements=True,
            use_cache=False,
            return_dict=True,
        )
        for name in ("encoder_agreements", "decoder_agreements", "source_agreements", "guided_assignment"):
            generated[name] = getattr(forced, name)
        return generated
