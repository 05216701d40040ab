"""What is read from a checkpoint: data alone. No code that it carries is run unless it is trusted, and no pickle."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers.trainer_pt_utils import safe_globals
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

from .models.capsule_operators import UnknownAggregationError
from .operators import load_operators, operator_source

logger = logging.getLogger(__name__)

# What torch.save and pickle write: a zip archive, or the first byte of pickle's protocols 2 and later.
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
# What a checkpoint of a training run has beside its weights; the random states have names of their own.
STATES = ("optimizer.pt", "scheduler.pt", "scaler.pt")
TO_SAFETENSORS = (
    'python -c "import hf_capsule_mt; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer; '
    "[c.from_pretrained('{name}', trust_remote_code=False).save_pretrained('NEW_FOLDER') "
    'for c in (AutoModelForSeq2SeqLM, AutoTokenizer)]"'
)


def from_checkpoint(kind: Any, name: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """
    `kind.from_pretrained`, which neither runs code of the checkpoint unasked nor asks on standard input.

    Classes that this package registers need no trust, whatever code lies beside the weights. An operator from outside
    that lies there is loaded if it is trusted, and not registered yet.

    Args:
        kind: AutoConfig, AutoTokenizer, AutoModelForSeq2SeqLM, or a class of models or configurations.
        name: directory, or name on the Hub.
        trust_remote_code: run the code that the checkpoint brings, if no class here has its type.
        **options: of from_pretrained; weights are read from safetensors alone.

    Raises:
        ValueError: the checkpoint needs code of its own or an operator that is not there, or has its weights as a
            pickle.
        OSError, RuntimeError, SafetensorError, ...: whatever else from_pretrained raises.
    """
    is_model = kind not in (AutoConfig, AutoTokenizer) and not issubclass(kind, PreTrainedConfig)
    if is_model:
        check_weights(name)
        options["use_safetensors"] = True
    try:
        loaded = kind.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
        if is_model:
            _compare_operators(name, loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded
    except StrictDataclassError as error:
        if not isinstance(error.__cause__, UnknownAggregationError):
            raise
        reason = error.__cause__
    except ValueError as error:
        if trust_remote_code or "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{name} brings code of its own, which is not run unasked: read that code, and give --trust_remote_code "
            "if you trust it"
        ) from None
    except OSError as error:
        if is_model and "safetensors" in str(error) and not Path(name).is_dir():
            raise ValueError(
                f"{name} has no weights as safetensors; if it has a pickle ({WEIGHTS_NAME}), {_advice(name)}"
            ) from error
        raise
    _load_its_operator(name, trust_remote_code, reason, options.get("revision"))
    return kind.from_pretrained(name, trust_remote_code=trust_remote_code, **options)


def _load_its_operator(name: str | Path, trusted: bool, reason: ValueError, revision: str | None) -> None:
    """Load the operator that lies beside the weights, or say what is needed."""
    file = PreTrainedConfig.get_config_dict(name, revision=revision)[0].get("operator_file")
    if file is None:
        raise ValueError(f"{name}: {reason}") from None
    if not isinstance(file, str) or os.path.basename(file) != file or not file.endswith(".py"):
        raise ValueError(f"{name} names {file!r} as its operator, which is no file of its folder")
    if not trusted:
        raise ValueError(
            f"{name} has an aggregation of its own in {file}, which is not run unasked: read that file, and give "
            f"--trust_remote_code if you trust it, or --operators FILE with your own"
        )
    load_operators([str(cached_file(str(name), file, revision=revision))])


def _compare_operators(name: str | Path, model: Any) -> None:
    """Say so where a model was saved with another text of its operator than the one that is in use."""
    file = getattr(model.config, "operator_file", None)
    if not isinstance(file, str) or not (saved := Path(name) / os.path.basename(file)).is_file():
        return
    if operator_source(model.config) != saved.read_text(encoding="utf-8"):
        logger.warning(f"{name} was saved with another {file} than the one that is in use now")


def check_weights(name: str | Path) -> None:
    """
    Check that the weights of a folder are safetensors; names on the Hub pass.

    Raises:
        ValueError: they are a pickle, whatever the file is called, or a shard is no safetensors file of the folder.
    """
    folder = Path(name)
    if not folder.is_dir():
        return
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        files = [folder / SAFE_WEIGHTS_NAME]
    elif index.is_file():
        files = _shards(index)
    else:
        pickles = [file for file in (WEIGHTS_NAME, WEIGHTS_INDEX_NAME) if (folder / file).is_file()]
        if pickles:
            raise ValueError(
                f"{folder} has its weights as a pickle alone ({pickles[0]}), which may run code when it is loaded: "
                f"{_advice(name)}"
            )
        return
    for file in files:
        check_is_no_pickle(file)


def check_is_no_pickle(path: Path) -> None:
    """
    Check the beginning of a file of weights; one that is absent passes.

    Raises:
        ValueError: it is a pickle, whatever it is called.
    """
    if path.is_file():
        with path.open("rb") as stream:
            start = stream.read(4)
        if start.startswith(PICKLE_STARTS) and not _is_safetensors(path):
            raise ValueError(
                f"{path} is a pickle and not safetensors: it may run code when it is loaded, and nothing of it was "
                "read; take the weights from another copy"
            )


def check_states(checkpoint: Path) -> None:
    """
    Check the state of optimizer, schedule and random numbers in a checkpoint, before a run is resumed from it.

    Trainer unpickles nothing but tensors and plain values (`torch.load(..., weights_only=True)`); what it would refuse
    late is named here. The files are disassembled, not loaded.

    Raises:
        ValueError: a file that is no checkpoint of torch.save, or that names anything else to be called.
    """
    for path in [*(checkpoint / name for name in STATES), *sorted(checkpoint.glob("rng_state*.pth"))]:
        if not path.is_file():
            continue
        try:
            # As Trainer does for the state of NumPy's generator.
            with safe_globals():
                foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        except Exception as error:  # of whatever kind: a file that is damaged on purpose raises anything
            raise ValueError(
                f"{path} is not what torch.save writes ({' '.join(str(error).split())}), and was not loaded: "
                "resume from another checkpoint"
            ) from None
        if foreign:
            raise ValueError(
                f"{path} is a pickle that would call {', '.join(sorted(foreign))} when it is loaded, and was not "
                "loaded: resume from another checkpoint"
            )


def _shards(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        foreign = sorted(n for n in names if not n.endswith(".safetensors") or os.path.basename(n) != n)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of weights: {' '.join(str(error).split())}") from None
    if foreign:
        raise ValueError(f"{index} names {foreign[0]!r}, which is no safetensors file of its folder")
    return [index.parent / name for name in sorted(names)]


def _is_safetensors(path: Path) -> bool:
    """A length of the header may begin like a pickle."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except SafetensorError:
        return False


def _advice(name: str | Path) -> str:
    return f"convert it to safetensors first, which loads tensors alone: {TO_SAFETENSORS.format(name=name)}"
