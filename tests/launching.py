"""Runs of train.py in several processes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def torchrun(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess:
    """train.py in two processes of the CPU."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    return subprocess.run(
        [*launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(ROOT / "train.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
    )
