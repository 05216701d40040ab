"""CapsuleBartForConditionalGeneration: its parent when nothing is added, and the promises of the shared mixins on it.

The mixins themselves are tested in full on Marian (test_capsule_marian.py, test_guided_marian.py).
"""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSeq2SeqLM, BartForConditionalGeneration, BartModel

from hf_capsule_mt import CapsuleBartConfig, CapsuleBartForConditionalGeneration
from tiny_models import (
    BART_SIZES,
    EOS,
    NEW_PARAMETERS,
    VOCAB,
    assert_checkpointing_keeps_gradients,
    assert_padding_row_stays_finite,
    bart_config,
    bart_model,
    plain_bart_config,
    plain_config,
    run_whole_and_in_parts,
    sentence_batch,
)

LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
SYSTEMS = {
    "em": {"aggregation": "em_routing"},
    "dynamic routing, paper": {"aggregation": "dynamic_routing", "aggregation_init": "paper", "num_capsules": 4},
    "linear, decoder": {"aggregation": "linear", "aggregate_encoder": False, "scale_embedding": False},
    "dynamic, own layer": {"aggregation": "dynamic", "capsule_inputs": "own_layer"},
    "gdr on em": {"aggregation": "em_routing", "num_capsules": 4, "guided_routing": "routing", **LOSSES},
    "classifier": {"aggregation": "none", "guided_routing": "classifier", **LOSSES},
    "attention": {"aggregation": "none", "guided_routing": "attention", **LOSSES},
    "recurrent on em": {"aggregation": "em_routing", "num_capsules": 4, "guided_routing": "recurrent", **LOSSES},
}
systems = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
# what Facebook's own checkpoints have in their config.json beside the fields
OLD_KEYS = {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.1,
    "early_stopping": True,
    "forced_bos_token_id": 4,
    "gradient_checkpointing": False,
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "normalize_embedding": True,
    "num_beams": 4,
    "num_hidden_layers": 3,
    "task_specific_params": {"summarization": {"length_penalty": 1.0, "num_beams": 4}},
    "torch_dtype": "float32",
}


@pytest.fixture
def plain_bart(tmp_path):
    """A plain BART checkpoint with a bias of the logits that is not zero."""
    torch.manual_seed(3)
    model = BartForConditionalGeneration(plain_bart_config())
    model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def source_of(batch: dict) -> dict:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def assert_translates_alike(ours, plain, **options) -> None:
    """The same beams with the same scores."""
    options |= dict(num_beams=4, num_return_sequences=3, max_new_tokens=9)
    options |= dict(return_dict_in_generate=True, output_scores=True)
    found, expected = (model.generate(**source_of(sentence_batch()), **options) for model in (ours, plain))
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(found.sequences_scores, expected.sequences_scores)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_nothing_added_is_the_parent_bit_for_bit(plain_bart, attention):
    options = dict(attn_implementation=attention)
    plain = BartForConditionalGeneration.from_pretrained(plain_bart, **options).eval()
    ours = CapsuleBartForConditionalGeneration.from_pretrained(plain_bart, aggregation="none", **options).eval()
    assert ours.state_dict().keys() == plain.state_dict().keys()
    batch = sentence_batch()
    a, b = (model(**batch, output_hidden_states=True, output_attentions=True) for model in (ours, plain))
    assert torch.equal(a.logits, b.logits)
    for field in ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions", "cross_attentions"):
        assert len(a[field]) == len(b[field])
        assert all(torch.equal(x, y) for x, y in zip(a[field], b[field], strict=True))
    torch.testing.assert_close(a.loss, b.loss)
    # the decoder of a BART that is told nothing reads the source
    source = source_of(batch)
    assert torch.equal(ours(**source).logits, plain(**source).logits)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        ours(inputs_embeds=torch.zeros(1, 3, 12))
    assert_translates_alike(ours, plain)


@systems
def test_converted_model_translates_exactly_like_its_parent(plain_bart, system):
    plain = BartForConditionalGeneration.from_pretrained(plain_bart).eval()
    fields = {name: value for name, value in system.items() if name not in ("aggregation_init", "scale_embedding")}
    ours = CapsuleBartForConditionalGeneration.from_pretrained(plain_bart, guided_capsule_size=5, **fields).eval()
    batch = sentence_batch()
    assert torch.equal(ours(**batch).logits, plain(**batch).logits)
    assert_translates_alike(ours, plain, forced_bos_token_id=4, forced_eos_token_id=EOS)
    # and no longer once a gate is open
    for name, parameter in ours.named_parameters():
        if any(part in name for part in ("gate", "output_proj.weight")):
            torch.nn.init.constant_(parameter, 0.5)
    assert (ours(**batch).logits - plain(**batch).logits).abs().max() > 1e-3


