"""What the three papers claim, and what the records say of it: a line for each claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from ..studies.curves import curve_lines
from .differences import (
    NOT_RUN,
    SETTINGS,
    SO_FAR,
    Found,
    Record,
    difference,
    finished_record,
    first_test_set,
    in_study,
    is_finished,
    of_values,
    study_record,
)
from .recorded import load
from .systems import GUIDED, PROBED_TEXTS

SHOWN, NOT_SHOWN, OPPOSITE = "shown again", "not shown", "the opposite is shown"
NOT_TESTABLE, UNDECIDED = "not testable here", "not decided yet"
DIAGONAL = "the diagonal"
# of a probe, to decide a claim
ENOUGH_SEEDS = 3


class Finding(NamedTuple):
    """What is seen of a claim: one of the verdicts above, and the numbers."""

    verdict: str
    numbers: str = ""


Look = Callable[[], Finding]


def claims_table() -> str:
    """A line for each claim: the paper's number, whether it was seen again, and the numbers found."""
    lines = ["| claim | seen here | numbers |", "|---|---|---|"]
    for paper, claims in (("Dou et al.", DOU), ("Zheng et al.", ZHENG), ("Wang et al.", WANG)):
        for claim, look in claims:
            found = look()
            lines.append(f"| {paper}: {claim} | {found.verdict} | {found.numbers or '-'} |")
    return "\n".join(lines)


def verdict_of(found: Sequence[Found]) -> str:
    """
    Of differences that a claim says are above 0: shown if one is established and none is the other way round, and its
    opposite likewise. Studies that do not have all their runs decide nothing.
    """
    signs = {one.sign for one in found if one.finished}
    if not signs:
        return UNDECIDED if found else NOT_RUN
    established = signs - {0}
    return SHOWN if established == {1} else OPPOSITE if established == {-1} else NOT_SHOWN


def gain(system: str, baseline: str, *studies: str, also: tuple[str, ...] = ()) -> Finding:
    """
    Is a system above a baseline?

    Args:
        studies: where that is to be seen.
        also: studies whose differences are told and decide nothing.
    """
    found = [one for study in studies if (one := difference(study, system, baseline)) is not None]
    others = [one for study in also if (one := in_study(study, system, baseline)) is not None]
    return Finding(verdict_of(found), "; ".join(one.text() for one in (*found, *others)))


def all_gains(pairs: Sequence[tuple[str, str]], study: str) -> Finding:
    """Are all of several systems above their baselines?"""
    return _together({system: difference(study, system, baseline) for system, baseline in pairs})


def more_than_all(system: str, baselines: Sequence[str], study: str) -> Finding:
    """Is a system above all of several others?"""
    return _together({f"to {baseline}": difference(study, system, baseline) for baseline in baselines})


def _together(found: dict[str, Found | None]) -> Finding:
    known = {name: one for name, one in found.items() if one is not None}
    verdicts = {verdict_of([one]) for one in known.values()}
    whole = NOT_RUN if len(known) < len(found) else verdicts.pop() if len(verdicts) == 1 else NOT_SHOWN
    return Finding(whole, "; ".join(f"{name} {one.text()}" for name, one in known.items()))


def close(systems: Sequence[str], baseline: str, margin: float, study: str) -> Finding:
    """Is one of the systems no further below the baseline than the paper's margin? The opposite: all certainly are."""
    found = {system: difference(study, system, baseline) for system in systems}
    known = {system: one for system, one in found.items() if one is not None}
    whole = verdict_of([*known.values()])
    if whole not in (NOT_RUN, UNDECIDED):
        near = any(one.difference >= margin for one in known.values())
        far = all(one.sign < 0 and one.interval and one.interval[1] < margin for one in known.values())
        whole = SHOWN if near else OPPOSITE if far else NOT_SHOWN
    return Finding(whole, "; ".join(f"{system} {one.text()}" for system, one in known.items()))


