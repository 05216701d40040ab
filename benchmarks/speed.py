"""Training and decoding speed of every aggregation as a ratio to the plain parent, in one process run.

    python benchmarks/speed.py                        # the yardstick's size, about 3 minutes on two cores
    python benchmarks/speed.py --size base            # Transformer base: d 512, 6 + 6 layers, V 32,000; 20 GB
    python benchmarks/speed.py --output benchmarks/results/speed_yardstick.json

The systems take turns in every round, so that drifts of the machine hit all of them alike; a ratio is the median over
rounds of (time of the system / time of the parent in the same round), its spread the quartiles. Operations are counted
by running one step under a dispatch mode: two for each multiply-add of a matrix product, one for each element written
by any other kernel. Absolute times are noise between machines: compare ratios.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel, __version__

from hf_capsule_mt import CapsuleMarianConfig, CapsuleMarianMTModel
from hf_capsule_mt.analysis.efficiency import OperationCount

SIZES = {
    "yardstick": dict(d_model=192, layers=2, heads=4, ffn=512, vocab_size=4000, tokens=2048, length=24),
    "base": dict(d_model=512, layers=6, heads=8, ffn=2048, vocab_size=32000, tokens=4096, length=32),
}
GUIDED_LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 1.0}
SYSTEMS = {
    "parent": None,
    "none": {"aggregation": "none"},
    "linear": {"aggregation": "linear"},
    "dynamic": {"aggregation": "dynamic"},
    "dynamic_routing": {"aggregation": "dynamic_routing"},
    "em_routing": {"aggregation": "em_routing"},
    "guided_routing": {"aggregation": "none", "guided_routing": "routing"},
    "guided_routing_bow_bca": {"aggregation": "none", "guided_routing": "routing", **GUIDED_LOSSES},
    "guided_classifier": {"aggregation": "none", "guided_routing": "classifier", **GUIDED_LOSSES},
    "guided_attention": {"aggregation": "none", "guided_routing": "attention", **GUIDED_LOSSES},
}
PAD, EOS = 0, 1


def environment() -> dict:
    """What a recorded benchmark depends on besides the code."""
    return {
        "torch": torch.__version__,
        "transformers": __version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def build(size: dict, system: dict | None) -> MarianMTModel:
    """One model of the given size; None is transformers' own MarianMTModel."""
    shared = dict(
        vocab_size=size["vocab_size"],
        d_model=size["d_model"],
        encoder_layers=size["layers"],
        decoder_layers=size["layers"],
        encoder_attention_heads=size["heads"],
        decoder_attention_heads=size["heads"],
        encoder_ffn_dim=size["ffn"],
        decoder_ffn_dim=size["ffn"],
        activation_function="relu",
        dropout=0.1,
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,
    )
    torch.manual_seed(1)
    if system is None:
        return MarianMTModel(MarianConfig(**shared))
    # half the model's width, as in the paper
    shared["guided_capsule_size"] = size["d_model"] // 2
    model = CapsuleMarianMTModel(CapsuleMarianConfig(**shared, **system))
    with torch.no_grad():  # as in a trained model
        for name, parameter in model.named_parameters():
            if name.endswith(("gate", "guided_head.output_proj.weight")):
                parameter.fill_(0.1)
    return model


def make_jobs(model: MarianMTModel, size: dict) -> dict[str, Callable[[], object]]:
    """The three timed jobs of one model. Decoding runs a fixed number of steps, so that every model does the same."""
    generator, length = torch.Generator().manual_seed(2), size["length"]

    def ids(rows: int) -> torch.Tensor:
        return torch.randint(2, size["vocab_size"], (rows, length), generator=generator, device="cpu").to(model.device)

    rows = size["tokens"] // length
    source, labels, one, sixteen = ids(rows), ids(rows), ids(1), ids(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def train() -> None:
        model.train()
        model(input_ids=source, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def decode(inputs: torch.Tensor, beams: int) -> object:
        model.eval()
        return model.generate(inputs, num_beams=beams, min_new_tokens=length, max_new_tokens=length, do_sample=False)

    return {
        "training step": train,
        "greedy, 1 sentence": lambda: decode(one, 1),
        "beam 5, 16 sentences": lambda: decode(sixteen, 5),
    }


def measure(size: dict, rounds: int, systems: list[str]) -> dict:
    """Times every job of every system, interleaved. Returns seconds, ratios and operation counts by system and job."""
    models = {name: build(size, SYSTEMS[name]) for name in systems}
    jobs = {name: make_jobs(model, size) for name, model in models.items()}
    seconds: dict = {name: {job: [] for job in jobs[name]} for name in models}
    operations: dict = {name: {} for name in models}
    for name in models:
        for job, run in jobs[name].items():
            run()  # warm-up, not timed
            with OperationCount() as count:
                run()
            operations[name][job] = count.total
    for done in range(rounds):
        for job in next(iter(jobs.values())):
            for name in models:
                start = time.perf_counter()
                jobs[name][job]()
                seconds[name][job].append(time.perf_counter() - start)
        print(f"\rround {done + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        name: {
            "parameters": sum(p.numel() for p in models[name].parameters()),
            **{job: summarise(seconds, operations, name, job) for job in jobs[name]},
        }
        for name in models
    }


def summarise(seconds: dict, operations: dict, name: str, job: str) -> dict:
    """Ratios of one job of one system to the parent's."""
    ratios = [ours / parent for ours, parent in zip(seconds[name][job], seconds["parent"][job], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    operation_ratio = operations[name][job] / operations["parent"][job]
    return {
        "time_ratio": median,
        "time_ratio_quartiles": [low, high],
        "operations": operations[name][job],
        "operation_ratio": operation_ratio,
        "time_over_operations": median / operation_ratio,
        "median_seconds": statistics.median(seconds[name][job]),
    }


def table(results: dict) -> str:
    """The results as a Markdown table: time ratio (operation ratio) of each job."""
    jobs = [key for key in results["parent"] if key != "parameters"]
    lines = ["| system | parameters | " + " | ".join(f"{job}: time (operations)" for job in jobs) + " |"]
    lines.append("|---|---" + "|---" * len(jobs) + "|")
    for name, row in results.items():
        cells = [f"{row[job]['time_ratio']:.2f}x ({row[job]['operation_ratio']:.2f}x)" for job in jobs]
        lines.append(f"| {name} | {row['parameters'] / 1e6:.2f}M | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="yardstick")
    parser.add_argument("--rounds", type=int, default=15, help="timed repetitions of every job (at least 2)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="besides the parent")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2: one repetition has no spread")
    systems = ["parent", *(name for name in arguments.systems if name != "parent")]
    results = measure(SIZES[arguments.size], arguments.rounds, systems)
    print(table(results))
    if arguments.output:
        record = {
            "size": arguments.size,
            **SIZES[arguments.size],
            "rounds": arguments.rounds,
            "environment": environment(),
            "results": results,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
