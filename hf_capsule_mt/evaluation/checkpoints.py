"""A checkpoint of any encoder-decoder model, ready to translate."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ..loading import from_checkpoint
from ..operators import operator_source
from ..serving.onnx_translator import SETTINGS
from .backend import DTYPES

Loader = TypeVar("Loader", bound=Callable[..., Any])
TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


def is_missing_directory(checkpoint: str | Path) -> bool:
    """Whether it can only be a directory, which does not exist, and no name on the Hub."""
    return not Path(checkpoint).is_dir() and (Path(checkpoint).is_absolute() or str(checkpoint).startswith("."))


def explain_failed_load(load: Loader) -> Loader:
    """A function that loads a checkpoint, its first argument, with errors that name it; see `load_checkpoint`."""

    @functools.wraps(load)
    def explained(checkpoint: str, *arguments: Any, **options: Any) -> Any:
        try:
            return load(checkpoint, *arguments, **options)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, OSError, ImportError) as error:
            if str(checkpoint) in str(error):
                raise
            raise ValueError(f"cannot load {checkpoint}: {error}") from error
        except (RuntimeError, LookupError, TypeError, AttributeError, SafetensorError, StrictDataclassError) as error:
            # what transformers, tokenizers and safetensors say to damaged files
            raise ValueError(
                f"cannot load {checkpoint}: {type(error).__name__}: {error}; are its files whole, and of one model?"
            ) from error

    return cast(Loader, explained)


@explain_failed_load
def load_checkpoint(
    checkpoint: str, dtype: str = "float32", device: str | None = None, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    A model in evaluation mode, and its tokenizer.

    Args:
        checkpoint: directory, or name on the Hub.
        dtype: one of `backend.DTYPES`.
        device: "cpu", "cuda", ...; the accelerator if there is one.
        trust_remote_code: run the code that the checkpoint brings, if it needs any.

    Raises:
        ValueError: there is no such directory or device, the model is no encoder-decoder, weights are missing or a
            pickle, the files are damaged or do not fit each other, or the checkpoint needs code that is not trusted.
        OSError: there is no such checkpoint.
    """
    if is_missing_directory(checkpoint):
        raise ValueError(f"there is no directory {checkpoint}")
    if (Path(checkpoint) / SETTINGS).is_file():
        raise ValueError(
            f"{checkpoint} is a model exported for ONNX Runtime, which `hf-capsule-mt translate --backend onnx` runs; "
            "PyTorch needs the checkpoint that it was made of"
        )
    place = find_device(device)
    # Only the bars of transformers' own loading
    disable_progress_bar()
    model, loading = from_checkpoint(
        AutoModelForSeq2SeqLM,
        checkpoint,
        trust_remote_code=trust_remote_code,
        dtype=TORCH_DTYPES[dtype],
        output_loading_info=True,
    )
    absent = absent_weights(model, list(loading["missing_keys"]))
    if absent:
        raise ValueError(
            f"{checkpoint} is not a whole checkpoint: it has no {absent[0]} ({len(absent)} absent in all)"
        )
    tokenizer = from_checkpoint(AutoTokenizer, checkpoint, trust_remote_code=trust_remote_code)
    return model.eval().to(place), tokenizer


def find_device(name: str | None = None) -> torch.device:
    """
    The device of that name; by default the accelerator if there is one, and otherwise the processor.

    Raises:
        ValueError: PyTorch does not know it, or this machine does not have it.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return torch.device("cpu" if accelerator is None else accelerator.type)
    there = (
        "cpu" if accelerator is None else f"cpu and {accelerator.type} (0 to {torch.accelerator.device_count() - 1})"
    )
    try:
        device = torch.device(name)
        # each kind of device has an exception of its own for not being there
        torch.empty(1, device=device).tolist()
    except Exception as error:
        raise ValueError(f"there is no device {name!r} for PyTorch on this machine; there is: {there}") from error
    return device


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


def checkpoint_fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Digests of all of a checkpoint that translations depend on, by what a message calls each."""
    ignored = ("_name_or_path", "transformers_version")
    config, generation = (
        {key: value for key, value in part.items() if key not in ignored}
        for part in (model.config.to_dict(), model.generation_config.to_diff_dict())
    )
    # Of any kind of tokenizer: its pieces, and what it makes of some text, for which a thousand of them will do
    vocabulary = sorted(tokenizer.get_vocab().items())
    texts = [piece for piece, _ in vocabulary[:: len(vocabulary) // 1000 + 1]]
    operator = operator_source(model.config)
    return {
        **({} if operator is None else {"operator": digest(operator)}),
        "weights": weights_digest(model),
        "config": digest(config),
        "generation config": digest(generation),
        "tokenizer": digest([vocabulary, tokenizer(texts, verbose=False)["input_ids"]]),
    }


def digest(value: Any) -> str:
    """A number that changes when something made of lists, dicts, texts and numbers does."""
    return f"sha256:{hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()}"
