"""How many capsules of a source memory are in use? Probes runs of `train` on the embedded corpus, those of a study.

    python benchmarks/memory_probe.py runs/studies/grammar_recurrent/Caps*/seed-? \\
        runs/studies/grammar_recurrent/calibrated*/seed-? \\
        --output hf_capsule_mt/evidence/records/grammar/memory.json

The first --sentences pairs of the corpus' test split are read, with their references. The file is written after every
run, and has one entry for each.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_capsule_mt  # noqa: F401  registers the models
from hf_capsule_mt.analysis.routing_statistics import collect
from hf_capsule_mt.command import run_command
from hf_capsule_mt.data.corpus import GRAMMAR, load_split
from hf_capsule_mt.files import json_text, read_json, write_whole
from hf_capsule_mt.loading import from_checkpoint
from hf_capsule_mt.training.report import RESULTS, relative, versions


def probe_run(folder: Path, sentences: int) -> dict[str, Any]:
    """
    The entry of one run.

    Raises:
        ValueError: it was not trained on the embedded corpus, or has no capsules in a source memory.
        OSError: a file cannot be read.
    """
    run = read_json(folder / RESULTS)
    given = run["arguments"]
    if given.get("dataset_name") != GRAMMAR:
        raise ValueError(f"{folder} was not trained on the embedded corpus; use `hf-capsule-mt report` for others")
    languages = {key: str(given[key]) for key in ("source_lang", "target_lang")}
    data = load_split("test", dataset_name=GRAMMAR, max_samples=sentences, **languages)
    tokenizer = from_checkpoint(AutoTokenizer, folder)
    model = from_checkpoint(AutoModelForSeq2SeqLM, folder).eval()
    found = collect(model, tokenizer, list(data["source"]), list(data["target"]))
    if "memory" not in found:
        raise ValueError(f"{folder} has no capsules in a source memory; leave it out")
    return {
        "run": relative(folder.resolve()),
        "system": folder.parent.name,
        "seed": run["seed"],
        "steps": run["steps"],
        "sentences": len(data),
        "memory": found["memory"],
        "versions": versions(),
    }


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--sentences", type=int, default=500, help="sentences to read (500)")
    arguments = parser.parse_args(argv)

    def command() -> None:
        entries = []
        for folder in arguments.runs:
            entries.append(probe_run(folder, arguments.sentences))
            write_whole(arguments.output, json_text(entries, indent=2) + "\n")
            used = " ".join(f"{row['capsules_in_use']:.2f}" for row in entries[-1]["memory"]["iterations"])
            print(f"{entries[-1]['run']}: capsules in use {used}")

    return run_command("memory_probe.py", command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
