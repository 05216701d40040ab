"""Translation pipeline for encoder-decoder models; transformers 5 removed its own.

Needs torch, transformers and the standard library only: this file travels to the Hub beside a checkpoint and has to
run there without the package it came from. Shape letters: B sentences, S source tokens, R translations of one
sentence, T target tokens.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BatchEncoding,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

logger = logging.getLogger(__name__)

# "translation_en_to_de"; language codes may hold underscores themselves ("translation_eng_Latn_to_deu_Latn")
PAIR_TASK = re.compile(r"translation_(?P<source>.+)_to_(?P<target>.+)")

# A translation may have LENGTH_FACTOR * source tokens + LENGTH_MARGIN tokens unless the caller says else
LENGTH_FACTOR = 2
LENGTH_MARGIN = 10


def max_positions(config: PreTrainedConfig, side: str) -> int | None:
    """Longest sequence that one side ("encoder" or "decoder") has positions for; None where there is no limit."""
    # Composite models (EncoderDecoderModel) keep one config for each side
    part = getattr(config, side, None)
    return getattr(part if isinstance(part, PreTrainedConfig) else config, "max_position_embeddings", None)


def max_source_length(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> int:
    """Longest source in tokens that both the tokenizer and the encoder's positions allow."""
    positions = max_positions(config, "encoder")
    return tokenizer.model_max_length if positions is None else min(tokenizer.model_max_length, positions)


def encode_truncated(
    encode: Callable[..., BatchEncoding], sentences: list[str], limit: int
) -> tuple[BatchEncoding, list[int]]:
    """
    Encode sentences and cut those longer than `limit` tokens, special tokens included and kept.

    Args:
        encode: the tokenizer, or a function with its signature.
        sentences: at least one.
        limit: longest encoding allowed, in tokens.

    Returns:
        The encodings as lists (`input_ids`, `attention_mask`, ...), and by how many tokens each sentence was over the
        limit.
    """
    encoded = encode(sentences, truncation=False, return_attention_mask=True, verbose=False)
    excess = [max(0, len(ids) - limit) for ids in encoded["input_ids"]]
    too_long = [index for index, tokens in enumerate(excess) if tokens]
    if too_long:
        shortened = encode(
            [sentences[index] for index in too_long], truncation=True, max_length=limit, return_attention_mask=True
        )
        for key in ("input_ids", "attention_mask"):
            for index, values in zip(too_long, shortened[key], strict=True):
                encoded[key][index] = values
    return encoded, excess


def generation_value(model: PreTrainedModel, generate_kwargs: dict[str, Any], name: str) -> Any:
    """The generation parameter that `model.generate(**generate_kwargs)` will use; None where nobody has set it."""
    configs = (generate_kwargs.get("generation_config"), model.generation_config)
    values = [generate_kwargs.get(name), *(getattr(config, name, None) for config in configs)]
    return next((value for value in values if value is not None), None)


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off, and afterwards put every module back into the mode it was in."""
    training_modules = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training_modules:
            module.training = True


class SourceLengthCriteria(StoppingCriteria):
    """Ends each translation at its own sentence's limit, however long its neighbours in the batch may become.

    A single `max_new_tokens` for a batch would let a long neighbour lengthen a translation that never ends by itself.

    Args:
        max_lengths: longest decoder sequence of each sentence, start token included, [B].
    """

    def __init__(self, max_lengths: Tensor) -> None:
        self.max_lengths = max_lengths

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        # Beam search asks about several candidates of each sentence, side by side
        candidates = input_ids.shape[0] // self.max_lengths.shape[0]
        return self.max_lengths.repeat_interleave(candidates) <= input_ids.shape[1]


def limit_length(model: PreTrainedModel, source_lengths: Tensor, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    `generate_kwargs` with a limit in proportion to each source, unless the caller has set a length.

    A length in the model's own generation config is the most that any translation may have, and stays so.

    Args:
        source_lengths: number of source tokens of each sentence, [B].
    """
    lengths = ("max_length", "max_new_tokens")
    given = generate_kwargs.get("generation_config")
    if any(generate_kwargs.get(name) or getattr(given, name, None) for name in lengths):
        return generate_kwargs
    max_lengths = LENGTH_FACTOR * source_lengths + LENGTH_MARGIN
    positions = max_positions(model.config, "decoder")
    # The same for every batch wherever possible: early_stopping="never" estimates with it what a beam can still gain.
    # Elsewhere one more than needed: forced_eos_token_id would end the longest of a batch, and it alone
    max_length = int(max_lengths.max()) + 1 if positions is None else positions
    criteria = [*(generate_kwargs.get("stopping_criteria") or ()), SourceLengthCriteria(max_lengths)]
    limited = {**generate_kwargs, "stopping_criteria": StoppingCriteriaList(criteria)}
    if any(generation_value(model, generate_kwargs, name) for name in lengths):
        return limited
    return with_parameters(limited, max_length=max_length)


