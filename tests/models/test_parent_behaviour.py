"""What the parents of the capsule models do under offloading, adapters, compilers and pickle, these do too."""

import copy
import dataclasses
import inspect
import pickle

import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from torch._dynamo.testing import CompileCounter
from transformers import AutoModel, BartForConditionalGeneration, GenerationConfig, MarianMTModel, pipeline
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)

from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.models.capsule_layers import CapsuleLinear, CapsuleMatrix
from hf_capsule_mt.models.capsule_losses import bag_of_words_logits_loss, bag_of_words_loss
from hf_capsule_mt.models.capsule_recurrent import LSTM
from hf_capsule_mt.models.capsule_seq2seq import (
    CapsuleDecoderOutput,
    CapsuleEncoderOutput,
    CapsuleSeq2SeqLMOutput,
    CapsuleSeq2SeqModelOutput,
)
from tiny_models import (
    BUILDERS,
    PAD,
    VOCAB,
    bart_model,
    capsule_model,
    m2m100_model,
    mbart_model,
    plain_bart_config,
    plain_config,
    quick,
    rnn_model,
    sentence_batch,
)

LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
GUIDED = {
    kind: {"aggregation": "none", "guided_routing": kind, **LOSSES}
    for kind in ("routing", "classifier", "attention", "recurrent")
}
EVERYTHING = {"aggregation": "em_routing", "guided_routing": "routing", **LOSSES}
# but BART, of which mBART has everything
families = pytest.mark.parametrize("family", [name for name in BUILDERS if name != "bart"])


