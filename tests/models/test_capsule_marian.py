"""CapsuleMarianMTModel: its parent when nothing is added, and every promise of a transformers model otherwise."""

import copy
import math

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    GenerationConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_capsule_mt import CapsuleMarianConfig, CapsuleMarianMTModel
from tiny_models import (
    EOS,
    PAD,
    TARGET_VOCAB,
    VOCAB,
    assert_checkpointing_keeps_gradients,
    capsule_config,
    capsule_model,
    open_gates,
    quick,
    run_whole_and_in_parts,
    sentence_batch,
)

BOTH_LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
AGGREGATIONS = ["linear", "dynamic", "dynamic_routing", "em_routing"]
SYSTEMS = {
    **{name: {"aggregation": name} for name in AGGREGATIONS},
    **{f"{name}-paper": {"aggregation": name, "aggregation_init": "paper"} for name in AGGREGATIONS},
    "em-own_layer": {"aggregation": "em_routing", "capsule_inputs": "own_layer", "num_capsules": 4},
    "dr-encoder": {"aggregation": "dynamic_routing", "aggregate_decoder": False, "num_capsules": 6},
    "em-decoder": {"aggregation": "em_routing", "aggregate_encoder": False, "num_capsules": 1},
    "dynamic-own_layer": {"aggregation": "dynamic", "capsule_inputs": "own_layer"},
    "linear-votes": {"aggregation": "linear", "linear_inputs": "votes"},
    "dr-uniform": {"aggregation": "dynamic_routing", "routing_iterations": 1},
    "em-one-layer": {"aggregation": "em_routing", "encoder_layers": 1, "decoder_layers": 4, "routing_iterations": 5},
    "em-geometric-mean": {"aggregation": "em_routing", "num_capsules": 3, "em_density": "geometric_mean"},
    "gdr": {"aggregation": "none", "guided_routing": "routing"},
    "gdr-uniform": {"aggregation": "none", "guided_routing": "routing", "routing_iterations": 1},
    "gdr-full-on-em": {"guided_routing": "routing", **BOTH_LOSSES},
    "gdr-no-redundant-paper": {
        "aggregation": "dynamic_routing",
        "aggregation_init": "paper",
        "guided_routing": "routing",
        "num_redundant_capsules": 0,
        "num_past_capsules": 1,
        "num_future_capsules": 1,
    },
    "classifier": {"aggregation": "none", "guided_routing": "classifier", **BOTH_LOSSES},
    "attention": {"aggregation": "none", "guided_routing": "attention", **BOTH_LOSSES},
    "recurrent": {"aggregation": "none", "guided_routing": "recurrent", **BOTH_LOSSES},
}
systems = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
aggregations = pytest.mark.parametrize("aggregation", AGGREGATIONS)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_aggregation_none_is_the_parent_bit_for_bit(plain_checkpoint, attention):
    plain = MarianMTModel.from_pretrained(plain_checkpoint, attn_implementation=attention).eval()
    ours = CapsuleMarianMTModel.from_pretrained(
        plain_checkpoint, aggregation="none", attn_implementation=attention
    ).eval()
    assert ours.state_dict().keys() == plain.state_dict().keys()
    batch = sentence_batch()
    a = ours(**batch, output_hidden_states=True, output_attentions=True)
    b = plain(**batch, output_hidden_states=True, output_attentions=True)
    assert torch.equal(a.logits, b.logits)
    for field in ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions", "cross_attentions"):
        assert len(a[field]) == len(b[field]) and all(
            torch.equal(x, y) for x, y in zip(a[field], b[field], strict=True)
        )
    torch.testing.assert_close(a.loss, b.loss)


