"""What the three papers claim, and what the records say of it: a line for each claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    paired_differences,
    seeds_text,
    study_record,
)
from .recorded import load
from .systems import GPU, GUIDED, PROBED_TEXTS

SHOWN, NOT_SHOWN, OPPOSITE = "shown again", "not shown", "the opposite is shown"
NOT_TESTABLE, UNDECIDED = "not testable here", "not decided yet"
DIAGONAL = "the diagonal"
# of a probe, and in a bucket of source lengths, to decide a claim
ENOUGH_SEEDS, ENOUGH_SENTENCES = 3, 100
# Wang et al., Table 3: time for a sentence by the number of source capsules, in that of the Transformer, 225 ms
PRINTED_LATENCIES = {4: 146 / 225, 6: 153 / 225, 8: 168 / 225}


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
    verdict = UNDECIDED if others and not found else verdict_of(found)
    return Finding(verdict, "; ".join(one.text() for one in (*found, *others)))


def all_gains(pairs: Sequence[tuple[str, str]], study: str) -> Finding:
    """Are all of several systems above their baselines?"""
    return _together({system: difference(study, system, baseline) for system, baseline in pairs})


def more_than_all(system: str, baselines: Sequence[str], study: str) -> Finding:
    """Is a system above all of several others?"""
    return _together({f"to {baseline}": difference(study, system, baseline) for baseline in baselines})


def _together(found: dict[str, Found | None]) -> Finding:
    known = {name: one for name, one in found.items() if one is not None}
    whole = NOT_RUN if len(known) < len(found) else _shared_verdict([*known.values()])
    return Finding(whole, "; ".join(f"{name} {one.text()}" for name, one in known.items()))


def _shared_verdict(found: Sequence[Found]) -> str:
    """Of differences that a claim is about all of: what every one says, or else the claim is not shown."""
    verdicts = {verdict_of([one]) for one in found}
    return verdicts.pop() if len(verdicts) == 1 else NOT_SHOWN


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


def best(study: str, argument: str, expected: Callable[[list[float]], float] | None = None) -> Finding:
    """
    Is the best value of an argument the expected one, in every line of a study's curves?

    Args:
        expected: the value of the claim, from the values of a line. Without it the curves are told and decide nothing.
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
            if expected is not None:
                seen.append(max(means, key=lambda value: means[value]) == expected([*means]))
            shown = ", ".join(f"{value:g}: {mean:.1f}" for value, mean in means.items())
            texts.append(f"{label or argument} {shown}")
    finished = is_finished(record)
    decides = seen and finished
    verdict = NOT_RUN if not texts else UNDECIDED if not decides else SHOWN if all(seen) else NOT_SHOWN
    setting = SETTINGS[study] if finished else f"{SETTINGS[study]}, {SO_FAR}"
    return Finding(verdict, f"BLEU by {argument}: {'; '.join(texts)} ({setting})" if texts else "")


class Bucket(NamedTuple):
    """Sources of similar length: the differences in BLEU there of the seeds that both systems have."""

    differences: list[float]
    sentences: int

    @property
    def is_large(self) -> bool:
        """Are there enough sentences to decide a claim? Intervals over the seeds do not know how few there are."""
        return self.sentences >= ENOUGH_SENTENCES


def long_sentences(system: str, baseline: str, *studies: str, sign: int = 1) -> Finding:
    """Is the difference larger (or, with sign -1, smaller) in the longest sources than in the shortest ones?"""
    deciding, texts = [], []
    for study in studies:
        buckets = _by_length(study, system, baseline)
        if len(buckets) < 2:
            continue
        first, last = buckets[0], buckets[-1]
        changes = [long - short for short, long in zip(first.differences, last.differences, strict=True)]
        found = of_values(changes, SETTINGS[study])
        if found is not None:
            if first.is_large and last.is_large:
                deciding.append(found._replace(difference=sign * found.difference))
            bounds = "" if found.interval is None else " [{:+.1f}, {:+.1f}]".format(*found.interval)
            texts.append(f"{_told(buckets, study)}, change {found.difference:+.1f}{bounds}")
    return Finding(verdict_of(deciding) if deciding or not texts else UNDECIDED, "; ".join(texts))


