"""The examples of a report: a sentence, its reference and a translation, with the routing of this translation."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .routing_statistics import forced_batch, forced_examples
from .sentence_routing import sentence_routing


def example(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, reference: str, translation: str
) -> dict[str, Any]:
    """
    How a sentence was routed while a given translation of it was produced.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer.
        source, reference, translation: raw text; the reference is only passed on. What exceeds the model's positions
            is cut off.

    Returns:
        "source", "reference", "translation", and what `sentence_routing` gives.

    Raises:
        ValueError: a blank source.
    """
    if not source.strip():
        raise ValueError("there is no routing to show: the source is blank")
    examples, _ = forced_examples(model, tokenizer, [source], [translation])
    batch = forced_batch(model, tokenizer, examples)
    return {
        "source": source,
        "reference": reference,
        "translation": translation,
        **sentence_routing(model, tokenizer, batch["input_ids"], batch["decoder_input_ids"], batch["labels"]),
    }
