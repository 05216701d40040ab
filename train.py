"""
Train a translation model.

    python train.py                                                   the embedded corpus: a few minutes, no download
    python train.py recipes/multi30k/em_routing.yaml --data_dir DATA   a recipe
    python train.py RECIPE.yaml --max_steps 2000 --output_dir runs/x   ... with other values
    python train.py RECIPE.yaml --resume_from_checkpoint true          go on after an interruption
    torchrun --nproc_per_node 2 train.py RECIPE.yaml                   two processes
    python train.py --help                                             every argument
"""

import sys
from pathlib import Path

DEFAULT_RECIPE = Path(__file__).parent / "recipes" / "grammar.yaml"


if __name__ == "__main__":
    from hf_capsule_mt.training.command import main

    sys.exit(main(sys.argv[1:], DEFAULT_RECIPE))
