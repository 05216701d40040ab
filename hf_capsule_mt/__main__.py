"""
Commands of this package; training is train.py.

    python -m hf_capsule_mt distill recipes/multi30k/distill.yaml       translate a training corpus with a teacher
    python -m hf_capsule_mt distill RECIPE.yaml --num_beams 1           ... with other values
    torchrun --nproc_per_node 2 -m hf_capsule_mt distill RECIPE.yaml    ... with two processes
    python -m hf_capsule_mt convert PLAIN OUTPUT --aggregation em_routing   a plain checkpoint becomes a capsule model
    python -m hf_capsule_mt publish RUN USER/NAME --card VALUES.yaml    check a trained model and upload it to the Hub
    python -m hf_capsule_mt report RUN --source F --reference F         one page on its translations and its routing
    python -m hf_capsule_mt translate RUN [FILE]                        translate a file or standard input
    python -m hf_capsule_mt score RUN SOURCE TARGET                     log-probabilities of given translations
    python -m hf_capsule_mt study run STUDY.yaml                        systems with several seeds each; study table
    python -m hf_capsule_mt COMMAND --help                              every argument
"""

import importlib
import sys

# Each is a module with a function main(argv) -> exit status; imported when it is called for.
COMMANDS = {
    "convert": "hf_capsule_mt.hub.conversion",
    "distill": "hf_capsule_mt.training.distillation",
    "publish": "hf_capsule_mt.hub.publishing",
    "report": "hf_capsule_mt.analysis.report_command",
    "score": "hf_capsule_mt.evaluation.score_command",
    "study": "hf_capsule_mt.studies.command",
    "translate": "hf_capsule_mt.evaluation.translate_command",
}


def main(argv: list[str]) -> int:
    """Run a command; returns the exit status."""
    if argv and argv[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0
    if not argv or argv[0] not in COMMANDS:
        mistake = f"unknown command {argv[0]!r}" if argv else "no command"
        print(f"hf_capsule_mt: error: {mistake}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])
    except KeyboardInterrupt:
        print(f"hf_capsule_mt {argv[0]}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
