"""How well each group of guided routing (Zheng et al. 2019) knows what it is meant for, against the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .gold import TRANSLATED, UNTRANSLATED, WITHOUT_LINK
from .probe_intervals import LEVEL, Floats, RocArea

# columns of a table of decisions, see `group_scores`
GOLD, DIAGONAL, FIRST_GROUP = 0, 1, 2
# by group: the answer that it is meant for, and the sign of the diagonal's score for it
MEANT = {"PAST": (TRANSLATED, 1), "FUTURE": (UNTRANSLATED, -1), "REDUNDANT": (WITHOUT_LINK, 0)}


def group_scores(tables: Sequence[Floats], *, draws: int = 0, seed: int = 0) -> dict[str, dict[str, Any]]:
    """
    Accuracy and area under the ROC curve of each group.

    PAST and FUTURE are asked about the words that have a link, before every target piece: is the word translated, is
    it untranslated? REDUNDANT is asked about all words: is nothing aligned with it? The score of a group is its
    probability; it gives a word to itself if it is the likeliest of all groups. Controls: the diagonal, see
    `past_future.ProbeResult`, of PAST and FUTURE, and always giving the more frequent answer.

    Args:
        tables: of each sentence its decisions, [n, 2 + G]: gold answer (see `gold`), how far the step is ahead of the
            word on the diagonal, and the probability of each of the G groups.
        draws: test sets to draw for 95 % intervals over the choice of the sentences, with all decisions in them; 0
            for none.

    Returns:
        By group: "accuracy", "auc", "majority_accuracy", "decisions" and "meant", the number of decisions in which the
        word is the group's; "diagonal_accuracy" and "diagonal_auc" of PAST and FUTURE; "intervals" of all these
        shares and of "auc_above_diagonal" and "accuracy_above_diagonal", if there are draws. Areas are None, and
        there are no intervals, where all words are the group's or none is.
    """
    sentence = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    table = np.concatenate(tables)
    groups = list(MEANT)[: table.shape[1] - FIRST_GROUP]
    drawn = _drawn(len(tables), draws, seed)
    return {
        group: _Group(table, sentence, position, *MEANT[group]).scores(drawn) for position, group in enumerate(groups)
    }


def _drawn(sentences: int, draws: int, seed: int) -> Floats:
    """How often each sentence is in each drawn test set, [draws, sentences]."""
    shares = np.full(sentences, 1 / sentences)
    return np.random.default_rng(seed).multinomial(sentences, shares, size=draws).astype(np.float64)


class _Group:
    """The decisions about one group."""

    def __init__(self, table: Floats, sentence: np.ndarray, position: int, meant: int, sign: int) -> None:
        # without a sign, all words are asked about
        asked = table[:, GOLD] != WITHOUT_LINK if sign else np.full(len(table), True)
        table, self._sentence = table[asked], sentence[asked]
        self._gold = (table[:, GOLD] == meant).astype(np.float64)
        probabilities = table[:, FIRST_GROUP:]
        answers = {"": (probabilities[:, position], probabilities.argmax(axis=1) == position)}
        if sign:
            ahead = table[:, DIAGONAL] > 0
            answers["diagonal_"] = (sign * table[:, DIAGONAL], ahead if sign > 0 else ~ahead)
        self._right = {name: (said == (self._gold == 1)).astype(np.float64) for name, (_, said) in answers.items()}
        both = 0 < self._gold.sum() < len(self._gold)
        self._areas = {name: RocArea(score, self._gold) if both else None for name, (score, _) in answers.items()}

    def scores(self, drawn: Floats) -> dict[str, Any]:
        found: dict[str, Any] = self._of(np.ones(len(self._gold))) if len(self._gold) else {}
        found |= {"decisions": len(self._gold), "meant": int(self._gold.sum())}
        if len(drawn) and found.get("auc") is not None:
            found["intervals"] = self._intervals(drawn)
        return found

    def _of(self, weights: Floats) -> dict[str, float | None]:
        total, meant = weights.sum(), weights @ self._gold
        found: dict[str, float | None] = {}
        for name, right in self._right.items():
            area = self._areas[name]
            found[f"{name}accuracy"] = float(weights @ right / total)
            found[f"{name}auc"] = None if area is None else area(weights)
        return {**found, "majority_accuracy": float(max(meant, total - meant) / total)}

    def _intervals(self, drawn: Floats) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for counts in drawn:
            weights = counts[self._sentence]
            if not 0 < weights @ self._gold < weights.sum():
                continue
            values: dict[str, Any] = self._of(weights)
            if "diagonal_auc" in values:
                for name in ("accuracy", "auc"):
                    values[f"{name}_above_diagonal"] = values[name] - values[f"diagonal_{name}"]
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        bounds = (LEVEL / 2, 1 - LEVEL / 2)
        return {name: [float(bound) for bound in np.quantile(values, bounds)] for name, values in found.items()}
