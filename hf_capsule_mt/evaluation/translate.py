"""Translate whole files: sentences sorted by length, batches bounded by their tokens."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pipeline_translation import (
    encode_truncated,
    generate_translations,
    generation_value,
    max_source_length,
)

logger = logging.getLogger(__name__)


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    max_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """
    Translate sentences, in their order, with `model.generate`.

    Blank sentences translate to the empty string. Sentences longer than the tokenizer's limit or the model's positions
    are truncated; a warning says how many and by how much. The model's mode (training or evaluation) is kept.

    The result does not depend on `max_tokens`: padding is masked, and unless `generate_kwargs` sets `max_length` or
    `max_new_tokens`, every sentence has the limit of its own length (twice its tokens plus ten, at most what the
    model's generation config or its positions allow), enforced sentence by sentence, not batch by batch. What remains
    is floating-point noise of differently shaped batches, which can decide between two exactly equal candidates.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer; languages of a multilingual one are set on it beforehand.
        sentences: raw text as the model was trained on, one sentence each.
        max_tokens: bound on sentences * longest source * beams of a batch, in tokens; a sentence that exceeds it alone
            is a batch of its own.
        progress: called after every batch with the number of sentences done and the number in all.
        generate_kwargs: for `model.generate`, e.g. `num_beams=5`; they win over the model's generation config.

    Raises:
        ValueError: `max_tokens` below one, a single string for `sentences`, or more than one translation a sentence.
    """
    batches = translate_batches(model, tokenizer, sentences, max_tokens=max_tokens, **generate_kwargs)
    translations = [""] * len(sentences)
    done = sum(not sentence.strip() for sentence in sentences)
    if progress is not None and done == len(sentences):
        progress(done, len(sentences))
    for positions, texts in batches:
        for position, text in zip(positions, texts, strict=True):
            translations[position] = text
        done += len(positions)
        if progress is not None:
            progress(done, len(sentences))
    return translations


def translate_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    max_tokens: int = 4096,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[str]]]:
    """
    The work of `translate`, whose arguments and promises it shares, batch by batch.

    Returns:
        An iterator over the batches, longest sentences first: the positions of their sentences and the translations of
        these. Blank sentences are in none.

    Raises:
        ValueError: as `translate`; at the call, not at the first batch.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if isinstance(sentences, str):
        raise ValueError("sentences must be a list of strings, got a single string; put it in a list")
    num_sequences = generation_value(model, generate_kwargs, "num_return_sequences") or 1
    if num_sequences > 1:
        raise ValueError(
            f"translate gives one translation a sentence, got num_return_sequences={num_sequences};"
            " use the translation pipeline for several"
        )
    num_beams = generation_value(model, generate_kwargs, "num_beams") or 1
    positions = [position for position, sentence in enumerate(sentences) if sentence.strip()]
    sources = _encode(model, tokenizer, [sentences[position] for position in positions])
    return (
        (
            [positions[row] for row in batch],
            _translate_batch(model, tokenizer, [sources[row] for row in batch], generate_kwargs),
        )
        for batch in _batches([len(source) for source in sources], max_tokens // num_beams)
    )


def _encode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> list[Tensor]:
    """Token ids of each sentence, [S], truncated to what the model can read."""
    if not sentences:
        return []
    limit = max_source_length(tokenizer, model.config)
    encoded, excess = encode_truncated(tokenizer, sentences, limit)
    num_truncated = sum(tokens > 0 for tokens in excess)
    if num_truncated:
        logger.warning(
            f"{num_truncated} of {len(sentences)} sentences were truncated to {limit} tokens, the most that this model"
            f" can read; {sum(excess)} tokens were cut, {max(excess)} from the longest sentence"
        )
    return [torch.tensor(token_ids) for token_ids in encoded["input_ids"]]


def _translate_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: list[Tensor], generate_kwargs: dict[str, Any]
) -> list[str]:
    masks = [torch.ones_like(source) for source in sources]
    input_ids = pad_sequence(sources, batch_first=True, padding_value=tokenizer.pad_token_id or 0).to(model.device)
    attention_mask = pad_sequence(masks, batch_first=True).to(model.device)
    output_ids = generate_translations(model, input_ids, attention_mask, generate_kwargs)
    return tokenizer.batch_decode(output_ids[:, 0], skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _batches(lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first; each batch padded holds at most `max_tokens` tokens."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        size = max(1, max_tokens // lengths[order[start]])
        yield order[start : start + size]
        start += size
