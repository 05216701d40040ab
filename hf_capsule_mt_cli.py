"""
The console command `hf-capsule-mt`, the same program as `python -m hf_capsule_mt`.

It stands outside the package because importing anything from that imports PyTorch and registers models with
transformers, for which help and mistakes should not wait.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> int:
    """Run the command line; returns the exit status."""
    # A package at the top level is found without being imported.
    package = importlib.util.find_spec("hf_capsule_mt")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("hf_capsule_mt is not installed")
    path = Path(package.origin).with_name("__main__.py")
    spec = importlib.util.spec_from_file_location("hf_capsule_mt_commands", path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no {path}")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
