"""A training run from its arguments to its results."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import HTTPError
from transformers import EarlyStoppingCallback, PreTrainedConfig, TrainerCallback, TrainerState
from transformers.trainer_utils import SaveStrategy
from transformers.utils.logging import disable_progress_bar

from ..data.batching import sampling_quotas
from ..evaluation.checkpoints import absent_weights
from ..evaluation.encoding import saved_generation_config
from ..files import one_line, write_lines, write_whole
from ..models.tokenizer_languages import LanguagePair
from ..records import without_secrets
from . import report
from .averaging import STATE, average_checkpoints, checkpoint_step, checkpoints_by_step, find_damage
from .divergence import nonfinite_weights
from .failures import RunFailure, explain_failed_writes
from .monitoring import describe_machine
from .report import RESULTS
from .setup import Setup
from .sharding import prepare_sharding
from .trainer import SAVED, CapsuleSeq2SeqTrainer

logger = logging.getLogger(__name__)


def run(setup: Setup, argv: Sequence[str] = (), trainer: CapsuleSeq2SeqTrainer | None = None) -> dict[str, Any]:
    """
    Train, choose the final weights, save, score and report.

    Args:
        setup: from `prepare`.
        argv: the command line, for the record.
        trainer: from `build_trainer`, unless it is to be built here.

    Raises:
        RunFailure: the run has diverged, a disk is full, or checkpoints to be averaged are lost.

    Returns:
        What is written to results.json in the output folder.
    """
    start = time.perf_counter()
    arguments, training = setup.arguments, setup.arguments.training
    trainer = trainer or build_trainer(setup)
    main = trainer.is_world_process_zero()
    if main:
        print(f"{describe(setup, trainer)}\n{describe_machine(trainer)}", flush=True)
    remedy = "make room, and go on from the last complete checkpoint with --resume_from_checkpoint true"
    with explain_failed_writes(Path(training.output_dir), remedy):
        # before training, in the course of which the checkpoint may be deleted
        step = None if setup.checkpoint is None else _step(setup.checkpoint)
        train(setup, trainer)
        final = choose_weights(trainer, setup.checkpoint, step)
        # a run that was finished already has not loaded its weights
        last = [setup.checkpoint] if setup.checkpoint is not None and trainer.state.global_step == step else []
        if final or last:
            load_weights(trainer, final or last)
        save(trainer)

    rows = []
    if setup.validation is not None:
        rows += score_split(trainer, setup.validation, "validation", training.generation_num_beams or 1)
    if setup.test is not None:
        rows += [row for beams in training.test_num_beams for row in score_split(trainer, setup.test, "test", beams)]
    means = report.mean_scores(rows)
    results = {
        "scores": [row.to_dict() for row in rows],
        **({"mean_scores": means} if means else {}),
        "language_pairs": [list(pair) for pair in setup.pairs],
        "seed": training.seed,
        "steps": trainer.state.global_step,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
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
        "arguments": without_secrets(arguments.given),
        "command": report.run_command(argv),
        "versions": report.versions(),
    }
    if main:
        with explain_failed_writes(Path(training.output_dir), remedy):
            write(Path(training.output_dir), results, rows, _scored_text(setup, trainer))
    if training.push_to_hub:
        push(trainer)
    if main:
        print(summary(setup, trainer, results, rows))
    return results


def train(setup: Setup, trainer: CapsuleSeq2SeqTrainer) -> None:
    """Train to the end, from the checkpoint to resume from if there is one."""
    if setup.checkpoint is not None and is_finished(trainer, setup.checkpoint):
        logger.warning(f"{setup.checkpoint} is the end of this run: only its results are made again")
        trainer.state = TrainerState.load_from_json(str(setup.checkpoint / STATE))
        trainer.throughput.restore(trainer.state)
        # which a kill may have interrupted
        trainer.rotate()
        return
    wanted, planned = trainer.args.average_checkpoints, planned_checkpoints(trainer)
    if planned is not None and wanted > 1 and planned < wanted:
        logger.warning(
            f"average_checkpoints={wanted}, but a run of {total_steps(trainer)} updates saves only {planned}: the "
            "final model will be the average of these (a smaller save_steps makes more)"
        )
    trainer.train(resume_from_checkpoint=str(setup.checkpoint) if setup.checkpoint else None)


def build_trainer(setup: Setup) -> CapsuleSeq2SeqTrainer:
    """
    The Trainer of a run.

    Raises:
        ValueError, ImportError: the arguments ask for something that this machine does not have.
    """
    # Only the bars of transformers' own loading and saving, one per checkpoint.
    disable_progress_bar()
    training = setup.arguments.training
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(training.early_stopping_patience))
    trainer = CapsuleSeq2SeqTrainer(
        setup.model,
        training,
        train_dataset=setup.train,
        eval_dataset=setup.validation,
        processing_class=setup.tokenizer,
        # those of a single pair
        source_lang=setup.pairs[0].source if len(setup.pairs) == 1 else "",
        target_lang=setup.pairs[0].target if len(setup.pairs) == 1 else "",
        groups=setup.groups,
        sampling_temperature=setup.arguments.data.sampling_temperature,
        callbacks=callbacks,
    )
    prepare_sharding(trainer, setup)
    # For the libraries that an optimizer may need.
    trainer.get_optimizer_cls_and_kwargs(training, setup.model)
    return trainer


def describe(setup: Setup, trainer: CapsuleSeq2SeqTrainer) -> str:
    """Two lines about what is going to be trained."""
    training, config = setup.arguments.training, setup.model.config
    sizes = [f"{len(setup.train):,} training pairs"]
    for name, part in (("validation", setup.validation), ("test", setup.test)):
        if part is not None:
            sizes.append(f"{len(part):,} {name} pairs")
    return (
        f"{_describe_pairs(setup, trainer)}: {', '.join(sizes)}, {len(setup.tokenizer):,} tokens\n"
        f"{config.model_type}, {systems(config)}: {setup.model.num_parameters():,} parameters; "
        f"{total_steps(trainer):,} updates of about {trainer.get_total_train_batch_size(training)} sentences, "
        f"{trainer.batch_sampler.num_updates:,} per epoch -> {training.output_dir}"
    )


def _describe_pairs(setup: Setup, trainer: CapsuleSeq2SeqTrainer) -> str:
    """The pairs of languages; of several with how many sentences of each an epoch has."""
    if len(setup.pairs) == 1:
        return str(setup.pairs[0])
    temperature = setup.arguments.data.sampling_temperature
    quotas = sampling_quotas(np.bincount(setup.groups), temperature)
    shown = ", ".join(f"{pair} {quota:,}" for pair, quota in zip(setup.pairs, quotas, strict=True))
    return f"{shown} in an epoch (sampling_temperature {temperature:g})"


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


def planned_checkpoints(trainer: CapsuleSeq2SeqTrainer) -> int | None:
    """How many checkpoints the whole run saves, the last update's among them; None if that depends on its scores."""
    training, total = trainer.args, total_steps(trainer)
    if training.save_strategy == SaveStrategy.EPOCH:
        return math.ceil(total / trainer.batch_sampler.num_updates)
    if training.save_strategy == SaveStrategy.STEPS:
        every = training.save_steps if training.save_steps >= 1 else math.ceil(total * training.save_steps)
        return math.ceil(total / every) if every > 0 else 1
    return 0 if training.save_strategy == SaveStrategy.NO else None


