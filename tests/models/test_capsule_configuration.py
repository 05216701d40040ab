"""Configurations: what is refused, and that the message names the field, the value and the remedy."""

import dataclasses
import logging
import math

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, BartConfig

from hf_capsule_mt import (
    CapsuleBartConfig,
    CapsuleM2M100Config,
    CapsuleMarianConfig,
    CapsuleMarianMTModel,
    CapsuleMBartConfig,
    CapsuleRNNConfig,
)
from hf_capsule_mt.models.capsule_configuration import CapsuleConfigMixin
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from hf_capsule_mt.recipe_files import read_recipe
from tiny_models import STACKS, capsule_config, plain_config, rnn_config

FAMILIES = {name: stack.config for name, stack in STACKS.items()} | {"rnn": rnn_config}
BAD_VALUES = {
    "unknown aggregation": ({"aggregation": "em"}, "aggregation='em' is not known; choose one of none, linear"),
    "aggregation type": ({"aggregation": 3}, "aggregation"),
    "N not dividing": ({"num_capsules": 5}, r"num_capsules=5 does not divide d_model=12; choose one of \[1, 2, 3, 4"),
    "N zero": ({"num_capsules": 0}, "num_capsules=0 does not divide"),
    "iterations 0": ({"routing_iterations": 0}, "routing_iterations=0 must be at least 1"),
    "iterations type": ({"routing_iterations": 2.5}, "routing_iterations"),
    "encoder layerdrop": ({"encoder_layerdrop": 0.1}, "encoder_layerdrop=0.1 is not supported"),
    "decoder layerdrop": ({"decoder_layerdrop": 0.1}, "decoder_layerdrop=0.1 is not supported"),
    "no layers": ({"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
    "smoothing 1": ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be at least 0 and less than 1"),
    "smoothing negative": ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
    "capsule inputs": ({"capsule_inputs": "layers"}, "choose one of all_layers, own_layer"),
    "linear inputs": ({"linear_inputs": "vote"}, "choose one of layers, votes"),
    "init": ({"aggregation_init": "zero"}, "choose one of identity, paper"),
    "hidden size": ({"aggregation_hidden_size": 0}, "aggregation_hidden_size=0 must be at least 1"),
    "temperature": ({"em_inverse_temperature": 0}, "em_inverse_temperature=0 must be greater than 0"),
    "density": ({"em_density": "mean"}, "em_density='mean' is not known; choose one of product, geometric_mean"),
    "unknown guided routing": (
        {"guided_routing": "gdr"},
        "choose one of none, routing, classifier, attention, recurrent",
    ),
    "odd number of capsules": (
        {"num_past_capsules": 3},
        "num_past_capsules=3 and num_future_capsules=2 must be the same",
    ),
    "no past capsules": ({"num_past_capsules": 0, "num_future_capsules": 0}, "num_past_capsules=0 must be at least 1"),
    "no future capsules": ({"num_future_capsules": 0}, "num_future_capsules=0 must be at least 1"),
    "half a capsule": ({"num_past_capsules": 1.5}, "num_past_capsules"),
    "redundant negative": ({"num_redundant_capsules": -1}, "num_redundant_capsules=-1 must be at least 0"),
    "capsule size": ({"guided_capsule_size": 0}, "guided_capsule_size=0 must be at least 1"),
    "guided hidden size": ({"guided_hidden_size": 0}, "guided_hidden_size=0 must be at least 1"),
    "bow negative": ({"guided_routing": "routing", "bow_loss_weight": -1.0}, "bow_loss_weight=-1.0 must be a number"),
    "bca nan": ({"guided_routing": "routing", "bca_loss_weight": math.nan}, "bca_loss_weight=nan must be a number"),
    "bow without routing": (
        {"bow_loss_weight": 1.0},
        "bow_loss_weight=1.0 needs PAST and FUTURE contents: set guided",
    ),
    "bca without routing": (
        {"bca_loss_weight": 0.5},
        "bca_loss_weight=0.5 needs PAST and FUTURE contents: set guided",
    ),
    "misspelt guided field": ({"bow_loss_wieght": 1.0}, "did you mean 'bow_loss_weight'"),
    "misspelt": ({"agregation": "none"}, "unknown configuration field 'agregation'; did you mean 'aggregation'"),
    "misspelt parent field": ({"encoder_layer": 2}, "did you mean 'encoder_layers'"),
}


@pytest.mark.parametrize(("fields", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values_fail_when_the_config_is_built(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        capsule_config(**fields)


def test_bad_override_of_a_checkpoint_fails_before_weights_are_read(plain_checkpoint):
    (plain_checkpoint / "model.safetensors").unlink()
    with pytest.raises((ValueError, StrictDataclassError), match="num_capsules=7 does not divide d_model=12"):
        CapsuleMarianMTModel.from_pretrained(plain_checkpoint, num_capsules=7)


def test_unknown_argument_of_from_pretrained_is_refused(plain_checkpoint):
    with pytest.raises(TypeError, match="routing_iteration"):
        CapsuleMarianMTModel.from_pretrained(plain_checkpoint, routing_iteration=2)


def test_defaults_follow_d_model_and_survive_json(tmp_path):
    config = capsule_config()
    assert config.num_capsules == 12 and config.aggregation_hidden_size == 12
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is CapsuleMarianConfig
    assert loaded.to_diff_dict() | {"_name_or_path": ""} == config.to_diff_dict() | {"_name_or_path": ""}


def test_plain_config_becomes_ours_without_a_misleading_warning(tmp_path, caplog):
    plain_config().save_pretrained(tmp_path)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        config = CapsuleMarianConfig.from_pretrained(tmp_path, aggregation="linear")
    finally:
        logger.removeHandler(caplog.handler)
    assert config.model_type == "capsule-marian" and config.aggregation == "linear" and config.d_model == 12
    assert "model of type" not in caplog.text


def test_a_foreign_checkpoint_is_refused(tmp_path):
    BartConfig(d_model=12).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="type 'bart'; load it with AutoModelForSeq2SeqLM"):
        CapsuleMarianConfig.from_pretrained(tmp_path)


def test_validation_runs_again_at_save(tmp_path):
    config = capsule_config()
    config.routing_iterations = 0
    with pytest.raises((ValueError, StrictDataclassError), match="routing_iterations=0"):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "encoder", "decoder"),
    [
        ({}, True, True),
        ({"aggregate_encoder": False}, False, True),
        ({"aggregate_decoder": False}, True, False),
        ({"aggregation": "none"}, False, False),
    ],
)
def test_which_stacks_aggregate(fields, encoder, decoder):
    config = capsule_config(**fields)
    assert (config.aggregates("encoder"), config.aggregates("decoder")) == (encoder, decoder)


FIELDS = {
    field.name: "text" if "int" in str(field.type) or "bool" in str(field.type) else 3
    for field in dataclasses.fields(CapsuleConfigMixin)
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize(("name", "value"), FIELDS.items(), ids=FIELDS.keys())
def test_every_shared_field_is_checked_by_type_in_every_family(family, name, value):
    with pytest.raises(StrictDataclassError, match=f"for field '{name}'"):
        family(**{name: value})
    config = family()
    with pytest.raises(StrictDataclassError, match=f"for field '{name}'"):
        setattr(config, name, value)


def test_shared_fields_stand_once():
    own = {family: set(FIELDS) & set(family.__annotations__) for family in CapsuleConfigMixin.__subclasses__()}
    recurrent = {"aggregation", "label_smoothing"}  # with defaults of their own
    transformers = (CapsuleMarianConfig, CapsuleBartConfig, CapsuleM2M100Config, CapsuleMBartConfig)
    assert own == {**{family: set() for family in transformers}, CapsuleRNNConfig: recurrent}


BAD_RNN_VALUES = {
    "unknown memory": ({"source_memory": "rnn"}, "source_memory='rnn' is not known; choose one of simple, capsule"),
    "no capsules": ({"num_source_capsules": 0}, "num_source_capsules=0 must be at least 1"),
    "odd width": ({"d_model": 15, "num_capsules": 5}, "d_model=15 must be even: each direction of the encoder"),
    "dropout 1": ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
    "dropout negative": ({"dropout": -0.1}, "dropout=-0.1 must be at least 0"),
    "untied": ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
    "vocabularies": ({"decoder_vocab_size": 47}, "decoder_vocab_size=47 differs from vocab_size=53: set share_enc"),
    "no layers": ({"decoder_layers": 0}, "decoder_layers=0 must be at least 1"),
    "no iterations": ({"routing_iterations": 0}, "routing_iterations=0 must be at least 1"),
    "aggregation": ({"aggregation": "em"}, "aggregation='em' is not known"),
    "bow without routing": ({"bow_loss_weight": 1.0}, "bow_loss_weight=1.0 needs PAST and FUTURE contents"),
    "misspelt": ({"source_memmory": "simple"}, "unknown configuration field 'source_memmory'; did you mean 'source_m"),
    "type": ({"share_routing_weights": "no"}, "share_routing_weights"),
}


@pytest.mark.parametrize(("fields", "message"), BAD_RNN_VALUES.values(), ids=BAD_RNN_VALUES.keys())
def test_bad_values_of_the_recurrent_family(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        rnn_config(**fields)


# what all families refuse, by the field at fault
BAD_LAYERS = {
    "dropout": (1.0, -0.1, math.nan),
    "attention_dropout": (1.0, -0.5, math.inf),
    "activation_dropout": (2, -1, None),
    "init_std": (0.0, -0.02, math.nan, math.inf),
    "activation_function": ("gelo", "", None),
    "d_model": (0, -12, None),
    "encoder_attention_heads": (0, 5, -2, None),
    "decoder_attention_heads": (0, 7, 24),
    "encoder_ffn_dim": (0, -1, None),
    "decoder_ffn_dim": (0,),
    "vocab_size": (0, -5),
    "decoder_vocab_size": (0, -1),
    "max_position_embeddings": (0, -3),
    "pad_token_id": (-1, 53),
    "bos_token_id": (-1, 99),
    "eos_token_id": (-1, 53, [1, 53], [-1]),
    "decoder_start_token_id": (53, -100),
    "forced_eos_token_id": (53, [-1]),
}


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        pytest.param(build, name, value, id=f"{family}-{name}-{value}")
        for family, build in FAMILIES.items()
        for name, values in BAD_LAYERS.items()
        if name in {field.name for field in dataclasses.fields(build())}
        for value in values
    ],
)
def test_bad_sizes_probabilities_and_tokens_are_named(tmp_path, family, name, value):
    with pytest.raises((ValueError, StrictDataclassError), match=rf"\b{name}\b"):
        family(**{name: value})
    config = family()
    # past the type check of a strict dataclass, which a wrong value of the right type passes as well
    object.__setattr__(config, name, value)
    with pytest.raises((ValueError, StrictDataclassError), match=rf"\b{name}\b"):
        config.save_pretrained(tmp_path)


def test_unknown_activation_names_its_neighbours():
    with pytest.raises((ValueError, StrictDataclassError), match=r"'gelo' is not known .*; choose one of .*\bgelu\b"):
        capsule_config(activation_function="gelo")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_edges_that_are_allowed(family):
    pad, none = 52, {"pad_token_id": None}
    if family is STACKS["m2m100"].config:
        # its positions are counted from padding
        pad, none = 42, {}
    config = family(dropout=0, pad_token_id=pad, eos_token_id=[0, 52], bos_token_id=None, forced_eos_token_id=None)
    assert (config.dropout, config.pad_token_id, config.eos_token_id) == (0, pad, [0, 52])
    assert family(**none, init_std=1e-3, activation_function="silu").init_std == 1e-3


def test_tokens_of_separate_vocabularies_belong_to_their_side():
    separate = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47, "tie_word_embeddings": False}
    assert capsule_config(**separate, bos_token_id=52).bos_token_id == 52
    for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
        with pytest.raises(
            (ValueError, StrictDataclassError), match=f"{name}=50 is not in the vocabulary: .* than 47"
        ):
            capsule_config(**separate, **{name: 50})


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_defaults_of_the_parents_are_valid(stack):
    family, parent = stack.capsule_class.config_class, type(stack.plain_config())()
    assert family().vocab_size == parent.vocab_size
    assert family.from_dict(parent.to_dict()).pad_token_id == parent.pad_token_id


def test_the_defaults_are_the_papers_base_model():
    config = CapsuleRNNConfig()
    assert (config.d_model, config.encoder_layers, config.decoder_layers) == (512, 4, 3)
    assert (config.source_memory, config.num_source_capsules, config.routing_iterations) == ("capsule", 6, 3)
    assert config.position_aware_routing and config.separable_scoring and not config.share_routing_weights
    assert config.aggregation == config.guided_routing == "none" and config.decoder_vocab_size == config.vocab_size
    assert (config.dropout, config.label_smoothing) == (0.3, 0.1)
    printed = (config.capsule_output, config.message_activation, config.routing_positions)
    assert printed == ("squash", "relu", "states") and not config.balanced_routing and not config.include_end_states


def test_calibrated_is_a_name_for_four_options():
    config = CapsuleRNNConfig.calibrated(d_model=64, balanced_routing=False)
    assert (config.capsule_output, config.message_activation, config.routing_positions) == ("mean", "linear", "scores")
    assert config.d_model == 64 and not config.balanced_routing and CapsuleRNNConfig.calibrated().balanced_routing
    recipe = read_recipe("multi30k/capsnmt_calibrated")[-1].values
    assert {key: value for key, value in recipe.items() if key in CALIBRATED} == CALIBRATED


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capsule_output": "sum"}, "capsule_output='sum' is not known; choose one of squash, mean"),
        ({"message_activation": "tanh"}, "message_activation='tanh' is not known; choose one of relu, linear"),
        ({"routing_positions": "none"}, "routing_positions='none' is not known; choose one of states, scores"),
        ({"routing_positions": "scores", "separable_scoring": False}, "needs separable_scoring=True"),
    ],
)
def test_options_of_the_memory_are_checked(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        rnn_config(**fields)


@pytest.mark.parametrize("memory", ["simple", "capsule", "attention", "hybrid"])
@pytest.mark.parametrize(
    ("shared", "positions", "separable", "balanced"),
    [
        (True, False, False, False),
        (False, False, False, False),
        (False, True, False, False),
        (False, True, True, False),
        (False, True, True, True),
    ],
    ids=["base", "+ non-shared", "+ position-aware", "+ separable", "+ balanced"],
)
def test_rows_of_the_ablation_survive_json(tmp_path, memory, shared, positions, separable, balanced):
    config = rnn_config(
        source_memory=memory,
        share_routing_weights=shared,
        position_aware_routing=positions,
        separable_scoring=separable,
        balanced_routing=balanced,
        share_encoder_decoder_embeddings=False,
        decoder_vocab_size=47,
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is CapsuleRNNConfig and loaded.attends() == (memory in ("attention", "hybrid"))
    assert loaded.to_diff_dict() | {"_name_or_path": ""} == config.to_diff_dict() | {"_name_or_path": ""}


@pytest.mark.parametrize("foreign", [plain_config, capsule_config], ids=["marian", "capsule-marian"])
def test_a_recurrent_config_names_the_only_type_it_reads(tmp_path, foreign):
    config = foreign()
    message = f"CapsuleRNNConfig can start from a checkpoint of type 'capsule-rnn', .* of type '{config.model_type}'"
    with pytest.raises(ValueError, match=message):
        CapsuleRNNConfig.from_dict(config.to_dict())
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        CapsuleRNNConfig.from_pretrained(tmp_path)


def test_recurrent_configs_are_validated_again_at_save(tmp_path):
    config = rnn_config()
    config.source_memory = "none"
    with pytest.raises((ValueError, StrictDataclassError), match="source_memory='none'"):
        config.save_pretrained(tmp_path)
