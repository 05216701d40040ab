"""Configurations of any values: a model that works, or a refusal that names the field."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from hf_capsule_mt import (
    CapsuleBartConfig,
    CapsuleBartForConditionalGeneration,
    CapsuleM2M100Config,
    CapsuleM2M100ForConditionalGeneration,
    CapsuleMarianConfig,
    CapsuleMarianMTModel,
    CapsuleMBartConfig,
    CapsuleMBartForConditionalGeneration,
    CapsuleRNNConfig,
    CapsuleRNNForConditionalGeneration,
)
from hf_capsule_mt.models.capsule_configuration import (
    AGGREGATION_INITS,
    CAPSULE_INPUTS,
    GUIDED_ROUTINGS,
    LAYER_NORMALIZATIONS,
    LINEAR_INPUTS,
)
from hf_capsule_mt.models.capsule_operators import known_aggregations
from hf_capsule_mt.models.configuration_capsule_rnn import SOURCE_MEMORIES
from record import note
from tiny_models import BART_SIZES, M2M100_SIZES, MBART_SIZES, RNN_SIZES, SIZES

FAMILIES = {
    "marian": (CapsuleMarianConfig, CapsuleMarianMTModel, SIZES),
    "bart": (CapsuleBartConfig, CapsuleBartForConditionalGeneration, BART_SIZES),
    "m2m100": (CapsuleM2M100Config, CapsuleM2M100ForConditionalGeneration, M2M100_SIZES),
    "mbart": (CapsuleMBartConfig, CapsuleMBartForConditionalGeneration, MBART_SIZES),
    "rnn": (CapsuleRNNConfig, CapsuleRNNForConditionalGeneration, RNN_SIZES),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "aggregation": known_aggregations(),
    "capsule_inputs": CAPSULE_INPUTS,
    "linear_inputs": LINEAR_INPUTS,
    "layer_normalization": LAYER_NORMALIZATIONS,
    "aggregation_init": AGGREGATION_INITS,
    "guided_routing": GUIDED_ROUTINGS,
    "source_memory": SOURCE_MEMORIES,
    "activation_function": ("relu", "gelu", "silu", "tanh"),
}
# Fields of transformers whose values of other types end in other exceptions, for plain models too; one of each that
# shows it
UNCHECKED: dict[str, Any] = {"output_hidden_states": 0.5, "dtype": "x", "id2label": 1}
# a model with a larger number somewhere is not tiny: its configuration is checked, and it is not built
TINY = 300
INTEGERS = st.sampled_from([1, 2, 3, 4, 6, 12, 0, -1, 5, 41, 53, 1000, 10**6])
NUMBERS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1e-30, -0.1, 1.5, 1e30, math.inf, -math.inf, math.nan])
TEXTS = st.one_of(st.sampled_from(["", "none", "0", "True", "routing", "\x00", "ü" * 50]), st.text(max_size=8))
ANYTHING = st.one_of(
    INTEGERS,
    NUMBERS,
    TEXTS,
    st.booleans(),
    st.none(),
    st.lists(st.one_of(INTEGERS, TEXTS), max_size=2),
    st.dictionaries(TEXTS, INTEGERS, max_size=2),
)
counts: Counter = Counter()


def plausible(field: dataclasses.Field) -> st.SearchStrategy:
    """Values that a field may well have."""
    kind = str(field.type)
    if field.name in CHOICES:
        return st.sampled_from(CHOICES[field.name])
    if "bool" in kind:
        return st.booleans()
    if "float" in kind:
        return st.one_of(NUMBERS, st.floats(0, 1))
    return INTEGERS if "int" in kind and "dict" not in kind else ANYTHING


def checked_fields(config_class: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(config_class) if field.name not in UNCHECKED]


@st.composite
def fields_of(draw: st.DrawFn, config_class: type) -> dict[str, Any]:
    """Values for some fields: mostly plausible ones, and in a third of the cases some of any type."""
    chosen = draw(st.lists(st.sampled_from(checked_fields(config_class)), min_size=1, max_size=5))
    wild = draw(st.integers(0, 2)) == 0
    return {field.name: draw(ANYTHING if wild and draw(st.booleans()) else plausible(field)) for field in chosen}


def check_refusal(error: Exception, config_class: type) -> None:
    """It is one of values, and names a field: the one that was given, or one that it does not go together with."""
    assert isinstance(error, ValueError | StrictDataclassError), f"{type(error).__name__}: {error}"
    said = f"{error} {error.__cause__ or ''}"
    assert any(field.name in said for field in dataclasses.fields(config_class)), f"names no field: {said}"


def is_tiny(config: Any) -> bool:
    numbers = [value for value in vars(config).values() if isinstance(value, int)]
    return all(value <= TINY for value in numbers) and config.routing_iterations <= 50


def run_forward(model_class: type, config: Any) -> None:
    """A tiny model takes a batch, and gives logits and a loss of the right shape."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    words = min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    length = min(3, getattr(config, "max_position_embeddings", 3))
    tokens = torch.arange(2 * length).reshape(2, length) % words
    # without these tokens labels cannot be moved to the right, and the caller does it
    given = {"decoder_input_ids": tokens} if None in (config.pad_token_id, config.decoder_start_token_id) else {}
    with torch.no_grad():
        out = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens, return_dict=True, **given)
    assert out.logits.shape[:2] == tokens.shape and out.loss.shape == ()


