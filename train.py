"""
Train a translation model: the command `hf-capsule-mt train`, from a checkout.

    python train.py                                                   the embedded corpus: a few minutes, no download
    python train.py multi30k/em_routing --data_dir DATA               a recipe of the package, or a path
    python train.py RECIPE.yaml --max_steps 2000 --output_dir runs/x   ... with other values
    python train.py RECIPE.yaml --resume_from_checkpoint true          go on after an interruption
    torchrun --nproc_per_node 2 train.py RECIPE.yaml                   two processes
    python train.py --help                                             the arguments
"""

import sys

if __name__ == "__main__":
    from hf_capsule_mt.__main__ import main

    sys.exit(main(["train", *sys.argv[1:]]))
