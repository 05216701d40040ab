"""How fast training text is loaded, with and without the model, and how long the model waits for it.

    python benchmarks/loader.py multi30k/baseline --data_dir DATA
    python benchmarks/loader.py grammar --updates 20 --rounds 5 --output loader.json

The others are the arguments of the command train. A run of --rounds * --updates updates trains with the real Trainer;
after every --updates of them, it stands still while the same loader runs through as many batches by itself, and
through as many with transformers' DataCollatorForSeq2Seq, so that drifts of the machine hit all of them alike.
Figures are medians over rounds, with quartiles; the first round warms up. Before that, the text is encoded, and read
from the cache. Tokens are target tokens.

`waiting` is the share of an update's time between asking for its batches and having them. With worker processes
(--dataloader_num_workers) most of the loading goes on beside the model; the loader by itself then shows what these
workers can deliver.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, TrainerCallback

from hf_capsule_mt.data.batching import IGNORE_INDEX, EncodedPairs, encode_pairs
from hf_capsule_mt.training import setup
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.trainer import CapsuleSeq2SeqTrainer
from timing import environment, write_record

# nothing but updates
OVERRIDES = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_strategy": "no",
    "average_checkpoints": "1",
    "report_to": "none",
    "disable_tqdm": "true",
}


class ListCollator:
    """DataCollatorForSeq2Seq; it takes lists of numbers, where it is quicker than with arrays."""

    def __init__(self, collator: DataCollatorForSeq2Seq) -> None:
        self.collator = collator

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        return self.collator([{name: ids.tolist() for name, ids in example.items()} for example in examples])


class LoaderRounds(TrainerCallback):
    """Times rounds of updates of a run and, after each of them, the loader by itself."""

    def __init__(self, trainer: CapsuleSeq2SeqTrainer, updates: int) -> None:
        self.trainer = trainer
        self.updates = updates
        self.rounds: list[dict[str, float]] = []
        self._fetch = trainer.get_batch_samples
        trainer.get_batch_samples = self._timed_fetch

    def _timed_fetch(self, *args: Any) -> Any:
        start = time.perf_counter()
        samples = self._fetch(*args)
        self._waited += time.perf_counter() - start
        return samples

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._tokens, self._waited, self._start = self.trainer.throughput.tokens, 0.0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.updates:
            return
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        self.rounds.append(
            {
                "training": (self.trainer.throughput.tokens - self._tokens) / seconds,
                "waiting": self._waited / seconds,
                "loader": self._alone(self.trainer.data_collator),
                "loader_seq2seq": self._alone(ListCollator(DataCollatorForSeq2Seq(self.trainer.processing_class))),
            }
        )
        print(f"\rround {len(self.rounds) - 1}", end="", file=sys.stderr, flush=True)
        self.on_train_begin()

    def _alone(self, collator: Any) -> float:
        """Target tokens per second of the Trainer's loader with this collator."""
        with mock.patch.object(self.trainer, "data_collator", collator):
            loader = self.trainer.get_train_dataloader()
        return tokens_per_second(loader, self.updates * self.trainer.args.gradient_accumulation_steps)


def tokens_per_second(loader: DataLoader, batches: int) -> float:
    """Target tokens per second over so many batches, fewer if an epoch has fewer, after a first one."""
    batches_of_epoch = iter(loader)
    # It waits for the order of the whole epoch.
    next(batches_of_epoch)
    start, tokens = time.perf_counter(), 0
    for batch in islice(batches_of_epoch, batches):
        tokens += int(batch["labels"].ne(IGNORE_INDEX).sum())
    return tokens / (time.perf_counter() - start)


class TimedEncoding:
    """encode_pairs, done twice: the second time reads what the first has kept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> EncodedPairs:
        for _ in range(2):
            start = time.perf_counter()
            pairs = encode_pairs(*args, **kwargs)
            self.seconds.append(time.perf_counter() - start)
        return pairs


def summarise(values: Iterable[float]) -> dict[str, Any]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartiles": [low, high]}


def measure(argv: Sequence[str], updates: int, rounds: int) -> dict[str, Any]:
    """
    Train, and load without training.

    Args:
        argv: command line of train.py.
        updates, rounds: so many updates in a round, one round more than asked for.
    """
    encoding = TimedEncoding()
    with tempfile.TemporaryDirectory() as folder:
        given = {**OVERRIDES, "output_dir": str(Path(folder) / "run"), "max_steps": str(updates * (rounds + 1))}
        arguments = parse_arguments([*argv, *(f"--{name}={value}" for name, value in given.items())])
        with (
            mock.patch.object(datasets.config, "HF_DATASETS_CACHE", Path(folder) / "cache"),
            mock.patch.object(setup, "encode_pairs", encoding),
        ):
            trainer = build_trainer(setup.prepare(arguments))
        callback = LoaderRounds(trainer, updates)
        trainer.add_callback(callback)
        trainer.train()
    print(file=sys.stderr)
    measured = callback.rounds[1:]
    figures = {name: summarise(turn[name] for turn in measured) for name in measured[0]}
    for name in ("loader", "loader_seq2seq"):
        figures[f"{name}_over_training"] = summarise(turn[name] / turn["training"] for turn in measured)
    return {
        "parameters": trainer.model.num_parameters(),
        "pairs": len(trainer.train_dataset),
        "max_tokens_per_batch": trainer.args.max_tokens_per_batch,
        "dataloader_num_workers": trainer.args.dataloader_num_workers,
        "cached_over_encoding": encoding.seconds[1] / encoding.seconds[0],
        "encoding_seconds": encoding.seconds[0],
        **figures,
    }


def summary(result: dict[str, Any]) -> str:
    """The figures in words."""
    training, alone, other = (
        result[name] for name in ("training", "loader_over_training", "loader_seq2seq_over_training")
    )
    return (
        f"training: {training['median']:,.0f} target tokens/s, {result['waiting']['median']:.2%} of the time waiting "
        f"for batches\nthe loader alone: {alone['median']:,.0f} times as fast "
        f"({alone['quartiles'][0]:,.0f}-{alone['quartiles'][1]:,.0f}); with DataCollatorForSeq2Seq: "
        f"{other['median']:,.0f} times\nencoding {result['pairs']:,} pairs: {result['encoding_seconds']:.1f} s, from "
        f"the cache {result['cached_over_encoding']:.1%} of it"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        usage="%(prog)s RECIPE.yaml [--argument value ...] [--updates N] [--rounds N] [--output FILE]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--updates", type=int, default=25, help="updates of a round")
    parser.add_argument("--rounds", type=int, default=9, help="besides the one that warms up (at least 2)")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    options, argv = parser.parse_known_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: one repetition has no spread")
    if options.updates < 1:
        parser.error("--updates must be at least 1")
    try:
        result = measure(argv, options.updates, options.rounds)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(summary(result))
    if options.output:
        record = {
            "recipe": argv[0] if argv else None,
            "updates": options.updates,
            "rounds": options.rounds,
            "environment": environment(),
            "result": result,
        }
        write_record(options.output, record)


if __name__ == "__main__":
    main()