@pytest.mark.parametrize("vocabularies", ["shared", "separate"])
@aggregations
def test_identity_conversion_translates_exactly_like_the_parent(
    plain_checkpoint, separate_checkpoint, aggregation, vocabularies
):
    path = plain_checkpoint if vocabularies == "shared" else separate_checkpoint
    target_vocab = VOCAB if vocabularies == "shared" else TARGET_VOCAB
    plain = MarianMTModel.from_pretrained(path).eval()
    ours = CapsuleMarianMTModel.from_pretrained(path, aggregation=aggregation).eval()
    batch = sentence_batch(target_vocab=target_vocab)
    assert torch.equal(ours(**batch).logits, plain(**batch).logits)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    # before 5.23, transformers' own beam search fails on Marian with vocabularies of different sizes
    beams = 3 if vocabularies == "shared" or Version(transformers.__version__) >= Version("5.23") else 1
    options = dict(num_beams=beams, max_new_tokens=9)
    assert torch.equal(ours.generate(**source, **options), plain.generate(**source, **options))


@aggregations
def test_paper_conversion_initialises_every_new_parameter(plain_checkpoint, aggregation):
    ours = CapsuleMarianMTModel.from_pretrained(plain_checkpoint, aggregation=aggregation, aggregation_init="paper")
    fresh = CapsuleMarianMTModel(capsule_config(aggregation=aggregation, aggregation_init="paper"))
    new = {n: p for n, p in ours.named_parameters() if ".aggregation." in n}
    assert new and not any("gate" in name for name in new)
    for name, parameter in new.items():
        built = dict(fresh.named_parameters())[name]
        # the same distribution as from scratch: equal constants, or standard deviations of like size
        assert parameter.isfinite().all()
        if built.std() == 0 or built.numel() == 1:
            torch.testing.assert_close(parameter, built)
        else:
            assert 0.5 < (parameter.std() / built.std()).item() < 2.0, name
    batch = sentence_batch()
    plain = MarianMTModel.from_pretrained(plain_checkpoint).eval()
    assert not torch.allclose(ours.eval()(**batch).logits, plain(**batch).logits)


@systems
def test_save_and_load_round_trip_is_bit_exact(tmp_path, system):
    model = capsule_model(**system)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists() and not list(tmp_path.glob("*.bin"))
    loaded = CapsuleMarianMTModel.from_pretrained(tmp_path).eval()
    assert all(torch.equal(p, dict(loaded.named_parameters())[n]) for n, p in model.named_parameters())
    assert loaded.lm_head.weight is loaded.model.shared.weight
    batch = sentence_batch()
    assert torch.equal(model(**batch).logits, loaded(**batch).logits)
    auto = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(auto) is CapsuleMarianMTModel and torch.equal(auto(**batch).logits, loaded(**batch).logits)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), CapsuleMarianConfig)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_separate_vocabularies_round_trip(tmp_path, tied):
    model = capsule_model(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=TARGET_VOCAB, tie_word_embeddings=tied
    )
    model.save_pretrained(tmp_path)
    loaded = CapsuleMarianMTModel.from_pretrained(tmp_path).eval()
    batch = sentence_batch(target_vocab=TARGET_VOCAB)
    logits = loaded(**batch).logits
    assert logits.shape[-1] == TARGET_VOCAB and torch.equal(logits, model(**batch).logits)
    assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tied


@systems
def test_every_parameter_gets_a_gradient(system):
    model = capsule_model(**system).train()
    model(**sentence_batch()).loss.backward()
    missing = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.isfinite().all() or p.grad.abs().max() == 0)
    ]
    # one input capsule has nothing to normalise against: its activation, bias and cost cannot matter
    allowed = {"em-one-layer": "model.encoder.aggregation", "em-decoder": "combine"}
    scope = next((allowed[k] for k, v in SYSTEMS.items() if v == system and k in allowed), None)
    assert not [name for name in missing if scope is None or scope not in name], missing


@systems
def test_alone_equals_padded_in_a_batch(system):
    # float64: routing sharpens the rounding differences between a batch and a single sentence
    model = capsule_model(**system).double()
    batch = sentence_batch(rows=5)
    together = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=3, max_new_tokens=8
    )
    logits = model(**batch).logits
    for row in range(5):
        length = int(batch["attention_mask"][row].sum())
        source = batch["input_ids"][row : row + 1, :length]
        alone = model.generate(input_ids=source, num_beams=3, max_new_tokens=8)
        # transformers fills up beams with EOS where the padding token is 0
        padded = torch.nn.functional.pad(alone[0], (0, together.shape[1] - alone.shape[1]), value=EOS)
        assert torch.equal(padded, together[row])
        target = int((batch["labels"][row] != -100).sum())
        single = model(input_ids=source, labels=batch["labels"][row : row + 1, :target]).logits
        torch.testing.assert_close(single[0], logits[row, :target])


