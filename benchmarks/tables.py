"""Writes the tables of README and documents from the recorded results, so that no number in them is typed by hand.

    python benchmarks/tables.py            # rewrite the documents
    python benchmarks/tables.py --check    # exit with 1 if a document is not what the results give

Results: results/multi30k/RECIPE.json (the results.json of a run), results/grammar/past_future.json,
results/reliability.json and benchmarks/results/*.json.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import registry
from reliability_tables import full_disk_table, kills_table, numerics_table, properties_table
from speed_tables import (
    allocator_table,
    comparison_table,
    loader_table,
    operators_table,
    revisions_table,
    runs_table,
    speed_table,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RELIABILITY = ROOT / "results" / "reliability.json"


class System(NamedTuple):
    """A row of the table of systems: how to ask for it, its name, what its paper reports, its name in speed.py."""

    configuration: str
    name: str
    paper: str
    speed: str


# by recipe; Dou et al. 2019, Table 1: BLEU on newstest2014 over its baseline
LAYER_SYSTEMS = {
    "baseline": System('aggregation="none"', "Transformer", "27.31", "none"),
    "linear": System('aggregation="linear"', "linear combination", "+0.42", "linear"),
    "dynamic": System('aggregation="dynamic"', "dynamic combination", "+1.02", "dynamic"),
    "dynamic_routing": System('aggregation="dynamic_routing"', "dynamic routing", "+0.91", "dynamic_routing"),
    "em_routing": System('aggregation="em_routing"', "EM routing", "+1.50", "em_routing"),
}
BOTH = "bow_loss_weight=1, bca_loss_weight=1"
# by recipe; Zheng et al. 2019, Table 1: average over MT04-06 over its baseline; CLF and ATTN are in a figure only
GUIDED_SYSTEMS = {
    "baseline": System('guided_routing="none"', "Transformer", "44.06", "none"),
    "gdr": System('guided_routing="routing"', "GDR", "+0.75", "guided_routing"),
    "gdr_bow": System('guided_routing="routing", bow_loss_weight=1', "GDR + BOW", "+1.42", "-"),
    "gdr_bca": System('guided_routing="routing", bca_loss_weight=1', "GDR + BCA", "+1.37", "-"),
    "gdr_full": System(f'guided_routing="routing", {BOTH}', "GDR + BOW + BCA", "+1.59", "guided_routing_bow_bca"),
    "gdr_no_redundant": System(
        f'guided_routing="routing", num_redundant_capsules=0, {BOTH}', "without redundant capsules", "+1.24", "-"
    ),
    "clf": System(f'guided_routing="classifier", {BOTH}', "CLF + BOW + BCA", "-", "guided_classifier"),
    "attn": System(f'guided_routing="attention", {BOTH}', "ATTN + BOW + BCA", "-", "guided_attention"),
}
ABLATIONS = {
    "share_routing_weights": "True",
    "position_aware_routing": "False",
    "separable_scoring": "False",
}


def ablation(*names: str) -> str:
    """Configuration of CapsNMT with these fields against their defaults."""
    return ", ".join(['source_memory="capsule"', *(f"{name}={ABLATIONS[name]}" for name in names)])


# by recipe; Wang et al. 2019, Tables 1 and 2: BLEU on newstest2014 (En-De)
RECURRENT_SYSTEMS = {
    "baseline": System('`CapsuleMarianConfig(aggregation="none")`', "Transformer", "27.3", "-"),
    "simple": System('`source_memory="simple"`', "simple aggregation", "21.3", "-"),
    "capsnmt_base": System(f"`{ablation(*ABLATIONS)}`", "base CapsNMT", "24.7", "-"),
    "capsnmt_non_shared": System(
        f"`{ablation('position_aware_routing', 'separable_scoring')}`", "+ non-shared weights", "25.1", "-"
    ),
    "capsnmt_position_aware": System(f"`{ablation('separable_scoring')}`", "+ position-aware routing", "25.3", "-"),
    "capsnmt": System(f"`{ablation()}`", "+ separable scoring: CapsNMT", "25.7", "-"),
    "capsnmt_balanced": System(
        '`source_memory="capsule", balanced_routing=True`', "CapsNMT, balanced routing (ours)", "-", "-"
    ),
    "capsnmt_kd": System("the same, on a teacher's translations", "+ knowledge distillation", "26.9", "-"),
    "rnmt": System('`source_memory="attention"`', "RNMT", "-", "-"),
    "rnmt_gdr": System('`source_memory="attention", guided_routing="routing"`', "RNMT + GDR", "-", "-"),
    "rnmt_gdr_full": System(
        f'`source_memory="attention", guided_routing="routing", {BOTH}`', "RNMT + GDR + BOW + BCA", "-", "-"
    ),
    "hybrid": System('`source_memory="hybrid"`', "hybrid", "-", "-"),
}
SYSTEMS = (LAYER_SYSTEMS, GUIDED_SYSTEMS, RECURRENT_SYSTEMS)
# by name in linear_time.py
LINEAR_TIME_SYSTEMS = {
    "transformer": "Transformer",
    "rnmt": "RNMT",
    "hybrid": "hybrid, M = 6",
    "simple": "simple aggregation",
    "capsnmt_4": "CapsNMT, M = 4",
    "capsnmt_6": "CapsNMT, M = 6",
    "capsnmt_8": "CapsNMT, M = 8",
}
PROBED = {recipe: system.name for recipe, system in GUIDED_SYSTEMS.items()} | {"gdr_light": "GDR + BOW x 0.1 + BCA"}
# the same recipe by version
EM_RUNS = {"0.1.0": "em_routing_0.1.0", "0.6.0": "em_routing"}
# recorded by ctranslate2_ratio.py
CTRANSLATE2 = ("ctranslate2_multi30k", "ctranslate2_base")
# runs that start from the trained baseline, by paper
CONTINUED = {"baseline_continued": "the baseline itself", "em_routing_paper": "EM routing as printed"}
CONTINUED_GUIDED = {"baseline_continued": "the baseline itself", "gdr_full_continued": "GDR + BOW + BCA"}


def load(path: Path):
    """The JSON file, or None if there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def find_score(results: dict | None, split: str, beams: int) -> dict | None:
    """The scores of one split and beam size of a run."""
    rows = results["scores"] if results else []
    return next((row for row in rows if row["split"] == split and row["beams"] == beams), None)