def best(study: str, argument: str, expected: Callable[[list[float]], float], ours: str | None = None) -> Finding:
    """
    Is the best value of an argument the expected one, in every line of a study's curves?

    Args:
        expected: the value of the claim, from the values of a line.
        ours: an argument that no paper has: lines of systems with it are told and decide nothing.
    """
    record = study_record(study)
    if record is None:
        return Finding(NOT_RUN)
    scores = first_test_set(record)["scores"][record["score"]]
    lines = curve_lines({name: part["arguments"] for name, part in record["systems"].items()}, argument)
    texts, seen = [], []
    for label, points in lines.items():
        means = {point.value: scores[point.system]["mean"] for point in points if point.system in scores}
        if len(means) > 1:
            if all(ours not in record["systems"][point.system]["arguments"] for point in points):
                seen.append(max(means, key=lambda value: means[value]) == expected([*means]))
            shown = ", ".join(f"{value:g}: {mean:.1f}" for value, mean in means.items())
            texts.append(f"{label or argument} {shown}")
    finished = is_finished(record)
    verdict = NOT_RUN if not seen else UNDECIDED if not finished else SHOWN if all(seen) else NOT_SHOWN
    setting = SETTINGS[study] if finished else f"{SETTINGS[study]}, {SO_FAR}"
    return Finding(verdict, f"BLEU by {argument}: {'; '.join(texts)} ({setting})" if texts else "")


def long_sentences(system: str, baseline: str, *studies: str, sign: int = 1) -> Finding:
    """Is the difference larger (or, with sign -1, smaller) in the longest sources than in the shortest ones?"""
    for study in studies:
        buckets = _by_length(study, system, baseline)
        if len(buckets) > 1:
            changes = [sign * (last - first) for first, *_, last in zip(*buckets, strict=True)]
            found = of_values(changes, study)
            return Finding(verdict_of([] if found is None else [found]), _told(buckets, study))
    return Finding(NOT_RUN)


def every_length(system: str, baseline: str, *studies: str) -> Finding:
    """Is a system above another in every bucket of source lengths?"""
    for study in studies:
        if buckets := _by_length(study, system, baseline):
            found = [one for values in buckets if (one := of_values(values, study)) is not None]
            whole = SHOWN if all(one.sign > 0 for one in found) else NOT_SHOWN
            return Finding(whole, _told(buckets, study))
    return Finding(NOT_RUN)


def _by_length(study: str, system: str, baseline: str) -> list[list[float]]:
    """Differences in BLEU of the seeds that both have, by bucket from short to long sources."""
    record = finished_record(study)
    lengths = first_test_set(record).get("length", {}) if record is not None else {}
    if not {system, baseline} <= lengths.keys():
        return []
    pairs = [
        (ours["by_seed"], theirs["by_seed"]) for ours, theirs in zip(lengths[system], lengths[baseline], strict=True)
    ]
    return [[ours[seed] - theirs[seed] for seed in ours if seed in theirs] for ours, theirs in pairs]


def _told(buckets: Sequence[Sequence[float]], study: str) -> str:
    means = ", ".join(f"{fmean(values):+.1f}" for values in buckets if values)
    seeds = min(map(len, buckets))
    words = f"{SETTINGS[study]}, {seeds} seed{'s' if seeds > 1 else ''} alone"
    return f"difference {means} from the shortest sources to the longest ({words})"


def adequacy(system: str, baseline: str, key: str, *studies: str, sign: int = 1) -> Finding:
    """Is a share of words larger (or, with sign -1, smaller) than a baseline's?"""
    found, texts = [], []
    for study in studies:
        record = finished_record(study)
        shares = first_test_set(record).get("adequacy", {}) if record is not None else {}
        if {system, baseline} <= shares.keys():
            ours, theirs = ({s: run[key] for s, run in shares[name]["by_seed"].items()} for name in (system, baseline))
            seeds = [seed for seed in ours if None not in (ours[seed], theirs.get(seed))]
            one = of_values([sign * (ours[seed] - theirs[seed]) for seed in seeds], SETTINGS[study])
            if one is not None:
                found.append(one)
                texts.append(f"{shares[baseline][key]:.3f} -> {shares[system][key]:.3f} ({SETTINGS[study]})")
    return Finding(verdict_of(found), "; ".join(texts))


