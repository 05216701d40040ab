"""A report with small made-up numbers, as pages and figures take it."""

import math

import numpy as np
import pytest

SOURCE = ["A", "dog", "sleeps", "."]
TARGET = ["Ein", "Hund", "schläft", ".", "</s>"]
ITERATIONS, LAYERS, CAPSULES, MEMORY = 3, 2, 7, 5


def agreements(*leading, capsules=CAPSULES, seed=0):
    """Random probabilities, [*leading, capsules]."""
    return np.random.default_rng(seed).dirichlet(np.ones(capsules), size=leading)


def stack_statistics(seed):
    mean = agreements(ITERATIONS, LAYERS, seed=seed)
    mean[0] = 1 / CAPSULES
    iterations = [
        {"entropy": math.log(CAPSULES) - 0.2 * step, "diversity": 0.1 * step, "mean": mean[step].tolist()}
        for step in range(ITERATIONS)
    ]
    return {
        "capsules": CAPSULES,
        "layers": LAYERS,
        "uniform_entropy": math.log(CAPSULES),
        "iterations": iterations,
        "positions": 9,
    }


def routed_example():
    # PAST is 0.1 before and 0.8 from the step after the word's own target word on
    assignment = np.full((len(TARGET), len(SOURCE), 3), [0.1, 0.7, 0.2])
    for word in range(len(SOURCE)):
        assignment[word + 1 :, word] = [0.8, 0.1, 0.1]
    return {
        "source": "A dog sleeps.",
        "reference": "Ein Hund schläft.",
        "translation": "Ein Hund schläft.",
        "source_tokens": list(SOURCE),
        "target_tokens": list(TARGET),
        "guided": {"groups": ["PAST", "FUTURE", "REDUNDANT"], "assignment": assignment.tolist()},
        "decoder": {"agreement": agreements(len(TARGET), ITERATIONS, LAYERS, seed=1).tolist(), "capsules": CAPSULES},
        "encoder": {"agreement": agreements(ITERATIONS, LAYERS, seed=2).tolist(), "capsules": CAPSULES},
        "memory": {"agreement": agreements(ITERATIONS, len(SOURCE), capsules=MEMORY, seed=3).tolist()},
    }


def plain_example():
    example = routed_example()
    example["translation"] = "Der Hund schlief."
    return {name: example[name] for name in ("source", "reference", "translation", "source_tokens", "target_tokens")}


def system(name, bleu, **parts):
    signatures = {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6", "ter": "nrefs:1|tok:tercom"}
    buckets = [
        {"low": 0, "high": 10, "sentences": 4, "bleu": bleu, "hypothesis_length": 5.0, "reference_length": 5.5},
        {"low": 10, "high": None, "sentences": 3, "bleu": bleu / 2, "hypothesis_length": 7.0, "reference_length": 7.0},
    ]
    for bucket in buckets:
        bucket["ratio"] = bucket["hypothesis_length"] / bucket["reference_length"]
    return {
        "name": name,
        "model_type": "capsule-marian",
        "description": f"aggregation={name}",
        "parameters": 2_345_678,
        "scores": {"bleu": bleu, "chrf": 50.0 + bleu / 10, "ter": 60.0 - bleu, "signatures": signatures},
        "buckets": buckets,
        "routing": {},
        **parts,
    }


@pytest.fixture
def report():
    """Two systems: one without routing, and one with every kind of it."""
    routing = {
        "encoder": stack_statistics(4),
        "decoder": stack_statistics(5),
        "memory": {
            "capsules": MEMORY,
            "words": 9,
            "iterations": [
                {
                    "shares": agreements(capsules=MEMORY, seed=step).tolist(),
                    "assignment_entropy": 1.5 - step,
                    "capsules_in_use": 4.25,
                }
                for step in range(ITERATIONS)
            ],
        },
        "guided": {
            "groups": ["PAST", "FUTURE", "REDUNDANT"],
            "by_progress": agreements(10, capsules=3, seed=6).tolist(),
            "past_overlap": 0.625,
            "future_overlap": None,
            "steps": 9,
        },
    }
    efficiency = {"parameters": 2_345_678, "milliseconds_per_sentence": 12.25, "ratio": 1.5}
    efficiency["quartiles"] = {"milliseconds_per_sentence": [12.0, 13.0]}
    tests = {
        metric: {
            "baseline": 30.0,
            "system": 30.0 + difference,
            "difference": difference,
            "bootstrap_p": 0.2,
            "randomization_p": p,
            "interval": [29.0, 33.0],
            "p": p,
            "p_holm": min(1.0, 2 * p),
            "test": "approximate randomisation",
            "pairs": 1,
        }
        for metric, difference, p in (("bleu", 1.5, 0.0004), ("chrf", 0.15, 0.03), ("ter", -1.5, 0.4))
    }
    tests["sentences"] = {
        "wins": 3,
        "losses": 2,
        "ties": 1229,
        "most_different": [
            {
                "position": 6,
                "difference": -12.5,
                "baseline_score": 50.0,
                "system_score": 37.5,
                "source": "A dog sleeps.",
                "reference": "Ein Hund schläft.",
                "baseline": "Der Hund schlief.",
                "system": " ",
            }
        ],
    }
    tests["sign_test"] = {"p": 0.0625, "better": 5, "worse": 1, "ties": 1}
    return {
        "title": "Tiny test",
        "created_with": "hf_capsule_mt 0.0.0",
        "test_set": {
            "source": "test.en",
            "reference": "test.de",
            "sentences": 1234,
            "source_lang": "en",
            "target_lang": "de",
        },
        "decoding": {"num_beams": 5, "length_penalty": 1.0},
        "systems": [
            system("plain", 30.0, examples=[plain_example()]),
            system(
                "routed",
                31.5,
                routing=routing,
                efficiency=efficiency,
                adequacy={"cdr": 0.875},
                contributions={"loss": 1.25, "without_decoder": 1.75},
                examples=[routed_example(), {**routed_example(), "source": "A second sentence."}],
            ),
        ],
        "comparison": {"baseline": "plain", "systems": {"routed": tests}},
        "table": {"markdown": "| System |\n|:--|", "latex": "\\begin{tabular}{l}\n\\end{tabular}"},
        "figures": [],
    }