def is_finished(trainer: CapsuleSeq2SeqTrainer, checkpoint: Path) -> bool:
    """Whether a checkpoint is the end of its run: its last update was made, or it was stopped early."""
    state = TrainerState.load_from_json(str(checkpoint / STATE))
    control = state.stateful_callbacks.get("TrainerControl", {}).get("args", {})
    stopped_early = control.get("should_training_stop", False) and state.global_step < state.max_steps
    return stopped_early or state.global_step >= total_steps(trainer)


def choose_weights(trainer: CapsuleSeq2SeqTrainer, resumed: Path | None, step: int | None) -> list[Path]:
    """
    The checkpoints that the final model is the average of: the last ones, or the best one, or none (the model as it
    is).

    Args:
        resumed, step: the checkpoint that the run went on from, if there was one.

    Raises:
        RunFailure: checkpoints to be averaged are not there any more, or not whole.
    """
    training, state = trainer.args, trainer.state
    if training.average_checkpoints > 1:
        return last_checkpoints(trainer, resumed, step)
    if training.load_best_model_at_end and state.best_model_checkpoint is not None:
        # By name: the output folder may have been moved since.
        return [Path(training.output_dir) / Path(state.best_model_checkpoint).name]
    return []


def last_checkpoints(trainer: CapsuleSeq2SeqTrainer, resumed: Path | None, step: int | None) -> list[Path]:
    """
    The last checkpoints that this run has saved, as many as are to be averaged, whatever else lies in its folder.

    Those from before it was resumed may lie in another folder. Arguments and errors are those of `choose_weights`.
    """
    folder, wanted = Path(trainer.args.output_dir), trainer.args.average_checkpoints
    before = folder if resumed is None else resumed.parent
    steps = {entry["step"] for entry in trainer.state.log_history if SAVED in entry}
    if step is not None and step not in steps:
        # by a version that did not log what it saved
        steps |= {saved for saved in map(checkpoint_step, checkpoints_by_step(before)) if saved <= step}
    chosen = [
        (before if saved <= (step or 0) else folder) / f"checkpoint-{saved}" for saved in sorted(steps)[-wanted:]
    ]
    damages = [(checkpoint, find_damage(checkpoint, resumable=False)) for checkpoint in chosen]
    missing = [f"{checkpoint} ({damage})" for checkpoint, damage in damages if damage is not None]
    if missing:
        raise RunFailure(
            f"average_checkpoints={wanted} is the average of {', '.join(checkpoint.name for checkpoint in chosen)}, "
            f"of which not all is there: {', '.join(missing)}; put back what is missing, or resume from an earlier "
            "checkpoint (--resume_from_checkpoint FOLDER), which makes it again"
        )
    if len(chosen) < wanted:
        logger.warning(f"average_checkpoints={wanted}, but the run saved only {len(chosen)}: averaging these")
    return chosen


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
    broken = nonfinite_weights(trainer.model)
    if broken:
        names = ", ".join(checkpoint.name for checkpoint in checkpoints)
        raise RunFailure(
            f"{names} in {trainer.args.output_dir}: there are weights that are not finite, such as {broken[0]}: the "
            "run had diverged; begin anew with a lower learning_rate"
        )


