"""Do PAST and FUTURE capsules know what is translated? Probes runs of train.py on the grammar corpus.

    python benchmarks/past_future_probe.py runs/gdr_seed* \\
        --output hf_capsule_mt/evidence/records/grammar/past_future.json

Each run is probed on the first --sentences pairs of the test split, whose gold word alignments give the answers. The
rates r_OL come from the run's own BOW predictor or, if it was trained without L_BOW, from one that is fitted to the
frozen model on the run's training pairs ("rol_predictor": "trained" or "fitted"). The file is written after every run;
runs that it has already are left as they are unless --force is given.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_capsule_mt  # noqa: F401  registers the models
from hf_capsule_mt.analysis.past_future import fit_bow_predictor, past_future_probe
from hf_capsule_mt.data.corpus import GRAMMAR, GRAMMAR_SIZES
from hf_capsule_mt.data.grammar import GrammarPair, generate_corpus
from hf_capsule_mt.loading import from_checkpoint
from hf_capsule_mt.training.report import relative, versions

FIT_BATCH_SIZE = 64
SYSTEM_FIELDS = ("guided_routing", "bow_loss_weight", "bca_loss_weight", "num_redundant_capsules")


@cache
def grammar_pairs(split: str, size: int, source_lang: str) -> list[GrammarPair]:
    """The first pairs of the split that train.py uses, which leaves the corpus at its default seed."""
    pairs = generate_corpus(size, split=split)
    if source_lang == "en":
        return pairs
    return [GrammarPair(p.target, p.source, tuple(sorted((j, i) for i, j in p.alignment))) for p in pairs]


def probe_run(folder: Path, sentences: int, fit_steps: int) -> dict[str, Any]:
    """The entry of one run."""
    run = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    given = run["arguments"]
    if given.get("dataset_name") != GRAMMAR:
        raise SystemExit(f"{folder} was not trained on the grammar corpus, the only one with gold alignments")
    tokenizer = from_checkpoint(AutoTokenizer, folder)
    model = from_checkpoint(AutoModelForSeq2SeqLM, folder).eval()
    trained = model.config.bow_loss_weight > 0
    predictor = model
    if not trained:
        size = min(given.get("max_train_samples") or GRAMMAR_SIZES["train"], fit_steps * FIT_BATCH_SIZE)
        train_pairs = grammar_pairs("train", size, given["source_lang"])
        predictor = fit_bow_predictor(model, tokenizer, train_pairs, fit_steps, batch_size=FIT_BATCH_SIZE)
    # A fitted predictor leaves the capsules as they are, so that one probe gives everything
    result = past_future_probe(predictor, tokenizer, grammar_pairs("test", sentences, given["source_lang"]))
    test = [row for row in run["scores"] if row["split"] == "test"]
    return {
        "run": relative(folder.resolve()),
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
    return " ".join(parts) + ("" if entry["num_redundant_capsules"] else " - redundant")


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
        rates = [f"{found[name]:.3f}" for name in (*names, "past_overlap", "future_overlap")]
        cells = [f"`{entry['run']}`", system_name(entry), str(entry["seed"]), f"{entry['steps']:,}", bleu]
        lines.append("| " + " | ".join([*cells, str(found["sentences"]), *rates, entry["rol_predictor"]]) + " |")
    return "\n".join(lines)


def write(path: Path, entries: list[dict[str, Any]]) -> None:
    """Replaces the file in one step, so that a kill never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--sentences", type=int, default=500, help="test sentences to probe")
    parser.add_argument("--fit_steps", type=int, default=300, help="updates of a fitted BOW predictor")
    parser.add_argument("--force", action="store_true", help="probe runs again that the file has already")
    arguments = parser.parse_args()
    entries = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else []
    by_run = {entry["run"]: entry for entry in entries}
    for folder in arguments.runs:
        name = relative(folder.resolve())
        if name in by_run and not arguments.force:
            print(f"{name}: already in {arguments.output}", file=sys.stderr)
            continue
        by_run[name] = probe_run(folder, arguments.sentences, arguments.fit_steps)
        write(arguments.output, list(by_run.values()))
    print(markdown_table(list(by_run.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
