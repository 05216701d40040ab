"""A training run from its arguments to its results."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedConfig, TrainerCallback, TrainerState
from transformers.utils.logging import disable_progress_bar

from ..evaluation.checkpoints import absent_weights
from ..evaluation.encoding import saved_generation_config
from ..evaluation.scores import score
from . import report
from .averaging import STATE, average_checkpoints, checkpoints_by_step, is_complete
from .setup import RESULTS, Setup
from .trainer import CapsuleSeq2SeqTrainer

logger = logging.getLogger(__name__)


def run(setup: Setup, argv: Sequence[str] = ()) -> dict[str, Any]:
    """
    Train, choose the final weights, save, score and report.

    Args:
        setup: from `prepare`.
        argv: the command line, for the record.

    Returns:
        What is written to results.json in the output folder.
    """
    start = time.perf_counter()
    # Only the bars of transformers' own loading and saving, one per checkpoint.
    disable_progress_bar()
    arguments, training = setup.arguments, setup.arguments.training
    trainer = build_trainer(setup)
    main = trainer.is_world_process_zero()
    if main:
        print(describe(setup, trainer))
    if setup.checkpoint is not None and is_finished(trainer, setup.checkpoint):
        logger.warning(f"{setup.checkpoint} is the end of this run: only its results are made again")
        trainer.state = TrainerState.load_from_json(str(setup.checkpoint / STATE))
        trainer.throughput.restore(trainer.state)
    else:
        trainer.train(resume_from_checkpoint=str(setup.checkpoint) if setup.checkpoint else None)
    final = choose_weights(trainer, setup.checkpoint)
    if final:
        load_weights(trainer, final)
    save(trainer)

    rows = []
    if setup.validation is not None:
        rows.append(score_split(trainer, setup.validation, "validation", training.generation_num_beams or 1))
    if setup.test is not None:
        rows += [score_split(trainer, setup.test, "test", beams) for beams in training.test_num_beams]
    results = {
        "scores": [row.to_dict() for row in rows],
        "seed": training.seed,
        "steps": trainer.state.global_step,
        "epochs": round(trainer.state.epoch or 0.0, 3),
        "final_weights": [path.name for path in final] or "last update",
        "best": {
            "step": trainer.state.best_global_step,
            "metric": training.metric_for_best_model,
            "value": trainer.state.best_metric,
        },
        "parameters": trainer.model.num_parameters(),
        "target_tokens": round(trainer.throughput.tokens),
        "train_seconds": round(trainer.throughput.seconds, 1),
        "tokens_per_second": round(trainer.throughput.tokens / max(trainer.throughput.seconds, 1e-9), 1),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "device": str(training.device),
        "processes": training.world_size,
        "threads": torch.get_num_threads(),
        "recipe": None if arguments.recipe is None else report.relative(arguments.recipe),
        "arguments": arguments.given,
        "command": report.run_command(argv),
        "versions": report.versions(),
    }
    if main:
        write(Path(training.output_dir), results, rows)
        print(summary(setup, results, rows))
    return results


def build_trainer(setup: Setup) -> CapsuleSeq2SeqTrainer:
    """The Trainer of a run."""
    training = setup.arguments.training
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(training.early_stopping_patience))
    return CapsuleSeq2SeqTrainer(
        setup.model,
        training,
        train_dataset=setup.train,
        eval_dataset=setup.validation,
        processing_class=setup.tokenizer,
        target_lang=str(setup.arguments.data.target_lang),
        callbacks=callbacks,
    )


def describe(setup: Setup, trainer: CapsuleSeq2SeqTrainer) -> str:
    """Two lines about what is going to be trained."""
    data, training, config = setup.arguments.data, setup.arguments.training, setup.model.config
    sizes = [f"{len(setup.train):,} training pairs"]
    for name, part in (("validation", setup.validation), ("test", setup.test)):
        if part is not None:
            sizes.append(f"{len(part):,} {name} pairs")
    return (
        f"{data.source_lang}-{data.target_lang}: {', '.join(sizes)}, {len(setup.tokenizer):,} tokens\n"
        f"{config.model_type}, {systems(config)}: {setup.model.num_parameters():,} parameters; "
        f"{total_steps(trainer):,} updates of about {trainer.get_total_train_batch_size(training)} sentences, "
        f"{trainer.batch_sampler.num_updates:,} per epoch -> {training.output_dir}"
    )


def systems(config: PreTrainedConfig) -> str:
    """The systems that a model consists of, in words."""
    names = []
    if config.model_type == "capsule-rnn":
        names.append(f"source memory {config.source_memory}")
    if config.aggregation != "none" or not names:
        names.append(f"aggregation {config.aggregation}")
    if config.guided_routing != "none":
        names.append(f"guided routing {config.guided_routing}")
    for name in ("bow_loss_weight", "bca_loss_weight"):
        if getattr(config, name) > 0:
            names.append(f"{name} {getattr(config, name):g}")
    return ", ".join(names)


def total_steps(trainer: CapsuleSeq2SeqTrainer) -> int:
    """Updates of the whole run."""
    if trainer.args.max_steps > 0:
        return trainer.args.max_steps
    return math.ceil(trainer.args.num_train_epochs * trainer.batch_sampler.num_updates)


def is_finished(trainer: CapsuleSeq2SeqTrainer, checkpoint: Path) -> bool:
    """Whether a checkpoint is the end of its run: its last update was made, or it was stopped early."""
    state = TrainerState.load_from_json(str(checkpoint / STATE))
    control = state.stateful_callbacks.get("TrainerControl", {}).get("args", {})
    stopped_early = control.get("should_training_stop", False) and state.global_step < state.max_steps
    return stopped_early or state.global_step >= total_steps(trainer)


def choose_weights(trainer: CapsuleSeq2SeqTrainer, resumed: Path | None) -> list[Path]:
    """
    The checkpoints that the final model is the average of: the last ones, or the best one, or none (the model as it
    is).
    """
    training, state = trainer.args, trainer.state
    if training.average_checkpoints > 1:
        steps = [c for c in checkpoints_by_step(training.output_dir) if is_complete(c, resumable=False)]
        last = [c for c in steps if int(c.name.rpartition("-")[2]) <= state.global_step]
        chosen = last[-training.average_checkpoints :]
        if len(chosen) < training.average_checkpoints:
            logger.warning(
                f"average_checkpoints={training.average_checkpoints}, but there are only {len(chosen)} checkpoints: "
                "averaging these"
            )
        return chosen
    if training.load_best_model_at_end and state.best_model_checkpoint is not None:
        # By name: the output folder may have been moved since.
        return [Path(training.output_dir) / Path(state.best_model_checkpoint).name]
    # A run that was finished already has not loaded its weights.
    return [resumed] if resumed is not None and state.global_step == _step(resumed) else []


def _step(checkpoint: Path) -> int:
    return TrainerState.load_from_json(str(checkpoint / STATE)).global_step


def load_weights(trainer: CapsuleSeq2SeqTrainer, checkpoints: list[Path]) -> None:
    """Put the average of checkpoints into the model."""
    weights = average_checkpoints(checkpoints)
    missing = trainer.model.load_state_dict(weights, strict=False).missing_keys
    absent = absent_weights(trainer.model, missing)
    if absent:
        raise ValueError(f"{checkpoints[-1]} lacks weights of the model: {', '.join(absent)}")
    trainer.model.tie_weights()


def save(trainer: CapsuleSeq2SeqTrainer) -> None:
    """Save model, tokenizer and generation config; the latter holds the beam size of the last test score."""
    model, training = trainer.model, trainer.args
    scored_with = {
        k: v for k, v in trainer.generation_options(training.test_num_beams[-1]).items() if k != "do_sample"
    }
    kept = model.generation_config
    model.generation_config = saved_generation_config(model, trainer.processing_class)
    model.generation_config.update(**scored_with)
    trainer.save_model(training.output_dir)
    model.generation_config = kept


def score_split(trainer: CapsuleSeq2SeqTrainer, dataset: Dataset, split: str, beams: int) -> report.SplitScores:
    """Translate and score one split."""
    start = time.perf_counter()
    options = trainer.generation_options(beams)
    hypotheses = trainer.translate(dataset["source"], f"{split}, beam {beams}", **options)
    seconds = round(time.perf_counter() - start, 1)
    scores = score(
        hypotheses, dataset["target"], convention=trainer.args.score_convention, target_lang=trainer.target_lang
    )
    name = f"{split}.{'greedy' if beams == 1 else f'beam{beams}'}.{trainer.target_lang}"
    return report.SplitScores(
        split=split,
        beams=beams,
        length_penalty=options.get("length_penalty", 1.0),
        sentences=len(dataset),
        seconds=seconds,
        file=f"translations/{name}",
        hypotheses=hypotheses,
        **scores,
    )


def write(output_dir: Path, results: dict[str, Any], rows: Sequence[report.SplitScores]) -> None:
    """Write the translations and, last, results.json."""
    for row in rows:
        path = output_dir / row.file
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in row.hypotheses), encoding="utf-8")
    text = json.dumps(results, indent=2, ensure_ascii=False)
    (output_dir / RESULTS).write_text(f"{text}\n", encoding="utf-8")


def summary(setup: Setup, results: dict[str, Any], rows: Sequence[report.SplitScores]) -> str:
    """The end of the log: samples, scores, and how to translate with the model."""
    dataset = setup.validation if setup.test is None else setup.test
    parts = [
        f"{results['steps']:,} updates, {results['train_seconds'] / 60:.1f} minutes of training, "
        f"{results['tokens_per_second']:,.0f} target tokens/s"
    ]
    output_dir = setup.arguments.training.output_dir
    if dataset is not None:
        parts.append(report.samples(dataset["source"], rows[-1].hypotheses, dataset["target"]))
        parts.append(report.score_table(rows))
        parts.append(f"Translate with it:\n{report.translation_command(output_dir, dataset['source'][0])}")
    return "\n\n".join(["", *parts])