def every_length(system: str, baseline: str, *studies: str) -> Finding:
    """Is a system above another in every bucket of source lengths? The opposite: it is below in every one."""
    found, texts = [], []
    for study in studies:
        if buckets := _by_length(study, system, baseline):
            large = (of_values(bucket.differences, SETTINGS[study]) for bucket in buckets if bucket.is_large)
            found += [one for one in large if one is not None]
            texts.append(_told(buckets, study))
    return Finding(_shared_verdict(found) if found else UNDECIDED if texts else NOT_RUN, "; ".join(texts))


def _by_length(study: str, system: str, baseline: str) -> list[Bucket]:
    """From short to long sources."""
    record = finished_record(study)
    lengths = first_test_set(record).get("length", {}) if record is not None else {}
    if not {system, baseline} <= lengths.keys():
        return []
    return [
        Bucket(paired_differences(ours["by_seed"], theirs["by_seed"]), ours["sentences"])
        for ours, theirs in zip(lengths[system], lengths[baseline], strict=True)
    ]


def _told(buckets: Sequence[Bucket], study: str) -> str:
    means = ", ".join(f"{fmean(bucket.differences):+.1f}" for bucket in buckets if bucket.differences)
    sentences = ", ".join(f"{bucket.sentences:,}" for bucket in buckets)
    seeds = seeds_text(min(len(bucket.differences) for bucket in buckets))
    words = f"{SETTINGS[study]}, {seeds} alone, {sentences} sentences"
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
    """Does the assignment of words to PAST and FUTURE say more than chance of what is translated?"""
    seen, texts = [], []
    for where, found in _routed():
        low, high = found["intervals"]["auc"]
        seen.append(low > 0.5)
        texts.append(f"{found['auc']:.3f} [{low:.3f}, {high:.3f}] ({where})")
    if means := _means("grammar", GUIDED["routing"]):
        texts.append(f"{means[0]:.3f} (embedded corpus)")
    return _of_areas(texts, _verdict_of_all(seen))


def above_the_diagonal() -> Finding:
    """Does it say more than the diagonal, which knows where a word is and not which?"""
    above, below, texts = [], [], []
    for where, found in _routed():
        low, high = found["intervals"]["auc_above_diagonal"]
        above.append(low > 0)
        below.append(high < 0)
        texts.append(f"difference [{low:+.3f}, {high:+.3f}] ({where})")
    if means := _means("grammar", GUIDED["routing"], DIAGONAL):
        texts.append(f"{means[0]:.3f}, the diagonal's {means[1]:.3f} (embedded corpus)")
    return _of_areas(texts, OPPOSITE if below and all(below) else _verdict_of_all(above))


def _of_areas(texts: Sequence[str], verdict: str) -> Finding:
    return Finding(verdict, f"area under the ROC curve: {'; '.join(texts)}" if texts else "")


def _verdict_of_all(seen: Sequence[bool]) -> str:
    """Of what has to be seen in every model."""
    return NOT_RUN if not seen else UNDECIDED if len(seen) < ENOUGH_SEEDS else SHOWN if all(seen) else NOT_SHOWN


def _means(text: str, *names: str) -> list[float]:
    """Mean area under the ROC curve of mechanisms on a text, or nothing where one is missing."""
    areas = _areas(text)
    return [fmean(areas[name].values()) for name in names] if all(name in areas for name in names) else []


def _routed() -> Iterator[tuple[str, Record]]:
    """Every model with routing that was taught by bags of words: its text and seed, and what the probe has found."""
    for text, words in PROBED_TEXTS.items():
        for entry in _probed(text):
            if entry["guided_routing"] == "routing" and entry["rol_predictor"] == "trained":
                yield f"{words}, seed {entry['seed']}", entry["results"]


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
    return _of_areas(texts, _verdict_of_all(seen))


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
    seen, texts, groups = [], [], ("past", "future")
    for where, found in _routed():
        bounds = found["intervals"]
        seen.append(all(bounds[f"{part}_overlap"][0] > bounds[f"frequent_{part}_overlap"][1] for part in groups))
        values, frequent = (
            " and ".join(f"{found[f'{kind}{part}_overlap']:.2f}" for part in groups) for kind in ("", "frequent_")
        )
        texts.append(f"{values}, the most frequent words {frequent} ({where})")
    return Finding(_verdict_of_all(seen), "; ".join(texts))