def test_checkpoints_in_the_layout_of_the_published_ones_convert(tmp_path):
    torch.manual_seed(3)
    BartModel(plain_bart_config()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | OLD_KEYS))
    plain = BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    ours = CapsuleBartForConditionalGeneration.from_pretrained(tmp_path, aggregation="em_routing").eval()
    assert ours.generation_config.to_diff_dict() == plain.generation_config.to_diff_dict()
    assert ours.generation_config.forced_bos_token_id == 4
    assert_translates_alike(ours, plain)
    ours.save_pretrained(tmp_path / "converted")
    again = CapsuleBartForConditionalGeneration.from_pretrained(tmp_path / "converted").eval()
    assert_translates_alike(again, plain)


@systems
def test_conversion_initialises_like_a_new_model(plain_bart, system):
    fields = {"guided_capsule_size": 31, "guided_hidden_size": 13, **system, "aggregation_init": "paper"}
    fields.pop("scale_embedding", None)
    ours = CapsuleBartForConditionalGeneration.from_pretrained(plain_bart, **fields)
    fresh = dict(CapsuleBartForConditionalGeneration(bart_config(**fields)).named_parameters())
    new = {name: p for name, p in ours.named_parameters() if any(part in name for part in NEW_PARAMETERS)}
    assert new and fresh.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in new.items():
        # equal constants, or standard deviations of like size
        if parameter.numel() == 1 or fresh[name].std() == 0:
            torch.testing.assert_close(parameter, fresh[name])
        else:
            assert 0.4 < (parameter.std() / fresh[name].std()).item() < 2.5, name


@systems
def test_save_and_load_round_trip_is_bit_exact(tmp_path, system):
    model = bart_model(**system)
    model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is CapsuleBartForConditionalGeneration and type(loaded.config) is CapsuleBartConfig
    assert loaded.lm_head.weight is loaded.model.shared.weight is loaded.model.encoder.embed_tokens.weight
    batch = sentence_batch()
    assert torch.equal(model(**batch).logits, loaded(**batch).logits)


