"""The stacks of BART, M2M100 (NLLB) and mBART: their parents when nothing is added, and the promises of the mixins.

The mixins themselves are tested in full on Marian (test_capsule_marian.py, test_guided_marian.py). Here every stack
has a choice of systems; those of stacks that normalise before their sub-layers try both layer normalisations.
"""

import json
import logging

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, NllbMoeConfig

from tiny_models import (
    EOS,
    NEW_PARAMETERS,
    PAD,
    PRE_NORM,
    STACKS,
    VOCAB,
    assert_checkpointing_keeps_gradients,
    assert_padding_row_stays_finite,
    plain_config,
    run_whole_and_in_parts,
    sentence_batch,
)

LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
FINAL = {"layer_normalization": "final"}
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
NORMALIZED = {f"{name}, final": system | FINAL for name, system in SYSTEMS.items()}
CHOICES = {
    "bart": ("em", "dynamic routing, paper", "linear, decoder", "dynamic, own layer", "gdr on em", "classifier"),
    "m2m100": (
        "em",
        "dynamic routing, paper, final",
        "dynamic, own layer, final",
        "gdr on em",
        "attention",
        "recurrent on em",
    ),
    "mbart": ("em, final", "dynamic routing, paper", "linear, decoder", "gdr on em, final", "classifier"),
}
stacks = pytest.mark.parametrize("stack", [STACKS[name] for name in CHOICES], ids=list(CHOICES))
systems = pytest.mark.parametrize(
    ("stack", "system"),
    [
        pytest.param(STACKS[stack], (SYSTEMS | NORMALIZED)[name], id=f"{stack}: {name}")
        for stack, names in CHOICES.items()
        for name in names
    ],
)
pre_norm = pytest.mark.parametrize("stack", [STACKS[name] for name in PRE_NORM], ids=PRE_NORM)
# what the checkpoints on the Hub have in their config.json beside the fields
OLD_KEYS = {
    "add_bias_logits": False,
    "classif_dropout": 0.1,
    "early_stopping": True,
    "forced_bos_token_id": 4,
    "gradient_checkpointing": False,
    "max_length": 200,
    "normalize_embedding": True,
    "num_beams": 4,
    "num_hidden_layers": 3,
    "output_past": True,
    "static_position_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture
def plain(stack, tmp_path):
    """A plain checkpoint; where there is a bias of the logits, it is not zero."""
    torch.manual_seed(3)
    model = stack.plain_class(stack.plain_config())
    if hasattr(model, "final_logits_bias"):
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
    assert all(torch.equal(a, b) for a, b in zip(found.scores, expected.scores, strict=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@stacks
def test_nothing_added_is_the_parent_bit_for_bit(stack, plain, attention):
    options = dict(attn_implementation=attention)
    theirs = stack.plain_class.from_pretrained(plain, **options).eval()
    ours = stack.capsule_class.from_pretrained(plain, aggregation="none", **options).eval()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    batch = sentence_batch()
    a, b = (model(**batch, output_hidden_states=True, output_attentions=True) for model in (ours, theirs))
    assert torch.equal(a.logits, b.logits)
    for field in ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions", "cross_attentions"):
        assert len(a[field]) == len(b[field])
        assert all(torch.equal(x, y) for x, y in zip(a[field], b[field], strict=True))
    torch.testing.assert_close(a.loss, b.loss)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        ours(inputs_embeds=torch.zeros(1, 3, 12))
    assert_translates_alike(ours, theirs)


@pytest.mark.parametrize("stack", [STACKS["bart"], STACKS["mbart"]], ids=["bart", "mbart"])
def test_a_decoder_that_is_told_nothing_reads_the_source(stack, plain):
    theirs = stack.plain_class.from_pretrained(plain).eval()
    ours = stack.capsule_class.from_pretrained(plain, aggregation="none").eval()
    source = source_of(sentence_batch())
    assert torch.equal(ours(**source).logits, theirs(**source).logits)


@systems
def test_converted_model_translates_exactly_like_its_parent(stack, system, plain):
    theirs = stack.plain_class.from_pretrained(plain).eval()
    fields = {name: value for name, value in system.items() if name not in ("aggregation_init", "scale_embedding")}
    ours = stack.capsule_class.from_pretrained(plain, guided_capsule_size=5, **fields).eval()
    batch = sentence_batch()
    assert torch.equal(ours(**batch).logits, theirs(**batch).logits)
    assert_translates_alike(ours, theirs, forced_bos_token_id=4, forced_eos_token_id=EOS)
    # and no longer once a gate is open
    for name, parameter in ours.named_parameters():
        if any(part in name for part in ("gate", "output_proj.weight")):
            torch.nn.init.constant_(parameter, 0.5)
    assert (ours(**batch).logits - theirs(**batch).logits).abs().max() > 1e-3


@stacks
def test_checkpoints_in_the_layout_of_the_published_ones_convert(stack, tmp_path):
    torch.manual_seed(3)
    # without the head, whose weights are those of the embedding
    stack.plain_class(stack.plain_config()).model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | OLD_KEYS))
    plain = stack.plain_class.from_pretrained(tmp_path).eval()
    ours = stack.capsule_class.from_pretrained(tmp_path, aggregation="em_routing").eval()
    assert ours.generation_config.to_diff_dict() == plain.generation_config.to_diff_dict()
    assert ours.generation_config.forced_bos_token_id == 4
    assert_translates_alike(ours, plain)
    ours.save_pretrained(tmp_path / "converted")
    again = stack.capsule_class.from_pretrained(tmp_path / "converted").eval()
    assert_translates_alike(again, plain)


@systems
def test_conversion_initialises_like_a_new_model(stack, system, plain):
    fields = {"guided_capsule_size": 31, "guided_hidden_size": 13, **system, "aggregation_init": "paper"}
    fields.pop("scale_embedding", None)
    ours = stack.capsule_class.from_pretrained(plain, **fields)
    fresh = dict(stack.capsule_class(stack.config(**fields)).named_parameters())
    new = {name: p for name, p in ours.named_parameters() if any(part in name for part in NEW_PARAMETERS)}
    assert new and fresh.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in new.items():
        # equal constants, or standard deviations of like size
        if parameter.numel() == 1 or fresh[name].std() == 0:
            torch.testing.assert_close(parameter, fresh[name])
        else:
            assert 0.4 < (parameter.std() / fresh[name].std()).item() < 2.5, name


@systems
def test_save_and_load_round_trip_is_bit_exact(stack, system, tmp_path):
    model = stack.model(**system)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is stack.capsule_class and type(loaded.config) is type(model.config)
    assert loaded.lm_head.weight is loaded.model.shared.weight is loaded.model.encoder.embed_tokens.weight
    batch = sentence_batch()
    assert torch.equal(model(**batch).logits, loaded(**batch).logits)


@systems
def test_every_parameter_gets_a_gradient(stack, system):
    model = stack.model(**system).train()
    model(**sentence_batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@systems
def test_alone_equals_padded_in_a_batch(stack, system):
    # float64: routing sharpens the rounding differences between a batch and a single sentence
    model = stack.model(**system).double()
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
def test_cached_decoding_equals_uncached(stack, system):
    # in float32 the rounding of differently shaped products grows beyond any bound worth testing, by EM routing
    model = stack.model(**system).double()
    options = dict(max_new_tokens=9, return_dict_in_generate=True, output_logits=True)
    cached, *others = (
        model.generate(**source_of(sentence_batch()), **options, **cache)
        for cache in ({"use_cache": True}, {"use_cache": False}, {"cache_implementation": "static"})
    )
    for other in others:
        assert torch.equal(cached.sequences, other.sequences)
        torch.testing.assert_close(torch.stack(cached.logits), torch.stack(other.logits))


@stacks
def test_generate_returns_agreements_of_the_chosen_sequences(stack):
    model = stack.model(**SYSTEMS["gdr on em"]).double()
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


@stacks
def test_hidden_states_are_the_parents_and_last_is_unaggregated(stack):
    torch.manual_seed(0)
    batch = sentence_batch()
    model = stack.model()
    parent = stack.plain_class(stack.plain_config()).eval()
    parent.load_state_dict(model.state_dict(), strict=False)
    source = source_of(batch)
    found, expected = (m.get_encoder()(**source, output_hidden_states=True) for m in (model, parent))
    decoder = dict(input_ids=batch["input_ids"], encoder_hidden_states=expected.last_hidden_state)
    of_decoders = (m.get_decoder()(**decoder, output_hidden_states=True) for m in (model, parent))
    for ours, theirs in ((found, expected), tuple(of_decoders)):
        assert all(torch.equal(a, b) for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True))
        assert not torch.allclose(ours.last_hidden_state, theirs.last_hidden_state)
    assert model(**batch).encoder_hidden_states is None


@pre_norm  # BART's is that of mBART
def test_forward_and_backward_compile_to_one_graph(stack):
    sizes = dict(encoder_layers=2, decoder_layers=1, routing_iterations=2, dropout=0.0)
    model = stack.model(**SYSTEMS["gdr on em"], **sizes)
    batch = sentence_batch()
    expected = model(**batch)
    torch._dynamo.reset()
    out = torch.compile(model, fullgraph=True, backend="eager")(**batch)
    torch.testing.assert_close(out.logits, expected.logits)
    out.loss.backward()
    assert model.model.decoder.layers[0].fc1.weight.grad.any()


@systems
def test_losses_and_gradients_of_micro_batches_add_up(stack, system):
    # in float32, the gradients of EM routing differ in their fourth digit
    model = stack.model(**system, label_smoothing=0.1).double()
    whole, expected, parts = run_whole_and_in_parts(model)
    names = ("loss", "translation_loss", "bow_loss", "bca_loss") if "guided_routing" in system else ("loss",)
    for name in names:
        torch.testing.assert_close(sum(part[name] for part in parts), whole[name])
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)


