"""Peak memory of training with guided routing, as a ratio to the plain parent.

    python benchmarks/memory.py                                     # d 512, 6 + 6 layers, 4,096 tokens, V 32,000
    python benchmarks/memory.py --output benchmarks/results/memory_base.json

Every system trains in a process of its own: two updates with AdamW, the second of which has the optimizer's state.
On a CUDA device the peak is PyTorch's count of allocated bytes. On the CPU it is the growth of the process's peak
resident size over what it is before the model is built, with an allocator setting under which freed tensors leave the
process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch

from speed import SIZES, SYSTEMS, build, environment, make_jobs

MEASURED = ("parent", "guided_routing", "guided_routing_bow_bca", "guided_classifier", "guided_attention")
UPDATES = 2


def resident_peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_of(system: str, size: str) -> dict[str, int]:
    """Trains one system in this process. Returns its parameters and peak bytes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = resident_peak()
    with torch.device(device):
        model = build(SIZES[size], SYSTEMS[system])
        train = make_jobs(model, SIZES[size])["training step"]
    for _ in range(UPDATES):
        train()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident_peak() - before
    return {"parameters": sum(p.numel() for p in model.parameters()), "peak_bytes": peak}


def measure(size: str) -> dict[str, dict]:
    """The peak of every system, each in a new process, and its ratio to the parent's."""
    results: dict[str, dict] = {}
    for system in MEASURED:
        print(f"{system} ...", file=sys.stderr, flush=True)
        worker = [sys.executable, __file__, "--size", size, "--worker", system]
        allocator = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**24), "MALLOC_ARENA_MAX": "1"}
        output = subprocess.run(worker, env=allocator, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[system] = json.loads(output.splitlines()[-1])
        results[system]["memory_ratio"] = results[system]["peak_bytes"] / results["parent"]["peak_bytes"]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(peak_of(arguments.worker, arguments.size)))
        return
    results = measure(arguments.size)
    print("| system | parameters | peak training memory | ratio |\n|---|---|---|---|")
    for system, row in results.items():
        gigabytes = row["peak_bytes"] / 2**30
        print(f"| {system} | {row['parameters'] / 1e6:.1f}M | {gigabytes:.2f} GiB | {row['memory_ratio']:.2f}x |")
    if arguments.output:
        record = {
            "size": arguments.size,
            **SIZES[arguments.size],
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "environment": environment(),
            "results": results,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
