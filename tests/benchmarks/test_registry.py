"""What can be measured: every system, job and operator is built as it says, and covered by tests that are there."""

from contextlib import contextmanager

import pytest
import torch
from transformers import BartForConditionalGeneration, MarianMTModel

import hf_capsule_mt
import registry
from hf_capsule_mt.evidence import systems as evidence
from registry import JOBS, OPERATORS, SYSTEMS, System, Unknown, build, make_job, make_operator
from verify import ROOT


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_is_what_its_options_say_and_trains(name, setting):
    model = build(name, setting)
    options = SYSTEMS[name].options
    if options is None:
        assert type(model) in (MarianMTModel, BartForConditionalGeneration)
    else:
        assert {field: getattr(model.config, field) for field in options} == options
    before = model.get_input_embeddings().weight.detach().clone()
    make_job(model, setting, "training step")()
    assert not torch.equal(model.get_input_embeddings().weight, before)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if SYSTEMS[name].family != "rnn"])
def test_system_has_its_parents_sizes(name, setting):
    config, parent = build(name, setting).config, build(registry.parent_of(name), setting).config
    for field in ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "vocab_size", "dropout"):
        assert getattr(config, field) == getattr(parent, field)


def test_gates_are_open(setting):
    gates = [p for name, p in build("em_routing", setting).named_parameters() if name.endswith("gate")]
    assert gates and all((gate == 0.1).all() for gate in gates)


@pytest.mark.parametrize("name", ["marian", "em_routing_guided", "bart", "rnn_hybrid"])
def test_decoding_takes_as_many_steps_as_the_longest_source_has_words(name, setting):
    model = build(name, setting)
    assert make_job(model, setting, "greedy, 1 sentence")().shape == (1, 1 + 5)
    assert make_job(model, setting, "beam 5, 16 sentences")().shape == (16, 1 + 6)


def test_bfloat16_trains_float32_weights_and_decodes_with_bfloat16_ones(setting, monkeypatch):
    setting = setting._replace(dtype=torch.bfloat16)
    model, decoded = build("em_routing_guided", setting), []
    generate = type(model).generate
    monkeypatch.setattr(
        type(model), "generate", lambda self, **inputs: decoded.append(self.dtype) or generate(self, **inputs)
    )
    for job in JOBS:
        make_job(model, setting, job)()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert decoded == [torch.bfloat16] * 2


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_runs_inside_its_context(name, setting):
    entered = []

    @contextmanager
    def context():
        entered.append(True)
        yield

    make_operator(name, setting, context)()
    make_operator(name, setting)()
    assert entered == [True]


def test_a_version_without_a_class_a_field_or_a_function_is_told(monkeypatch, setting):
    monkeypatch.delattr(hf_capsule_mt.models, "CapsuleBartConfig")
    with pytest.raises(Unknown, match="CapsuleBartConfig"):
        build("bart_none", setting)
    monkeypatch.setitem(SYSTEMS, "none", System("marian", {"time_travel": True}))
    with pytest.raises(Unknown, match="CapsuleMarianConfig has no field time_travel"):
        build("none", setting)
    monkeypatch.delattr(hf_capsule_mt.models.capsule_kernels, "additive_scores")
    with pytest.raises(Unknown, match="additive_scores"):
        make_operator("additive_scores", setting)


def test_tests_that_cover_systems_and_operators():
    def names(*arguments):
        return {file.removeprefix("tests/models/test_").removesuffix(".py") for file in registry.tests_of(*arguments)}

    assert names(["marian", "bart"]) == set()
    assert names(["none"]) == {"capsule_marian", "capsule_kernels"}
    assert names(["em_routing"]) == {"capsule_marian", "capsule_kernels", "capsule_routing"}
    assert names(["guided_routing"]) == {"capsule_marian", "capsule_kernels", "guided_routing", "guided_marian"}
    assert names(["rnn_capsule"]) == {"capsule_rnn", "capsule_recurrent", "sequence_routing", "capsule_kernels"}
    assert names([], ["em_routing_capsules"]) == {"capsule_routing", "capsule_kernels"}
    assert all((ROOT / file).is_file() for file in registry.tests_of(list(SYSTEMS), list(OPERATORS)))


def test_lengths_are_those_of_the_first_sentences(tmp_path, setting):
    text = tmp_path / "text.en"
    text.write_text("one\n\n" + "a b c d e f g h i j\n" * 15 + "left out\n")
    assert registry.sentence_lengths(text, setting.size) == (2, *[14] * 15)
    assert registry.sentence_lengths(None, setting.size) == (6,) * 16
    text.write_text("one\n")
    with pytest.raises(ValueError, match=r"text.en must have at least 16 sentences, but has 1"):
        registry.sentence_lengths(text, setting.size)


def test_tables_have_a_name_for_every_system_and_job():
    assert set(evidence.MEASURED) == set(SYSTEMS) and tuple(JOBS) == evidence.JOBS
