"""Directories that transformers loads without this package: weights, tokenizer, configuration and code."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..loading import from_checkpoint
from ..models.capsule_configuration import CapsuleConfigMixin

# the one custom task of a config: with two, a pipeline without a task's name could not choose
PIPELINES = {
    "translation": {"impl": "pipeline_translation.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"], "tf": []}
}


def export(
    source: str | Path, output: str | Path, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Saves a capsule checkpoint as a directory that transformers loads without this package.

    Args:
        source: directory, or name on the Hub.
        output: directory for the weights, the config with auto_map and custom_pipelines, the generation config, the
            tokenizer and the code.
        trust_remote_code: run the code that the source brings, if it needs any (a tokenizer's: the models are ours).

    Returns:
        The model and the tokenizer.

    Raises:
        ValueError: if it is not a capsule checkpoint.
    """
    model = from_checkpoint(AutoModelForSeq2SeqLM, source, trust_remote_code=trust_remote_code)
    if not isinstance(model.config, CapsuleConfigMixin):
        raise ValueError(
            f"{source} is of type '{model.config.model_type}', which transformers loads and uploads by itself "
            "(model.push_to_hub); to publish a capsule model, convert it first: hf-capsule-mt convert"
        )
    tokenizer = from_checkpoint(AutoTokenizer, source, trust_remote_code=trust_remote_code)
    config: Any = model.config
    config.custom_pipelines = PIPELINES
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return model.eval(), tokenizer