def check_config(family: str, values: dict[str, Any], folder: Any) -> None:
    config_class, model_class, sizes = FAMILIES[family]
    counts["tried"] += 1
    try:
        config = config_class(**(sizes | values))
    except Exception as error:
        check_refusal(error, config_class)
        counts["refused"] += 1
        return
    kept = config.to_dict()
    assert repr(config_class.from_dict(kept).to_dict()) == repr(kept)
    config.save_pretrained(folder)
    loaded = AutoConfig.from_pretrained(folder)
    assert type(loaded) is config_class
    # as JSON: it has no tuples, and keys of dictionaries are texts; the path is where it was loaded from
    loaded._name_or_path = config._name_or_path
    assert loaded.to_json_string() == config.to_json_string()
    counts["accepted"] += 1
    if is_tiny(config):
        run_forward(model_class, config)
        counts["built"] += 1


@pytest.mark.parametrize("family", FAMILIES)
def test_any_values(family, tmp_path):
    counts.clear()

    @given(fields_of(FAMILIES[family][0]))
    def check(values: dict[str, Any]) -> None:
        check_config(family, values, tmp_path)

    check()
    note("properties", f"configurations, {family}", dict(counts))


FEW = (None, -1, "x", [1])
MANY = (*FEW, 0, 10**6, 0.5, -1.0, math.inf, math.nan, "", True, False, [], ["x"], {}, {"x": 1}, (1,))


@pytest.mark.parametrize(
    "values", [pytest.param(FEW, id="few values"), pytest.param(MANY, id="many values", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_by_itself(family, values, tmp_path):
    """Each field with values of several types."""
    counts.clear()
    failed = []
    for field in checked_fields(FAMILIES[family][0]):
        for value in values:
            try:
                check_config(family, {field.name: value}, tmp_path)
            except Exception as error:
                reason = (str(error).splitlines() or [""])[0][:200]
                failed.append(f"{field.name}={value!r}: {type(error).__name__}: {reason}")
    note("properties", f"single fields, {family}", dict(counts))
    assert not failed, f"{len(failed)} of {counts['tried']}\n" + "\n".join(failed)


@pytest.mark.xfail(strict=True, reason="fields of transformers are not checked")
@pytest.mark.parametrize(("name", "value"), UNCHECKED.items())
def test_fields_that_are_not_checked_yet(name, value, tmp_path):
    check_config("marian", {name: value}, tmp_path)
