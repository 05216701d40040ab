"""Every system of every family translates as generate() does when exported; each export takes ten seconds."""

import random
import re
import sys
from pathlib import Path

import pytest
from exported import assert_alike, make_system, random_options, random_rules, sentences, set_rules

from hf_capsule_mt.models.capsule_operators import AGGREGATION_CLASSES
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from hf_capsule_mt.operators import load_operators
from tiny_models import EOS, PAD, TARGET_VOCAB

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
OPERATOR = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.S))["mean_top.py"]
OWN_TARGET = {
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": TARGET_VOCAB,
    "tie_word_embeddings": False,
}
PLAIN = {"aggregation": "none"}
PRINTED = {"source_memory": "capsule", "position_aware_routing": False, "separable_scoring": False}
MARIAN = {
    "plain": PLAIN,
    "one_layer": {**PLAIN, "encoder_layers": 1, "decoder_layers": 1},
    "own_vocabularies": {"aggregation": "linear", **OWN_TARGET},
    "gelu_unscaled": {**PLAIN, "activation_function": "gelu", "scale_embedding": False},
    "several_ends": {**PLAIN, "eos_token_id": [EOS, 7, 9]},
    "linear_of_votes": {"aggregation": "linear", "linear_inputs": "votes"},
    "linear_own_layer": {"aggregation": "linear", "linear_inputs": "votes", "capsule_inputs": "own_layer"},
    "dynamic": {"aggregation": "dynamic"},
    "dynamic_own_layer": {"aggregation": "dynamic", "capsule_inputs": "own_layer", "aggregation_init": "paper"},
    "dynamic_routing": {"aggregation": "dynamic_routing", "aggregation_init": "paper"},
    "dynamic_routing_once": {"aggregation": "dynamic_routing", "routing_iterations": 1, "num_capsules": 4},
    "em_of_four": {"aggregation": "em_routing", "num_capsules": 4, "em_inverse_temperature": 0.5},
    "em_paper_once": {"aggregation": "em_routing", "aggregation_init": "paper", "routing_iterations": 1},
    "em_geometric_mean": {"aggregation": "em_routing", "num_capsules": 4, "em_density": "geometric_mean"},
    "em_own_layer": {"aggregation": "em_routing", "capsule_inputs": "own_layer", "aggregation_hidden_size": 7},
    "em_encoder": {"aggregation": "em_routing", "aggregate_decoder": False},
    "em_decoder": {"aggregation": "em_routing", "aggregate_encoder": False},
    "em_one_layer": {"aggregation": "em_routing", "encoder_layers": 1, "decoder_layers": 1},
    "gdr": {**PLAIN, "guided_routing": "routing"},
    "gdr_once": {**PLAIN, "guided_routing": "routing", "routing_iterations": 1},
    "gdr_no_redundant": {**PLAIN, "guided_routing": "routing", "num_redundant_capsules": 0, **OWN_TARGET},
    "gdr_paper": {**PLAIN, "guided_routing": "routing", "aggregation_init": "paper", "num_past_capsules": 3}
    | {"num_future_capsules": 3},
    "classifier": {**PLAIN, "guided_routing": "classifier"},
    "classifier_two": {**PLAIN, "guided_routing": "classifier", "num_redundant_capsules": 0},
    "attention": {**PLAIN, "guided_routing": "attention"},
    "recurrent": {**PLAIN, "guided_routing": "recurrent"},
    "recurrent_on_em": {"aggregation": "em_routing", "guided_routing": "recurrent", "num_capsules": 3},
    "gdr_with_losses": {**PLAIN, "guided_routing": "routing", "bow_loss_weight": 1.0, "bca_loss_weight": 0.5},
}
BART = {
    "plain": PLAIN,
    "em_and_gdr": {"aggregation": "em_routing", "guided_routing": "routing"},
    "linear_and_recurrent": {"aggregation": "linear", "guided_routing": "recurrent"},
    "attention": {**PLAIN, "guided_routing": "attention", "scale_embedding": False},
}
M2M100 = {
    "plain": PLAIN,
    "em_and_gdr": {"aggregation": "em_routing", "guided_routing": "routing", "layer_normalization": "final"},
    "linear_and_recurrent": {"aggregation": "linear", "guided_routing": "recurrent", "scale_embedding": False},
    "dynamic_one_layer": {"aggregation": "dynamic", "encoder_layers": 1, "decoder_layers": 1},
}
MBART = {
    "plain": PLAIN,
    "dynamic_routing": {"aggregation": "dynamic_routing", "aggregation_init": "paper"},
    "em_and_classifier": {"aggregation": "em_routing", "guided_routing": "classifier", "layer_normalization": "final"},
}
FAMILIES = {"marian": MARIAN, "bart": BART, "m2m100": M2M100, "mbart": MBART}
RNN = {
    "simple": {"source_memory": "simple"},
    "simple_one_layer": {"source_memory": "simple", "encoder_layers": 1, "decoder_layers": 1},
    "attention": {"source_memory": "attention"},
    "attention_and_gdr": {"source_memory": "attention", "guided_routing": "routing"},
    "capsule": {"source_memory": "capsule"},
    "capsule_printed": PRINTED,
    "capsule_shared_weights": {**PRINTED, "share_routing_weights": True, "routing_iterations": 1},
    "capsule_calibrated": {"source_memory": "capsule", **CALIBRATED},
    "capsule_ends": {"source_memory": "capsule", "include_end_states": True, "balanced_routing": True},
    "hybrid": {"source_memory": "hybrid", "scale_embedding": False},
    "hybrid_on_em": {"source_memory": "hybrid", "aggregation": "em_routing", "guided_routing": "routing"},
    "own_vocabularies": {
        "source_memory": "capsule",
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": TARGET_VOCAB,
    },
    "dynamic_and_attention": {"source_memory": "simple", "aggregation": "dynamic", "guided_routing": "attention"},
}
ALL = [
    pytest.param(family, fields, id=f"{family}-{name}")
    for family, systems in {**FAMILIES, "rnn": RNN}.items()
    for name, fields in systems.items()
]


