"""Tables of trained models and of what was measured on them: scores, latency, linear time, what the routing does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from ..analysis.report import file_name
from .differences import NOT_RUN, SETTINGS, first_test_set
from .recorded import load, shown_path
from .systems import (
    GUIDED,
    LINEAR_TIME_SYSTEMS,
    PROBED_TEXTS,
    STUDIED,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]


def past_future_table() -> str:
    """How well assignments and capsules know what is translated, by system: means and deviations over the seeds."""
    lines = [
        "| system | seeds | accuracy | area under ROC | rOL PAST | rOL FUTURE | BLEU, test |",
        "|---|---|---|---|---|---|---|",
    ]
    entries = load("past_future/grammar.json") or []
    for name, of_system in by_system(entries).items():
        fitted = " (fitted)" if of_system[0]["rol_predictor"] == "fitted" else ""
        found = [entry["results"] for entry in of_system]
        cells = [name, str(len(found))]
        cells += [mean_text([one[key] for one in found], 3) for key in ("accuracy", "auc")]
        cells += [mean_text([one[f"{group}_overlap"] for one in found], 2) + fitted for group in ("past", "future")]
        cells.append(mean_text([entry["test_bleu"] for entry in of_system], 1))
        lines.append("| " + " | ".join(cells) + " |")
    if entries:
        found = entries[0]["results"]
        past, future = (f"{found[f'frequent_{group}_overlap']:.2f}" for group in ("past", "future"))
        diagonal, majority = (f"{found[f'{control}_accuracy']:.3f}" for control in ("diagonal", "majority"))
        lines += [
            f"| *diagonal* | - | {diagonal} | {found['diagonal_auc']:.3f} | - | - | - |",
            f"| *always the most frequent answer* | - | {majority} | 0.500 | {past} | {future} | - |",
            "",
            f"{found['decisions']:,} decisions in {found['sentences']} test sentences; {entries[0]['steps']:,} "
            f"updates, study `past_future` (`{shown_path('past_future/grammar.json')}`); the paper reports rOL 0.72 "
            "and 0.70 for its full model on NIST Zh-En.",
        ]
    return "\n".join(lines)


def by_system(entries: list[Record]) -> dict[str, list[Record]]:
    """Entries of probes by the systems of their runs, as the paper names their parts."""
    found: dict[str, list[Record]] = {}
    for entry in sorted(entries, key=lambda e: ([*GUIDED].index(e["guided_routing"]), losses_of(e), e["seed"])):
        found.setdefault(GUIDED[entry["guided_routing"]] + losses_of(entry), []).append(entry)
    return found


def mean_text(values: list[float], digits: int) -> str:
    """Mean and, of several, standard deviation."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def past_future_text_table() -> str:
    """The same of real text, with intervals over its sentences: a row for each run."""
    header = ["system", "seed", "text", "accuracy", "area under ROC", "above the diagonal's", "rOL PAST", "rOL FUTURE"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    notes = []
    for name, words in PROBED_TEXTS.items():
        entries = load(f"past_future/{name}.json") or []
        for entry in entries:
            found, bounds = entry["results"], entry["results"]["intervals"]
            fitted = " (fitted)" if entry["rol_predictor"] == "fitted" else ""
            cells = [GUIDED[entry["guided_routing"]] + losses_of(entry), str(entry["seed"]), words]
            cells += [interval(found[key], bounds[key], 3) for key in ("accuracy", "auc")]
            cells.append(interval(found["auc"] - found["diagonal_auc"], bounds["auc_above_diagonal"], 3))
            overlaps = ("past_overlap", "future_overlap")
            cells += [interval(found[key], bounds[key], 2) + fitted for key in overlaps]
            lines.append("| " + " | ".join(cells) + " |")
        if entries:
            found, bounds = entries[0]["results"], entries[0]["results"]["intervals"]
            diagonal = [
                interval(found[f"diagonal_{key}"], bounds[f"diagonal_{key}"], 3) for key in ("accuracy", "auc")
            ]
            lines.append(f"| *diagonal* | - | {words} | {' | '.join(diagonal)} | - | - | - |")
            keys = ("frequent_past_overlap", "frequent_future_overlap")
            frequent = " | ".join(interval(found[key], bounds[key], 2) for key in keys)
            majority = interval(found["majority_accuracy"], bounds["majority_accuracy"], 3)
            lines.append(f"| *always the most frequent answer* | - | {words} | {majority} | 0.500 | - | {frequent} |")
            notes.append(
                f"{words}: {found['decisions']:,} decisions in {found['sentences']:,} sentences, "
                f"{entries[0]['draws']:,} draws (`{shown_path(f'past_future/{name}.json')}`)."
            )
        else:
            notes.append(f"{words}: {NOT_RUN}.")
    return "\n".join([*lines, "", " ".join(notes)])


def losses_of(entry: Record) -> str:
    """The guided losses that a probed model was trained with."""
    losses = "".join(f" + {loss.upper()}" for loss in ("bow", "bca") if entry[f"{loss}_loss_weight"] > 0)
    return losses + (", weighed per token" if entry["guided_loss_normalization"] == "token" else "")


def linear_time_table() -> str:
    """Time against the source's length, from the shortest to the longest measured."""
    record = load("speed/linear_time.json")
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
        f"(`{shown_path('speed/linear_time.json')}`)."
    )
    return "\n".join([*lines, "", conditions])


