"""Do PAST and FUTURE capsules know what is translated? Probes runs of `train`, those of a study among them.

    records=hf_capsule_mt/evidence/records
    python benchmarks/past_future_probe.py runs/studies/past_future/*/seed-? \\
        --output $records/past_future/grammar.json
    python benchmarks/past_future_probe.py runs/studies/ende/GDR+losses/seed-* \\
        --text DATA/alignments/europarl100 --alignment DATA/alignments/europarl100.de-en.gold --target_first \\
        --output $records/past_future/europarl100.json
    python benchmarks/past_future_probe.py runs/studies/multi30k/GDR+losses/seed-* --text DATA/multi30k/test2016 \\
        --output $records/past_future/test2016.json

Runs on the grammar corpus are probed on the first --sentences pairs of its test split, whose gold word alignments
give the answers. All others need --text, the prefix of two files in the run's languages: with --alignment they are
tokenised and aligned by hand, and get the capitals and the spacing of the text that the model was trained on; without
it they are raw text, which fast_align aligns after learning from them and from the run's training text.

The rates r_OL come from the run's own BOW predictor or, if it was trained without L_BOW, from one that is fitted to
the frozen model on the run's training pairs ("rol_predictor": "trained" or "fitted"). Intervals are over the
sentences. The file is written after every run; runs that it has already are left as they are unless --force is given.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_capsule_mt  # noqa: F401  registers the models
from hf_capsule_mt.analysis.aligned_text import AlignedPair, pairs_by_aligner, pairs_by_hand
from hf_capsule_mt.analysis.alignment_files import SOURCE_FIRST, TARGET_FIRST, read_alignments
from hf_capsule_mt.analysis.past_future import fit_bow_predictor, past_future_probe
from hf_capsule_mt.command import run_command
from hf_capsule_mt.data.corpus import GRAMMAR, load_split
from hf_capsule_mt.data.grammar import GrammarPair, generate_corpus
from hf_capsule_mt.files import json_text, read_json, read_lines, write_whole
from hf_capsule_mt.loading import from_checkpoint
from hf_capsule_mt.training.report import relative, versions

FIT_BATCH_SIZE = 64
SYSTEM_FIELDS = (
    *("guided_routing", "bow_loss_weight", "bca_loss_weight"),
    *("guided_loss_normalization", "num_redundant_capsules"),
)


@cache
def grammar_pairs(split: str, size: int, source_lang: str) -> list[GrammarPair]:
    """The first pairs of the split that train.py uses, which leaves the corpus at its default seed."""
    pairs = generate_corpus(size, split=split)
    if source_lang == "en":
        return pairs
    return [GrammarPair(p.target, p.source, tuple(sorted((j, i) for i, j in p.alignment))) for p in pairs]


@dataclass(frozen=True)
class Text:
    """Text beside the grammar corpus: the prefix of its two files, and the alignment if there is one by hand."""

    prefix: Path
    alignment: Path | None
    target_first: bool

    def pairs(self, given: dict[str, Any], sentences: int | None) -> list[AlignedPair]:
        """Its first sentence pairs as a run with these arguments reads them."""
        languages = {key: str(given[key]) for key in ("source_lang", "target_lang")}
        sides = [read_lines(Path(f"{self.prefix}.{code}")) for code in languages.values()]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(f"{self.prefix}.* have {len(sides[0])} and {len(sides[1])} lines, but are translations")
        sources, targets = (side[:sentences] for side in sides)
        training = training_text(given)
        if self.alignment is None:
            return pairs_by_aligner(sources, targets, **languages, training=zip(*training, strict=True))
        lengths = [(len(source.split()), len(target.split())) for source, target in zip(*sides, strict=True)]
        order = TARGET_FIRST if self.target_first else SOURCE_FIRST
        read = read_alignments(self.alignment, lengths, order=order)
        return pairs_by_hand(sources, targets, read.alignments[:sentences], **languages, cased=training)


def training_text(given: dict[str, Any], size: int | None = None) -> tuple[list[str], list[str]]:
    """Sources and targets that a run with these arguments was trained on, or the first so many."""
    limits = [limit for limit in (given.get("max_train_samples"), size) if limit]
    data = load_split(
        "train",
        source_lang=given["source_lang"],
        target_lang=given["target_lang"],
        file=given.get("train_file"),
        dataset_name=given.get("dataset_name"),
        dataset_config_name=given.get("dataset_config_name"),
        data_dir=given.get("data_dir"),
        max_samples=min(limits, default=None),
    )
    return list(data["source"]), list(data["target"])


def probe_run(folder: Path, text: Text | None, sentences: int | None, fit_steps: int, draws: int) -> dict[str, Any]:
    """
    The entry of one run.

    Raises:
        ValueError: there is no text with alignments, or it is no run; see also the functions of `aligned_text`.
        OSError: a file cannot be read.
    """
    run = read_json(folder / "results.json")
    given = run["arguments"]
    if (given.get("dataset_name") == GRAMMAR) != (text is None):
        raise ValueError(
            f"{folder} was trained on the grammar corpus, whose test set is probed: leave --text out"
            if text is not None
            else f"{folder} was not trained on the grammar corpus: give --text, and --alignment if there is one"
        )
    if text is None:
        pairs: Sequence[GrammarPair | AlignedPair] = grammar_pairs("test", sentences or 500, given["source_lang"])
    else:
        pairs = text.pairs(given, sentences)
    tokenizer = from_checkpoint(AutoTokenizer, folder)
    model = from_checkpoint(AutoModelForSeq2SeqLM, folder).eval()
    trained = model.config.bow_loss_weight > 0
    predictor = model
    if not trained:
        train_pairs = [
            AlignedPair(source, target, (), (), ())
            for source, target in zip(*training_text(given, fit_steps * FIT_BATCH_SIZE), strict=True)
        ]
        predictor = fit_bow_predictor(model, tokenizer, train_pairs, fit_steps, batch_size=FIT_BATCH_SIZE)
    # A fitted predictor leaves the capsules as they are, so that one probe gives everything
    result = past_future_probe(predictor, tokenizer, pairs, draws=draws)
    test = [row for row in run["scores"] if row["split"] == "test"]
    return {
        "run": relative(folder.resolve()),
        "text": GRAMMAR if text is None else text.prefix.name,
        "alignment": "gold" if text is None else "fast_align" if text.alignment is None else "by hand",
        "draws": draws,
        **{name: getattr(model.config, name) for name in SYSTEM_FIELDS},
        "seed": run["seed"],
        "steps": run["steps"],
        "test_bleu": test[-1]["bleu"] if test else None,
        "test_beams": test[-1]["beams"] if test else None,
        "rol_predictor": "trained" if trained else "fitted",
        "fit_steps": None if trained else fit_steps,
        "results": result.to_dict(),
        "versions": versions(),
    }


def system_name(entry: dict[str, Any]) -> str:
    """The system as the paper's tables name its parts."""
    parts = [f"`{entry['guided_routing']}`"]
    parts += [f"+ {loss.upper()}" for loss in ("bow", "bca") if entry[f"{loss}_loss_weight"] > 0]
    per_token = ", per token" if entry["guided_loss_normalization"] == "token" else ""
    return " ".join(parts) + per_token + ("" if entry["num_redundant_capsules"] else " - redundant")


