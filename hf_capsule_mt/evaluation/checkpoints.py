"""A checkpoint of any encoder-decoder model, ready to translate."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ..loading import from_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def is_missing_directory(checkpoint: str | Path) -> bool:
    """Whether it can only be a directory, which does not exist, and no name on the Hub."""
    return not Path(checkpoint).is_dir() and (Path(checkpoint).is_absolute() or str(checkpoint).startswith("."))


def load_checkpoint(
    checkpoint: str, dtype: str = "float32", device: str | None = None, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    A model in evaluation mode, and its tokenizer.

    Args:
        checkpoint: directory, or name on the Hub.
        dtype: see `DTYPES`.
        device: "cpu", "cuda", ...; the accelerator if there is one.
        trust_remote_code: run the code that the checkpoint brings, if it needs any.

    Raises:
        ValueError: there is no such directory, the model is no encoder-decoder, weights are missing or a pickle, or
            the checkpoint needs code that is not trusted.
        OSError: there is no such checkpoint.
    """
    if is_missing_directory(checkpoint):
        raise ValueError(f"there is no directory {checkpoint}")
    # Only the bars of transformers' own loading
    disable_progress_bar()
    model, loading = from_checkpoint(
        AutoModelForSeq2SeqLM,
        checkpoint,
        trust_remote_code=trust_remote_code,
        dtype=DTYPES[dtype],
        output_loading_info=True,
    )
    absent = absent_weights(model, list(loading["missing_keys"]))
    if absent:
        raise ValueError(
            f"{checkpoint} is not a whole checkpoint: it has no {absent[0]} ({len(absent)} absent in all)"
        )
    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = "cpu" if accelerator is None else accelerator.type
    tokenizer = from_checkpoint(AutoTokenizer, checkpoint, trust_remote_code=trust_remote_code)
    return model.eval().to(torch.device(device)), tokenizer


def set_languages(
    tokenizer: PreTrainedTokenizerBase, source_lang: str | None, target_lang: str | None
) -> dict[str, Any]:
    """
    Set the languages of a multilingual tokenizer.

    Returns:
        What `generate` needs to write the target language.

    Raises:
        ValueError: languages for a model of one pair, or none for a multilingual model.
    """
    build = getattr(tokenizer, "_build_translation_inputs", None)
    given = [lang for lang in (source_lang, target_lang) if lang is not None]
    if build is None:
        if given:
            raise ValueError(f"the model is one of a single pair of languages: leave out {' and '.join(given)}")
        return {}
    if len(given) < 2:
        raise ValueError("the model is multilingual: give the codes of both languages (source_lang, target_lang)")
    inputs = build([""], return_tensors=None, src_lang=source_lang, tgt_lang=target_lang)
    for name, language in (("src_lang", source_lang), ("tgt_lang", target_lang)):
        if hasattr(tokenizer, name):
            setattr(tokenizer, name, language)
    return {"forced_bos_token_id": inputs["forced_bos_token_id"]} if "forced_bos_token_id" in inputs else {}


def absent_weights(model: PreTrainedModel, missing: Sequence[str]) -> list[str]:
    """Those of the missing weights that a checkpoint should have: not the tied and the computed (position) ones."""
    expected = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
    return sorted(set(missing) - expected)


def weights_digest(model: PreTrainedModel) -> str:
    """A number that changes when a weight does."""
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        weights.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{weights.hexdigest()}"
