"""The routing of one sentence and its translation, step by step, as data for a page.

Shapes: S source tokens, T target tokens, R routing iterations, L layers, N capsules of an aggregation, K groups of
them, M capsules of the source memory, G groups of guided routing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pipeline_translation import evaluation_mode
from .agreement_figure import by_preferred_layer, has_routing, shown_tokens
from .routing_statistics import GROUPS, forced_batch, forced_examples

# More capsules than this are too narrow to be seen apart, and too many numbers for a page
MAX_GROUPS = 32
DECIMALS = 4


def example(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, reference: str, translation: str
) -> dict[str, Any]:
    """
    How a sentence was routed while a given translation of it was produced, from one pass that feeds this translation.

    The capsules of a layer aggregation are in the order of the layer they prefer (in the last iteration, mean over the
    sentence), as in `agreement_figure`; more than 32 are put into 32 groups of neighbours in this order, of which the
    mean is given, so that 1 / N is still what uniform routing gives. The model's mode is kept.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer.
        source, reference, translation: raw text; the reference is only passed on. What exceeds the model's positions
            is cut off.

    Returns:
        For JSON, rounded: "source", "reference", "translation"; "source_tokens" [S] and "target_tokens" [T], ends of
        sentences included; and, as far as the model has them, with the step that produced target token t in row t,
        "guided": {"groups": names [G], "assignment": [T][S][G]}, last iteration;
        "decoder": {"agreement": [T][R][L][K], "capsules": N, "order": the capsules, from 0, as they are grouped [N]};
        "encoder": the same with "agreement" [R][L][K], the mean over the sentence;
        "memory": {"agreement": [R][S][M]}.

    Raises:
        ValueError: a blank source.
    """
    if not source.strip():
        raise ValueError("there is no routing to show: the source is blank")
    examples, _ = forced_examples(model, tokenizer, [source], [translation])
    batch = forced_batch(model, tokenizer, examples)
    result: dict[str, Any] = {
        "source": source,
        "reference": reference,
        "translation": translation,
        "source_tokens": shown_tokens(tokenizer, batch["input_ids"][0]),
        "target_tokens": shown_tokens(tokenizer, batch["labels"][0]),
    }
    if not has_routing(model.config):
        return result
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with evaluation_mode(model), torch.no_grad():
        output = model(**inputs, output_agreements=True, use_cache=False)
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