def interval_text(bounds: Sequence[float] | None) -> str:
    """An interval behind its number."""
    return "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"


def markdown_table(entries: list[dict[str, Any]]) -> str:
    """One row per run; the controls in it depend on the sentences and the tokenizer alone."""
    lines = [
        "| run | system | seed | steps | test BLEU | sentences | accuracy | AUC | diagonal: accuracy | AUC | majority "
        "| r_OL PAST | FUTURE | predictor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        found = entry["results"]
        bleu = "-" if entry["test_bleu"] is None else f"{entry['test_bleu']:.1f}"
        names = ("accuracy", "auc", "diagonal_accuracy", "diagonal_auc", "majority_accuracy")
        rates = [
            f"{found[name]:.3f}" + interval_text(found.get("intervals", {}).get(name))
            for name in (*names, "past_overlap", "future_overlap")
        ]
        cells = [f"`{entry['run']}`", system_name(entry), str(entry["seed"]), f"{entry['steps']:,}", bleu]
        lines.append("| " + " | ".join([*cells, str(found["sentences"]), *rates, entry["rol_predictor"]]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--text", type=Path, metavar="PREFIX", help="PREFIX.SOURCE_LANG and PREFIX.TARGET_LANG")
    parser.add_argument(
        "--alignment",
        type=Path,
        metavar="FILE",
        help="of --text, made by hand: i-j or a link a line",
    )
    parser.add_argument("--target_first", action="store_true", help="the links of --alignment are target-source")
    parser.add_argument("--sentences", type=int, help="sentences to probe (500 of the grammar corpus, all of --text)")
    parser.add_argument("--draws", type=int, default=2000, help="test sets to draw with replacement (2000)")
    parser.add_argument("--fit_steps", type=int, default=300, help="updates of a fitted BOW predictor")
    parser.add_argument("--force", action="store_true", help="probe runs again that the file has already")
    arguments = parser.parse_args(argv)

    def command() -> None:
        if arguments.text is None and (arguments.alignment is not None or arguments.target_first):
            raise ValueError("--alignment and --target_first are of --text; give that, too")
        text = arguments.text and Text(arguments.text, arguments.alignment, arguments.target_first)
        entries = read_json(arguments.output) if arguments.output.exists() else []
        by_run = {entry["run"]: entry for entry in entries}
        for folder in arguments.runs:
            name = relative(folder.resolve())
            if name in by_run and not arguments.force:
                print(f"{name}: already in {arguments.output}", file=sys.stderr)
                continue
            by_run[name] = probe_run(folder, text, arguments.sentences, arguments.fit_steps, arguments.draws)
            write_whole(arguments.output, json_text(list(by_run.values()), indent=2) + "\n")
        print(markdown_table(list(by_run.values())))

    return run_command("past_future_probe.py", command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
