"""What the command `translate` needs of an exported model, in the place of a checkpoint. Imports no PyTorch."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

from ..serving.onnx_translator import SETTINGS, Hypothesis, OnnxTranslator, Progress
from .backend import Backend, by_pair, prefixes_of, search_options
from .line_languages import SIDES, group_rows, refuse_language_fields

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


def load_backend(arguments: argparse.Namespace) -> Backend:
    """
    The exported model of a command line.

    Raises:
        ValueError: the folder is no exported model, or an option is given that needs PyTorch.
        ImportError: onnxruntime is not installed.
    """
    translator, shared = _load_translator(arguments), search_options(arguments)

    def choose(source: str | None, target: str | None) -> tuple[str | None, str | None]:
        translator.languages(source, target)
        return source, target

    def run_pair(
        pair: tuple[str | None, str | None], records: list[dict[str, Any]], show: Progress
    ) -> list[list[Hypothesis]]:
        return translator.translate_nbest(
            [record[arguments.source_field] for record in records],
            prefixes=prefixes_of(arguments, records),
            progress=show,
            source_lang=pair[0],
            target_lang=pair[1],
            **shared,
        )

    def run(records: list[dict[str, Any]], places: list[str], progress: Progress) -> list[list[Hypothesis]]:
        return by_pair(group_rows(arguments, choose, records, places), run_pair, records, progress)

    return Backend(run, lambda: export_fingerprint(translator.folder))


def _load_translator(arguments: argparse.Namespace) -> OnnxTranslator:
    """It computes with as many threads as OMP_NUM_THREADS says."""
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
    known = translator.settings.get("languages")
    if known is None:
        refuse_language_fields(arguments)
        any_code = None
    else:
        any_code = next(iter(known["ids"]))
    # where each line says its own, any one stands for them
    codes = [getattr(arguments, side) if getattr(arguments, f"{side}_field") is None else any_code for side in SIDES]
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
