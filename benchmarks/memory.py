"""Peak memory of training one system, in a process of its own. `speed.py --memory` records it for every system.

    python benchmarks/memory.py em_routing --size base

Two updates with AdamW are made, the second of which has the optimizer's state. On a CUDA device the peak is PyTorch's
count of allocated bytes. On the CPU it is the process's peak resident size less what was resident before the model was
built, with an allocator setting under which freed tensors leave the process. One update on an eighth of the batch
has been made and thrown away before: libraries that are loaded, and code that is compiled, on first use are not memory
of the training.
"""

import argparse
import gc
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import torch

from registry import SIZES, SYSTEMS, Setting, build, make_job

UPDATES = 2
PEAK_RESET = Path("/proc/self/clear_refs")
# freed tensors of more than 256 KB go back to the system at once, and threads share one heap
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "MALLOC_ARENA_MAX": "1"}


def peak_bytes(system: str, size: str, setting: Setting) -> int:
    """The peak of one system, in bytes, measured in a new process.

    Raises:
        subprocess.CalledProcessError: if the process fails, for want of memory for example.
    """
    worker = [sys.executable, __file__, "--worker", system, "--size", size, "--tokens", str(setting.size.tokens)]
    worker += ["--device", setting.device, "--dtype", str(setting.dtype).removeprefix("torch.")]
    worker += ["--threads", str(torch.get_num_threads())]
    output = subprocess.run(worker, env=os.environ | ALLOCATOR, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def own_peak_bytes(system: str, setting: Setting) -> int:
    """The peak of one system, in bytes, measured in this process."""
    small = setting._replace(size=setting.size._replace(tokens=setting.size.tokens // 8))
    train(system, small, updates=1)
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train(system, setting)
        return torch.cuda.max_memory_allocated()
    before = reset_resident_peak()
    train(system, setting)
    return resident_peak() - before


def train(system: str, setting: Setting, updates: int = UPDATES) -> None:
    """Builds the system, makes updates, and throws it away."""
    run = make_job(build(system, setting), setting, "training step")
    for _ in range(updates):
        run()
    del run
    gc.collect()


def reset_resident_peak() -> int:
    """Makes the present resident size the peak where the system can do that (Linux). Returns the peak, in bytes."""
    if PEAK_RESET.exists():
        PEAK_RESET.write_text("5")
    return resident_peak()


def resident_peak() -> int:
    """Largest resident size of this process, in bytes, so far or since it was reset."""
    if PEAK_RESET.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--tokens", type=int, help="per batch, instead of the size's own")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    size = SIZES[arguments.size]
    setting = Setting(size._replace(tokens=arguments.tokens or size.tokens), (size.length,), arguments.device, dtype)
    if arguments.worker:
        print(json.dumps(own_peak_bytes(arguments.system, setting)))
    else:
        peak = peak_bytes(arguments.system, arguments.size, setting)
        print(f"{arguments.system}: {peak / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
