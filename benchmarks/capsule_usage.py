"""How the capsules of a trained capsule memory share the source words (Wang et al. 2019, Eq. 11).

    python benchmarks/capsule_usage.py runs/multi30k/capsnmt --source DATA/multi30k/test2016.en \\
        --output hf_capsule_mt/evidence/records/multi30k/capsule_usage.json

For every iteration: the share of the words that each capsule receives (mean of alpha over the words), the entropy of a
word's assignment (nats; log M if it is even, 0 if it is certain), and the entropy of the shares, whose exponential is
the number of capsules in use.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import hf_capsule_mt  # noqa: F401  (registers the models)
from hf_capsule_mt.analysis.routing_statistics import MemoryStatistics
from hf_capsule_mt.files import read_lines
from hf_capsule_mt.loading import from_checkpoint
from hf_capsule_mt.models.configuration_capsule_rnn import CAPSULE_MEMORIES

BATCH = 50


@torch.no_grad()
def usage(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> list[dict]:
    """One entry per iteration; a word here is a sub-word piece."""
    statistics = MemoryStatistics()
    for start in range(0, len(sentences), BATCH):
        batch = tokenizer(sentences[start : start + BATCH], padding=True, truncation=True, return_tensors="pt")
        mask = batch["attention_mask"]
        encoded = model.get_encoder()(batch["input_ids"], attention_mask=mask, output_agreements=True)
        statistics.update(encoded.source_agreements, mask)
    return statistics.result()["iterations"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="trained checkpoints with a capsule memory")
    parser.add_argument("--source", type=Path, required=True, help="text file with one sentence a line")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    sentences = read_lines(arguments.source)
    results = {}
    for run in arguments.runs:
        model = from_checkpoint(AutoModelForSeq2SeqLM, run, dtype=torch.float32).eval()
        if getattr(model.config, "source_memory", None) not in CAPSULE_MEMORIES:
            parser.error(f"{run} has no capsule memory")
        results[run.name] = usage(model, from_checkpoint(AutoTokenizer, run), sentences)
    record = {"source": arguments.source.name, "sentences": len(sentences), "results": results}
    print(json.dumps(record, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