def assert_alike_in_many_ways(system, draws=8):
    assert assert_alike(system, sentences()) == 8
    for length_penalty, early_stopping in ((1.0, False), (0.0, True), (2.0, "never")):
        options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        assert_alike(system, sentences(seed=1), num_beams=4, num_return_sequences=3, **options)
    config = system.model.generation_config
    for seed in range(draws):
        draw = random.Random(seed)
        system.model.generation_config = config
        set_rules(system, **random_rules(draw))
        sources = sentences([draw.choice([1, 2, 5, 17, 33]) for _ in range(5)], seed)
        assert_alike(system, sources, **random_options(draw))


@pytest.mark.parametrize("family, fields", ALL)
def test_every_system(tmp_path, family, fields):
    assert_alike_in_many_ways(make_system(tmp_path, family, fields))


@pytest.mark.parametrize("family", ["marian", "rnn"])
def test_an_operator_from_outside(tmp_path, family):
    (tmp_path / "mean_top.py").write_text(OPERATOR, encoding="utf-8")
    load_operators([tmp_path / "mean_top.py"])
    try:
        fields = {"aggregation": "mean_top", "aggregation_options": {"top": 1}}
        assert_alike_in_many_ways(make_system(tmp_path, family, fields), draws=2)
    finally:
        # as in a process that has not loaded it
        sys.modules.pop(AGGREGATION_CLASSES.pop("mean_top").__module__, None)


def test_padding_and_ends_that_are_one_token(tmp_path):
    """As OPUS-MT models and BART's have it, a token has several parts at once."""
    fields = {**PLAIN, "pad_token_id": PAD, "decoder_start_token_id": EOS, "forced_eos_token_id": EOS}
    assert_alike_in_many_ways(make_system(tmp_path, "bart", fields))
