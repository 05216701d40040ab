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


def main(argv: list[str]) -> int:
    """Run the command line; returns the exit status. Mistakes in it end with one line, before any work."""
    from hf_capsule_mt.training.arguments import parse_arguments

    try:
        arguments = parse_arguments(argv, DEFAULT_RECIPE)
        from hf_capsule_mt.training.setup import prepare

        setup = prepare(arguments)
    except (ValueError, FileNotFoundError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    from hf_capsule_mt.training.run import run

    run(setup, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
