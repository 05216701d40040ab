"""Writes the tables of README and documents from the recorded results, so that no number in them is typed by hand.

    python benchmarks/tables.py            # rewrite the documents
    python benchmarks/tables.py --check    # exit with 1 if a document is not what the results give

Results: results/multi30k/RECIPE.json (the results.json of a run) and benchmarks/results/speed_yardstick.json.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# system -> what the paper adds to its baseline of 27.31 BLEU (WMT14 En-De, Table 1)
SYSTEMS = {
    "baseline": ("none", "Transformer", "27.31"),
    "linear": ("linear", "linear combination", "+0.42"),
    "dynamic": ("dynamic", "dynamic combination", "+1.02"),
    "dynamic_routing": ("dynamic_routing", "dynamic routing", "+0.91"),
    "em_routing": ("em_routing", "EM routing", "+1.50"),
}
# runs that start from the trained baseline
CONTINUED = {"baseline_continued": "the baseline itself", "em_routing_paper": "EM routing as printed"}
SPEED_JOBS = ("training step", "greedy, 1 sentence", "beam 5, 16 sentences")


def load(path: Path) -> dict | None:
    """The JSON file, or None if there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def find_score(results: dict | None, split: str, beams: int) -> dict | None:
    """The scores of one split and beam size of a run."""
    rows = results["scores"] if results else []
    return next((row for row in rows if row["split"] == split and row["beams"] == beams), None)


def systems_table() -> str:
    """Scores of every recorded Multi30k run and speeds of every system, with the conditions under them."""
    speed = load(ROOT / "benchmarks/results/speed_yardstick.json")
    head = "| `aggregation` | system | paper, WMT14 | val | test2016 greedy | test2016 beam 5 | parameters "
    lines = [
        head + "| training time (operations) | decoding time, greedy / beam 5 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for recipe, (aggregation, name, paper) in SYSTEMS.items():
        results = load(ROOT / f"results/multi30k/{recipe}.json")
        rows = [find_score(results, *key) for key in (("validation", 1), ("test", 1), ("test", 5))]
        bleu = [f"{row['bleu']:.1f}" if row else "not run" for row in rows]
        size = f"{results['parameters'] / 1e6:.2f}M" if results else "-"
        cells = ["-", "-"]
        if speed:
            train, greedy, beam = (speed["results"][aggregation][job] for job in SPEED_JOBS)
            cells = [
                f"{train['time_ratio']:.2f}x ({train['operation_ratio']:.2f}x)",
                f"{greedy['time_ratio']:.2f}x / {beam['time_ratio']:.2f}x",
            ]
        lines.append("| " + " | ".join([f'`"{aggregation}"`', name, paper, *bleu, size, *cells]) + " |")
        if results:
            notes.append(describe_run(recipe, results))
    return "\n".join([*lines, "", *notes, "", SPEED_NOTE])


def continued_table() -> str:
    """Scores of the runs that start from the trained baseline."""
    lines = ["| from the trained baseline | val | test2016 greedy | test2016 beam 5 |", "|---|---|---|---|"]
    notes = []
    for recipe, name in CONTINUED.items():
        results = load(ROOT / f"results/multi30k/{recipe}.json")
        rows = [find_score(results, *key) for key in (("validation", 1), ("test", 1), ("test", 5))]
        lines.append(f"| {name} | " + " | ".join(f"{row['bleu']:.1f}" if row else "not run" for row in rows) + " |")
        if results:
            notes.append(describe_run(recipe, results))
    return "\n".join([*lines, "", *notes])


SPEED_NOTE = (
    "Times are medians of ratios to transformers' own `MarianMTModel` of the same size, measured side by side in one "
    "run of `benchmarks/speed.py` (its results, with quartiles: `benchmarks/results/speed_yardstick.json`)."
)


def describe_run(recipe: str, results: dict) -> str:
    """One list item with seed, steps, time and signatures of a run."""
    beam = find_score(results, "test", 5) or results["scores"][-1]
    chosen = results["final_weights"]
    weights = f"average of the last {len(chosen)} checkpoints" if isinstance(chosen, list) else chosen
    return (
        f"- `recipes/multi30k/{recipe}.yaml`: seed {results['seed']}, {results['steps']:,} updates, {weights}; "
        f"{results['train_seconds'] / 60:.0f} minutes at {results['tokens_per_second']:,.0f} target tokens/s on one "
        f"thread of a loaded machine; beam 5: chrF {beam['chrf']:.1f}, TER {beam['ter']:.1f}; cased, detokenised, "
        f"`{beam['signatures']['bleu']}`."
    )


def fill(text: str, name: str, table: str) -> str:
    """Replaces what stands between the markers of a table."""
    pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.S)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"there must be exactly one table marked {name}")
    return pattern.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = False
    for file, name, table in (
        ("README.md", "systems", systems_table()),
        ("docs/paper_index.md", "continued", continued_table()),
    ):
        path = ROOT / file
        before = path.read_text(encoding="utf-8")
        after = fill(before, name, table)
        stale = stale or before != after
        if not arguments.check:
            path.write_text(after, encoding="utf-8")
    return int(stale and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
