"""Systems against the first: pairs of runs, spread, Holm's correction, and the sentences that differ most."""

import math

import numpy as np
import pytest

from hf_capsule_mt.analysis.comparison import (
    RANDOMIZATION,
    TWO_LEVELS,
    choose_examples,
    compare_systems,
    paired_runs,
    sentence_differences,
    spread_of,
)
from hf_capsule_mt.studies.statistics import holm

REFERENCES = [f"the {animal} sleeps in the {place} today" for animal in ("dog", "cat", "cow") for place in "abcdefg"]
SOURCES = [f"source {number}" for number in range(len(REFERENCES))]


def worse(count, start=0):
    """The references, of which some have lost their end."""
    return [
        text.rsplit(" ", 3)[0] if start <= number < start + count else text for number, text in enumerate(REFERENCES)
    ]


def test_mean_and_spread_of_runs():
    found = spread_of([{"bleu": value, "signatures": {}} for value in (10.0, 12.0, 17.0)])
    assert found == {"bleu": {"mean": 13.0, "sd": pytest.approx(math.sqrt(13)), "n": 3, "values": [10.0, 12.0, 17.0]}}
    assert spread_of([{"bleu": 1.0}])["bleu"]["sd"] is None


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ([1, 2, 3], [3, 1, 2], ([0, 1, 2], [1, 2, 0])),
        ([1, 2, 3], [2], ([1], [0])),
        ([1, 2], [5, 6], ([0, 1], [0, 1])),
        ([1, None], [1, 2], ([0, 1], [0, 1])),
        ([1, 1], [1, 1], ([0, 1], [0, 1])),
    ],
    ids=["by seed", "fewer", "others", "unknown", "twice"],
)
def test_runs_are_paired_by_their_seeds_where_they_can_be(theirs, ours, expected):
    systems = {"a": [[]] * len(theirs), "b": [[]] * len(ours)}
    assert paired_runs("a", "b", systems, {"a": theirs, "b": ours}) == expected


def test_single_runs_are_corrected_over_the_systems():
    systems = {"base": [worse(9)], "better": [worse(3)], "like": [worse(9, 1)], "worse": [worse(15)]}
    compared = compare_systems(systems, SOURCES, REFERENCES)
    tests = compared["systems"]
    assert compared["baseline"] == "base" and compared["correction"] == "Holm's, over the 3 systems of a metric"
    for metric in ("bleu", "chrf", "ter"):
        raw = {name: tests[name][metric]["p"] for name in tests}
        assert raw == {name: tests[name][metric]["randomization_p"] for name in tests}
        assert {name: tests[name][metric]["p_holm"] for name in tests} == holm(raw)
        assert tests["better"][metric]["p_holm"] > tests["better"][metric]["p"]
        assert tests["better"][metric]["test"] == RANDOMIZATION
    assert {key: tests["better"]["sentences"][key] for key in ("wins", "losses", "ties")} == {
        "wins": 6,
        "losses": 0,
        "ties": 15,
    }


def test_several_runs_are_tested_over_seeds_and_sentences():
    systems = {"base": [worse(12), worse(11), worse(12)], "new": [worse(2), worse(3), worse(2)]}
    seeds = {"base": [1, 2, 3], "new": [2, 3, 1]}
    found = compare_systems(systems, SOURCES, REFERENCES, seeds=seeds)["systems"]["new"]
    assert found["bleu"]["test"] == TWO_LEVELS and found["bleu"]["pairs"] == 3
    assert found["bleu"]["p"] == found["bleu"]["p_holm"] < 0.05
    low, high = found["bleu"]["difference_interval"]
    assert 0 < low < found["bleu"]["difference"] < high
    assert found["bleu"]["difference"] == pytest.approx(found["bleu"]["system"] - found["bleu"]["baseline"])
    # the runs of a system that is its own baseline do not differ
    same = compare_systems({"base": systems["base"], "new": systems["base"]}, SOURCES, REFERENCES)["systems"]["new"]
    assert same["bleu"]["difference"] == 0 and same["bleu"]["p"] == 1


class TestSentences:
    def test_the_largest_differences_of_both_directions_come_first(self):
        references = ["one two three four"] * 5
        baseline = ["one two three four", "one two", "one two three", "x", "one two three four"]
        system = ["one", "one two three four", "one two three four", "x", "one two three"]
        found = sentence_differences(baseline, system, list("abcde"), references, count=1)
        assert (found["wins"], found["losses"], found["ties"]) == (2, 2, 1)
        assert [entry["position"] for entry in found["most_different"]] == [1, 0]
        first = found["most_different"][0]
        assert first["difference"] == first["system_score"] - first["baseline_score"] > 0
        assert (first["source"], first["baseline"], first["system"]) == ("b", "one two", "one two three four")

    def test_equal_differences_are_in_the_order_of_the_file(self):
        found = sentence_differences(["x"] * 9, ["one two"] * 9, list("abcdefghi"), ["one two"] * 9, count=4)
        assert [entry["position"] for entry in found["most_different"]] == [0, 1, 2, 3]

    def test_a_system_without_output_loses_everywhere(self):
        empty = compare_systems({"base": [worse(0)], "mute": [[""] * 21]}, SOURCES, REFERENCES)["systems"]["mute"]
        assert empty["sentences"]["losses"] == 21 and empty["bleu"]["system"] == 0
        assert all(np.isfinite(empty[metric]["p"]) for metric in ("bleu", "chrf", "ter"))


class TestExamples:
    def test_of_one_system_are_spread_over_the_lengths(self):
        sources = [" ".join([f"w{length}"] * length) for length in range(1, 101)]
        chosen = choose_examples(sources, {"a": sources}, sources, 3)
        assert [len(sources[position].split()) for position in chosen] == [16, 46, 76]
        assert choose_examples(["a b", "", "c"], {"a": ["x", "y", " "]}, ["x"] * 3, 5) == [0]

    def test_of_several_are_those_that_differ_most(self):
        systems = {"base": worse(2, 3), "new": worse(2, 10)}
        chosen = choose_examples(SOURCES, systems, REFERENCES, 4)
        assert sorted(chosen[::2]) == [3, 4] and sorted(chosen[1::2]) == [10, 11]
        assert chosen == choose_examples(SOURCES, systems, REFERENCES, 4)
        # where fewer differ than are wanted, others follow
        more = choose_examples(SOURCES, systems, REFERENCES, 6)
        assert more[:4] == chosen and len(set(more)) == 6

    def test_a_source_is_there_once_and_blank_ones_are_not(self):
        sources = ["a", "a", " ", "b"]
        systems = {"base": ["", "", "", ""], "new": ["x", "x", "x", ""]}
        assert choose_examples(sources, systems, ["x"] * 4, 4) == [0]