@systems
def test_cached_decoding_equals_uncached(system):
    model = capsule_model(**system)
    batch = sentence_batch()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = dict(max_new_tokens=9, return_dict_in_generate=True, output_logits=True)
    cached = model.generate(**source, **options, use_cache=True)
    uncached = model.generate(**source, **options, use_cache=False)
    static = model.generate(**source, **options, cache_implementation="static")
    assert torch.equal(cached.sequences, uncached.sequences) and torch.equal(cached.sequences, static.sequences)
    for a, b, c in zip(cached.logits, uncached.logits, static.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


GENERATION = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "beam-3-best": {"num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
}


@pytest.mark.parametrize("options", GENERATION.values(), ids=GENERATION.keys())
@aggregations
def test_generate_returns_agreements_of_the_chosen_sequences(aggregation, options):
    # float64: routing sharpens the rounding differences between a batch and a single sentence
    model = capsule_model(aggregation=aggregation, num_capsules=4).double()
    batch = sentence_batch()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    torch.manual_seed(11)
    out = model.generate(**source, **options, max_new_tokens=7, output_agreements=True)
    torch.manual_seed(11)
    assert torch.equal(out.sequences, model.generate(**source, **options, max_new_tokens=7))
    copies = options.get("num_return_sequences", 1)
    if aggregation in ("linear", "dynamic"):
        assert out.encoder_agreements is None and out.decoder_agreements is None
        return
    steps = out.sequences.shape[1] - 1
    assert [tuple(a.shape) for a in out.encoder_agreements] == [(3 * copies, 11, 3, 4)] * 3
    assert [tuple(a.shape) for a in out.decoder_agreements] == [(3 * copies, steps, 2, 4)] * 3
    # row `copies` is the best sequence of the second sentence: compare with that sentence on its own
    alone = model(
        input_ids=batch["input_ids"][1:2, :5],
        decoder_input_ids=out.sequences[copies : copies + 1, :-1],
        output_agreements=True,
    )
    torch.testing.assert_close(out.decoder_agreements[-1][copies], alone.decoder_agreements[-1][0])
    torch.testing.assert_close(out.encoder_agreements[-1][copies, :5], alone.encoder_agreements[-1][0])


def test_beam_search_leaves_the_keys_of_the_source_alone(plain_checkpoint, monkeypatch):
    """Reordering them every step, as the parent does, changes nothing within a sentence."""
    moved = []
    reorder = DynamicCache.reorder_cache
    monkeypatch.setattr(
        DynamicCache, "reorder_cache", lambda cache, beam_idx: (moved.append(cache), reorder(cache, beam_idx))
    )
    batch = sentence_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = dict(
        num_beams=4, num_return_sequences=4, max_new_tokens=9, return_dict_in_generate=True, output_scores=True
    )
    ours = CapsuleMarianMTModel.from_pretrained(plain_checkpoint, aggregation="none").generate(**inputs, **options)
    cache = ours.past_key_values
    assert moved and all(one is cache.self_attention_cache for one in moved)
    theirs = MarianMTModel.from_pretrained(plain_checkpoint).generate(**inputs, **options)
    assert any(one is theirs.past_key_values.cross_attention_cache for one in moved)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert torch.equal(ours.sequences_scores, theirs.sequences_scores)


def test_generate_with_agreements_needs_input_ids():
    model = capsule_model()
    with pytest.raises(ValueError, match="needs input_ids"):
        model.generate(inputs_embeds=torch.zeros(1, 3, 12), output_agreements=True)


@systems
def test_hidden_states_are_the_parents_and_last_is_unaggregated(system):
    model = capsule_model(**system)
    batch = sentence_batch()
    out = model(**batch, output_hidden_states=True)
    assert len(out.encoder_hidden_states) == model.config.encoder_layers + 1
    assert len(out.decoder_hidden_states) == model.config.decoder_layers + 1
    assert torch.equal(out.logits, model(**batch).logits)
    assert model(**batch).encoder_hidden_states is None
    aggregated = not torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert aggregated == model.config.aggregates("encoder")
    expected = model.model.encoder.layers[-1](
        out.encoder_hidden_states[-2], batch["attention_mask"][:, None, None, :].bool()
    )
    torch.testing.assert_close(out.encoder_hidden_states[-1], expected)


def test_hidden_states_can_be_selected_in_generate_and_by_index():
    model = capsule_model()
    batch = sentence_batch()
    out = model(**batch, output_hidden_states=[1, -1])
    assert [h is None for h in out.encoder_hidden_states] == [True, False, True, False]
    generated = model.generate(
        batch["input_ids"], max_new_tokens=3, return_dict_in_generate=True, output_hidden_states=True
    )
    assert len(generated.decoder_hidden_states) == 3 and len(generated.encoder_hidden_states) == 4


def test_tuple_output_matches_dict_output():
    model = capsule_model()
    batch = sentence_batch()
    as_tuple = model(**batch, return_dict=False)
    out = model(**batch)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], out.loss) and torch.equal(as_tuple[1], out.logits)