def agreements(key: str) -> Finding:
    """Entropy or diversity of EM routing by iteration, in the stacks of six-layer models; one run decides nothing."""
    record = load("deep_parts/analysis.json") or {"systems": []}
    # each of these aggregates one stack, which its name says
    texts = [
        f"{system['name']} {' '.join(f'{row[key]:.2f}' for row in system['routing'][system['name']]['iterations'])}"
        for system in record["systems"]
        if system["name"] in ("encoder", "decoder")
    ]
    return Finding(UNDECIDED, f"{'; '.join(texts)} (Multi30k, 6 layers, one run each)") if texts else Finding(NOT_RUN)


def speed(system: str, trained: float, decoded: float) -> Finding:
    """Is a system no slower, relative to our own Transformer, than the paper's is to the paper's?"""
    rows = (load("speed/speed_base.json") or {"results": {}})["results"]
    if not {system, "none"} <= rows.keys():
        return Finding(NOT_RUN)
    jobs = ("training step", "beam 5, 16 sentences")
    ours = [rows["none"][job]["time_ratio"] / rows[system][job]["time_ratio"] for job in jobs]
    plain = [1 / rows[system][job]["time_ratio"] for job in jobs]
    own, theirs = (" and ".join(f"{ratio:.2f}x" for ratio in ratios) for ratios in (ours, plain))
    text = f"{own} the speed of our plain model, {theirs} that of `MarianMTModel` (base size, beam 5)"
    # the claim is a price: who pays less has seen it confirmed
    seen = ours[0] >= trained and ours[1] >= decoded
    gpu = load(GPU)
    if gpu is not None and {system, "none"} <= gpu["results"].keys():
        none, ratio = (gpu["results"][name]["training step"]["time_ratio"] for name in ("none", system))
        seen = seen and none / ratio >= trained
        text += f"; training on a GPU {none / ratio:.2f}x and {1 / ratio:.2f}x"
    return Finding(SHOWN if seen else NOT_SHOWN, text)


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
    """Does a sentence take no more of the Transformer's time than in the paper, with each number of capsules?"""
    base, small = load("speed/linear_time.json"), load("speed/latency_multi30k.json")
    if base is None or small is None:
        return Finding(NOT_RUN)
    seen, texts = [], []
    # sources about as long as the paper's, of newstest2014
    for length in ("20", "50"):
        ratios = {
            count: base["results"][f"capsnmt_{count}"]["times"]["sentence"][length]["ratio"]
            for count in PRINTED_LATENCIES
        }
        seen += [ratio <= PRINTED_LATENCIES[count] for count, ratio in ratios.items()]
        texts.append(f"{' '.join(f'{ratio:.2f}x' for ratio in ratios.values())} the time for {length} words")
    rows = [small["results"][beams]["CapsNMT"]["ratio"] for beams in ("1", "5")]
    text = (
        f"{', '.join(texts)} (base size, greedy); "
        f"M = 6: greedy {rows[0]:.2f}x, beam 5 {rows[1]:.2f}x (Multi30k models)"
    )
    return Finding(SHOWN if all(seen) and max(rows) < 1 else NOT_SHOWN, text)


def memory(key: str) -> Finding:
    """A figure of the printed CapsNMT's routing by iteration; one run decides nothing."""
    systems = (load("multi30k/analysis.json") or {"systems": []})["systems"]
    found = next((system for system in systems if system["name"] == "CapsNMT"), None)
    if found is None:
        return Finding(NOT_RUN)
    values = " ".join(f"{row[key]:.2f}" for row in found["routing"]["memory"]["iterations"])
    return Finding(UNDECIDED, f"{values} by iteration (Multi30k, printed form, one run)")


def capsules_above_simple() -> Finding:
    """The printed and the calibrated form beside simple aggregation; the claim is of the printed one."""
    names = ("CapsNMT", "CapsNMT calibrated")
    printed, calibrated = (gain(name, "simple", "multi30k", also=("grammar_recurrent",)) for name in names)
    forms = (("printed", printed), ("calibrated", calibrated))
    return Finding(printed.verdict, "; ".join(f"{name} {form.numbers}" for name, form in forms if form.numbers))