@systems
def test_gradient_checkpointing_gives_the_same_gradients(stack, system):
    assert_checkpointing_keeps_gradients(stack.model(**system, dropout=0.0))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@stacks
def test_a_row_of_padding_stays_finite(stack, attention):
    assert_padding_row_stays_finite(stack.model(**SYSTEMS["gdr on em"], attn_implementation=attention))


@pytest.mark.parametrize(
    ("size", "multiple"), [(VOCAB + 6, None), (VOCAB + 6, 16), (None, 16)], ids=["larger", "both", "only padded"]
)
@stacks
def test_resized_embeddings_keep_old_logits(stack, tmp_path, size, multiple):
    model = stack.model(**SYSTEMS["gdr on em"])
    batch = sentence_batch()
    before = model(**batch).logits
    model.resize_token_embeddings(size, pad_to_multiple_of=multiple, mean_resizing=False)
    after = model(**batch).logits
    assert after.shape[-1] == model.config.vocab_size == (64 if multiple else size)
    torch.testing.assert_close(after[..., :VOCAB], before)
    model.save_pretrained(tmp_path)
    loaded = stack.capsule_class.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batch).logits, after)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_layerdrop": 0.1}, "decoder_layerdrop=0.1 is not supported"),
        ({"num_capsules": 5}, "num_capsules=5 does not divide d_model=12"),
        ({"aggregation": "em"}, "aggregation='em' is not known"),
        ({"layer_normalization": "both"}, "layer_normalization='both' is"),
    ],
    ids=["layerdrop", "capsules", "aggregation", "normalisation"],
)
@stacks
def test_bad_values_fail_when_the_config_is_built(stack, fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        stack.config(**fields)


@pytest.mark.parametrize("stack", [STACKS["bart"], STACKS["mbart"]], ids=["bart", "mbart"])
def test_a_key_that_only_looks_misspelt_is_refused_in_a_new_config(stack):
    with pytest.raises((ValueError, StrictDataclassError), match="did you mean 'classifier_dropout'"):
        stack.config(classif_dropout=0.1)


@stacks
def test_a_marian_checkpoint_is_refused(stack, tmp_path):
    plain_config().save_pretrained(tmp_path)
    kind = stack.capsule_class.config_class
    message = f"of type '{kind.parent_model_type}' or '{kind.model_type}', but this one is of type 'marian'"
    with pytest.raises(ValueError, match=message):
        stack.capsule_class.from_pretrained(tmp_path)


# --- stacks that normalise before their sub-layers -------------------------------------------------------------------


def routed_layers(model, batch: dict) -> tuple[list, list]:
    """For the encoder and the decoder: the outputs of the layers [B, S, L, d], and what is combined of them."""
    outputs, combined = [], []
    for stack in (model.get_encoder(), model.get_decoder()):
        seen: list[torch.Tensor] = []
        for layer in stack.layers:
            layer.register_forward_hook(lambda module, args, output, seen=seen: seen.append(output))
        stack.aggregation.combine.register_forward_pre_hook(lambda module, args: combined.append(args[0]))
        outputs.append(seen)
    model(**batch)
    return [torch.stack(seen, dim=-2) for seen in outputs], combined


@pytest.mark.parametrize("system", ["linear", "dynamic", "dynamic_routing", "em_routing"])
@pytest.mark.parametrize("normalization", ["own", "final"])
@pre_norm
def test_what_is_combined_is_normalised(stack, normalization, system):
    model = stack.capsule_class(stack.config(aggregation=system, layer_normalization=normalization)).eval()
    batch = sentence_batch()
    final = {"encoder": model.get_encoder().layer_norm, "decoder": model.get_decoder().layer_norm}
    for norm in final.values():
        # as in a trained model, where it is not as it began
        torch.nn.init.normal_(norm.weight, mean=3.0)
        torch.nn.init.normal_(norm.bias)
    layers, combined = routed_layers(model, batch)
    for norm, raw, seen in zip(final.values(), layers, combined, strict=True):
        assert (raw.std(dim=-1) - 1).abs().max() > 0.2
        if normalization == "final":
            torch.testing.assert_close(seen, norm(raw))
        else:
            torch.testing.assert_close(seen.mean(dim=-1), torch.zeros(seen.shape[:-1]), atol=1e-5, rtol=0)
            torch.testing.assert_close(seen.var(dim=-1, correction=0), torch.ones(seen.shape[:-1]), atol=1e-3, rtol=0)


@pre_norm
def test_each_layer_has_a_norm_of_its_own_or_none_more(stack):
    own, final = (stack.model(layer_normalization=name) for name in ("own", "final"))
    assert stack.config().layer_normalization == "own"
    more = {name for name, _ in own.named_parameters()} - {name for name, _ in final.named_parameters()}
    assert {name.rpartition(".")[0] for name in more} == {
        f"model.{side}.aggregation.input_norms.{layer}"
        for side, layers in (("encoder", 3), ("decoder", 2))
        for layer in range(layers)
    }


@pytest.mark.parametrize("stack", [STACKS["marian"], STACKS["bart"]], ids=["marian", "bart"])
def test_layers_that_are_normalised_take_no_layer_normalization(stack):
    with pytest.raises((ValueError, StrictDataclassError), match="layer_normalization='own' is for stacks that norm"):
        stack.config(layer_normalization="own")
    assert stack.config().layer_normalization is None


@pre_norm
def test_languages_are_translated_as_by_the_parent(stack, plain, tmp_path):
    """A batch of several languages, whose codes begin the source, and the target by force."""
    config = json.loads((plain / "generation_config.json").read_text())
    (plain / "generation_config.json").write_text(json.dumps(config | {"forced_bos_token_id": 9, "num_beams": 3}))
    theirs = stack.plain_class.from_pretrained(plain).eval()
    ours = stack.capsule_class.from_pretrained(plain, aggregation="em_routing", guided_routing="routing").eval()
    batch = sentence_batch()
    batch["input_ids"][:, 0] = torch.tensor([7, 8, 7])
    source = source_of(batch)
    options = dict(max_new_tokens=8, output_scores=True, return_dict_in_generate=True)
    for more in ({}, {"forced_bos_token_id": 10}, {"forced_bos_token_id": 11, "num_beams": 1}):
        found, expected = (model.generate(**source, **options, **more) for model in (ours, theirs))
        assert torch.equal(found.sequences, expected.sequences)
        assert (found.sequences[:, 1] == more.get("forced_bos_token_id", 9)).all()
        assert all(torch.equal(a, b) for a, b in zip(found.scores, expected.scores, strict=True))
    # mBART's way: the decoder begins with the language itself
    for start in (9, 10):
        found, expected = (m.generate(**source, decoder_start_token_id=start, **options) for m in (ours, theirs))
        assert torch.equal(found.sequences, expected.sequences) and (found.sequences[:, 0] == start).all()
    batch["labels"][:, 0] = torch.tensor([9, 10, 9])
    assert torch.equal(ours(**batch).logits, theirs(**batch).logits)


def test_mbart_wraps_the_last_token_of_the_target_around():
    """mBART's labels end with the language, mBART-50's begin with it."""
    model = STACKS["mbart"].model()
    labels = torch.tensor([[21, 22, EOS, 9], [23, EOS, 10, -100], [9, 24, EOS, -100], [-100, -100, -100, -100]])
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    assert inputs.tolist() == [[9, 21, 22, EOS], [10, 23, EOS, 10], [EOS, 9, 24, EOS], [PAD] * 4]
    plain = STACKS["mbart"].plain_class(STACKS["mbart"].plain_config())
    assert torch.equal(inputs[:3], plain.prepare_decoder_input_ids_from_labels(labels[:3]))


@pytest.mark.parametrize("length", [39, 60])
def test_computed_positions_have_no_limit(length):
    """M2M100's positions are made anew for a sentence that is longer than the table, in loaded models too."""
    model = STACKS["m2m100"].model()
    batch = {"input_ids": torch.randint(3, VOCAB, (1, length)), "labels": torch.randint(3, VOCAB, (1, length))}
    expected = model(**batch).logits
    parent = STACKS["m2m100"].plain_class(STACKS["m2m100"].plain_config()).eval()
    parent.load_state_dict(model.state_dict(), strict=False)
    found = parent.get_encoder()(batch["input_ids"], output_hidden_states=True).hidden_states
    ours = model.get_encoder()(batch["input_ids"], output_hidden_states=True).hidden_states
    assert all(torch.equal(a, b) for a, b in zip(ours, found, strict=True)) and expected.isfinite().all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 2, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, "d_model=2 must be at least 4"),
        ({"pad_token_id": 43}, "pad_token_id=43 must be less than max_position_embeddings"),
        ({"decoder_start_token_id": PAD}, "decoder_start_token_id=0 is pad_token_id, which has no position in M2M100"),
        ({"pad_token_id": None}, "pad_token_id=None must be less than max_position_embeddings"),
    ],
    ids=["width", "padding beyond the positions", "padding as the start", "no padding"],
)
def test_what_computed_positions_need_is_checked(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        STACKS["m2m100"].config(**fields)


@stacks
def test_layerdrop_of_a_plain_checkpoint_becomes_none(stack, tmp_path, caplog):
    """Those of M2M100 were trained with it, and it is its default."""
    stack.plain_class(stack.plain_config(encoder_layerdrop=0.05)).save_pretrained(tmp_path)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        config = AutoConfig.from_pretrained(tmp_path)
        assert config.encoder_layerdrop == 0.05
        ours = stack.capsule_class.config_class.from_pretrained(tmp_path)
    finally:
        logger.removeHandler(caplog.handler)
    assert ours.encoder_layerdrop == ours.decoder_layerdrop == 0
    assert "encoder_layerdrop=0.05 becomes 0: layer aggregation reads every layer" in caplog.text


def test_mixtures_of_experts_are_refused(tmp_path):
    NllbMoeConfig(d_model=8).save_pretrained(tmp_path)
    for stack in STACKS.values():
        with pytest.raises(
            ValueError, match="'nllb-moe', a mixture of experts, for which there are no capsules; take"
        ):
            stack.capsule_class.from_pretrained(tmp_path)