def dense_batch(rows, source_length, target_length, seed=0):
    """Source, mask and labels of any shape; one source word is masked."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(3, VOCAB, (rows, source_length), generator=generator)
    mask = torch.ones_like(source)
    mask[0, -1] = 0
    labels = torch.randint(3, VOCAB, (rows, target_length), generator=generator)
    return {"input_ids": source, "attention_mask": mask, "labels": labels}


# --- offloading, adapters, quantisation ------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_an_offloaded_guided_head_computes_the_same(family, place, tmp_path):
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    model.save_pretrained(tmp_path)
    places = {name: "cpu" for name, _ in model.named_children()} | {"final_logits_bias": "cpu", "guided_head": place}
    if place == "disk":
        # the head, and what stays, on different sides of the device map
        assert places["model"] != places["guided_head"]
    if not hasattr(model, "final_logits_bias"):
        del places["final_logits_bias"]
    loaded = type(model).from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "off").eval()
    expected, found = model(**batch), loaded(**batch)
    torch.testing.assert_close(found.logits, expected.logits)
    for name in ("loss", "bow_loss", "bca_loss"):
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("family", ["bart", "mbart", "rnn"])
def test_a_model_offloaded_by_its_size_computes_the_same(family, tmp_path):
    # not Marian and M2M100: their parents' computed positions cannot be offloaded either
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    model.save_pretrained(tmp_path)
    memory = {"cpu": int(0.4 * 4 * model.num_parameters())}
    loaded = (
        type(model)
        .from_pretrained(tmp_path, device_map="auto", max_memory=memory, offload_folder=tmp_path / "off")
        .eval()
    )
    assert any(parameter.device.type == "meta" for parameter in loaded.parameters())
    expected, found = model(**batch), loaded(**batch)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.loss, expected.loss)


@families
def test_lora_on_all_linear_maps_trains_every_adapter_and_merges(family):
    model, batch = BUILDERS[family](**EVERYTHING, dropout=0.0).double(), sentence_batch()
    lora = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules="all-linear"))
    assert any("guided_head" in name for name, p in lora.named_parameters() if p.requires_grad)
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.05)
    lora.train()
    for step in range(2):
        optimizer.zero_grad()
        lora(**batch).loss.backward()
        optimizer.step()
        if step == 1:
            # B starts at zero, and A has a gradient from the second step on
            idle = [n for n, p in lora.named_parameters() if p.requires_grad and not p.grad.abs().max() > 0]
            assert idle == []
    trained = lora.eval()(**batch)
    merged = lora.merge_and_unload().eval()(**batch)
    torch.testing.assert_close(merged.logits, trained.logits)
    torch.testing.assert_close(merged.loss, trained.loss)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@families
def test_dynamically_quantised_maps_give_nearly_the_same_loss(family):
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear})
    assert not isinstance(quantised.lm_head, torch.nn.Linear)
    torch.testing.assert_close(quantised(**batch).loss, model(**batch).loss, rtol=0.05, atol=0)


@pytest.mark.parametrize("bag", ["past", "future"])
@pytest.mark.parametrize("normalization", ["sentence", "token"])
def test_bag_of_words_loss_of_logits_is_that_of_contents(bag, normalization):
    torch.manual_seed(0)
    contents = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    embedding = torch.randn(11, 5, dtype=torch.float64)
    labels = torch.randint(0, 11, (3, 6))
    labels[0, 4:], labels[1] = -100, -100
    losses = [
        bag_of_words_loss(contents, embedding, labels, bag, normalization),
        bag_of_words_logits_loss(contents @ embedding.T, labels, bag, normalization),
    ]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, contents)[0] for loss in losses))


def test_a_matrix_draws_the_numbers_of_a_linear_map():
    drawn = []
    for kind in (CapsuleLinear, CapsuleMatrix):
        torch.manual_seed(0)
        options = {"bias_value": None} if kind is CapsuleLinear else {}
        drawn.append((kind(5, 7, 0.3, **options).weight, torch.rand(1)))
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


# --- compilers -------------------------------------------------------------------------------------------------------

SHAPES = [(3, 7, 5), (4, 9, 6), (5, 8, 7), (2, 11, 9), (6, 5, 4), (7, 6, 11), (3, 12, 8), (8, 10, 3)]
COMPILED = {
    "marian-routing": (capsule_model, GUIDED["routing"]),
    "marian-classifier": (capsule_model, GUIDED["classifier"]),
    "marian-attention": (capsule_model, GUIDED["attention"]),
    "m2m100-em-routing": (m2m100_model, EVERYTHING),
}
# enough of a stack to be traced
FEW_LAYERS = {"encoder_layers": 2, "decoder_layers": 1}


def graphs_of(model, fullgraph=True):
    """Into how many graphs training over many shapes is compiled; fullgraph: each has to be of the whole model."""
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(model.train(), fullgraph=fullgraph, backend=counter)
    for index, shape in enumerate(SHAPES):
        batch = dense_batch(*shape, seed=index)
        loss = compiled(**batch).loss
        loss.backward()
        torch.testing.assert_close(loss, model(**batch).loss)
    return counter.frame_count


@pytest.mark.parametrize("system", quick(COMPILED, "marian-routing"))
def test_training_over_many_shapes_compiles_at_most_two_graphs(system):
    old = Version(transformers.__version__) < Version("5.20")
    if old and graphs_of(MarianMTModel(plain_config(dropout=0.0)), fullgraph=False) > 2:
        pytest.skip("this version of transformers breaks the graphs of plain models")
    build, fields = COMPILED[system]
    assert graphs_of(build(**fields, **FEW_LAYERS, dropout=0.0)) <= 2


def exported(model, dynamic_shapes):
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    batch = dense_batch(3, 7, 5)
    inputs = dict(zip(names, (batch["input_ids"], batch["attention_mask"], batch["labels"]), strict=True))
    program = torch.export.export(
        model, (), {**inputs, "use_cache": False}, dynamic_shapes={**dynamic_shapes, "use_cache": None}, strict=False
    )
    return program.module()


def assert_exported_equals(program, model, shape):
    batch = dense_batch(*shape, seed=1)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    inputs |= {"decoder_input_ids": batch["labels"], "use_cache": False}
    torch.testing.assert_close(program(**inputs)["logits"], model(**inputs).logits, rtol=1e-4, atol=1e-5)


EXPORTED = COMPILED | {"mbart-em-routing": (mbart_model, EVERYTHING | {"layer_normalization": "final"})}


@pytest.mark.parametrize("system", quick(EXPORTED, "marian-routing", "m2m100-em-routing"))
def test_one_export_serves_every_batch_source_and_target_size(system):
    build, fields = EXPORTED[system]
    model = build(**fields, **FEW_LAYERS)
    rows, source, target = (torch.export.Dim(name, min=2, max=40) for name in ("rows", "source", "target"))
    sides = {"input_ids": {0: rows, 1: source}, "attention_mask": {0: rows, 1: source}}
    program = exported(model, {**sides, "decoder_input_ids": {0: rows, 1: target}})
    for shape in SHAPES[1:4]:
        assert_exported_equals(program, model, shape)


RECURRENT = {
    memory: (rnn_model, EVERYTHING | {"source_memory": memory})
    for memory in ("simple", "capsule", "attention", "hybrid")
} | {"marian-recurrent": (capsule_model, GUIDED["recurrent"])}


@pytest.mark.parametrize("system", quick(RECURRENT, "hybrid"))
def test_an_export_of_a_recurrent_model_serves_every_batch_size(system):
    # the exporter takes recurrences apart, step by step: the lengths stay what they were
    build, fields = RECURRENT[system]
    model = build(**fields)
    rows = torch.export.Dim("rows", min=2, max=40)
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    program = exported(model, {name: {0: rows} for name in names})
    for size in (2, 9):
        assert_exported_equals(program, model, (size, 7, 5))


# --- outputs and loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"aggregation": "em_routing"}], ids=["plain", "em"])
def test_recurrent_stacks_follow_the_config(fields):
    model, batch = rnn_model(source_memory="attention", **fields), sentence_batch()
    assert model(**batch).encoder_hidden_states is None and model(**batch).cross_attentions is None
    asked = model(**batch, output_hidden_states=True, output_attentions=True)
    model.config.output_hidden_states = model.config.output_attentions = True
    configured = model(**batch)
    for name in ("encoder_hidden_states", "decoder_hidden_states", "cross_attentions"):
        assert len(asked[name]) > 0
        assert all(torch.equal(a, b) for a, b in zip(asked[name], configured[name], strict=True))
    assert model(**batch, output_hidden_states=False).encoder_hidden_states is None


@families
@pytest.mark.parametrize("fields", [{"aggregation": "none"}, {"aggregation": "em_routing"}], ids=["plain", "em"])
def test_returned_hidden_states_are_on_the_gradients_path(family, fields):
    model, batch = BUILDERS[family](**fields), sentence_batch()
    out = model(**batch, output_hidden_states=True)
    for state in (*out.encoder_hidden_states, *out.decoder_hidden_states):
        state.retain_grad()
    out.loss.backward()
    idle = [
        (side, index)
        for side in ("encoder", "decoder")
        for index, state in enumerate(out[f"{side}_hidden_states"])
        if state.grad is None or not state.grad.abs().max() > 0
    ]
    assert idle == []


def test_asking_for_hidden_states_changes_no_number():
    model, batch = rnn_model(source_memory="hybrid"), sentence_batch()
    batch["attention_mask"][0, 3] = 0
    torch.testing.assert_close(model(**batch, output_hidden_states=True).logits, model(**batch).logits)


@families
@pytest.mark.parametrize("fields", [{"aggregation": "none"}, EVERYTHING], ids=["plain", "everything"])
def test_a_config_that_wants_tuples_gets_them(family, fields):
    model, batch = BUILDERS[family](**fields), sentence_batch()
    expected = model(**batch).to_tuple()
    model.config.return_dict = False
    found = model(**batch)
    assert isinstance(found, tuple) and len(found) == len(expected)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert torch.equal(model(**batch, return_dict=True).logits, expected[1])
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    assert model.generate(**source, max_new_tokens=3).shape[0] == len(batch["input_ids"])


@families
def test_auto_model_loads_the_model_without_its_head(family, tmp_path):
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is type(model.model)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    inputs["decoder_input_ids"] = batch["input_ids"]
    out = base(**inputs)
    assert torch.equal(out.last_hidden_state, model.model(**inputs).last_hidden_state)
    assert set(out) == {"last_hidden_state", "past_key_values", "encoder_last_hidden_state"}
    files = {name.split(".")[0] for name in model.config.auto_map.values()}
    assert set(model.config.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert all((tmp_path / f"{name}.py").is_file() for name in files)


def test_feature_extraction_reads_a_saved_model(tmp_path):
    tokenizer = train_tokenizer(["the dog sees the cat"], vocab_size=360, model_max_length=30)
    model = bart_model(vocab_size=len(tokenizer), **EVERYTHING)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    features = pipeline("feature-extraction", model=str(tmp_path))("the dog")
    assert len(features[0]) == len(tokenizer("the dog").input_ids) and len(features[0][0]) == model.config.d_model


@families
def test_fresh_used_and_copied_models_survive_pickle(family):
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    fresh = type(model)(model.config).eval()
    fresh.load_state_dict(model.state_dict())
    expected = model(**batch, output_hidden_states=True, output_agreements=True)
    for again in (pickle.loads(pickle.dumps(fresh)), pickle.loads(pickle.dumps(model)), copy.deepcopy(model), model):
        found = again(**batch, output_hidden_states=True, output_agreements=True)
        assert torch.equal(found.logits, expected.logits)
        assert len(found.encoder_hidden_states) == len(expected.encoder_hidden_states)
        assert torch.equal(found.decoder_agreements[-1], expected.decoder_agreements[-1])


def test_other_hooks_survive_pickle():
    model = capsule_model(**EVERYTHING)
    model.model.encoder.layers[0].register_forward_hook(torch.nn.Module.extra_repr)
    again = pickle.loads(pickle.dumps(model))
    hooks = list(again.model.encoder.layers[0]._forward_hooks.values())
    assert torch.nn.Module.extra_repr in hooks and len(hooks) == len(model.model.encoder.layers[0]._forward_hooks)


# --- generation and losses -------------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
def test_agreements_are_of_the_translation_that_generate_gives(family, masked):
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    options = {"num_beams": 2, "max_new_tokens": 6}
    if masked:
        options["attention_mask"] = batch["attention_mask"]
    silent = model.generate(batch["input_ids"], **options)
    told = model.generate(batch["input_ids"], **options, output_agreements=True)
    assert torch.equal(silent, told.sequences)
    padding = told.guided_assignment[1, :, batch["input_ids"][1].eq(PAD)].sum(dim=-1)
    # without a mask transformers takes padding for words, and so do the agreements
    torch.testing.assert_close(padding, torch.full_like(padding, 0.0 if masked else 1.0))


@families
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_generation_in_inference_mode_is_generation(family, options):
    if family == "rnn" and "cache_implementation" in options:
        pytest.skip("recurrent states have no static cache")
    model, batch = BUILDERS[family](**EVERYTHING), sentence_batch()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.generate(**source, **options, max_new_tokens=6)
    with torch.inference_mode():
        found = model.generate(**source, **options, max_new_tokens=6)
    assert torch.equal(found, expected)
    # the model is as fit for training as before
    model.train()(**batch).loss.backward()


OUTPUTS = {
    CapsuleEncoderOutput: BaseModelOutput,
    CapsuleDecoderOutput: BaseModelOutputWithPastAndCrossAttentions,
    CapsuleSeq2SeqModelOutput: Seq2SeqModelOutput,
    CapsuleSeq2SeqLMOutput: Seq2SeqLMOutput,
}


@pytest.mark.parametrize("own", OUTPUTS, ids=lambda own: own.__name__)
def test_outputs_take_fields_as_those_of_the_parents(own, monkeypatch):
    first, second = (field.name for field in dataclasses.fields(OUTPUTS[own])[:2])

    def write(output):
        setattr(output, second, (1,))
        output[first] = 2
        output.no_field = 3
        setattr(output, second, None)
        return output

    expected = write(OUTPUTS[own](torch.ones(1)))
    found = own(torch.ones(1))
    # what is asked anew for each field in transformers
    monkeypatch.setattr(transformers.utils.generic, "fields", None)
    write(found)
    assert list(found.items()) == list(expected.items()) == [(first, 2), (second, (1,))]
    assert found.to_tuple() == expected.to_tuple()
    assert vars(expected).items() <= vars(found).items()


@families
def test_the_signature_of_forward_is_at_hand(family, monkeypatch):
    forward = BUILDERS[family]().forward
    code = forward.__func__.__code__
    # what reads it from the code
    monkeypatch.setattr(inspect, "_signature_from_function", None)
    assert list(inspect.signature(forward).parameters) == [*code.co_varnames[1 : code.co_argcount], "kwargs"]


@families
def test_a_given_length_holds_beside_the_saved_one(family, tmp_path, caplog):
    model, batch = BUILDERS[family](), sentence_batch()
    model.generation_config.update(max_new_tokens=20, eos_token_id=None)
    model.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path).eval()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    config = GenerationConfig(max_length=7, pad_token_id=PAD, decoder_start_token_id=PAD)
    for options, length in (
        ({}, 21),
        ({"max_new_tokens": 5}, 6),
        ({"max_length": 7}, 7),
        ({"generation_config": config}, 7),
    ):
        assert model.generate(**source, **options).shape[1] == length
    assert "Both" not in caplog.text


@pytest.mark.parametrize("kind", GUIDED)
def test_classifier_free_guidance_runs_as_in_bart(kind):
    batch = sentence_batch()
    options = {"attention_mask": batch["attention_mask"], "guidance_scale": 1.5, "max_new_tokens": 5}
    torch.manual_seed(0)
    plain = BartForConditionalGeneration(plain_bart_config()).eval()
    expected = plain.generate(batch["input_ids"], **options).shape
    for beams in (1, 2):
        found = bart_model(**GUIDED[kind]).generate(batch["input_ids"], **options, num_beams=beams)
        assert found.shape[0] == expected[0] and found.shape[1] <= 6


@families
def test_a_loss_of_ones_own_from_the_logits_trains_every_parameter_it_reaches(family):
    model, batch = BUILDERS[family](**EVERYTHING, dropout=0.0), sentence_batch()
    labels = batch["labels"]
    own = model(**batch).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(own, labels.flatten())
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    without = {name: value for name, value in batch.items() if name != "labels"}
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**without, decoder_input_ids=inputs).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert {name for name in found if found[name].abs().max() > 0} >= set(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


# --- processors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("length", [1, 5])
def test_an_lstm_under_autocast_is_the_lstm_of_its_weights(dtype, length):
    torch.manual_seed(0)
    lstm, inputs = LSTM(6, 7).eval(), torch.randn(3, length, 6)
    expected, _ = lstm(inputs)
    with torch.autocast("cpu", dtype):
        found, (hidden, cell) = lstm(inputs)
    assert torch.equal(found, expected) and hidden.dtype == cell.dtype == torch.float32
