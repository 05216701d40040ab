"""The model card that a Trainer uploads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pipeline_translation import evaluation_mode
from ..models.tokenizer_languages import is_multilingual
from .cards import FILE_KEYS, load_values, make_values, render_card
from .languages import model_languages
from .publishing import RESULTS, read_record, translate
from .starter import VALUES, starter_values


def trainer_card(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    repo_id: str,
    run: Path,
    languages: Sequence[str],
    samples: Sequence[str],
    **said: Any,
) -> ModelCard:
    """
    The card of a model that a Trainer still holds.

    Args:
        model, tokenizer: of the Trainer.
        repo_id: "user/name".
        run: the output folder; its card.yaml and results.json are used if they are there.
        languages: codes of source and target of the samples, "" where they are not known.
        samples: raw sentences to show translated; those of card.yaml win.
        said: values to take the place of those in card.yaml, or of what is known.

    Raises:
        ValueError: the values do not fit.
    """
    record = read_record(run) if (run / RESULTS).is_file() else None
    path = run / VALUES
    # the samples of card.yaml are in the model's first pair
    source, target = (None, None) if path.is_file() else (code or None for code in languages)
    config: Any = model.generation_config
    known = model_languages(config, tokenizer, source, target) if is_multilingual(tokenizer) else None
    if path.is_file():
        content = dataclasses.asdict(load_values(path))
        content = {key: value for key, value in content.items() if key in FILE_KEYS and value is not None}
        content["dataset"] = {key: value for key, value in content["dataset"].items() if value is not None}
    else:
        content = starter_values(model.config, record, languages, known, list(samples))
    values = make_values({**content, **said}, path)
    with evaluation_mode(model):
        shown = list(zip(values.samples, translate(model, tokenizer, values.samples, known), strict=True))
    results = record or {"parameters": model.num_parameters()}
    return render_card(repo_id, values, results, model.config.model_type, shown, languages=known)
