"""Captions say what the numbers say."""

import pytest

from hf_capsule_mt.analysis import captions


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.1, 0.4, 0.8], "rises from 0.10 to 0.80"),
        ([0.8, None, 0.1], "falls from 0.80 to 0.10"),
        ([0.30, 0.34, 0.32], "is flat (0.30 to 0.34)"),
        ([0.3, 0.9, 0.31], "begins at 0.30 and ends at 0.31, between 0.30 and 0.90"),
        ([None, float("nan")], "has no values"),
    ],
)
def test_change(values, text):
    assert captions.change(values) == text


def test_flat_agreements_are_called_flat():
    flat = {"iterations": [{"mean": [[0.25, 0.25, 0.25, 0.25], [0.26, 0.24, 0.25, 0.25]]}]}
    assert captions.of_agreement(flat).startswith("Flat: ")
    sharp = {"iterations": [{"mean": [[0.7, 0.1, 0.1, 0.1], [0.1, 0.3, 0.3, 0.3]]}]}
    assert captions.of_agreement(sharp) == (
        "After the last iteration from 0.40 to 2.80 times uniform. Capsules in which a layer is the strongest: layer 1"
        " 25%, layer 2 75%."
    )


def test_entropy_that_stays_uniform():
    steps = [{"entropy": 2.0, "diversity": 0.0}, {"entropy": 1.97, "diversity": 0.3}]
    assert captions.of_entropy({"encoder": {"iterations": steps, "uniform_entropy": 2.0}}) == (
        "Encoder: entropy is flat (1.97 to 2.00), within 5% of a uniform choice; diversity rises from 0.00 to 0.30."
    )


def test_shares_progress_and_moves():
    assert captions.of_memory({"iterations": [{"shares": [0.25] * 4}]}).startswith("Flat: ")
    assert "largest share is 70% (capsule 2), the smallest 10%" in captions.of_memory(
        {"iterations": [{"shares": [0.2, 0.7, 0.1]}]}
    )
    progress = {"groups": ["PAST", "FUTURE"], "by_progress": [[0.1, 0.5], [0.6, 0.52]]}
    assert captions.of_progress(progress) == "PAST rises from 0.10 to 0.60; FUTURE is flat (0.50 to 0.52)."
    assert captions.of_assignment(0, 5, 0.2).startswith("No step")
    assert captions.of_assignment(2, 5, 0.2).startswith("2 of 5 steps")
