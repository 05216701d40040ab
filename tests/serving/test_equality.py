"""Exported models translate token for token as generate() does."""

import random

import pytest
from exported import SENTENCES, assert_alike, random_options, random_rules, sentences, set_rules

DRAWS = 25


def test_defaults(system):
    assert assert_alike(system, sentences()) == len(SENTENCES) - 1


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 1.0, 2.0])
def test_beam_search(system, early_stopping, length_penalty):
    options = {"early_stopping": early_stopping, "length_penalty": length_penalty}
    assert_alike(system, sentences(), num_beams=4, num_return_sequences=4, **options)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_random_options(system, seed):
    draw = random.Random(seed)
    set_rules(system, **random_rules(draw))
    sources = sentences([draw.choice([0, 1, 2, 5, 9, 17, 33]) for _ in range(draw.choice([1, 2, 7]))], seed)
    options = random_options(draw)
    if draw.random() < 0.4:
        options["prefixes"] = [draw.choice(["", "w7", "w9 w4 w30"]) for _ in sources]
    assert_alike(system, sources, max_tokens=draw.choice([1, 40, 4096]), **options)