def separation() -> Finding:
    """Does the assignment of words to PAST and FUTURE say what is translated, better than the diagonal does?"""
    seen, texts = [], []
    for name, words in PROBED_TEXTS.items():
        for entry in _probed(name):
            if entry["guided_routing"] == "routing" and entry["bow_loss_weight"] > 0:
                low, high = entry["results"]["intervals"]["auc_above_diagonal"]
                # fast_align, which stands in for alignments by hand on test2016, prefers the diagonal itself
                if name == "europarl100":
                    seen.append(low > 0)
                difference = f"difference to the diagonal's [{low:+.3f}, {high:+.3f}]"
                texts.append(f"{entry['results']['auc']:.3f}, {difference} ({words}, seed {entry['seed']})")
    verdict = NOT_RUN if not seen else SHOWN if all(seen) else NOT_SHOWN
    areas = _areas("grammar")
    if GUIDED["routing"] in areas:
        mean, diagonal = (fmean(areas[name].values()) for name in (GUIDED["routing"], DIAGONAL))
        texts.append(f"{mean:.3f}, the diagonal's {diagonal:.3f} (embedded corpus)")
    return Finding(verdict, f"area under the ROC curve {'; '.join(texts)}" if texts else "")


def better_than_others() -> Finding:
    """Does routing know better than the classifier and the attentions what is translated, in every seed?"""
    names = [GUIDED[mechanism] for mechanism in ("routing", "classifier", "attention")]
    seen, texts = [], []
    for text, words in (PROBED_TEXTS | {"grammar": "embedded corpus, gold alignments"}).items():
        areas = _areas(text)
        seeds = sorted(set.intersection(*(set(areas.get(name, {})) for name in names)))
        if seeds:
            if text in PROBED_TEXTS and len(seeds) >= ENOUGH_SEEDS:
                seen += [areas[names[0]][seed] > max(areas[name][seed] for name in names[1:]) for seed in seeds]
            means = ", ".join(f"{name} {fmean(areas[name][seed] for seed in seeds):.3f}" for name in names)
            texts.append(f"{means} ({words}, seeds: {len(seeds)})")
    verdict = NOT_RUN if not seen else SHOWN if all(seen) else NOT_SHOWN
    return Finding(verdict, f"area under the ROC curve: {'; '.join(texts)}" if texts else "")


def _probed(text: str) -> list[Record]:
    """What the probe has found on a text of models whose losses are weighed as the paper prints them."""
    return [e for e in load(f"past_future/{text}.json") or [] if e["guided_loss_normalization"] == "sentence"]


def _areas(text: str) -> dict[str, dict[int, float]]:
    """Area under the ROC curve of every mechanism trained with both losses, and the diagonal's, by seed."""
    areas: dict[str, dict[int, float]] = {}
    for entry in _probed(text):
        if entry["bow_loss_weight"] > 0 and entry["bca_loss_weight"] > 0:
            found = entry["results"]
            areas.setdefault(GUIDED[entry["guided_routing"]], {})[entry["seed"]] = found["auc"]
            areas.setdefault(DIAGONAL, {})[entry["seed"]] = found["diagonal_auc"]
    return areas


def overlap() -> Finding:
    """Do the capsules predict the words that are translated, and those that are not, more than the frequent ones?"""
    for name in ("test2016", "europarl100"):
        for entry in _probed(name):
            if entry["rol_predictor"] == "trained" and entry["guided_routing"] == "routing":
                found = entry["results"]
                groups = ("past", "future")
                apart = all(
                    found["intervals"][f"{group}_overlap"][0] > found["intervals"][f"frequent_{group}_overlap"][1]
                    for group in groups
                )
                values = " and ".join(f"{found[f'{group}_overlap']:.2f}" for group in groups)
                frequent = " and ".join(f"{found[f'frequent_{group}_overlap']:.2f}" for group in groups)
                text = f"{values}, the most frequent words {frequent} ({name})"
                return Finding(SHOWN if apart else NOT_SHOWN, text)
    return Finding(NOT_RUN)


