"""What an evaluation logs beside its scores: the loss, what the capsules do, and translations to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import DistributedType
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import TensorBoardCallback

from ..analysis.agreement_figure import has_routing
from ..analysis.routing_statistics import (
    AgreementStatistics,
    GuidedStatistics,
    MemoryStatistics,
    batches_of_similar_length,
    forced_batch,
    forced_examples,
)
from ..analysis.sentence_routing import GROUPS
from ..data.batching import IGNORE_INDEX
from ..markup import markdown_inline
from ..models.pipeline_translation import evaluation_mode

if TYPE_CHECKING:
    from .trainer import CapsuleSeq2SeqTrainer

# Sentence pairs: what this costs does not grow with the validation set.
MONITORED = 256
NUM_SAMPLES = 5
# Numbers of a batch's logits
MAX_LOGITS = 2**26


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    max_tokens: int,
    most: int = MONITORED,
) -> dict[str, float]:
    """
    The loss and the routing of a model that is fed reference translations, the first of them.

    No random numbers are drawn, and the model's mode (training or evaluation) is kept. Every process of a distributed
    run computes the same, so that the parts of a sharded model are all called.

    Args:
        model: a model of this package.
        tokenizer: its tokenizer.
        sources, targets: raw text, line by line; pairs with a blank side are left out.
        max_tokens: bound on sentences * longest sentence of a batch.
        most: so many pairs.

    Returns:
        "loss": cross-entropy per target token in nats, without label smoothing, whatever the model is trained with;
        "encoder_entropy" and "decoder_entropy" of the last agreement (`routing_statistics.entropy`, nats);
        "capsules_in_use" of the source memory (the exponential of the entropy of the capsules' shares; 1 is a
        collapse) and "past", "future" and "redundant", the shares of the groups of guided routing: mean over source
        words and steps. Only what the model has; empty if there is no pair.
    """
    pairs = [pair for pair in zip(sources, targets, strict=True) if pair[0].strip() and pair[1].strip()][:most]
    if not pairs:
        return {}
    config: Any = model.config
    routing = has_routing(config)
    words = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    max_tokens = max(1, min(max_tokens, MAX_LOGITS // words))
    stacks = {"encoder": AgreementStatistics(), "decoder": AgreementStatistics()}
    memory, guided = MemoryStatistics(), GuidedStatistics()
    nll, tokens = 0.0, 0
    with evaluation_mode(model), torch.no_grad():
        examples, _ = forced_examples(model, tokenizer, *zip(*pairs, strict=True))
        for batch in batches_of_similar_length(examples, max_tokens):
            inputs = forced_batch(model, tokenizer, batch)
            labels = inputs.pop("labels")
            source_mask, target_mask = inputs["attention_mask"], labels != IGNORE_INDEX
            output = model(**inputs, use_cache=False, **({"output_agreements": True} if routing else {}))
            logits = output.logits.float().flatten(0, 1)
            nll += functional.cross_entropy(logits, labels.flatten(), reduction="sum").item()
            tokens += int(target_mask.sum())
            if not routing:
                continue
            for name, mask in (("encoder", source_mask), ("decoder", target_mask)):
                if (agreements := getattr(output, f"{name}_agreements")) is not None:
                    stacks[name].update(agreements[-1:], mask)
            if output.source_agreements is not None:
                memory.update(output.source_agreements[-1:], source_mask)
            if output.guided_assignment is not None:
                guided.update(output.guided_assignment, source_mask, target_mask)
    found = {"loss": nll / tokens}
    found |= {f"{n}_entropy": part.result()["iterations"][0]["entropy"] for n, part in stacks.items() if part.count}
    if memory.count:
        found["capsules_in_use"] = memory.result()["iterations"][0]["capsules_in_use"]
    if guided.count:
        found |= {name.lower(): share for name, share in zip(GROUPS, guided.shares(), strict=False)}
    return {name: round(value, 4) for name, value in found.items()}


def samples(sources: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> str:
    """The first NUM_SAMPLES sentences as a table of Markdown."""
    rows = list(zip(sources, translations, references, strict=True))[:NUM_SAMPLES]
    cells = [" | ".join(map(markdown_inline, row)) for row in rows]
    return "\n".join(["| source | translation | reference |", "|---|---|---|", *(f"| {row} |" for row in cells)])


def show_samples(trainer: CapsuleSeq2SeqTrainer, text: str) -> None:
    """Send a table to TensorBoard alone: other loggers, and the log of the checkpoints, take numbers only."""
    for callback in trainer.callback_handler.callbacks:
        # one without a writer would begin a log of its own, outside of the output folder
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            callback.on_log(trainer.args, trainer.state, trainer.control, logs={"eval_samples": text})


def describe_machine(trainer: CapsuleSeq2SeqTrainer) -> str:
    """One line about what the run runs on; what was asked of accelerate and is not so is said in it."""
    args = trainer.args
    device = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else args.device.type.upper()
    processes = f"{args.world_size} process{'es' if args.world_size > 1 else ''}"
    kind = trainer.accelerator.distributed_type
    if kind != DistributedType.NO:
        names = {DistributedType.FSDP: "FSDP", DistributedType.DEEPSPEED: "DeepSpeed"}
        processes += f" ({names.get(kind, 'DDP')})"
    # a launcher may have chosen it, too
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision, "float32")
    line = f"{device}, {processes}, {torch.get_num_threads()} threads each, {precision}, seed {args.seed}"
    environment = os.environ
    if environment.get("ACCELERATE_USE_FSDP", "").lower() == "true" and kind != DistributedType.FSDP:
        line += "; NOT sharded, though accelerate's config asks for FSDP: that needs several GPUs"
    # what accelerate sets for several processes, and no torchrun has started
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment and args.world_size == 1:
        line += "; ONE process, though accelerate was asked for several: on CPUs, start them with torchrun"
    return line
