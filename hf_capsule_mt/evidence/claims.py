"""What the three papers claim, and what the records say of it."""

from __future__ import annotations

from typing import Any

from .recorded import find_score, load

NOT_RUN = "not run yet"
# by study, as the table calls its setting
SETTINGS = {
    "grammar": "embedded corpus, 2 layers",
    "multi30k": "Multi30k, 2 layers",
    "deep": "Multi30k, 6 layers",
    "multi30k_rows": "Multi30k, 2 layers",
    "multi30k_continued": "Multi30k, from the trained model",
}


def claims_table() -> str:
    """A line for each claim: the paper's number, and the differences in BLEU that the studies have found."""
    rows = [
        ("Dou et al.: linear combination, +0.42", _differences("linear", "grammar", "multi30k", "deep")),
        ("Dou et al.: dynamic combination, +1.02", _differences("dynamic", "grammar", "multi30k", "deep")),
        ("Dou et al.: dynamic routing, +0.91", _differences("dynamic_routing", "grammar", "multi30k", "deep")),
        ("Dou et al.: EM routing, +1.50", _differences("em_routing", "grammar", "multi30k", "deep")),
        ("Zheng et al.: GDR, +0.75", _differences("GDR", "grammar", "multi30k", "multi30k_continued")),
        (
            "Zheng et al.: GDR with both losses, +1.59",
            _differences("GDR+losses", "grammar", "multi30k", "deep", "multi30k_continued"),
        ),
        ("Zheng et al.: routing knows better than CLF and ATTN what is translated", _separation()),
        ("Wang et al.: CapsNMT above simple aggregation, +4.4 (Table 1) or +1.8 (section 4.3)", _capsules()),
        ("Wang et al.: a teacher's translations help CapsNMT, +1.2", _distillation()),
        ("Wang et al.: decoding a word costs the same however long the source is", _linear_time()),
    ]
    lines = ["| claim | seen here |", "|---|---|", *(f"| {claim} | {seen} |" for claim, seen in rows)]
    return "\n".join(lines)


def _differences(system: str, *studies: str) -> str:
    """Differences to the plain model, with their 95 % intervals and numbers of seeds, by study."""
    found = [_difference(study, system) for study in studies]
    return "; ".join(part for part in found if part) or NOT_RUN


def _difference(study: str, system: str) -> str | None:
    record = load(f"studies/{study}.json")
    if record is None:
        return None
    test_set = next(iter(record["test_sets"].values()))
    score = record["score"]
    comparison = test_set["comparisons"][score].get(system)
    if comparison is None:
        return None
    low, high = comparison["interval"]
    established = comparison["p_holm"] < 0.05
    words = "" if established else ", not established"
    seeds = test_set["scores"][score][system]["runs"]
    return (
        f"{comparison['difference']:+.2f} [{low:+.2f}, {high:+.2f}]{words} ({SETTINGS[study]}, {seeds} "
        f"seed{'s' if seeds > 1 else ''})"
    )


def _separation() -> str:
    """Areas under the ROC curve of the assignments, from the probe's record."""
    entries = {
        entry["run"].rpartition("/")[2]: entry["results"]["auc"] for entry in load("grammar/past_future.json") or []
    }
    names = {"gdr_full": "routing", "clf": "CLF", "attn": "ATTN"}
    if not names.keys() <= entries.keys():
        return NOT_RUN
    values = ", ".join(f"{name} {entries[run]:.3f}" for run, name in names.items())
    return f"area under the ROC curve: {values} (embedded corpus, gold alignments, one seed)"


def _capsules() -> str:
    """The printed and the calibrated form beside simple aggregation."""
    record = load("studies/multi30k.json")
    if record is not None:
        test_set = next(iter(record["test_sets"].values()))
        means = {name: value["mean"] for name, value in test_set["scores"][record["score"]].items()}
        forms = {"CapsNMT": "printed", "CapsNMT calibrated": "calibrated"}
        if {"simple", *forms} <= means.keys():
            shown = ", ".join(f"{word} {means[name] - means['simple']:+.2f}" for name, word in forms.items())
            seeds = min(test_set["scores"][record["score"]][name]["runs"] for name in ("simple", *forms))
            return f"{shown} ({SETTINGS['multi30k']}, {seeds} seed{'s' if seeds > 1 else ''})"
    return _single("capsnmt", "simple", "printed form")


def _distillation() -> str:
    return _single("capsnmt_kd", "capsnmt", "")


def _single(recipe: str, other: str, name: str) -> str:
    """The difference of two single runs."""
    scores: list[Any] = [find_score(load(f"multi30k/{run}.json"), "test", 5) for run in (recipe, other)]
    if None in scores:
        return NOT_RUN
    ours, theirs = (row["bleu"] for row in scores)
    return f"{name + ' ' if name else ''}{ours - theirs:+.1f} (Multi30k, one run of one seed each)"


def _linear_time() -> str:
    """Operations for a word of long and short sources, of the record of linear_time.py."""
    record = load("speed/linear_time.json")
    if record is None:
        return NOT_RUN
    parts = []
    for key, name in (("capsnmt_6", "CapsNMT"), ("transformer", "Transformer")):
        operations = record["results"][key]["operations_per_token"]
        short, long = (operations[str(length)] for length in (10, 1000))
        parts.append(f"{name} {long / short:.2f}x")
    return f"operations for a word of 1,000 source words beside 10: {', '.join(parts)}"