def capsule_usage_table() -> str:
    """How many capsules of the trained memories are in use, by iteration, as the report of these models has it."""
    record = load("multi30k/analysis.json")
    if record is None:
        return "not run"
    lines = [
        "| model | iteration | capsules in use | share of the words, by capsule | entropy of a word's assignment |",
        "|---|---|---|---|---|",
    ]
    for system in record["systems"]:
        for number, row in enumerate(system["routing"].get("memory", {}).get("iterations", []), 1):
            shares = " ".join(f"{share:.2f}" for share in row["shares"])
            lines.append(
                f"| {STUDIED[system['name']]} | {number} | {row['capsules_in_use']:.2f} | {shares} "
                f"| {row['assignment_entropy']:.3f} |"
            )
    sentences = record["test_set"]["sentences"]
    conditions = f"{sentences:,} sentences of test2016, one run each (`{shown_path('multi30k/analysis.json')}`)."
    return "\n".join([*lines, "", conditions])


def capsule_parts_table() -> str:
    """What the parts of the calibrated memory do on the embedded corpus: scores, and capsules in use in the end."""
    entries, study = load("grammar/memory.json"), load("studies/grammar_recurrent.json")
    if entries is None or study is None:
        return "not run"
    scores = first_test_set(study)["scores"][study["score"]]
    by_name: dict[str, list[Record]] = {}
    for entry in entries:
        by_name.setdefault(entry["system"].replace("_", " "), []).append(entry["memory"]["iterations"][-1])
    lines = ["| system | BLEU | capsules in use | entropy of a word's assignment |", "|---|---|---|---|"]
    for name, rows in by_name.items():
        used, entropy = ([row[key] for row in rows] for key in ("capsules_in_use", "assignment_entropy"))
        score = mean_text([*scores[name]["by_seed"].values()], 1)
        lines.append(f"| {name} | {score} | {mean_text(used, 2)} | {mean_text(entropy, 2)} |")
    seeds = ", ".join(str(seed) for seed in sorted({entry["seed"] for entry in entries}))
    conditions = (
        f"After the last iteration, mean and standard deviation over the seeds {seeds}; {entries[0]['sentences']} "
        f"test sentences, {entries[0]['steps']:,} updates (`{shown_path('grammar/memory.json')}`)."
    )
    return "\n".join([*lines, "", conditions])


def capsule_links() -> str:
    """The figures of `capsule_figures`, for a document."""
    alternative = "Share of the source words by capsule of the memory"
    return "\n\n".join(f"{name}:\n\n![{alternative}]({file})" for name, file, _ in _memories()) or "not run"