@pytest.mark.parametrize("aggregation", quick(["none", *AGGREGATIONS], "em_routing"))
def test_forward_compiles_to_one_graph(aggregation):
    model = capsule_model(aggregation=aggregation, capsule_inputs="own_layer")
    batch = sentence_batch()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)


def test_label_smoothed_loss_is_the_definition_and_ignores_padding():
    model = capsule_model(label_smoothing=0.13)
    batch = sentence_batch()
    out = model(**batch)
    total, count = 0.0, 0
    for logits, labels in zip(out.logits.double(), batch["labels"], strict=True):
        for row, label in zip(logits, labels, strict=True):
            if label == -100:
                continue
            log_probabilities = row - torch.logsumexp(row, 0)
            total += -(1 - 0.13) * log_probabilities[label] - 0.13 * log_probabilities.mean()
            count += 1
    assert out.loss.item() == pytest.approx((total / count).item(), rel=1e-5)
    wider = batch | {"labels": torch.nn.functional.pad(batch["labels"], (0, 4), value=-100)}
    torch.testing.assert_close(model(**wider).loss, out.loss)


def test_loss_divided_by_num_items_adds_up_over_micro_batches():
    model = capsule_model(label_smoothing=0.1)
    whole, expected, parts = run_whole_and_in_parts(model)
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


@aggregations
def test_gradient_checkpointing_gives_the_same_gradients(aggregation):
    assert_checkpointing_keeps_gradients(capsule_model(aggregation=aggregation, dropout=0.0))


@systems
def test_bf16_autocast_trains(system):
    model = capsule_model(**system).train()
    batch = sentence_batch()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**batch)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(out.loss, model.eval()(**batch).loss, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@aggregations
def test_dtype_and_device_map_arguments(tmp_path, aggregation, dtype):
    capsule_model(aggregation=aggregation).save_pretrained(tmp_path)
    model = CapsuleMarianMTModel.from_pretrained(tmp_path, dtype=dtype, device_map={"": "cpu"}).eval()
    assert all(p.dtype == dtype for p in model.parameters())
    batch = sentence_batch()
    out = model(**batch)
    assert out.logits.dtype == dtype and out.loss.isfinite()
    full = CapsuleMarianMTModel.from_pretrained(tmp_path).eval()(**batch)
    torch.testing.assert_close(out.loss.float(), full.loss, rtol=0.1, atol=0.1)
    generated = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=4)
    assert generated.shape[0] == 3


def test_resize_token_embeddings_keeps_old_logits():
    model = capsule_model()
    batch = sentence_batch()
    before = model(**batch).logits
    model.resize_token_embeddings(VOCAB + 6, mean_resizing=False)
    after = model(**batch)
    assert after.logits.shape[-1] == VOCAB + 6 and after.loss.isfinite()
    torch.testing.assert_close(after.logits[..., :VOCAB], before)


