"""Time to translate one sentence with trained models, as a ratio to the first of them (Wang et al. 2019, Table 3).

    python benchmarks/latency.py none=runs/studies/multi30k/none/seed-1 CapsNMT=runs/studies/multi30k/CapsNMT/seed-1 \\
        --source DATA/multi30k/test2016.en --output hf_capsule_mt/evidence/records/speed/latency_multi30k.json

Every sentence is translated alone by every model before the next one comes, in an order that changes, so that drifts
of the machine hit all of them alike. A time includes tokenization. The translations differ in length between models,
so the time per target word is given as well. The ratio is that of the total times; its interval (95 %) is a bootstrap
over the sentences.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_capsule_mt  # noqa: F401  (registers the models)
from hf_capsule_mt.analysis.named_runs import named_runs
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.files import read_lines
from hf_capsule_mt.loading import from_checkpoint
from timing import environment

RESAMPLES = 2000


def measure(runs: dict[str, str], sentences: list[str], beams: int, seed: int) -> dict[str, dict]:
    """Translates every sentence with every model. Returns times and ratios by the name of the system."""
    models = {
        name: from_checkpoint(AutoModelForSeq2SeqLM, run, dtype=torch.float32).eval() for name, run in runs.items()
    }
    tokenizers = {name: from_checkpoint(AutoTokenizer, run) for name, run in runs.items()}
    order = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    words = dict.fromkeys(models, 0)
    for name in models:  # warm-up, not timed
        translate(models[name], tokenizers[name], sentences[:3], num_beams=beams)
    for done, sentence in enumerate(sentences, 1):
        for name in order.sample(list(models), len(models)):
            start = time.perf_counter()
            (text,) = translate(models[name], tokenizers[name], [sentence], num_beams=beams)
            seconds[name].append(time.perf_counter() - start)
            words[name] += len(text.split())
        if done % 20 == 0 or done == len(sentences):
            print(f"\rbeam {beams}: {done} of {len(sentences)} sentences", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    reference = np.array(seconds[next(iter(runs))])
    picks = np.random.default_rng(seed).integers(0, len(sentences), (RESAMPLES, len(sentences)))
    results = {}
    for name, times in seconds.items():
        own = np.array(times)
        low, high = np.quantile(own[picks].sum(axis=1) / reference[picks].sum(axis=1), [0.025, 0.975])
        results[name] = {
            "parameters": models[name].num_parameters(),
            "milliseconds": 1e3 * statistics.fmean(times),
            "milliseconds_per_word": 1e3 * sum(times) / max(words[name], 1),
            "ratio": float(own.sum() / reference.sum()),
            "ratio_interval": [float(low), float(high)],
        }
    return results


def table(results: dict[str, dict[str, dict]]) -> str:
    """The results as a Markdown table."""
    lines = ["| beams | model | ms per sentence | ratio | 95 % | ms per target word |", "|---|---|---|---|---|---|"]
    for beams, rows in results.items():
        for name, row in rows.items():
            low, high = row["ratio_interval"]
            lines.append(
                f"| {beams} | {name} | {row['milliseconds']:.1f} | {row['ratio']:.2f}x | {low:.2f}-{high:.2f} "
                f"| {row['milliseconds_per_word']:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN|NAME=RUN", help="trained checkpoints; ratios are to the first")
    parser.add_argument("--source", type=Path, required=True, help="text file with one sentence a line")
    parser.add_argument("--sentences", type=int, default=200, help="use the first so many")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    try:
        named = named_runs(arguments.runs, None)
    except ValueError as error:
        parser.error(str(error))
    several = [name for name, listed in named.items() if len(listed) > 1]
    if several:
        parser.error(f"{', '.join(several)}: one run each")
    runs = {name: run for name, (run,) in named.items()}
    missing = [run for run in runs.values() if not Path(run, "config.json").is_file()]
    if missing:
        parser.error(f"no checkpoint in {', '.join(missing)}")
    torch.set_num_threads(arguments.threads)
    sentences = [line for line in read_lines(arguments.source) if line.strip()]
    sentences = sentences[: arguments.sentences]
    results = {str(b): measure(runs, sentences, b, arguments.seed) for b in arguments.beams}
    print(table(results))
    if arguments.output:
        record = {
            "source": arguments.source.name,
            "sentences": len(sentences),
            "environment": environment(),
            "results": results,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