def systems_table() -> str:
    """Scores of every recorded Multi30k run and speeds of every system, with the conditions under them."""
    parts = [
        *rows_of(LAYER_SYSTEMS, "paper, WMT14 En-De"),
        "",
        *rows_of(GUIDED_SYSTEMS, "paper, NIST Zh-En"),
        "",
        *recurrent_rows(),
        "",
        *run_notes([*LAYER_SYSTEMS, *GUIDED_SYSTEMS, *RECURRENT_SYSTEMS]),
        "",
        SPEED_NOTE,
    ]
    return "\n".join(parts)


def recurrent_rows() -> list[str]:
    """The table of the recurrent family, with the time to translate one sentence beside the Transformer's."""
    latency = load(RESULTS / "latency_multi30k.json")
    lines = [
        "| `CapsuleRNNConfig(...)` | system | paper, WMT14 En-De | val | test2016 greedy | test2016 beam 5 "
        "| parameters | latency, greedy | latency, beam 5 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe, system in RECURRENT_SYSTEMS.items():
        results = load(ROOT / f"results/multi30k/{recipe}.json")
        times = [latency_cell(latency["results"][beams].get(recipe)) if latency else "-" for beams in ("1", "5")]
        size = f"{results['parameters'] / 1e6:.2f}M" if results else "-"
        cells = [system.configuration, system.name, system.paper, *bleu_cells(results), size, *times]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def latency_cell(row: dict | None) -> str:
    """Milliseconds per sentence and the ratio to the Transformer."""
    return f"{row['milliseconds']:.0f} ms ({row['ratio']:.2f}x)" if row else "-"


def rows_of(systems: dict[str, System], paper_head: str) -> list[str]:
    """The table of one paper's systems."""
    speed = load(RESULTS / "speed_yardstick.json")
    head = f"| configuration | system | {paper_head} | val | test2016 greedy | test2016 beam 5 | parameters "
    lines = [
        head + "| training time (operations) | decoding time, greedy / beam 5 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe, system in systems.items():
        results = load(ROOT / f"results/multi30k/{recipe}.json")
        size = f"{results['parameters'] / 1e6:.2f}M" if results else "-"
        times = ["-", "-"]
        if speed and system.speed in speed["results"]:
            train, greedy, beam = (speed["results"][system.speed][job] for job in registry.JOBS)
            times = [
                f"{train['time_ratio']:.2f}x ({train['operation_ratio']:.2f}x)",
                f"{greedy['time_ratio']:.2f}x / {beam['time_ratio']:.2f}x",
            ]
        cells = [f"`{system.configuration}`", system.name, system.paper, *bleu_cells(results), size, *times]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def bleu_cells(results: dict | None) -> list[str]:
    """BLEU on validation and test (greedy, beam 5)."""
    rows = [find_score(results, *key) for key in (("validation", 1), ("test", 1), ("test", 5))]
    return [f"{row['bleu']:.1f}" if row else "not run" for row in rows]


def run_notes(recipes: list[str]) -> list[str]:
    """The conditions of every recorded run, once each."""
    recorded = {recipe: load(ROOT / f"results/multi30k/{recipe}.json") for recipe in dict.fromkeys(recipes)}
    return [describe_run(recipe, results) for recipe, results in recorded.items() if results]


def continued_table(recipes: dict[str, str]) -> str:
    """Scores of the runs that start from the trained baseline."""
    lines = ["| from the trained baseline | val | test2016 greedy | test2016 beam 5 |", "|---|---|---|---|"]
    for recipe, name in recipes.items():
        cells = bleu_cells(load(ROOT / f"results/multi30k/{recipe}.json"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *run_notes(list(recipes))])


def past_future_table() -> str:
    """How well assignments and capsules know what is translated, by system."""
    lines = [
        "| system | accuracy | area under ROC | rOL PAST | rOL FUTURE | test BLEU |",
        "|---|---|---|---|---|---|",
    ]
    entries = load(ROOT / "results/grammar/past_future.json") or []
    for entry in entries:
        found, fitted = entry["results"], " (fitted)" if entry["rol_predictor"] == "fitted" else ""
        name = PROBED.get(Path(entry["run"]).name, entry["run"])
        cells = [
            name,
            f"{found['accuracy']:.3f}",
            f"{found['auc']:.3f}",
            f"{found['past_overlap']:.2f}{fitted}",
            f"{found['future_overlap']:.2f}{fitted}",
            f"{entry['test_bleu']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if entries:
        found = entries[0]["results"]
        past, future = (f"{found[f'frequent_{group}_overlap']:.2f}" for group in ("past", "future"))
        lines.append(f"| *diagonal* | {found['diagonal_accuracy']:.3f} | {found['diagonal_auc']:.3f} | - | - | - |")
        lines.append(
            f"| *always the most frequent answer* | {found['majority_accuracy']:.3f} | 0.500 | {past} | {future} | - |"
        )
        lines += [
            "",
            f"{found['decisions']:,} decisions in {found['sentences']} test sentences; seed {entries[0]['seed']}, "
            f"{entries[0]['steps']:,} updates each, recipes `past_future/`; the paper reports rOL 0.72 and 0.70 for "
            "its full model on NIST Zh-En.",
        ]
    return "\n".join(lines)


def linear_time_table() -> str:
    """Time against the source's length, from the shortest to the longest measured."""
    record = load(RESULTS / "linear_time.json")
    if record is None:
        return "not run"
    first, last = str(record["lengths"][0]), str(record["lengths"][-1])
    lines = [
        f"| system | operations per token, S = {first} | S = {last} | ms per token, S = {first} | S = {last} "
        f"| % per 1,000 words | encoder's exponent | ms per sentence, S = {last} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in record["results"].items():
        times, slope, growth = row["times"], row["token_slope"], row["encoder_growth"]
        cells = [LINEAR_TIME_SYSTEMS[name]]
        cells += [f"{row['operations_per_token'][length] / 1e6:.2f}M" for length in (first, last)]
        cells += [timed(times["token"][length]) for length in (first, last)]
        cells.append(interval(slope["percent_per_1000_words"], slope["percent_per_1000_words_interval"], 1))
        cells.append(interval(growth["exponent"], growth["exponent_interval"], 2))
        cells.append(timed(times["sentence"][last]))
        lines.append("| " + " | ".join(cells) + " |")
    conditions = (
        f"Base size (d {record['d_model']}, V {record['vocab_size']:,}; recurrent 4 + 3 layers, Transformer 6 + 6), "
        f"one sentence, greedy, {record['tokens']} target tokens, {record['rounds']} rounds on "
        f"{record['environment']['threads']} threads; in parentheses ratios to the Transformer in the same round, in "
        "brackets 95 % intervals. A time per token is flat if the interval of its growth contains 0; an encoder is "
        "linear if its exponent is 1. All in one run of `benchmarks/linear_time.py` "
        "(`benchmarks/results/linear_time.json`)."
    )
    return "\n".join([*lines, "", conditions])


def capsule_usage_table() -> str:
    """How many capsules of the trained memories are in use, by iteration."""
    record = load(ROOT / "results/multi30k/capsule_usage.json")
    if record is None:
        return "not run"
    lines = [
        "| model | iteration | capsules in use | share of the words, by capsule | entropy of a word's assignment |",
        "|---|---|---|---|---|",
    ]
    for name, iterations in record["results"].items():
        for number, row in enumerate(iterations, 1):
            shares = " ".join(f"{share:.2f}" for share in row["shares"])
            lines.append(
                f"| {RECURRENT_SYSTEMS[name].name} | {number} | {row['capsules_in_use']:.2f} | {shares} "
                f"| {row['assignment_entropy']:.3f} |"
            )
    return "\n".join([*lines, "", f"{record['sentences']:,} sentences of test2016, `benchmarks/capsule_usage.py`."])


def analysis_table() -> str:
    """What a report of the recorded models says: significance, adequacy and routing."""
    record = load(ROOT / "results/multi30k/analysis.json")
    if record is None:
        return "not run"
    names = {recipe: system.name for table in SYSTEMS for recipe, system in table.items()}
    tests = record["comparison"]["systems"]
    lines = [
        "| system | BLEU | randomisation p | sign test p | CDR | under-translated | over-translated |",
        "|---|---|---|---|---|---|---|",
    ]
    for system in record["systems"]:
        test, adequacy = tests.get(system["name"]), system["adequacy"]
        cells = [names[system["name"]], f"{system['scores']['bleu']:.1f}"]
        cells += [p_value(test["bleu"]["randomization_p"]), p_value(test["sign_test"]["p"])] if test else ["-", "-"]
        cells.append(f"{adequacy['cdr']:.3f}")
        cells += [f"{100 * adequacy[f'{kind}_translated_share']:.1f} %" for kind in ("under", "over")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| system | routing of | by iteration | |", "|---|---|---|---|"]
    for system in record["systems"]:
        for part, found in system["routing"].items():
            lines.append("| " + " | ".join([names[system["name"]], *routing_cells(part, found)]) + " |")
    decoding, tested = record["decoding"], record["test_set"]
    signature = record["systems"][0]["scores"]["signatures"]["bleu"]
    conditions = (
        f"{tested['source']}, {tested['sentences']:,} sentences, beam {decoding['num_beams']}, tests against "
        f"{names[record['comparison']['baseline']]}; `{signature}`; `results/multi30k/analysis.json`."
    )
    return "\n".join([*lines, "", conditions])


def p_value(p: float) -> str:
    """A p value with three digits."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def routing_cells(part: str, found: dict) -> list[str]:
    """What is routed, and two figures of it."""
    if part == "guided":
        (first, *_), *_, (last, *_) = found["by_progress"]
        overlaps = [found.get(f"{group}_overlap") for group in ("past", "future")]
        shown = " and ".join("-" if overlap is None else f"{overlap:.2f}" for overlap in overlaps)
        return ["source words to PAST", f"{first:.2f} at the start, {last:.2f} at the end", f"rOL {shown}"]
    rows = found["iterations"]
    if part == "memory":
        used = " ".join(f"{row['capsules_in_use']:.2f}" for row in rows)
        entropy = " ".join(f"{row['assignment_entropy']:.2f}" for row in rows)
        return ["source words to the memory", f"entropy {entropy}", f"capsules in use {used}"]
    entropy, diversity = (" ".join(f"{row[key]:.2f}" for row in rows) for key in ("entropy", "diversity"))
    return [
        f"layers of the {part}",
        f"entropy {entropy} (log N = {found['uniform_entropy']:.2f})",
        f"diversity {diversity}",
    ]


def timed(times: dict) -> str:
    """Median milliseconds, and the ratio to the Transformer."""
    return f"{times['median_ms']:.3g} ({times['ratio']:.2f}x)"


def interval(value: float, bounds: list[float], digits: int) -> str:
    """An estimate and its interval."""
    return f"{value:.{digits}f} [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"


SPEED_NOTE = (
    "Times are medians of ratios to transformers' own `MarianMTModel` of the same size, measured side by side in one "
    "run of `benchmarks/speed.py` (its results, with quartiles: `benchmarks/results/speed_yardstick.json`). Latencies "
    "are means per sentence of the trained models over the first sentences of test2016, one at a time, also in one "
    "run (`benchmarks/latency.py`, with intervals: `benchmarks/results/latency_multi30k.json`); the paper reports 225 "
    "ms for the Transformer and 153 ms (0.68x) for CapsNMT."
)


def describe_run(recipe: str, results: dict) -> str:
    """One list item with seed, steps, time and signatures of a run."""
    beam = find_score(results, "test", 5) or results["scores"][-1]
    chosen = results["final_weights"]
    weights = f"average of the last {len(chosen)} checkpoints" if isinstance(chosen, list) else chosen
    return (
        f"- `multi30k/{recipe}`: seed {results['seed']}, {results['steps']:,} updates, {weights}; "
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
        ("README.md", "past_future", past_future_table()),
        ("README.md", "speed", speed_table(load(RESULTS / "speed_base.json"), load(RESULTS / "memory_base.json"))),
        (
            "docs/speed.md",
            "allocator",
            allocator_table(load(RESULTS / "speed_base.json"), load(RESULTS / "speed_base_kept_pages.json")),
        ),
        ("docs/speed.md", "operators", operators_table(load(RESULTS / "speed_yardstick.json"))),
        ("docs/speed.md", "revisions", revisions_table(load(RESULTS / "revisions_yardstick.json"))),
        (
            "docs/speed.md",
            "runs",
            runs_table({v: load(ROOT / f"results/multi30k/{n}.json") for v, n in EM_RUNS.items()}),
        ),
        ("docs/speed.md", "loader", loader_table(load(RESULTS / "loader_multi30k.json"))),
        ("docs/speed.md", "ctranslate2", comparison_table([load(RESULTS / f"{n}.json") for n in CTRANSLATE2])),
        ("docs/paper_index.md", "continued", continued_table(CONTINUED)),
        ("docs/paper_index.md", "continued_guided", continued_table(CONTINUED_GUIDED)),
        ("docs/paper_index.md", "linear_time", linear_time_table()),
        ("docs/paper_index.md", "capsule_usage", capsule_usage_table()),
        ("docs/analysis.md", "analysis", analysis_table()),
        ("docs/reliability.md", "kills", kills_table(load(RELIABILITY))),
        ("docs/reliability.md", "full_disk", full_disk_table(load(RELIABILITY))),
        ("docs/reliability.md", "properties", properties_table(load(RELIABILITY))),
        ("docs/reliability.md", "numerics", numerics_table(load(RELIABILITY))),
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
