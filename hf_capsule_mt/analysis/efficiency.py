"""Size, operations and speed of a trained model, beside the plain model that it extends.

Times are those of this machine at this moment and mean little by themselves; the ratios are of runs that take turns,
sentence by sentence, in one process.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..models.capsule_configuration import CapsuleConfigMixin
from ..models.capsule_kernels import plain_kernels
from ..models.pipeline_translation import evaluation_mode
from .routing_statistics import forced_batch, forced_examples

NUM_SENTENCES = 16
TRAINING_ROUNDS = 5

# PyTorch counts the attention of GPUs only
flop_registry.setdefault(
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    flop_registry[torch.ops.aten._scaled_dot_product_flash_attention],
)


class OperationCount(TorchDispatchMode):
    """Counts the operations of everything that runs inside it: `total` after the block.

    Products of matrices and attention count their multiplications and additions, everything else one operation for
    each element of its output. LSTMs are counted only while `torch.backends.mkldnn` is off, as their fused kernel
    hides what it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        elif not func.is_view:
            outputs = out if isinstance(out, (tuple, list)) else (out,)
            self.total += sum(o.numel() for o in outputs if isinstance(o, torch.Tensor))
        return out


def count_operations(run: Callable[[], object]) -> int:
    """Operations of one call with the plain functions (`capsule_kernels.plain_kernels`): those of the algorithm."""
    with warnings.catch_warnings():
        # restoring the flags warns about GPUs that are not there
        warnings.simplefilter("ignore", UserWarning)
        # the libraries' fused LSTMs hide what they do
        with (
            torch.backends.mkldnn.flags(enabled=False),
            torch.backends.cudnn.flags(enabled=False),
            plain_kernels(),
            OperationCount() as count,
        ):
            run()
    return count.total


def training_operations(config: PreTrainedConfig, sentences: int, length: int) -> float:
    """
    Operations of forward and backward for each target token, of a new model on random words on the CPU.

    They depend on the shapes alone, not on weights, seeds or the machine; the optimizer's are not among them.

    Args:
        sentences: in the batch.
        length: of each of them, source and target, in tokens.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32).train()
        words = torch.randint(config.vocab_size, (sentences, length))
        batch = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.roll(1, dims=0)}
        return count_operations(lambda: model(**batch).loss.backward()) / words.numel()


def plain_parent(model: PreTrainedModel) -> PreTrainedModel | None:
    """A plain model of the same sizes with random weights, in evaluation mode; None for recurrent models."""
    config = model.config.plain() if isinstance(model.config, CapsuleConfigMixin) else None
    if config is None:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForSeq2SeqLM.from_config(config, dtype=model.dtype).to(model.device).eval()


def efficiency(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """
    Size, operations and speed of a model and of its plain parent.

    Decoding is greedy, one sentence at a time, and as long as the reference, so that every model does the same work
    whatever its weights; training is forward and backward of one batch, without the optimizer's update.

    Args:
        sources, references: test sentences; the first NUM_SENTENCES are used.
        progress: called with the number of measurements done and the number in all.

    Returns:
        "parameters", "operations_per_token" (of a target token in greedy decoding, the encoder's share included),
        "milliseconds_per_sentence" and "training_milliseconds" (medians), "threads" and "sentences"; unless the model
        has no plain parent, also the parent's, with "parent_" before their names, "ratio" and "training_ratio"
        (medians of the ratios of neighbouring measurements).

    Raises:
        ValueError: if there are no sentences.
    """
    pairs = [(s, r) for s, r in zip(sources, references, strict=True) if s.strip() and r.strip()][:NUM_SENTENCES]
    if not pairs:
        raise ValueError("the efficiency of a model is measured on sentences, and there are none")
    parent = plain_parent(model)
    models = [model] if parent is None else [model, parent]
    examples, _ = forced_examples(model, tokenizer, *(list(side) for side in zip(*pairs, strict=True)))
    inputs = [(torch.tensor([row["input_ids"]], device=model.device), len(row["labels"])) for row in examples]
    batch = forced_batch(model, tokenizer, examples)
    total, done = len(inputs) + TRAINING_ROUNDS, 0
    # the first call of a model takes longer
    for measured in models:
        _decode(measured, *inputs[0])
        _training_step(measured, batch)
    decoding, training = [], []
    for source, length in inputs:
        decoding.append([_milliseconds(partial(_decode, measured, source, length)) for measured in models])
        done += 1
        if progress is not None:
            progress(done, total)
    for _ in range(TRAINING_ROUNDS):
        training.append([_milliseconds(partial(_training_step, measured, batch)) for measured in models])
        done += 1
        if progress is not None:
            progress(done, total)
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "sentences": len(pairs)}
    for position, (prefix, measured) in enumerate(zip(("", "parent_"), models, strict=False)):
        result[f"{prefix}parameters"] = sum(p.numel() for p in measured.parameters())
        result[f"{prefix}operations_per_token"] = _operations_per_token(measured, inputs)
        result[f"{prefix}milliseconds_per_sentence"] = statistics.median(row[position] for row in decoding)
        result[f"{prefix}training_milliseconds"] = statistics.median(row[position] for row in training)
    if parent is not None:
        result["ratio"] = statistics.median(row[0] / row[1] for row in decoding)
        result["training_ratio"] = statistics.median(row[0] / row[1] for row in training)
    return result


@torch.no_grad()
def _decode(model: PreTrainedModel, source: Tensor, length: int) -> None:
    generate: Any = model.generate
    with evaluation_mode(model):
        generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=1,
            do_sample=False,
            max_length=None,
            min_new_tokens=length,
            max_new_tokens=length,
        )


def _training_step(model: PreTrainedModel, batch: dict[str, Tensor]) -> None:
    with evaluation_mode(model):
        model(**batch).loss.backward()
    model.zero_grad(set_to_none=True)


def _milliseconds(job: Callable[[], None]) -> float:
    start = time.perf_counter()
    job()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def _operations_per_token(model: PreTrainedModel, inputs: Sequence[tuple[Tensor, int]]) -> float:
    source, length = sorted(inputs, key=lambda pair: pair[1])[len(inputs) // 2]
    with warnings.catch_warnings():
        # restoring the flags warns about GPUs that are not there
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False), OperationCount() as count:
            _decode(model, source, length)
    return count.total / length