@pytest.mark.parametrize("size", [VOCAB + 6, None], ids=["larger", "only padded"])
def test_resized_embeddings_may_be_padded_to_a_multiple(tmp_path, size):
    model = capsule_model()
    batch = sentence_batch()
    before = model(**batch).logits
    model.resize_token_embeddings(size, pad_to_multiple_of=16, mean_resizing=False)
    after = model(**batch).logits
    assert after.shape[-1] == 64 and model.config.vocab_size == 64
    torch.testing.assert_close(after[..., :VOCAB], before)
    model.save_pretrained(tmp_path)
    assert torch.equal(CapsuleMarianMTModel.from_pretrained(tmp_path).eval()(**batch).logits, after)


def test_lora_on_the_attention_projections_trains_and_merges():
    peft = pytest.importorskip("peft")
    model = capsule_model()
    batch = sentence_batch()
    before = model(**batch).logits.detach()
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj", "v_proj"])
    lora = peft.get_peft_model(copy.deepcopy(model), config)
    torch.testing.assert_close(lora.eval()(**batch).logits, before)
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.5)
    losses = []
    for _ in range(5):
        loss = lora(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    trained = lora(**batch).logits
    torch.testing.assert_close(lora.merge_and_unload().eval()(**batch).logits, trained, rtol=1e-4, atol=1e-4)


def test_lora_reaches_the_vote_matrices():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=r".*aggregation.*output_proj\.\d")
    lora = peft.get_peft_model(capsule_model(), config)
    assert sum(p.requires_grad for p in lora.parameters()) == 2 * (3 + 2)


def test_the_density_of_em_routing_reaches_capsules_and_agreements():
    found = []
    for density in ("product", "geometric_mean"):
        model = capsule_model(aggregation="em_routing", num_capsules=3, em_density=density)
        fast, shown = model(**sentence_batch()), model(**sentence_batch(), output_agreements=True)
        torch.testing.assert_close(shown.logits, fast.logits)
        found.append((fast.logits, shown.encoder_agreements[-1], shown.decoder_agreements[-1]))
    for product, mean in zip(*found, strict=True):
        assert not torch.allclose(product, mean, atol=1e-4)


def test_all_padding_row_stays_finite():
    for attention in ("eager", "sdpa"):
        model = capsule_model(attn_implementation=attention).train()
        batch = sentence_batch()
        batch["input_ids"][1] = PAD
        batch["attention_mask"][1] = 0
        out = model(**batch)
        out.loss.backward()
        assert out.logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


SIZES_OF_THE_PAPER = {
    "base": dict(d_model=512, encoder_ffn_dim=2048, decoder_ffn_dim=2048),
    "big": dict(d_model=1024, encoder_ffn_dim=4096, decoder_ffn_dim=4096),
}


@pytest.mark.parametrize("aggregation", ["none", *AGGREGATIONS])
@pytest.mark.parametrize("size", SIZES_OF_THE_PAPER)
def test_base_and_big_sizes_build(size, aggregation):
    heads = {"base": 8, "big": 16}[size]
    config = CapsuleMarianConfig(
        vocab_size=32000,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        aggregation=aggregation,
        **SIZES_OF_THE_PAPER[size],
    )
    with torch.device("meta"):
        model = CapsuleMarianMTModel(config)
        layers = tuple(torch.zeros(2, 5, config.d_model) for _ in range(6))
    for stack in (model.model.encoder, model.model.decoder):
        if aggregation == "none":
            assert stack.aggregation is None
        else:
            assert stack.aggregation(layers)[0].shape == (2, 5, config.d_model)
    added = sum(p.numel() for n, p in model.named_parameters() if ".aggregation." in n)
    d, h = config.d_model, config.d_model
    feed_forward = 12 * (6 * d * h + h + h * d + d)
    gates = 2 * 3 * d
    expected = {
        "none": 0,
        "linear": 12 * d + gates,
        "dynamic": feed_forward + gates,
        "dynamic_routing": feed_forward + gates,
        "em_routing": feed_forward + 12 * h + 4 * d + gates,
    }
    assert added == expected[aggregation]


