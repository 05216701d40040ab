"""Text into the token ids that generation reads and writes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from ..models.pipeline_translation import (
    encode_truncated,
    generation_value,
    max_positions,
    max_source_length,
    with_parameters,
)
from ..models.tokenizer_languages import (
    check_target_text,
    ends_with_language,
    generation_languages,
    is_multilingual,
    saved_languages,
)

logger = logging.getLogger(__name__)

# Most tokens of a translation by a model that has no positions, whatever its tokenizer says
MOST_TOKENS = 4096


def check_parallel(sentences: Sequence[str], max_tokens: int, **others: Sequence[Any] | None) -> None:
    """
    Check the arguments that all functions on lists of sentences share.

    Args:
        others: lists that must be as long as `sentences`, by their names; None is left out.

    Raises:
        ValueError: `max_tokens` below one, a single string in the place of a list, or lists of different lengths.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    for name, values in (("sentences", sentences), *others.items()):
        if isinstance(values, str):
            raise ValueError(f"{name} must be a list of strings, got a single string; put it in a list")
        if values is not None and len(values) != len(sentences):
            raise ValueError(f"there are {len(sentences)} sentences, but {len(values)} {name}; give one for each")


def with_languages(tokenizer: PreTrainedTokenizerBase, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Generation parameters that write the target language of a multilingual tokenizer, unless they say another.

    Raises:
        ValueError: nobody has set its languages.
    """
    if not is_multilingual(tokenizer):
        return generate_kwargs
    pair = saved_languages(tokenizer)
    if pair is None:
        raise ValueError(
            f"the {type(tokenizer).__name__} is multilingual, and has no languages yet: call "
            "set_languages(tokenizer, source_lang, target_lang) first"
        )
    found = generation_languages(tokenizer, pair)
    return with_parameters(
        generate_kwargs, **{name: token for name, token in found.items() if name not in generate_kwargs}
    )


def encode_sources(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]
) -> list[list[int]]:
    """Token ids of each sentence, [S], truncated to what the model can read; a warning says by how much."""
    limit = max_source_length(tokenizer, model.config)
    encoded = _encode(tokenizer, sentences, limit, "sentences", "read", {})
    check_ids(encoded, source_vocabulary(model), "sentence")
    return encoded


def encode_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    translations: Sequence[str],
    generate_kwargs: dict[str, Any],
) -> list[list[int]]:
    """Token ids of each translation, [T], truncated to what the model can write; a warning says by how much."""
    longest = longest_output(model, generate_kwargs)
    limit = VERY_LARGE_INTEGER if longest is None else longest
    check_target_text(tokenizer)
    encoded = _encode(tokenizer, translations, limit, "translations", "write", {"text_target": True})
    if ends_with_language(tokenizer):
        # which is what the decoder starts with, and not written
        encoded = [tokens[:-1] for tokens in encoded]
    check_ids(encoded, target_vocabulary(model), "translation")
    return encoded


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limit: int,
    name: str,
    verb: str,
    options: dict[str, bool],
) -> list[list[int]]:
    if not texts:
        return []

    def encode(texts: list[str], **arguments: Any) -> Any:
        return tokenizer(text_target=texts, **arguments) if options else tokenizer(texts, **arguments)

    encoded, excess = encode_truncated(encode, list(texts), limit)
    num_truncated = sum(tokens > 0 for tokens in excess)
    if num_truncated:
        logger.warning(
            f"{num_truncated} of {len(texts)} {name} were truncated to {limit} tokens, the most that this model"
            f" can {verb}; {sum(excess)} tokens were cut, {max(excess)} from the longest {name.removesuffix('s')}"
        )
    return encoded["input_ids"]


def source_vocabulary(model: PreTrainedModel) -> int:
    """Number of token ids that the encoder reads."""
    return _rows(model, model.get_encoder())


def target_vocabulary(model: PreTrainedModel) -> int:
    """Number of token ids that the decoder reads."""
    return _rows(model, model.get_decoder())


def _rows(model: PreTrainedModel, stack: Any) -> int:
    embeddings = stack.get_input_embeddings()
    return getattr(embeddings, "num_embeddings", None) or model.config.get_text_config().vocab_size


def check_ids(encoded: Sequence[list[int]], rows: int, name: str) -> None:
    """
    Check what a tokenizer made of texts, for a model of so many rows of embeddings.

    Raises:
        ValueError: an id has no embedding.
    """
    for number, ids in enumerate(encoded, start=1):
        if ids and max(ids) >= rows:
            raise ValueError(
                f"the tokenizer does not fit the model: it gives {name} {number} the token {max(ids)}, and the model's"
                f" tokens end with {rows - 1}; save the tokenizer that the model was trained with beside it"
            )


def _length_bounds(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: int) -> dict[str, int]:
    """The most that each parameter of a length can mean; where there are no positions, see MOST_TOKENS."""
    positions = max_positions(model.config, "decoder")
    longest = min(tokenizer.model_max_length, MOST_TOKENS) if positions is None else positions
    return {"max_new_tokens": max(1, longest - prompt), "max_length": longest}


def limit_given_length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, generate_kwargs: dict[str, Any], prompt: int = 1
) -> dict[str, Any]:
    """
    `generate_kwargs` with at most the length that the model can write, for which beam search takes memory in advance.

    Where the model has no positions it is the tokenizer's limit, or MOST_TOKENS if that is less.

    Args:
        prompt: tokens that the decoder begins with.
    """
    config = generate_kwargs.get("generation_config")
    for name, most in _length_bounds(model, tokenizer, prompt).items():
        given = generate_kwargs.get(name) or getattr(config, name, None)
        if given is not None and given > most:
            others = {key: value for key, value in generate_kwargs.items() if key != name}
            generate_kwargs = with_parameters(others, **{name: most})
    return generate_kwargs


@contextmanager
def limit_own_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: int = 1) -> Iterator[None]:
    """The same for the length in the model's generation config, which is put back at the end."""
    kept = model.generation_config
    bounds = _length_bounds(model, tokenizer, prompt).items()
    beyond = {name: most for name, most in bounds if (getattr(kept, name, None) or 0) > most}
    try:
        if beyond:
            model.generation_config = copy.deepcopy(kept)
            for name, most in beyond.items():
                setattr(model.generation_config, name, most)
        yield
    finally:
        model.generation_config = kept


def warn_of_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, generate_kwargs: dict[str, Any]) -> None:
    """Say, once for all batches, what `limit_given_length` makes of a given length."""
    limited = limit_given_length(model, tokenizer, generate_kwargs)
    if limited is not generate_kwargs:
        most = {name: generation_value(model, limited, name) for name in ("max_new_tokens", "max_length")}
        shown = ", ".join(f"{name}={value}" for name, value in most.items() if value is not None)
        logger.warning(f"a translation by this model cannot be as long as that: it gets {shown}")


