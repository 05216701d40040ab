"""Processes of their own: train.py in several, and commands without PyTorch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Python's code of the command `hf-capsule-mt`, in a process in which these packages are not installed
WITHOUT_PYTORCH = (
    "import sys\n"
    "sys.modules['torch'] = sys.modules['transformers'] = None\n"
    "from hf_capsule_mt.__main__ import main\n"
    "sys.exit(main())"
)


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
