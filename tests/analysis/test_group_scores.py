"""Each group of guided routing against the answers that it is meant for, counted by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from hf_capsule_mt.analysis.gold import TRANSLATED, UNTRANSLATED, WITHOUT_LINK
from hf_capsule_mt.analysis.group_scores import group_scores

P, F, R = TRANSLATED, UNTRANSLATED, WITHOUT_LINK
# gold answer, diagonal, PAST, FUTURE, REDUNDANT
FIRST = np.array(
    [
        [P, 0.5, 0.7, 0.2, 0.1],
        [P, -0.1, 0.4, 0.1, 0.5],
        [F, -0.5, 0.1, 0.8, 0.1],
        [R, 0.2, 0.2, 0.2, 0.6],
    ]
)
SECOND = np.array([[F, 0.3, 0.5, 0.3, 0.2], [R, 0.2, 0.5, 0.3, 0.2]])


def test_counted_by_hand():
    found = group_scores([FIRST, SECOND])
    assert list(found) == ["PAST", "FUTURE", "REDUNDANT"]
    past, future, redundant = found.values()
    # of words with a link: the first is right, the second is given to REDUNDANT, the last of the second is wrong
    assert (past["decisions"], past["meant"], past["accuracy"]) == (4, 2, 0.5)
    assert past["auc"] == 3 / 4 and past["diagonal_auc"] == 3 / 4 and past["diagonal_accuracy"] == 0.5
    assert (future["decisions"], future["meant"], future["accuracy"]) == (4, 2, 0.75)
    assert future["auc"] == 1 and future["diagonal_auc"] == 3 / 4 and future["diagonal_accuracy"] == 0.5
    assert past["majority_accuracy"] == future["majority_accuracy"] == 0.5
    # of all words: one of two is found, and one word too many
    assert (redundant["decisions"], redundant["meant"]) == (6, 2)
    assert redundant["accuracy"] == 4 / 6 == redundant["majority_accuracy"]
    assert redundant["auc"] == roc_auc_score([0, 0, 0, 1, 0, 1], [0.1, 0.5, 0.1, 0.6, 0.2, 0.2])
    assert "diagonal_auc" not in redundant and "intervals" not in redundant


def test_without_redundant_capsules_and_without_words_of_a_kind():
    tables = [table[:, :4] for table in (FIRST, SECOND)]
    assert list(group_scores(tables)) == ["PAST", "FUTURE"]
    linked = [table[table[:, 0] != R] for table in (FIRST, SECOND)]
    redundant = group_scores(linked, draws=100)["REDUNDANT"]
    assert redundant["auc"] is None and redundant["accuracy"] == 3 / 4 and "intervals" not in redundant


def test_intervals_are_over_sentences():
    generator = np.random.default_rng(3)

    def sentence(right: bool):
        gold = generator.choice([P, F], 20)
        past = np.where((gold == P) == right, 0.8, 0.1)
        return np.stack([gold, generator.random(20) - 0.5, past, 0.9 - past, np.full(20, 0.1)], axis=1)

    # all decisions of a sentence are right or wrong together: 40 numbers and not 800
    tables = [sentence(number % 4 > 0) for number in range(40)]
    for group in ("PAST", "FUTURE"):
        scores = group_scores(tables, draws=300)[group]
        low, high = scores["intervals"]["accuracy"]
        assert low < 0.75 < high and high - low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / 40) ** 0.5, rel=0.2)
        assert scores["intervals"]["auc_above_diagonal"][0] > 0
        below, above = scores["intervals"]["auc"]
        assert below < scores["auc"] < above