def with_parameters(generate_kwargs: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """`generate_kwargs` with these generation parameters; generate wants them in the config once there is one."""
    if generate_kwargs.get("generation_config") is None:
        return {**generate_kwargs, **parameters}
    config = copy.deepcopy(generate_kwargs["generation_config"])
    for name, value in parameters.items():
        setattr(config, name, value)
    return {**generate_kwargs, "generation_config": config}


def end_token_ids(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> list[int]:
    """The tokens that end a translation."""
    end = generation_value(model, generate_kwargs, "eos_token_id")
    return [] if end is None else [end] if isinstance(end, int) else list(end)


def generate_translations(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, generate_kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """
    Run `model.generate` without dropout and with a length limit for each sentence of its own.

    Args:
        input_ids, attention_mask: the encoded sources, [B, S]; the mask is 1 at real tokens.
        generate_kwargs: generation parameters; they win over the model's generation config. `decoder_input_ids`
            [B, P] is what all translations begin with.

    Returns:
        Token ids, padded on the right, [B, R, T], and how many of them belong to each translation, from the start
        token to the end of the sentence (if it was reached), [B, R].
    """
    limited = limit_length(model, attention_mask.sum(dim=1), generate_kwargs)
    if (generation_value(model, generate_kwargs, "num_beams") or 1) > 1:
        # The indices of the beams say where each ends. The ids do not: what fills them up may be the end token itself
        limited = with_parameters(limited, return_dict_in_generate=True)
    with evaluation_mode(model), torch.no_grad():
        generated = model.generate(input_ids=input_ids, attention_mask=attention_mask, **limited)
    sequences = generated if isinstance(generated, Tensor) else generated.sequences
    prompt = generate_kwargs.get("decoder_input_ids")
    prompt_length = 1 if prompt is None else prompt.shape[1]
    beam_indices = None if isinstance(generated, Tensor) else generated.get("beam_indices")
    if beam_indices is not None:
        lengths = prompt_length + beam_indices.ge(0).sum(dim=1)
    else:
        ends = torch.tensor(end_token_ids(model, generate_kwargs), dtype=torch.long, device=sequences.device)
        lengths = _lengths_by_end(sequences, prompt_length, ends, limited.get("stopping_criteria") or ())
    shape = (input_ids.shape[0], -1)
    return sequences.reshape(*shape, sequences.shape[-1]), lengths.reshape(shape)


def _lengths_by_end(sequences: Tensor, prompt_length: int, ends: Tensor, criteria: Sequence[Any]) -> Tensor:
    """Length of each sequence [B * R, T] up to its end token, or else up to the limit at which it was cut."""
    is_end = torch.isin(sequences[:, prompt_length:], ends)
    limits = torch.full_like(sequences[:, 0], sequences.shape[1])
    for criterion in criteria:
        if isinstance(criterion, SourceLengthCriteria):
            own = criterion.max_lengths.repeat_interleave(len(sequences) // len(criterion.max_lengths))
            # A prompt that is as long as the limit is followed by one token all the same
            limits = torch.minimum(limits, own.clamp_min(prompt_length + 1))
    return torch.where(is_end.any(dim=1), prompt_length + 1 + is_end.int().argmax(dim=1), limits)


def _given(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


class TranslationPipeline(Pipeline):
    """
    Translate text with any encoder-decoder model.

        translator = pipeline("translation", model="path/or/name")
        translator("A dog runs.")                                # [{"translation_text": "Ein Hund rennt."}]
        translator(["A dog runs.", "A cat sleeps."], num_beams=5, batch_size=2)
        for result in translator((line for line in lines), batch_size=32): ...

    A string gives a list of one dict for each returned sequence; a list gives one dict for each sentence, or a list of
    dicts where `num_return_sequences` is above one; a generator or a torch Dataset gives an iterator.
    Blank sentences translate to the empty string without being shown to the model. Sentences longer than the
    tokenizer's limit or the model's positions are truncated with a warning. Unless the call sets `max_length` or
    `max_new_tokens`, a translation ends after twice its source's tokens plus ten, or earlier where the model's
    generation config says so. A sentence is translated alike alone and in any batch.

    Parameters, when the pipeline is built or called:
        src_lang, tgt_lang (str): the languages, for multilingual tokenizers; a task such as "translation_en_to_de"
            sets both. Models of a single pair ignore them.
        truncation (bool, True): False passes long sentences on in full, for models without a limit on positions.
        return_tensors (bool, False): give `translation_token_ids` (without padding) in place of `translation_text`.
        clean_up_tokenization_spaces (bool, False): as in the tokenizer's `decode`.
        anything else: goes to `model.generate`.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._num_truncated = 0
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError("the translation pipeline needs a tokenizer: pass tokenizer=... along with the model")
        if not self.model.config.is_encoder_decoder:
            raise ValueError(
                "the translation pipeline needs an encoder-decoder model such as MarianMTModel, got"
                f" {type(self.model).__name__}; decoder-only models belong to the text-generation pipeline"
            )

    def _sanitize_parameters(
        self,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess_params = _given(src_lang=src_lang, tgt_lang=tgt_lang, truncation=truncation)
        postprocess_params = _given(
            return_tensors=return_tensors, clean_up_tokenization_spaces=clean_up_tokenization_spaces
        )
        return preprocess_params, generate_kwargs, postprocess_params

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate a string, a list of strings, a generator or a torch Dataset; see the class for all else."""
        # A column of a datasets.Dataset is a sequence, but not a list
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            if not inputs:
                return []
        outputs = super().__call__(inputs, **kwargs)
        if isinstance(inputs, list) and all(len(records) == 1 for records in outputs):
            return [records[0] for records in outputs]
        return outputs

    def preprocess(
        self, sentence: str, src_lang: str | None = None, tgt_lang: str | None = None, truncation: bool = True
    ) -> dict[str, Any]:
        if not isinstance(sentence, str):
            raise ValueError(
                f"the translation pipeline translates strings, got {type(sentence).__name__}: {sentence!r}"
            )
        is_blank = not sentence.strip()
        # The stand-in gives a blank sentence's row the keys and types of its batch; the model never sees it
        text = "." if is_blank else self._task_parameters()["prefix"] + sentence
        limit = max_source_length(self.tokenizer, self.model.config) if truncation else VERY_LARGE_INTEGER
        encoded, (excess,) = encode_truncated(self._encoder(src_lang, tgt_lang), [text], limit)
        if excess:
            self._num_truncated += 1
            logger.warning(
                f"A sentence of {limit + excess} tokens was truncated to its first {limit}, the most that this model"
                f" can read ({self._num_truncated} truncated so far): {sentence[:60]!r}..."
            )
        model_inputs = {key: torch.tensor(encoded[key]) for key in ("input_ids", "attention_mask")}
        if "forced_bos_token_id" in encoded:
            model_inputs["forced_bos_token_id"] = encoded["forced_bos_token_id"]
        return {**model_inputs, "is_blank": torch.tensor([is_blank])}

    def _encoder(self, src_lang: str | None, tgt_lang: str | None) -> Callable[..., BatchEncoding]:
        """The tokenizer's own way to prepare a translation where it has one, or the tokenizer itself."""
        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build is None:
            return self.tokenizer
        pair = PAIR_TASK.fullmatch(self.task)
        if pair and src_lang is None and tgt_lang is None:
            src_lang, tgt_lang = pair["source"], pair["target"]
        return partial(build, return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang)

    def _task_parameters(self) -> dict[str, Any]:
        """What older checkpoints (T5) keep in their config for this task: a prefix and generation parameters."""
        config = self.model.config
        parameters = {"prefix": getattr(config, "prefix", None) or ""}
        return {**parameters, **(getattr(config, "task_specific_params", None) or {}).get(self.task, {})}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs: Any) -> dict[str, Tensor]:
        is_blank = model_inputs["is_blank"]
        input_ids, attention_mask = model_inputs["input_ids"][~is_blank], model_inputs["attention_mask"][~is_blank]
        if "generation_config" not in generate_kwargs:
            task_parameters = {key: value for key, value in self._task_parameters().items() if key != "prefix"}
            generate_kwargs = {**task_parameters, **generate_kwargs}
        if "forced_bos_token_id" in model_inputs:
            token_id = model_inputs["forced_bos_token_id"]
            # Batching turns the number, the same for every sentence of a call, into a list
            generate_kwargs.setdefault("forced_bos_token_id", token_id[0] if isinstance(token_id, list) else token_id)

        num_sequences = generation_value(self.model, generate_kwargs, "num_return_sequences") or 1
        lengths = torch.zeros((len(is_blank), num_sequences), dtype=torch.long, device=is_blank.device)
        if len(input_ids) == 0:
            output_ids = is_blank.new_zeros((len(is_blank), num_sequences, 0), dtype=torch.long)
        else:
            # Positions count from the left, so that padding has to be on the right whatever the tokenizer does
            order = attention_mask.argsort(dim=1, descending=True, stable=True)[:, : attention_mask.sum(dim=1).max()]
            input_ids, attention_mask = input_ids.gather(1, order), attention_mask.gather(1, order)
            translations, lengths[~is_blank] = generate_translations(
                self.model, input_ids, attention_mask, generate_kwargs
            )
            output_ids = translations.new_full(
                (len(is_blank), *translations.shape[1:]), self.tokenizer.pad_token_id or 0
            )
            output_ids[~is_blank] = translations
        return {"output_ids": output_ids, "lengths": lengths}

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        decode = partial(
            self.tokenizer.decode,
            skip_special_tokens=True,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        records: list[dict[str, Any]] = []
        for token_ids, length in zip(model_outputs["output_ids"][0], model_outputs["lengths"][0], strict=True):
            token_ids = token_ids[: int(length)]
            if return_tensors:
                records.append({"translation_token_ids": token_ids})
            else:
                records.append({"translation_text": decode(token_ids)})
        return records
