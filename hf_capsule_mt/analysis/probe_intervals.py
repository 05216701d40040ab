"""Intervals of what the probes of PAST and FUTURE find, over the choice of the sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Overlaps = Sequence[tuple[float | None, float | None]]
LEVEL = 0.05


def decision_scores(table: Floats) -> Floats:
    """
    PAST / (PAST + FUTURE) of each decision, 1/2 where both are 0: an attention can be so peaked.

    Args:
        table: [n, 4], rows of gold answer, PAST and FUTURE probability, and what the diagonal says.
    """
    past, total = table[:, 1], table[:, 1] + table[:, 2]
    return np.divide(past, total, out=np.full_like(total, 0.5), where=total > 0)


def bootstrap_intervals(
    tables: Sequence[Floats], overlaps: Overlaps, controls: Overlaps, *, draws: int, seed: int = 0
) -> dict[str, list[float]]:
    """
    95 % percentile intervals: the sentences are drawn with replacement, with all decisions in them (decisions of one
    sentence depend on each other), the same for the model and the controls.

    Args:
        tables: of each sentence its decisions, see `decision_scores`.
        overlaps, controls: of each sentence the overlap rates of the model, and of the most frequent words; may be
            empty.
        draws: at least 100.

    Returns:
        By the names of `ProbeResult`'s numbers the lower and the upper bound; "auc_above_diagonal" and
        "accuracy_above_diagonal" are those of the differences. Draws without answers of both kinds are left out.

    Raises:
        ValueError: too few draws.
    """
    if draws < 100:
        raise ValueError(f"draws must be at least 100, got {draws}")
    sentence = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    table = np.concatenate(tables)
    gold = table[:, 0]
    model, diagonal = RocArea(decision_scores(table), gold), RocArea(table[:, 3], gold)
    right = np.stack([(table[:, 1] > table[:, 2]) == gold, (table[:, 3] > 0) == gold, gold == 1]).astype(np.float64)
    # of each sentence: decisions, and how many of them are right by the model, by the diagonal, by always saying PAST
    sums = np.stack([np.bincount(sentence, weights, len(tables)) for weights in (np.ones(len(gold)), *right)])
    rates = np.array([_floats(overlaps, len(tables), 0), _floats(overlaps, len(tables), 1)])
    frequent = np.array([_floats(controls, len(tables), 0), _floats(controls, len(tables), 1)])
    known = {
        name: values
        for name, values in zip(
            ("past_overlap", "future_overlap", "frequent_past_overlap", "frequent_future_overlap"),
            (*rates, *frequent),
            strict=True,
        )
        if not np.all(np.isnan(values))
    }
    found: dict[str, list[float]] = {}
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        counts = generator.multinomial(len(tables), np.full(len(tables), 1 / len(tables))).astype(np.float64)
        decisions, ours, theirs, past = sums @ counts
        if not 0 < past < decisions:
            continue
        drawn = {"accuracy": ours / decisions, "diagonal_accuracy": theirs / decisions}
        drawn["majority_accuracy"] = max(past, decisions - past) / decisions
        drawn["auc"], drawn["diagonal_auc"] = (area(counts[sentence]) for area in (model, diagonal))
        for name in ("accuracy", "auc"):
            drawn[f"{name}_above_diagonal"] = drawn[name] - drawn[f"diagonal_{name}"]
        for name, values in known.items():
            there = counts * ~np.isnan(values)
            if there.sum() > 0:
                drawn[name] = float(np.nansum(there * values) / there.sum())
        for name, value in drawn.items():
            found.setdefault(name, []).append(float(value))
    bounds = (LEVEL / 2, 1 - LEVEL / 2)
    return {name: [float(bound) for bound in np.quantile(values, bounds)] for name, values in found.items()}


class RocArea:
    """
    The area under the ROC curve for any weights of the decisions; they are sorted once.

    Args:
        scores, gold: of each decision, [n]; gold is 1 or 0.
    """

    def __init__(self, scores: Floats, gold: Floats) -> None:
        self._order = np.argsort(scores, kind="stable")
        ranked = scores[self._order]
        # equal scores are one point of the curve
        self._starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        self._gold = gold[self._order]

    def __call__(self, weights: Floats) -> float:
        ranked = weights[self._order]
        positive = np.add.reduceat(ranked * self._gold, self._starts)
        negative = np.add.reduceat(ranked * (1 - self._gold), self._starts)
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below / (positive.sum() * negative.sum()))


def _floats(overlaps: Overlaps, sentences: int, side: int) -> Floats:
    """One of two rates of each sentence, NaN where there is none."""
    values = [pair[side] for pair in overlaps] or [None] * sentences
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