def capsule_figures() -> dict[str, Callable[[], Figure]]:
    """The words in each capsule of the trained memories, by file; drawing them needs matplotlib."""
    from ..analysis.plots import memory_shares

    return {file: partial(memory_shares, statistics) for _, file, statistics in _memories()}


def _memories() -> Iterator[tuple[str, str, Record]]:
    """Name, file of the figure and statistics of every capsule memory in the recorded report."""
    for system in (load("multi30k/analysis.json") or {"systems": []})["systems"]:
        if "memory" in system["routing"]:
            file = f"capsules_{file_name(system['name'])}.svg"
            yield STUDIED[system["name"]], file, system["routing"]["memory"]


def analysis_table() -> str:
    """What a report of the recorded models says: significance, adequacy and routing."""
    record = load("multi30k/analysis.json")
    if record is None:
        return "not run"
    tests = record["comparison"]["systems"]
    lines = [
        "| system | BLEU, test2016 beam 5 | p (Holm) | sign test p | CDR | under-translated | over-translated |",
        "|---|---|---|---|---|---|---|",
    ]
    for system in record["systems"]:
        test, adequacy = tests.get(system["name"]), system["adequacy"]
        cells = [STUDIED[system["name"]], f"{system['scores']['bleu']:.1f}"]
        cells += [p_value(test["bleu"]["p_holm"]), p_value(test["sign_test"]["p"])] if test else ["-", "-"]
        cells.append(f"{adequacy['cdr']:.3f}")
        cells += [f"{100 * adequacy[f'{kind}_translated_share']:.1f} %" for kind in ("under", "over")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| system | routing of | by iteration | |", "|---|---|---|---|"]
    for system in record["systems"]:
        for part, found in system["routing"].items():
            lines.append("| " + " | ".join([STUDIED[system["name"]], *routing_cells(part, found)]) + " |")
    decoding, tested = record["decoding"], record["test_set"]
    signature = record["systems"][0]["scores"]["signatures"]["bleu"]
    conditions = (
        f"{tested['source']}, {tested['sentences']:,} sentences, one run each, beam {decoding['num_beams']}, tests "
        f"against {STUDIED[record['comparison']['baseline']]}; `{signature}`; "
        f"`{shown_path('multi30k/analysis.json')}`."
    )
    return "\n".join([*lines, "", conditions])


# the studies whose models a report was made of
REPORTED = ("deep", "deep_parts", "multi30k", "guided_parts", "multi30k_continued")
# a study whose systems are named by a part alone
TRAINED_ON = {**SETTINGS, "deep_parts": f"{SETTINGS['deep_parts']}, parts of EM routing"}
PARTS = ("encoder", "decoder", "guided")


def contributions_table() -> str:
    """What reported models lose without each part that was added to them: the change of the references' loss."""
    lines = [
        "| trained on | system | loss, nats per token | without the encoder's aggregate | without the decoder's "
        "| without PAST and FUTURE |",
        "|---|---|---|---|---|---|",
    ]
    sources = []
    for study in REPORTED:
        record = load(f"{study}/analysis.json") or {"systems": []}
        reported = [system for system in record["systems"] if system.get("contributions")]
        for system in reported:
            found = system["contributions"]
            changes = [found.get(f"without_{part}") for part in PARTS]
            cells = ["-" if loss is None else f"{loss - found['loss']:+.3f}" for loss in changes]
            lines.append("| " + " | ".join([TRAINED_ON[study], system["name"], f"{found['loss']:.3f}", *cells]) + " |")
        if reported:
            sources.append(f"`{shown_path(f'{study}/analysis.json')}`")
    if not sources:
        return "not run"
    return "\n".join([*lines, "", f"test2016, one run each, nats per token ({', '.join(sources)})."])


def p_value(p: float) -> str:
    """A p value with three digits."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def routing_cells(part: str, found: Record) -> list[str]:
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


def timed(times: Record) -> str:
    """Median milliseconds, and the ratio to the Transformer."""
    return f"{times['median_ms']:.3g} ({times['ratio']:.2f}x)"


def interval(value: float, bounds: list[float], digits: int) -> str:
    """An estimate and its interval."""
    return f"{value:.{digits}f} [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"
