"""
Train, distil, convert, publish, translate, score and study capsule models.

    hf-capsule-mt train                                        the embedded corpus: a few minutes, no download
    hf-capsule-mt train multi30k/em_routing --data_dir DATA    a recipe, by name or path
    hf-capsule-mt data multi30k --output DATA                  fetch a parallel corpus
    hf-capsule-mt prepare PREFIX --languages en de --output LC   text as the published Multi30k is
    hf-capsule-mt study run grammar                            systems with several seeds each; then study table
    hf-capsule-mt launch-config fsdp                           where the configuration for `accelerate launch` is
    hf-capsule-mt distill multi30k/distill                     translate a training corpus with a teacher
    hf-capsule-mt convert PLAIN OUTPUT --aggregation em_routing   a plain checkpoint becomes a capsule model
    hf-capsule-mt export RUN OUTPUT --format onnx              translates without PyTorch
    hf-capsule-mt publish RUN USER/NAME --card VALUES.yaml     check a trained model and upload it to the Hub
    hf-capsule-mt report RUN --source F --reference F          one page on its translations and its routing
    hf-capsule-mt demo RUN [RUN2]                              a page to type sentences on, with their routing
    hf-capsule-mt translate RUN [FILE]                         translate a file or standard input
    hf-capsule-mt score RUN SOURCE TARGET                      log-probabilities of given translations
    hf-capsule-mt COMMAND --help                               every argument
    hf-capsule-mt --version

`python -m hf_capsule_mt` is the same program; with several processes: `torchrun --nproc_per_node 2 -m hf_capsule_mt`.
"""

import importlib
import sys

from ._version import __version__

# Each is a module with a function main(argv) -> exit status; imported when it is called for.
COMMANDS = {
    "convert": "hf_capsule_mt.hub.conversion",
    "data": "hf_capsule_mt.data.fetch",
    "demo": "hf_capsule_mt.demo.command",
    "distill": "hf_capsule_mt.training.distillation",
    "export": "hf_capsule_mt.serving.export",
    "launch-config": "hf_capsule_mt.training.launch_command",
    "prepare": "hf_capsule_mt.data.prepare",
    "publish": "hf_capsule_mt.hub.publishing",
    "report": "hf_capsule_mt.analysis.report_command",
    "score": "hf_capsule_mt.evaluation.score_command",
    "study": "hf_capsule_mt.studies.command",
    "train": "hf_capsule_mt.training.command",
    "translate": "hf_capsule_mt.evaluation.translate_command",
}


def main(argv: list[str] | None = None) -> int:
    """
    Run a command.

    Args:
        argv: the command and its arguments; those of the process by default.

    Returns:
        The exit status.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0
    if argv and argv[0] == "--version":
        print(f"hf_capsule_mt {__version__}")
        return 0
    if not argv or argv[0] not in COMMANDS:
        mistake = f"unknown command {argv[0]!r}" if argv else "no command"
        print(f"hf-capsule-mt: error: {mistake}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])
    except KeyboardInterrupt:
        print(f"hf-capsule-mt {argv[0]}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
