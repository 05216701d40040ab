"""What the command `translate` needs of a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from ..models.capsule_configuration import CapsuleConfigMixin
from ..models.tokenizer_languages import LanguagePair, languages_of
from ..serving.onnx_translator import Hypothesis, Progress
from .backend import Backend, by_pair, is_detailed, prefixes_of, search_options
from .checkpoint_languages import check_languages, rows_by_languages
from .checkpoints import checkpoint_fingerprint, load_checkpoint
from .translate import translate, translate_nbest


def load_backend(arguments: argparse.Namespace) -> Backend:
    """
    The checkpoint of a command line.

    Raises:
        ValueError, OSError: see `load_checkpoint` and `check_languages`; or agreements of a model without routing.
    """
    model, tokenizer = load_checkpoint(
        arguments.checkpoint,
        arguments.dtype,
        arguments.device,
        trust_remote_code=arguments.trust_remote_code,
    )
    if arguments.agreements and not isinstance(model.config, CapsuleConfigMixin):
        raise ValueError(f"--agreements are those of capsule models, and {arguments.checkpoint} is none")
    check_languages(arguments, tokenizer)
    shared = search_options(arguments)

    def run_pair(pair: LanguagePair | None, records: list[dict[str, Any]], show: Progress) -> list[list[Hypothesis]]:
        sentences = [record[arguments.source_field] for record in records]
        prefixes = prefixes_of(arguments, records)
        with languages_of(tokenizer, pair) as languages:
            options = {"progress": show, **shared, **languages}
            if is_detailed(arguments) or prefixes is not None:
                return translate_nbest(
                    model, tokenizer, sentences, prefixes=prefixes, agreements=arguments.agreements, **options
                )
            return [[Hypothesis(text, [])] for text in translate(model, tokenizer, sentences, **options)]

    def run(records: list[dict[str, Any]], places: list[str], progress: Progress) -> list[list[Hypothesis]]:
        # more than without gradients: PyTorch keeps no account of its tensors, which short sentences gain a tenth by
        with torch.inference_mode():
            return by_pair(rows_by_languages(arguments, tokenizer, records, places), run_pair, records, progress)

    return Backend(run, lambda: checkpoint_fingerprint(model, tokenizer))