def save(trainer: CapsuleSeq2SeqTrainer) -> None:
    """Save model, tokenizer and generation config; the latter holds the beam size of the last test score."""
    with final_generation_config(trainer):
        # a call from outside would upload the model, whose card has no scores yet
        trainer.save_model(trainer.args.output_dir, _internal_call=True)


def push(trainer: CapsuleSeq2SeqTrainer) -> None:
    """
    Upload the finished model.

    Raises:
        RunFailure: the Hub refuses it, or cannot be reached.
    """
    try:
        with final_generation_config(trainer):
            trainer.push_to_hub()
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise RunFailure(
            f"the run is finished, and kept in {trainer.args.output_dir}, but was not uploaded: {error}; upload it "
            f"with hf-capsule-mt publish {trainer.args.output_dir} USER/NAME"
        ) from None


@contextmanager
def final_generation_config(trainer: CapsuleSeq2SeqTrainer) -> Iterator[None]:
    """Within it, the model's generation config is that of the saved model."""
    model = trainer.model
    options = trainer.generation_options(trainer.args.test_num_beams[-1])
    kept = model.generation_config
    model.generation_config = saved_generation_config(model, trainer.processing_class)
    model.generation_config.update(**{name: value for name, value in options.items() if name != "do_sample"})
    try:
        yield
    finally:
        model.generation_config = kept


