"""What the command `translate` needs of an exported model, in the place of a checkpoint."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

from ..serving.onnx_translator import SETTINGS, OnnxTranslator
from .line_languages import SIDES

# what stands in a folder for each part that a message names
PARTS = {
    "weights": "*.onnx_data",
    "graphs": "*.onnx",
    "settings": SETTINGS,
    "tokenizer": "*_tokenizer.json",
}
# options that an exported model does not have, and the values at which they say nothing
REFUSED = {
    "agreements": (False,),
    "dtype": ("float32",),
    "device": (None, "cpu"),
    "trust_remote_code": (False,),
    "operators": (None,),
}
# bytes that are read at a time
CHUNK = 2**20


def load_translator(arguments: argparse.Namespace) -> OnnxTranslator:
    """
    The exported model of a command line; it computes with as many threads as OMP_NUM_THREADS says.

    Raises:
        ValueError: the folder is no exported model, or an option is given that needs PyTorch.
        ImportError: onnxruntime is not installed.
    """
    for name, values in REFUSED.items():
        if getattr(arguments, name) not in values:
            raise ValueError(
                f"--{name} needs PyTorch, and --backend onnx translates without it; leave one of them out"
            )
    folder = Path(arguments.checkpoint)
    if not (folder / SETTINGS).is_file():
        raise ValueError(f"{folder} is no folder made by `hf-capsule-mt export --format onnx`{_advice(folder)}")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    try:
        translator = OnnxTranslator(folder, int(threads) if threads.isdigit() and int(threads) else None)
    except ImportError as error:
        raise ImportError(
            f"--backend onnx needs the extra onnx: pip install 'hf_capsule_mt[onnx]' ({error})"
        ) from None
    _check_languages(arguments, translator)
    return translator


def _check_languages(arguments: argparse.Namespace, translator: OnnxTranslator) -> None:
    """Checks the languages of all lines, before any line is read."""
    known, codes = translator.settings.get("languages"), []
    for side in SIDES:
        code = getattr(arguments, side)
        if getattr(arguments, f"{side}_field") is not None:
            if known is None:
                raise ValueError(f"the model is one of a single pair of languages: leave out --{side}_field")
            # each line says its own: any one stands for them
            code = next(iter(known["ids"]))
        codes.append(code)
    translator.languages(*codes)


def _advice(folder: Path) -> str:
    if (folder / "onnx" / SETTINGS).is_file():
        return f"; {folder / 'onnx'} is"
    if (folder / "config.json").is_file():
        return ", but a checkpoint: export it first, or leave out --backend onnx"
    return ""


def export_fingerprint(folder: Path) -> dict[str, str]:
    """Digests of all of an exported model that translations depend on, by what a message calls each."""
    fingerprint = {"backend": "onnx"}
    for name, pattern in PARTS.items():
        content = hashlib.sha256()
        for path in sorted(folder.glob(pattern)):
            content.update(path.name.encode())
            with path.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    content.update(chunk)
        fingerprint[name] = f"sha256:{content.hexdigest()}"
    return fingerprint