def printed_aggregation() -> Finding:
    """EM routing that replaces the top layer, from scratch and from a trained model."""
    pairs = (("deep_parts", "as printed"), (CONTINUED, "em_routing as printed"))
    found = [one for study, system in pairs if (one := difference(study, system, "none")) is not None]
    return Finding(verdict_of(found), "; ".join(one.text() for one in found))


def untestable(why: str) -> Look:
    """A claim that nothing here can decide."""
    return partial(Finding, NOT_TESTABLE, why)


CONTINUED = "multi30k_continued"
LAYERS, GUIDED_STUDIES, EMBEDDED = ("deep", "multi30k", CONTINUED), ("multi30k", CONTINUED), ("grammar",)
# claims with the papers' own numbers: Tables 1 to 4, Figures 2 to 6
DOU: list[tuple[str, Look]] = [
    ("linear combination, +0.42 (Table 1)", partial(gain, "linear", "none", *LAYERS, also=EMBEDDED)),
    ("dynamic combination, +1.02", partial(gain, "dynamic", "none", *LAYERS, also=EMBEDDED)),
    ("dynamic routing, +0.91", partial(gain, "dynamic_routing", "none", *LAYERS, also=EMBEDDED)),
    ("EM routing, +1.50", partial(gain, "em_routing", "none", *LAYERS, also=EMBEDDED)),
    ("EM routing in the place of the top layer, as printed, +1.50", printed_aggregation),
    (
        "all dynamic systems are above the linear combination",
        partial(all_gains, [(name, "linear") for name in ("dynamic", "dynamic_routing", "em_routing")], "deep"),
    ),
    (
        "EM routing above the other dynamic systems, +0.48 and +0.59",
        partial(more_than_all, "em_routing", ["dynamic", "dynamic_routing"], "deep"),
    ),
    (
        "dynamic routing is close to the dynamic combination, -0.11",
        partial(close, ("dynamic_routing",), "dynamic", -0.11, "deep"),
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
    ("of EM routing: the more capsules N, the better (Figure 2)", partial(best, "grammar_capsules", "num_capsules")),
    (
        "of EM routing: R = 3 iterations are best (Figure 3)",
        partial(best, "grammar_iterations", "routing_iterations"),
    ),
    ("entropy falls over the iterations, 6.24 5.93 5.86", partial(agreements, "entropy")),
    ("diversity rises over the iterations, 0.0 0.09 0.18", partial(agreements, "diversity")),
    ("EM routing trains at 0.61x and decodes at 0.80x the speed", partial(speed, "em_routing", 0.61, 0.80)),
    (
        "a gain in every length of source (Figure 5)",
        partial(every_length, "em_routing", "none", "ende", "deep", "multi30k"),
    ),
    ("WMT17 Zh-En, +0.68; Transformer-big, +0.39 and +0.44", untestable("20 million pairs, 264M parameters")),
]
ZHENG: list[tuple[str, Look]] = [
    ("GDR, +0.75 (Table 1)", partial(gain, "GDR", "none", *GUIDED_STUDIES, also=EMBEDDED)),
    ("GDR + BOW, +1.42", partial(gain, "GDR+BOW", "none", "guided_parts")),
    ("GDR + BCA, +1.37", partial(gain, "GDR+BCA", "none", "guided_parts")),
    (
        "GDR with both losses, +1.59",
        partial(gain, "GDR+losses", "none", *GUIDED_STUDIES, "deep", "ende", "three_am", also=EMBEDDED),
    ),
    ("both losses above GDR alone, +0.84", partial(gain, "GDR+losses", "GDR", "multi30k")),
    ("redundant capsules, +0.35", partial(gain, "GDR+losses", "GDR+losses no redundant", "guided_parts")),
    ("RNMT with GDR and both losses, +1.84", partial(gain, "RNMT+GDR+losses", "RNMT", "guided_parts")),
    (
        "RNMT with PFRNN (Zheng et al. 2018), +1.24 (here on top of the decoder, with the losses of GDR)",
        partial(gain, "RNMT+PFRNN+losses", "RNMT", "guided_parts"),
    ),
    (
        "GDR above PFRNN on RNMT, +0.60 (PFRNN as above)",
        partial(gain, "RNMT+GDR+losses", "RNMT+PFRNN+losses", "guided_parts"),
    ),
    ("GDR above adequacy-oriented learning (AOL) on RNMT, +0.29", untestable("AOL is not built")),
    (
        "CLF and ATTN gain, too (Figure 6)",
        partial(all_gains, [("CLF+losses", "none"), ("ATTN+losses", "none")], "multi30k"),
    ),
    (
        "GDR gains more than CLF and ATTN (Figure 6)",
        partial(more_than_all, "GDR+losses", ["CLF+losses", "ATTN+losses"], "multi30k"),
    ),
    (
        "the groups separate what is translated from what is not (Figure 4; here by alignments, above chance)",
        separation,
    ),
    ("they do so better than the place of a word does, the diagonal (our control)", above_the_diagonal),
    ("routing does so better than CLF and ATTN (our probe; in every seed)", better_than_others),
    ("the capsules predict the words of their bags, rOL 0.72 and 0.70", overlap),
    (
        "coverage, CDR 0.73 to 0.79 (Table 3)",
        partial(adequacy, "GDR+losses", "none", "cdr", "ende", "multi30k", "three_am"),
    ),
    (
        "less under-translation, 3.83 % to 2.41 % (Table 3, by human judges; here by alignments)",
        partial(adequacy, "GDR+losses", "none", "under_translated_share", "ende", "multi30k", "three_am", sign=-1),
    ),
    (
        "less over-translation, 0.03 % to 0.01 % (the same)",
        partial(adequacy, "GDR+losses", "none", "over_translated_share", "ende", "multi30k", "three_am", sign=-1),
    ),
    ("quality as people judge it, 4.39 to 4.66 (Table 3)", untestable("needs human judges")),
    (
        "a gain in every length of source (Figure 5)",
        partial(every_length, "GDR+losses", "none", "ende", "deep", "multi30k"),
    ),
    (
        "longer sentences gain more (Figure 5)",
        partial(long_sentences, "GDR+losses", "none", "ende", "deep", "multi30k"),
    ),
    ("training at 0.67x and decoding at 0.94x the speed", partial(speed, "guided_routing_bow_bca", 0.67, 0.94)),
    ("WMT14 En-De, +0.96; WMT16 En-Ro, +0.86 (Table 2)", untestable("no training text of WMT")),
]
WANG: list[tuple[str, Look]] = [
    ("CapsNMT above simple aggregation, +4.4 (Table 1)", capsules_above_simple),
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
        "with a teacher's translations, CapsNMT above simple aggregation, +3.5 (Table 1)",
        partial(gain, "CapsNMT+KD", "simple+KD", "students"),
    ),
    (
        "capsules and attention together (abstract, without a number; here above attention alone)",
        partial(gain, "hybrid", "RNMT", "capsnmt_parts"),
    ),
    (
        "the more source capsules M, the better (Figure 3; here calibrated)",
        partial(best, "capsnmt_size", "num_source_capsules", max),
    ),
    (
        "R = 3 is the best of 2 to 4 iterations (Figure 3; here calibrated, and beside 1)",
        partial(all_gains, [(f"M{m} R3", f"M{m} R1") for m in (2, 4, 6, 8)], "capsnmt_size"),
    ),
    ("decoding a word costs the same however long the source is", linear_time),
    ("decoding takes 0.65x, 0.68x and 0.75x the Transformer's time with M = 4, 6 and 8 (Table 3)", latency),
    (
        "level with the Transformer in sources of less than 40 words (Figure 4)",
        partial(every_length, "CapsNMT", "none", "multi30k"),
    ),
    (
        "furthest behind it in the longest ones (here calibrated)",
        partial(long_sentences, "CapsNMT calibrated", "none", "ende", "multi30k", sign=-1),
    ),
    ("a word's assignment becomes sharp, its entropy 0 (Table 4)", partial(memory, "assignment_entropy")),
    ("the words of a sentence go to several of its six capsules (Table 4)", partial(memory, "capsules_in_use")),
    (
        "English-French, +2.5 over simple aggregation; big models, 26.4 and 40.0",
        untestable("4.5 and 36 million pairs"),
    ),
]