def score_split(trainer: CapsuleSeq2SeqTrainer, dataset: Dataset, split: str, beams: int) -> list[report.SplitScores]:
    """Translate and score one split, each of its pairs of languages by itself."""
    start = time.perf_counter()
    options = trainer.generation_options(beams)
    translations = trainer.translate_pairs(dataset, f"{split}, beam {beams}", **options)
    # as in the file, whose scores these are
    hypotheses = [one_line(translation) for translation in translations]
    seconds = round(time.perf_counter() - start, 1)
    scores = trainer.score_pairs(dataset, hypotheses)
    search = "greedy" if beams == 1 else f"beam{beams}"
    return [
        report.SplitScores(
            split=split,
            source_lang=pair.source,
            target_lang=pair.target,
            beams=beams,
            length_penalty=options.get("length_penalty", 1.0),
            sentences=len(rows),
            seconds=round(seconds * len(rows) / len(dataset), 1),
            file=f"translations/{_name(split, pair, dataset)}.{search}.{pair.target}",
            hypotheses=[hypotheses[row] for row in rows],
            **scores[pair],
        )
        for pair, rows in trainer.rows_by_pair(dataset).items()
    ]


def _name(split: str, pair: LanguagePair, dataset: Dataset) -> str:
    """The beginning of the names of the files of a pair."""
    return f"{split}.{pair}" if "source_lang" in dataset.column_names else split


def _scored_text(setup: Setup, trainer: CapsuleSeq2SeqTrainer) -> dict[str, Sequence[str]]:
    """Sources and references of the scored splits, by file: for the commands that translate, score and report."""
    found: dict[str, Sequence[str]] = {}
    for split, dataset in (("validation", setup.validation), ("test", setup.test)):
        if dataset is None:
            continue
        for pair, rows in trainer.rows_by_pair(dataset).items():
            for side, language in zip(("source", "target"), pair, strict=True):
                texts = dataset[side][:]
                found[f"translations/{_name(split, pair, dataset)}.{language}"] = [texts[row] for row in rows]
    return found


def write(
    output_dir: Path,
    results: dict[str, Any],
    rows: Sequence[report.SplitScores],
    scored_text: dict[str, Sequence[str]],
) -> None:
    """Write the translations, sources and references and, last, results.json."""
    for name, texts in scored_text.items():
        write_lines(output_dir / name, texts)
    for row in rows:
        write_lines(output_dir / row.file, row.hypotheses)
    text = json.dumps(results, indent=2, ensure_ascii=False)
    write_whole(output_dir / RESULTS, f"{text}\n")


def summary(
    setup: Setup, trainer: CapsuleSeq2SeqTrainer, results: dict[str, Any], rows: Sequence[report.SplitScores]
) -> str:
    """The end of the log: samples, scores, and how to translate with the model."""
    dataset = setup.validation if setup.test is None else setup.test
    parts = [
        f"{results['steps']:,} updates, {results['train_seconds'] / 60:.1f} minutes of training, "
        f"{results['tokens_per_second']:,.0f} target tokens/s"
    ]
    output_dir = setup.arguments.training.output_dir
    if dataset is not None:
        by_pair = trainer.rows_by_pair(dataset)
        chosen = [row for rows_of_pair in by_pair.values() for row in rows_of_pair]
        hypotheses = [text for row in rows[-len(by_pair) :] for text in row.hypotheses]
        sources, references = dataset["source"][:], dataset["target"][:]
        parts.append(report.samples([sources[row] for row in chosen], hypotheses, [references[row] for row in chosen]))
        parts.append(report.score_table(rows))
        pair = next(iter(by_pair)) if len(setup.pairs) > 1 else None
        command = report.translation_command(output_dir, sources[chosen[0]], pair)
        parts.append(f"Translate with it:\n{command}")
    return "\n\n".join(["", *parts])