def agreements(key: str, sign: int) -> Finding:
    """Does entropy or diversity of the routing fall or rise over the iterations, in both stacks?"""
    for system in (load("multi30k/analysis.json") or {"systems": []})["systems"]:
        stacks = {part: system["routing"][part] for part in ("encoder", "decoder") if part in system["routing"]}
        if system["name"] == "em_routing" and stacks:
            values = {part: [row[key] for row in found["iterations"]] for part, found in stacks.items()}
            seen = all(sign * (row[-1] - row[0]) > 0.01 for row in values.values())
            text = "; ".join(f"{part} {' '.join(f'{x:.2f}' for x in row)}" for part, row in values.items())
            return Finding(SHOWN if seen else NOT_SHOWN, f"{text} (Multi30k, 2 layers, one run)")
    return Finding(NOT_RUN)


def speed(system: str, trained: float, decoded: float) -> Finding:
    """Is a system no slower, relative to the Transformer, than the paper says?"""
    record = load("speed/speed_base.json")
    row = record["results"].get(system) if record else None
    if row is None:
        return Finding(NOT_RUN)
    here = [1 / row[job]["time_ratio"] for job in ("training step", "beam 5, 16 sentences")]
    text = f"{here[0]:.2f}x and {here[1]:.2f}x the speed of `MarianMTModel` (base size)"
    # the claim is a price: who pays less has seen it confirmed
    return Finding(SHOWN if here[0] >= trained and here[1] >= decoded else NOT_SHOWN, text)


def linear_time() -> Finding:
    """Operations for a word of long and short sources."""
    record = load("speed/linear_time.json")
    if record is None:
        return Finding(NOT_RUN)
    ratios = {}
    for key, name in (("capsnmt_6", "CapsNMT"), ("transformer", "Transformer")):
        operations = record["results"][key]["operations_per_token"]
        ratios[name] = operations["1000"] / operations["10"]
    numbers = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    text = f"operations for a word of 1,000 source words beside 10: {numbers}"
    return Finding(SHOWN if ratios["CapsNMT"] == 1 < ratios["Transformer"] else NOT_SHOWN, text)


def latency() -> Finding:
    """Is a sentence translated faster than by the Transformer?"""
    record = load("speed/latency_multi30k.json")
    rows = [record["results"][beams].get("CapsNMT") for beams in ("1", "5")] if record else []
    if not all(rows) or not rows:
        return Finding(NOT_RUN)
    text = f"greedy {rows[0]['ratio']:.2f}x, beam 5 {rows[1]['ratio']:.2f}x the time (Multi30k models)"
    return Finding(SHOWN if max(row["ratio"] for row in rows) < 1 else NOT_SHOWN, text)


def sharp() -> Finding:
    """Does every word end up in one capsule?"""
    record = load("multi30k/analysis.json") or {"systems": []}
    found = next((system for system in record["systems"] if system["name"] == "CapsNMT"), None)
    if found is None:
        return Finding(NOT_RUN)
    rows = found["routing"]["memory"]["iterations"]
    entropies = " ".join(f"{row['assignment_entropy']:.2f}" for row in rows)
    used = " ".join(f"{row['capsules_in_use']:.1f}" for row in rows)
    text = f"entropy of a word's assignment {entropies}; but capsules in use {used} of 6 (Multi30k, printed form)"
    return Finding(SHOWN if rows[-1]["assignment_entropy"] < 0.1 else NOT_SHOWN, text)


def capsules_above_simple() -> Finding:
    """The printed and the calibrated form beside simple aggregation; the claim is of the printed one."""
    names = ("CapsNMT", "CapsNMT calibrated")
    printed, calibrated = (gain(name, "simple", "multi30k", also=("grammar_recurrent",)) for name in names)
    forms = (("printed", printed), ("calibrated", calibrated))
    return Finding(printed.verdict, "; ".join(f"{name} {form.numbers}" for name, form in forms if form.numbers))