@systems
def test_every_parameter_gets_a_gradient(system):
    model = bart_model(**system).train()
    model(**sentence_batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@systems
def test_alone_equals_padded_in_a_batch(system):
    # float64: routing sharpens the rounding differences between a batch and a single sentence
    model = bart_model(**system).double()
    batch = sentence_batch(rows=5)
    options = dict(num_beams=3, max_new_tokens=8)
    together, logits = model.generate(**source_of(batch), **options), model(**batch).logits
    for row in range(5):
        length = int(batch["attention_mask"][row].sum())
        source = batch["input_ids"][row : row + 1, :length]
        alone = model.generate(input_ids=source, **options)[0]
        # transformers fills up beams with EOS where the padding token is 0
        padded = torch.nn.functional.pad(alone, (0, together.shape[1] - len(alone)), value=EOS)
        assert torch.equal(padded, together[row])
        target = int((batch["labels"][row] != -100).sum())
        single = model(input_ids=source, labels=batch["labels"][row : row + 1, :target]).logits
        torch.testing.assert_close(single[0], logits[row, :target])


@systems
def test_cached_decoding_equals_uncached(system):
    # in float32 the rounding of differently shaped products grows beyond any bound worth testing, by EM routing
    model = bart_model(**system).double()
    options = dict(max_new_tokens=9, return_dict_in_generate=True, output_logits=True)
    cached, *others = (
        model.generate(**source_of(sentence_batch()), **options, **cache)
        for cache in ({"use_cache": True}, {"use_cache": False}, {"cache_implementation": "static"})
    )
    for other in others:
        assert torch.equal(cached.sequences, other.sequences)
        torch.testing.assert_close(torch.stack(cached.logits), torch.stack(other.logits))


def test_generate_returns_agreements_of_the_chosen_sequences():
    model = bart_model(**SYSTEMS["gdr on em"]).double()
    batch = sentence_batch()
    options = dict(num_beams=4, num_return_sequences=2, max_new_tokens=7)
    out = model.generate(**source_of(batch), **options, output_agreements=True)
    assert torch.equal(out.sequences, model.generate(**source_of(batch), **options))
    steps = out.sequences.shape[1] - 1
    assert [tuple(a.shape) for a in out.encoder_agreements] == [(6, 11, 3, 4)] * 3
    assert [tuple(a.shape) for a in out.decoder_agreements] == [(6, steps, 2, 4)] * 3
    assert out.guided_assignment.shape == (6, steps, 11, 3)
    # row 2 is the best sequence of the second sentence: compare with that sentence on its own
    alone = model(
        input_ids=batch["input_ids"][1:2, :5], decoder_input_ids=out.sequences[2:3, :-1], output_agreements=True
    )
    torch.testing.assert_close(out.decoder_agreements[-1][2], alone.decoder_agreements[-1][0])
    torch.testing.assert_close(out.encoder_agreements[-1][2, :5], alone.encoder_agreements[-1][0])
    torch.testing.assert_close(out.guided_assignment[2, :, :5], alone.guided_assignment[0])


def test_hidden_states_are_the_parents_and_last_is_unaggregated():
    model = bart_model()
    batch = sentence_batch()
    out = model(**batch, output_hidden_states=True)
    assert (len(out.encoder_hidden_states), len(out.decoder_hidden_states)) == (4, 3)
    last = model.model.encoder.layers[-1](
        out.encoder_hidden_states[-2], batch["attention_mask"][:, None, None, :].bool()
    )
    torch.testing.assert_close(out.encoder_hidden_states[-1], last)
    assert not torch.allclose(out.encoder_last_hidden_state, last)
    assert model(**batch).encoder_hidden_states is None


def test_forward_and_backward_compile_to_one_graph():
    sizes = dict(encoder_layers=2, decoder_layers=1, routing_iterations=2, dropout=0.0)
    model = bart_model(**SYSTEMS["gdr on em"], **sizes)
    batch = sentence_batch()
    expected = model(**batch)
    torch._dynamo.reset()
    out = torch.compile(model, fullgraph=True, backend="eager")(**batch)
    torch.testing.assert_close(out.logits, expected.logits)
    out.loss.backward()
    assert model.model.decoder.layernorm_embedding.weight.grad.any()


@systems
def test_losses_and_gradients_of_micro_batches_add_up(system):
    # in float32, the gradients of EM routing differ in their fourth digit
    model = bart_model(**system, label_smoothing=0.1).double()
    whole, expected, parts = run_whole_and_in_parts(model)
    names = ("loss", "translation_loss", "bow_loss", "bca_loss") if "guided_routing" in system else ("loss",)
    for name in names:
        torch.testing.assert_close(sum(part[name] for part in parts), whole[name])
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)


@systems
def test_gradient_checkpointing_gives_the_same_gradients(system):
    assert_checkpointing_keeps_gradients(bart_model(**system, dropout=0.0))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_of_padding_stays_finite(attention):
    assert_padding_row_stays_finite(bart_model(**SYSTEMS["gdr on em"], attn_implementation=attention))


@pytest.mark.parametrize(
    ("size", "multiple"), [(VOCAB + 6, None), (VOCAB + 6, 16), (None, 16)], ids=["larger", "both", "only padded"]
)
def test_resized_embeddings_keep_old_logits(tmp_path, size, multiple):
    model = bart_model(**SYSTEMS["gdr on em"])
    batch = sentence_batch()
    before = model(**batch).logits
    model.resize_token_embeddings(size, pad_to_multiple_of=multiple, mean_resizing=False)
    after = model(**batch).logits
    assert after.shape[-1] == model.config.vocab_size == (64 if multiple else size)
    torch.testing.assert_close(after[..., :VOCAB], before)
    model.save_pretrained(tmp_path)
    loaded = CapsuleBartForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batch).logits, after)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_layerdrop": 0.1}, "decoder_layerdrop=0.1 is not supported"),
        ({"num_capsules": 5}, "num_capsules=5 does not divide d_model=12"),
        ({"classif_dropout": 0.1}, "did you mean 'classifier_dropout'"),
        ({"aggregation": "em"}, "aggregation='em' is not known"),
    ],
    ids=["layerdrop", "capsules", "misspelt", "aggregation"],
)
def test_bad_values_fail_when_the_config_is_built(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        CapsuleBartConfig(**BART_SIZES, **fields)


def test_a_marian_checkpoint_is_refused(tmp_path):
    plain_config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="of type 'bart' or 'capsule-bart', but this one is of type 'marian'"):
        CapsuleBartForConditionalGeneration.from_pretrained(tmp_path)
