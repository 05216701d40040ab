"""Size, operations and speed of a trained model, beside the plain model that it extends.

Times are those of this machine at this moment and mean little by themselves; the ratios are of runs that take turns,
sentence by sentence, in one process, and every time has its spread.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
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

NUM_SENTENCES = 8
# rounds, of which median and quartiles are given
REPEATS = 7

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
    config = _plain_config(model)
    return None if config is None else _random_model(config, model)


def _plain_config(model: PreTrainedModel) -> PreTrainedConfig | None:
    return model.config.plain() if isinstance(model.config, CapsuleConfigMixin) else None


def _random_model(config: PreTrainedConfig, model: PreTrainedModel) -> PreTrainedModel:
    """On the device and in the precision of the model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForSeq2SeqLM.from_config(config, dtype=model.dtype).to(model.device).eval()


@dataclass
class _Measured:
    """A model and what it is measured on; `keys` are the (system, prefix) that its numbers belong to."""

    model: PreTrainedModel
    inputs: list[tuple[Tensor, int]]
    batch: dict[str, Tensor]
    keys: list[tuple[str, str]]


def efficiency(
    systems: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    sources: Sequence[str],
    references: Sequence[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """
    Size, operations and speed of systems and of their plain parents, which all take turns.

    Decoding is greedy, one sentence at a time, and as long as the reference, so that every model does the same work
    whatever its weights; training is forward and backward of one batch, without the optimizer's update. In each of
    REPEATS rounds every model decodes every sentence, models taking turns sentence by sentence in orders that are
    drawn. Systems with the same parent share it.

    Args:
        systems: model and tokenizer by name.
        sources, references: test sentences; the first NUM_SENTENCES are used.
        progress: called with the number of rounds done and the number in all.

    Returns:
        By name "parameters", "operations_per_token" (of a target token in greedy decoding, the encoder's share
        included), "milliseconds_per_sentence" and "training_milliseconds" (medians over the rounds), "threads",
        "sentences", "repeats"; unless the model has no plain parent, also the parent's, with "parent_" before their
        names, "ratio" and "training_ratio" (medians of the ratios within a round); and "quartiles": of each of these
        times and ratios the first and the third, [2].

    Raises:
        ValueError: if there are no sentences.
    """
    pairs = [(s, r) for s, r in zip(sources, references, strict=True) if s.strip() and r.strip()][:NUM_SENTENCES]
    if not pairs:
        raise ValueError("the efficiency of a model is measured on sentences, and there are none")
    measured = _with_parents(systems, pairs)
    decoding, training = _take_turns(measured, len(pairs), progress)
    found: dict[str, dict[str, Any]] = {
        name: {"threads": torch.get_num_threads(), "sentences": len(pairs), "repeats": REPEATS, "quartiles": {}}
        for name in systems
    }
    times: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for entry, decoded, trained in zip(measured, decoding, training, strict=True):
        operations = _operations_per_token(entry.model, entry.inputs)
        for name, prefix in entry.keys:
            found[name][f"{prefix}parameters"] = sum(p.numel() for p in entry.model.parameters())
            found[name][f"{prefix}operations_per_token"] = operations
            _put(found[name], f"{prefix}milliseconds_per_sentence", decoded)
            _put(found[name], f"{prefix}training_milliseconds", trained)
            times[name, prefix] = decoded, trained
    for name in systems:
        if (name, "parent_") in times:
            for position, key in enumerate(("ratio", "training_ratio")):
                own, other = times[name, ""][position], times[name, "parent_"][position]
                _put(found[name], key, [ours / theirs for ours, theirs in zip(own, other, strict=True)])
    return found


def _take_turns(
    measured: Sequence[_Measured], sentences: int, progress: Callable[[int, int], None] | None
) -> tuple[list[list[float]], list[list[float]]]:
    """Milliseconds per sentence of decoding and per batch of training: of each model those of the rounds."""
    # the first call of a model takes longer
    for entry in measured:
        _decode(entry.model, *entry.inputs[0])
        _training_step(entry.model, entry.batch)
    decoding: list[list[float]] = [[] for _ in measured]
    training: list[list[float]] = [[] for _ in measured]
    # who follows whom matters to caches
    order = random.Random(0)  # nosec B311
    for round_ in range(REPEATS):
        totals = [0.0] * len(measured)
        for sentence in range(sentences):
            for turn in order.sample(range(len(measured)), len(measured)):
                entry = measured[turn]
                totals[turn] += _milliseconds(partial(_decode, entry.model, *entry.inputs[sentence]))
        for turn in order.sample(range(len(measured)), len(measured)):
            decoding[turn].append(totals[turn] / sentences)
            entry = measured[turn]
            training[turn].append(_milliseconds(partial(_training_step, entry.model, entry.batch)))
        if progress is not None:
            progress(round_ + 1, REPEATS)
    return decoding, training


def _with_parents(
    systems: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]], pairs: Sequence[tuple[str, str]]
) -> list[_Measured]:
    """The systems and, where they have one that no other system has brought, their parents."""
    measured: list[_Measured] = []
    parents: dict[str, _Measured] = {}
    for name, (model, tokenizer) in systems.items():
        examples, _ = forced_examples(model, tokenizer, *(list(side) for side in zip(*pairs, strict=True)))
        inputs = [(torch.tensor([row["input_ids"]], device=model.device), len(row["labels"])) for row in examples]
        batch = forced_batch(model, tokenizer, examples)
        measured.append(_Measured(model, inputs, batch, [(name, "")]))
        plain = _plain_config(model)
        if plain is None:
            continue
        key = f"{plain.to_json_string()} {model.dtype} {[row['input_ids'] + row['labels'] for row in examples]}"
        if key not in parents:
            parents[key] = _Measured(_random_model(plain, model), inputs, batch, [])
            measured.append(parents[key])
        parents[key].keys.append((name, "parent_"))
    return measured


def _put(found: dict[str, Any], key: str, values: Sequence[float]) -> None:
    """Median and quartiles of what the rounds gave."""
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    found[key] = median
    found["quartiles"][key] = [first, third]


def speed_warnings(systems: Sequence[Mapping[str, Any]]) -> list[str]:
    """
    A line for each two systems of the same configuration class and size whose decoding times differ by more than their
    spread: their medians by more than both interquartile ranges together. Of equal systems it says so in less than
    one case in a hundred, as normally distributed and much heavier noise in 7 rounds was simulated; quartiles that do
    not overlap would say so in eight.

    Args:
        systems: of a report, with "name", "model_type", "parameters" and, where measured, "efficiency".
    """
    key = "milliseconds_per_sentence"
    timed = [system for system in systems if key in (system.get("efficiency") or {}).get("quartiles", {})]
    lines = []
    for one, other in combinations(timed, 2):
        if any(one[name] != other[name] for name in ("model_type", "parameters")):
            continue
        quartiles = [system["efficiency"]["quartiles"][key] for system in (one, other)]
        spread = sum(third - first for first, third in quartiles)
        if abs(one["efficiency"][key] - other["efficiency"][key]) > spread:
            slower, faster = sorted((one, other), key=lambda system: -system["efficiency"][key])
            share = slower["efficiency"][key] / faster["efficiency"][key] - 1
            lines.append(
                f"{slower['name']} and {faster['name']} are of the same size and class, but {slower['name']} decodes "
                f"{share:.0%} slower, more than the spread of the measurements: either their routing differs in work, "
                "or the machine was busy with something else; measure again before you rely on these times."
            )
    return lines


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