def longest_output(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> int | None:
    """Most tokens that generation can write after the start token; None where nothing limits them."""
    limits = (generation_value(model, generate_kwargs, "max_length"), max_positions(model.config, "decoder"))
    known = [limit for limit in limits if limit is not None]
    return min(known) - 1 if known else None


def saved_generation_config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """
    A copy of the model's generation config, to be saved, whose limit of a translation is `max_new_tokens`.

    Without any limit `generate` would stop at 20 tokens; with a `max_length` it would warn of two limits at every call
    that sets `max_new_tokens`. Models without positions have the tokenizer's limit.
    """
    kept = model.generation_config
    longest = longest_output(model, {}) or tokenizer.model_max_length - 1
    lengths = {"max_length": None, "max_new_tokens": kept.max_new_tokens or longest}
    return type(kept).from_dict({**kept.to_dict(), **lengths})


def start_token_id(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> int:
    """The token that the decoder starts with, as in `generate`."""
    names = ("decoder_start_token_id", "bos_token_id")
    found = [generation_value(model, generate_kwargs, name) for name in names]
    return next(token for token in found if token is not None)


def encode_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prefixes: Sequence[str],
    generate_kwargs: dict[str, Any],
) -> list[list[int]]:
    """
    What the decoder begins with, [P] each: the start token, and the tokens of a prefix that is not blank.

    Raises:
        ValueError: a prefix that leaves no room for anything behind it.
    """
    start = [start_token_id(model, generate_kwargs)]
    given = [prefix for prefix in prefixes if prefix.strip()]
    if not given:
        return [start] * len(prefixes)
    # Only behind the start token does generate force it itself
    first = generation_value(model, generate_kwargs, "forced_bos_token_id")
    beginning = start if first is None else [*start, first]
    tokens = tokenizer(text_target=given, add_special_tokens=False)["input_ids"]
    check_ids(tokens, target_vocabulary(model), "prefix")
    encoded = iter(tokens)
    prompts = [[*beginning, *next(encoded)] if prefix.strip() else start for prefix in prefixes]
    longest = longest_output(model, generate_kwargs)
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        if longest is not None and len(prompt) > longest:
            raise ValueError(
                f"a prefix of {len(prompt) - 1} tokens leaves no room for a translation: the model writes at most"
                f" {longest}: {prefix[:60]!r}..."
            )
    return prompts