def untestable(why: str) -> Look:
    """A claim that nothing here can decide."""
    return partial(Finding, NOT_TESTABLE, why)


LAYERS = ("deep", "multi30k")
CONTINUED = ("grammar", "multi30k_continued")
# claims with the papers' own numbers: Tables 1 to 4, Figures 2 to 5
DOU: list[tuple[str, Look]] = [
    ("linear combination, +0.42 (Table 1)", partial(gain, "linear", "none", *LAYERS, also=CONTINUED)),
    ("dynamic combination, +1.02", partial(gain, "dynamic", "none", *LAYERS, also=CONTINUED)),
    ("dynamic routing, +0.91", partial(gain, "dynamic_routing", "none", *LAYERS, also=CONTINUED)),
    ("EM routing, +1.50", partial(gain, "em_routing", "none", *LAYERS, also=CONTINUED)),
    (
        "all dynamic systems are above the linear combination",
        partial(all_gains, [(name, "linear") for name in ("dynamic", "dynamic_routing", "em_routing")], "deep"),
    ),
    (
        "the gain is the routing's: EM routing above the same votes without routing (our control)",
        partial(gain, "em_routing", "votes without routing", "deep"),
    ),
    (
        "the gain is not the size's: EM routing above a plain model of its size (Table 2: of twice its size)",
        partial(gain, "em_routing", "wider without aggregation", "deep"),
    ),
    (
        "input capsules from all layers, not their own alone, +0.44 (Table 3)",
        partial(gain, "both stacks", "own layer", "deep_parts"),
    ),
    (
        "each stack alone gains, +0.49 and +0.50 (Table 4)",
        partial(all_gains, [("encoder", "none"), ("decoder", "none")], "deep_parts"),
    ),
    (
        "both stacks gain more than one, +0.29 and +0.28 (Table 4)",
        partial(more_than_all, "both stacks", ["encoder", "decoder"], "deep_parts"),
    ),
    (
        "the more capsules N, the better (Figure 2)",
        partial(best, "grammar_capsules", "num_capsules", max, ours="em_density"),
    ),
    (
        "R = 3 iterations are best (Figure 3)",
        partial(best, "grammar_iterations", "routing_iterations", lambda values: 3),
    ),
    ("entropy falls over the iterations, 6.24 to 5.86", partial(agreements, "entropy", -1)),
    ("diversity rises over the iterations, 0.0 to 0.18", partial(agreements, "diversity", 1)),
    ("EM routing trains at 0.61x and decodes at 0.80x the speed", partial(speed, "em_routing", 0.61, 0.80)),
    ("a gain in every length of source (Figure 5)", partial(every_length, "em_routing", "none", "ende", "multi30k")),
    ("WMT17 Zh-En, +0.68; Transformer-big, +0.39 and +0.44", untestable("20 million pairs, 264M parameters")),
]
ZHENG: list[tuple[str, Look]] = [
    ("GDR, +0.75 (Table 1)", partial(gain, "GDR", "none", "multi30k", also=CONTINUED)),
    ("GDR + BOW, +1.42", partial(gain, "GDR+BOW", "none", "guided_parts")),
    ("GDR + BCA, +1.37", partial(gain, "GDR+BCA", "none", "guided_parts")),
    (
        "GDR with both losses, +1.59",
        partial(gain, "GDR+losses", "none", "multi30k", "deep", "ende", "three_am", also=CONTINUED),
    ),
    ("redundant capsules, +0.35", partial(gain, "GDR+losses", "GDR+losses no redundant", "guided_parts")),
    ("RNMT with GDR and both losses, +1.84", partial(gain, "RNMT+GDR+losses", "RNMT", "guided_parts")),
    ("RNMT with PFRNN (Zheng et al. 2018), +1.24", partial(gain, "RNMT+PFRNN+losses", "RNMT", "guided_parts")),
    ("GDR above PFRNN on RNMT, +0.60", partial(gain, "RNMT+GDR+losses", "RNMT+PFRNN+losses", "guided_parts")),
    ("GDR above adequacy-oriented learning (AOL) on RNMT, +0.29", untestable("AOL is not built")),
    (
        "CLF and ATTN gain, too (Figure 6)",
        partial(all_gains, [("CLF+losses", "none"), ("ATTN+losses", "none")], "multi30k"),
    ),
    (
        "GDR gains more than CLF and ATTN",
        partial(more_than_all, "GDR+losses", ["CLF+losses", "ATTN+losses"], "multi30k"),
    ),
    ("the groups separate what is translated from what is not (Figure 4)", separation),
    ("routing does so better than CLF and ATTN", better_than_others),
    ("the capsules predict the words of their bags, rOL 0.72 and 0.70", overlap),
    (
        "coverage, CDR 0.73 to 0.79 (Table 3)",
        partial(adequacy, "GDR+losses", "none", "cdr", "ende", "multi30k", "three_am"),
    ),
    (
        "less under-translation, 3.83 % to 2.41 % (Table 3, by human judges; here by alignments)",
        partial(adequacy, "GDR+losses", "none", "under_translated_share", "ende", "multi30k", "three_am", sign=-1),
    ),
    ("quality as people judge it, 4.39 to 4.66 (Table 3)", untestable("needs human judges")),
    ("longer sentences gain more (Figure 5)", partial(long_sentences, "GDR+losses", "none", "ende", "multi30k")),
    ("training at 0.67x and decoding at 0.94x the speed", partial(speed, "guided_routing_bow_bca", 0.67, 0.94)),
    ("WMT14 En-De, +0.96; WMT16 En-Ro, +0.86 (Table 2)", untestable("no training text of WMT")),
]
WANG: list[tuple[str, Look]] = [
    ("CapsNMT above simple aggregation, +4.4 (Table 1) or +1.8 (section 4.3)", capsules_above_simple),
    (
        "CapsNMT comes close to the Transformer, -1.6 (Table 1)",
        partial(close, ("CapsNMT", "CapsNMT calibrated"), "none", -1.6, "multi30k"),
    ),
    (
        "closer with a teacher's translations, -0.4",
        partial(close, ("CapsNMT+KD", "CapsNMT calibrated+KD"), "none", -0.4, "students"),
    ),
    (
        "weights of each iteration, +0.4 (Table 2)",
        partial(gain, "CapsNMT non-shared", "base CapsNMT", "capsnmt_parts"),
    ),
    (
        "position-aware routing, +0.2",
        partial(gain, "CapsNMT position-aware", "CapsNMT non-shared", "capsnmt_parts"),
    ),
    ("separable composition and scoring, +0.4", partial(gain, "CapsNMT", "CapsNMT position-aware", "capsnmt_parts")),
    ("a teacher's translations help CapsNMT, +1.2", partial(gain, "CapsNMT+KD", "CapsNMT", "students")),
    (
        "a teacher's translations help simple aggregation, +2.1 (Table 1)",
        partial(gain, "simple+KD", "simple", "students"),
    ),
    (
        "capsules and attention together are above attention (abstract)",
        partial(gain, "hybrid", "RNMT", "capsnmt_parts"),
    ),
    ("the more source capsules M, the better (Figure 3)", partial(best, "capsnmt_size", "num_source_capsules", max)),
    (
        "R = 3 iterations are better than fewer (Figure 3; here than 1)",
        partial(all_gains, [(f"M{m} R3", f"M{m} R1") for m in (2, 4, 6, 8)], "capsnmt_size"),
    ),
    ("decoding a word costs the same however long the source is", linear_time),
    ("decoding is faster than the Transformer's, 153 ms to 225 ms (Table 3)", latency),
    (
        "behind the Transformer in the longest sentences (Figure 4)",
        partial(long_sentences, "CapsNMT calibrated", "none", "ende", "multi30k", sign=-1),
    ),
    ("every word goes to one capsule (Table 4)", sharp),
    ("big models, 26.4; English-French, 40.0", untestable("36 million pairs")),
]