def test_identical_weights_from_the_same_seed():
    torch.manual_seed(1)
    a = CapsuleMarianMTModel(capsule_config())
    torch.manual_seed(1)
    b = CapsuleMarianMTModel(capsule_config())
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_votes_start_with_unit_variance_and_gates_closed():
    torch.manual_seed(0)
    model = CapsuleMarianMTModel(capsule_config(d_model=48, aggregation="em_routing"))
    for stack, layers in ((model.model.encoder, 3), (model.model.decoder, 2)):
        assert stack.aggregation.gate.abs().max() == 0
        inputs = torch.nn.functional.layer_norm(torch.randn(64, layers, 48), (48,))
        votes = stack.aggregation.combine.votes(inputs)[1]
        assert 0.7 < votes.std().item() < 1.3


@pytest.mark.parametrize(("width", "capsules"), [(128, 128), (512, 512), (512, 64)])
@pytest.mark.parametrize("layers", [2, 6])
def test_dynamic_routing_starts_with_all_capsules_in_use(width, capsules, layers):
    torch.manual_seed(0)
    config = capsule_config(
        d_model=width,
        encoder_layers=layers,
        aggregation="dynamic_routing",
        num_capsules=capsules,
        decoder_attention_heads=4,
    )
    combine = CapsuleMarianMTModel(config).model.encoder.aggregation.combine
    states = torch.nn.functional.layer_norm(torch.randn(64, layers, width), (width,))
    output, agreements = combine(states, output_agreements=True)
    entropy = -(agreements[-1] * agreements[-1].log()).sum(-1).mean()
    assert entropy > 0.95 * math.log(capsules)
    lengths = output.unflatten(-1, (capsules, -1)).norm(dim=-1)
    assert (lengths > 0.01 * lengths.amax(-1, keepdim=True)).float().mean() > 0.5
    # and what leaves it is not lost in the layer norm behind it, whose epsilon is 1e-5
    assert 1e-7 < output.var() < 1


def test_a_trained_checkpoint_keeps_its_generation_config(tmp_path):
    model = capsule_model()
    model.generation_config = GenerationConfig(num_beams=5, pad_token_id=PAD, eos_token_id=EOS, max_length=17)
    model.save_pretrained(tmp_path)
    assert CapsuleMarianMTModel.from_pretrained(tmp_path).generation_config.num_beams == 5


def test_open_gates_changes_the_logits():
    # guards the helper that the tests above rely on
    torch.manual_seed(0)
    closed = CapsuleMarianMTModel(capsule_config()).eval()
    batch = sentence_batch()
    before = closed(**batch).logits
    assert (open_gates(closed)(**batch).logits - before).abs().max() > 0.01


def trainer_for(model, tmp_path, **arguments):
    rows = sentence_batch(rows=5)
    dataset = [{name: values[row] for name, values in rows.items()} for row in range(5)]
    arguments = {"max_steps": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True} | arguments
    return Seq2SeqTrainer(
        model=model, args=Seq2SeqTrainingArguments(output_dir=str(tmp_path), **arguments), train_dataset=dataset
    )


def test_label_smoothing_factor_of_the_trainer_is_refused(tmp_path):
    trainer = trainer_for(capsule_model(), tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="label_smoothing in the model's config instead of label_smoothing_factor"):
        trainer.train()


def test_plain_seq2seq_trainer_accumulates_like_one_large_batch(tmp_path):
    weights = []
    for arguments in (
        {"per_device_train_batch_size": 4},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
    ):
        model = capsule_model(dropout=0.0, label_smoothing=0.1)
        trainer = trainer_for(model, tmp_path, optim="sgd", learning_rate=0.5, max_grad_norm=0.0, **arguments)
        trainer.train()
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    start = dict(capsule_model(dropout=0.0, label_smoothing=0.1).named_parameters())
    moved = max((weights[0][name] - start[name]).abs().max().item() for name in start)
    assert moved > 1e-3
    for name in start:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-4, atol=1e-5)
