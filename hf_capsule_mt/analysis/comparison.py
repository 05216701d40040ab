"""Systems of a report against the first: tests, their correction, and the sentences that differ most.

A system is one or several runs, which differ in their seeds. The test of one run against one is approximate
randomisation over the sentences (`evaluation.significance`); with several on both sides it is that of the studies,
over seeds and sentences together (`studies.statistics`), in which the variances between the seeds of all systems say
something of each other. Holm's correction is over the systems of a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluation.scores import base_language, metrics_of
from ..evaluation.significance import compare
from ..studies.statistics import SCORERS, Runs, ScoredRuns, holm, score_runs, sentence_counts

SCORES = tuple(SCORERS)
RANDOMIZATION = "approximate randomisation"
TWO_LEVELS = "test over seeds and sentences together"
DRAWS, SEED = 1000, 12345
# sentences of each direction that are named
NUM_DIFFERENT = 5
# of chrF: below it, two scores are equal but for the order of additions
LEAST_DIFFERENCE = 1e-9

Seeds = Mapping[str, Sequence[int | None]]


def spread_of(scores: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """
    Mean and spread of each metric over the runs of a system.

    Args:
        scores: of each run, see `evaluation.scores.score`; what is no number is left out.

    Returns:
        By metric "mean", "sd" (n - 1 in its denominator; None of one run), "n" and "values".
    """
    spread = {}
    for metric, first in scores[0].items():
        if isinstance(first, int | float):
            values = [float(run[metric]) for run in scores]
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            spread[metric] = {"mean": float(np.mean(values)), "sd": deviation, "n": len(values), "values": values}
    return spread


def compare_systems(
    systems: Mapping[str, Sequence[Sequence[str]]],
    sources: Sequence[str],
    references: Sequence[str],
    *,
    seeds: Seeds | None = None,
    target_lang: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """
    Every system against the first.

    Args:
        systems: the translations of each run, by name.
        seeds: of the runs, by name; those of one seed are paired, and in the given order where seeds are unknown.

    Returns:
        "baseline"; "systems": by name, for each metric "baseline", "system" (means), "difference", "p", "p_holm",
        "test" (what p is of) and "pairs", with "interval" of the system's score (one run) or "difference_interval"
        (several), and for one run what `significance.compare` gives; "sentences", see `sentence_differences`;
        "correction": in words.
    """
    baseline, *others = systems
    scored = _scored(systems, references, target_lang) if len(systems[baseline]) > 1 else {}
    compared: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(others, 1):
        theirs, ours = paired_runs(baseline, name, systems, seeds)
        if len(ours) == 1:
            before, after = systems[baseline][theirs[0]], systems[name][ours[0]]
            tests = compare(before, after, references, target_lang=target_lang)
            for metric in SCORES:
                tests[metric] |= {"p": tests[metric]["randomization_p"], "test": RANDOMIZATION, "pairs": 1}
        else:
            tests = {metric: _over_seeds((name, ours), (baseline, theirs), runs) for metric, runs in scored.items()}
        tests["sentences"] = sentence_differences(
            systems[baseline][0], systems[name][0], sources, references, target_lang
        )
        compared[name] = tests
        if progress is not None:
            progress(number, len(others))
    for metric in SCORES:
        corrected = holm({name: tests[metric]["p"] for name, tests in compared.items()})
        for name, p in corrected.items():
            compared[name][metric]["p_holm"] = p
    count = len(others)
    correction = f"Holm's, over the {count} systems of a metric" if count > 1 else "none: one system is compared"
    return {"baseline": baseline, "systems": compared, "correction": correction}


def paired_runs(
    baseline: str, name: str, systems: Mapping[str, Sequence[Any]], seeds: Seeds | None
) -> tuple[list[int], list[int]]:
    """
    The positions of the runs of two systems that belong together: by seed if each run of the one with fewer has its
    seed in the other, otherwise in the given order.
    """
    known = seeds or {}
    theirs, ours = list(known.get(baseline, ())), list(known.get(name, ()))
    both = [seed for seed in theirs if seed is not None and seed in ours]
    count = min(len(systems[baseline]), len(systems[name]))
    if len(both) == count and len(set(theirs)) == len(theirs) and len(set(ours)) == len(ours):
        return [theirs.index(seed) for seed in both], [ours.index(seed) for seed in both]
    return list(range(count)), list(range(count))


def _scored(
    systems: Mapping[str, Sequence[Sequence[str]]], references: Sequence[str], target_lang: str
) -> dict[str, ScoredRuns]:
    """The systems that have several runs, by each metric."""
    several = {name: runs for name, runs in systems.items() if len(runs) > 1}
    found = {}
    for metric, scorer in metrics_of("cased", base_language(target_lang)).items():
        counts = {
            name: np.stack([sentence_counts(texts, references, scorer) for texts in runs])
            for name, runs in several.items()
        }
        found[metric] = score_runs(counts, SCORERS[metric], DRAWS, SEED)
    return found


def _over_seeds(system: Runs, baseline: Runs, scored: ScoredRuns) -> dict[str, Any]:
    """The test of the studies."""
    found = scored.compare(system, baseline)
    theirs, ours = (float(scored.values[name][runs].mean()) for name, runs in (baseline, system))
    return {
        "baseline": theirs,
        "system": ours,
        "difference": found.difference,
        "difference_interval": list(found.interval),
        "p": found.p,
        "test": TWO_LEVELS,
        "pairs": found.seeds,
    }


def sentence_scores(translations: Sequence[str], references: Sequence[str], target_lang: str = "") -> list[float]:
    """chrF of every sentence, 0 to 100."""
    chrf = metrics_of("cased", base_language(target_lang))["chrf"]
    return [chrf.sentence_score(text, [truth]).score for text, truth in zip(translations, references, strict=True)]


def sentence_differences(
    baseline: Sequence[str],
    system: Sequence[str],
    sources: Sequence[str],
    references: Sequence[str],
    target_lang: str = "",
    count: int = NUM_DIFFERENT,
) -> dict[str, Any]:
    """
    In which sentences two systems differ most, by the chrF of each.

    Returns:
        "wins", "losses" and "ties" of the system, in sentences; "most_different": up to `count` of each direction, the
        largest first, and of equal ones the first: "position" (from 0), "difference" (system - baseline),
        "baseline_score", "system_score", "source", "reference", "baseline" and "system".
    """
    before, after = (sentence_scores(texts, references, target_lang) for texts in (baseline, system))
    differences = [new - old for old, new in zip(before, after, strict=True)]
    order = sorted(range(len(differences)), key=lambda position: (-abs(differences[position]), position))
    wins = [position for position in order if differences[position] > LEAST_DIFFERENCE]
    losses = [position for position in order if differences[position] < -LEAST_DIFFERENCE]
    most = [
        {
            "position": position,
            "difference": differences[position],
            "baseline_score": before[position],
            "system_score": after[position],
            "source": sources[position],
            "reference": references[position],
            "baseline": baseline[position],
            "system": system[position],
        }
        for position in (*wins[:count], *losses[:count])
    ]
    ties = len(differences) - len(wins) - len(losses)
    return {"wins": len(wins), "losses": len(losses), "ties": ties, "most_different": most}


def choose_examples(
    sources: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    count: int,
    target_lang: str = "",
) -> list[int]:
    """
    Positions of the sentences to step through: those in which the systems differ most from the first by chrF, in turn
    from each system and direction; where these are not enough, or for a single system, sentences evenly spread over
    the lengths. The longest tenth, which no screen shows, and blank sentences are left out; each source is there once.

    Args:
        systems: translations by name.
    """
    first: dict[str, int] = {}
    for position, source in enumerate(sources):
        if source.strip() and any(texts[position].strip() for texts in systems.values()):
            first.setdefault(source, position)
    usable = sorted(first.values(), key=lambda position: (len(sources[position].split()), position))
    usable = usable[: max(count, (9 * len(usable)) // 10)]
    ranked = _by_difference(usable, systems, references, target_lang) if len(systems) > 1 else []
    chosen: list[int] = []
    while len(chosen) < count and any(ranked):
        for ranking in ranked:
            while ranking and ranking[0] in chosen:
                ranking.pop(0)
            if ranking and len(chosen) < count:
                chosen.append(ranking.pop(0))
    rest = [position for position in usable if position not in chosen]
    missing = min(count - len(chosen), len(rest))
    return chosen + [rest[(2 * number + 1) * len(rest) // (2 * missing)] for number in range(missing)]


def _by_difference(
    usable: Sequence[int], systems: Mapping[str, Sequence[str]], references: Sequence[str], target_lang: str
) -> list[list[int]]:
    """For each system but the first the positions in which it is better, the most first, and those in which worse."""
    truths = [references[i] for i in usable]
    baseline, *others = (
        sentence_scores([texts[i] for i in usable], truths, target_lang) for texts in systems.values()
    )
    ranked = []
    for scores in others:
        differences = [(new - old, i) for i, old, new in zip(usable, baseline, scores, strict=True)]
        order = sorted(differences, key=lambda pair: (-abs(pair[0]), pair[1]))
        ranked.append([i for difference, i in order if difference > LEAST_DIFFERENCE])
        ranked.append([i for difference, i in order if difference < -LEAST_DIFFERENCE])
    return ranked
