"""The routing of one sentence and its translation, step by step, as data for the view in `page/`.

Needs torch, transformers and numpy only: this file travels with a demonstration on the Hub (`hub.space`) and has to
run there without the package it came from. Shapes: S source tokens, T target tokens, R routing iterations, L layers, N
capsules of an aggregation, K groups of them, M capsules of the source memory, G groups of guided routing.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pipeline_translation import evaluation_mode

GROUPS = ("PAST", "FUTURE", "REDUNDANT")
# More capsules than this are too narrow to be seen apart, and too many numbers for a page
MAX_GROUPS = 32
DECIMALS = 4
WORD_STARTS = ("▁", "Ġ")


def sentence_routing(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    decoder_input_ids: Tensor,
    target_ids: Tensor,
) -> dict[str, Any]:
    """
    How a sentence was routed while a given translation of it was produced, from one pass that feeds this translation.

    The capsules of a layer aggregation are in the order of the layer they prefer (in the last iteration, mean over the
    sentence); more than 32 are put into 32 groups of neighbours in this order, of which the mean is given, so that
    1 / N is still what uniform routing gives. The model's mode is kept.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer.
        input_ids: the source, [1, S].
        decoder_input_ids: what the decoder is fed, [1, T].
        target_ids: the token that each step of the decoder produced, [1, T].

    Returns:
        For JSON, rounded: "source_tokens" [S] and "target_tokens" [T], ends of sentences included, as `shown_tokens`
        gives them; "source_words" and "target_words", see `joined_words`; and, as far as the model has them, with the
        step that produced target token t in row t,
        "guided": {"groups": names [G], "assignment": [T][S][G]}, last iteration;
        "decoder": {"agreement": [T][R][L][K], "capsules": N, "order": the capsules, from 0, as they are grouped [N]};
        "encoder": the same with "agreement" [R][L][K], the mean over the sentence;
        "memory": {"agreement": [R][S][M]}.
    """
    result: dict[str, Any] = {
        "source_tokens": shown_tokens(tokenizer, input_ids[0]),
        "target_tokens": shown_tokens(tokenizer, target_ids[0]),
        "source_words": joined_words(tokenizer, input_ids[0]),
        "target_words": joined_words(tokenizer, target_ids[0]),
    }
    # plain models have no agreements
    if "output_agreements" not in inspect.signature(model.forward).parameters:
        return result
    with evaluation_mode(model), torch.no_grad():
        output = model(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            decoder_input_ids=decoder_input_ids,
            output_agreements=True,
            use_cache=False,
        )
    if output.guided_assignment is not None:
        assignment = _numpy(output.guided_assignment[0])
        result["guided"] = {
            "groups": list(GROUPS[: assignment.shape[-1]]),
            "assignment": assignment.round(DECIMALS).tolist(),
        }
    if output.decoder_agreements is not None:
        result["decoder"] = grouped_capsules(_stacked(output.decoder_agreements))
    if output.encoder_agreements is not None:
        mean = _stacked(output.encoder_agreements).mean(axis=0, keepdims=True)
        encoder = grouped_capsules(mean)
        result["encoder"] = {**encoder, "agreement": encoder["agreement"][0]}
    if output.source_agreements is not None:
        memory = np.stack([_numpy(iteration[0]) for iteration in output.source_agreements])
        result["memory"] = {"agreement": memory.round(DECIMALS).tolist()}
    return result


def shown_tokens(tokenizer: PreTrainedTokenizerBase, token_ids: Tensor) -> list[str]:
    """
    Pieces as text, as figures and reports show them: one that continues a word has a hyphen before it, and bytes of a
    character keep the name of their piece.

    Args:
        token_ids: [tokens].
    """
    # punctuation needs no hyphen
    return [f"-{text}" if inside and _is_cased(text) else text for text, inside in _pieces(tokenizer, token_ids)]


def joined_words(tokenizer: PreTrainedTokenizerBase, token_ids: Tensor) -> list[tuple[str, int]]:
    """
    The words that the pieces make, each with the number of its pieces; all pieces are words where the tokenizer does
    not say where words begin, and punctuation is a word of its own.

    Args:
        token_ids: [tokens].
    """
    ids = token_ids.tolist()
    names = _names(tokenizer, ids)
    words: list[tuple[str, int]] = []
    for position, (text, inside) in enumerate(_pieces(tokenizer, token_ids)):
        # digits and bytes of a character go on where they stand
        goes_on = inside and (_is_cased(text) or text[0].isdigit() or text.startswith("<0x"))
        if words and (goes_on or names[position - 1] in WORD_STARTS):
            count = words[-1][1] + 1
            joined = "".join(str(tokenizer.decode(ids[position + 1 - count : position + 1])).split())
            words[-1] = (joined, count)
        else:
            words.append((text, 1))
    return words


def _pieces(tokenizer: PreTrainedTokenizerBase, token_ids: Tensor) -> list[tuple[str, bool]]:
    """The text of each piece, or its name if it is none, and whether it is known to stand inside a word."""
    ids = token_ids.tolist()
    names = _names(tokenizer, ids)
    # other tokenizers do not say where words begin
    marks_words = any(name.startswith(WORD_STARTS) for name in names)
    pieces: list[tuple[str, bool]] = []
    begins_word = True
    for name, token_id in zip(names, ids, strict=True):
        special = token_id in tokenizer.all_special_ids or token_id >= len(tokenizer)
        begins_word = begins_word or name.startswith(WORD_STARTS) or special
        text = "".join(str(tokenizer.decode([token_id])).split())
        if not text or "\N{REPLACEMENT CHARACTER}" in text:
            text = name
        pieces.append((text, marks_words and not begins_word))
        # where a space is a piece of its own, the word follows; and no word goes on behind the name of a language
        begins_word = name in WORD_STARTS or special
    return pieces


def _names(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    # vocabularies of models are often rounded up; what their tokenizers do not have is shown by its number
    return [name or f"<{i}>" for name, i in zip(tokenizer.convert_ids_to_tokens(ids), ids, strict=True)]


def _is_cased(text: str) -> bool:
    """Whether the text begins with a letter of a script with capitals: these have spaces between words."""
    return text[0].upper() != text[0].lower()


def by_preferred_layer(agreements: np.ndarray) -> np.ndarray:
    """
    Order of the capsules, [N]: from those that get most of their votes from the first layer to those of the last.

    Args:
        agreements: of one iteration, [L, N].
    """
    shares = agreements / agreements.sum(axis=0, keepdims=True).clip(min=np.finfo(np.float64).tiny)
    return np.argsort(shares.T @ np.arange(len(shares)), kind="stable")


def grouped_capsules(agreements: np.ndarray) -> dict[str, Any]:
    """
    Layer agreements for a page: capsules by preferred layer, in at most 32 groups of (nearly) equal size.

    Args:
        agreements: [P, R, L, N], P positions.

    Returns:
        "agreement" [P][R][L][K], the mean within each group, to 4 decimals of its relation to 1 / N; "capsules" N;
        "order" [N], the capsules as they are grouped.
    """
    capsules = agreements.shape[-1]
    order = by_preferred_layer(agreements[:, -1].mean(axis=0))
    groups = np.array_split(order, min(capsules, MAX_GROUPS))
    means = np.stack([agreements[..., group].mean(axis=-1) for group in groups], axis=-1)
    # probabilities of many capsules are small
    decimals = DECIMALS + int(math.log10(capsules))
    return {"agreement": means.round(decimals).tolist(), "capsules": capsules, "order": order.tolist()}


def _stacked(agreements: tuple[Tensor, ...]) -> np.ndarray:
    """R tensors [1, P, L, N] -> [P, R, L, N]."""
    return np.stack([_numpy(iteration[0]) for iteration in agreements], axis=1)


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().double().numpy()
