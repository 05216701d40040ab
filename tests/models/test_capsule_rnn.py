"""CapsuleRNNForConditionalGeneration: the paper's equations, padding, generation, training and checkpoints."""

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, pipeline
from transformers.modeling_outputs import BaseModelOutput

import hf_capsule_mt
from hf_capsule_mt import CapsuleRNNConfig, CapsuleRNNForConditionalGeneration
from hf_capsule_mt.models.capsule_cache import RecurrentCache, RecurrentCacheLayer
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from hf_capsule_mt.reference import recurrent as reference
from tiny_models import (
    EOS,
    PAD,
    TARGET_VOCAB,
    VOCAB,
    assert_checkpointing_keeps_gradients,
    assert_padding_row_stays_finite,
    gradients,
    rnn_config,
    rnn_model,
    run_whole_and_in_parts,
    sentence_batch,
)
from tiny_translation import SOURCES, TARGETS, tiny_tokenizer

MEMORIES = {name: {"source_memory": name} for name in ("simple", "capsule", "attention", "hybrid")}
BASE = {"share_routing_weights": True, "position_aware_routing": False, "separable_scoring": False}
ABLATION = {
    "base": BASE,
    "+ non-shared": BASE | {"share_routing_weights": False},
    "+ position-aware": {"separable_scoring": False},
    "+ separable": {},
    "+ balanced": {"balanced_routing": True},
    "calibrated": CALIBRATED,
    "+ end states": {"include_end_states": True},
}
GUIDED = {"guided_routing": "routing", "bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
EM = {"aggregation": "em_routing", "num_capsules": 7}
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": TARGET_VOCAB}
SYSTEMS = {
    **MEMORIES,
    "capsule-base": BASE,
    "capsule-uniform": {"routing_iterations": 1},
    "capsule-calibrated": CALIBRATED,
    "simple-guided": {"source_memory": "simple", **GUIDED},
    "attention-em": {"source_memory": "attention", **EM},
    "hybrid-guided-em": {"source_memory": "hybrid", **GUIDED, **EM},
    "attention-recurrent": {"source_memory": "attention", **GUIDED, "guided_routing": "recurrent"},
}
GENERATION = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "beam-3-best": {"num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
}
# tiny random models would repeat one token, whatever their state is
VARIED = {"max_new_tokens": 8, "no_repeat_ngram_size": 1}


def cases(name: str, values: dict):
    return pytest.mark.parametrize(name, values.values(), ids=values.keys())


systems = cases("system", SYSTEMS)
memories = cases("system", MEMORIES)
generation = cases("options", GENERATION)


def source_of(batch: dict) -> dict:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def generate(model, batch, seed: int = 11, **options):
    """Generation with scores, the same random numbers every time."""
    torch.manual_seed(seed)
    options = VARIED | {"return_dict_in_generate": True, "output_scores": True, "output_logits": True} | options
    return model.generate(**source_of(batch), **options)


def assert_same_generation(a, b) -> None:
    assert torch.equal(a.sequences, b.sequences)
    for field in ("scores", "logits"):
        assert len(a[field]) == len(b[field]) > 2
        for x, y in zip(a[field], b[field], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


def scattered(batch: dict, layout: str) -> tuple[dict, torch.Tensor]:
    """The batch with 13 source positions and the words elsewhere, other words on the masked positions.

    Returns it and the place of the n-th position of each old row, [B, S].
    """
    generator = torch.Generator().manual_seed(2)
    mask = batch["attention_mask"].bool()
    ids = torch.randint(2, VOCAB, (len(mask), 13), generator=generator)
    new_mask = torch.zeros_like(ids)
    places = torch.zeros_like(batch["input_ids"])
    for row, real in enumerate(mask):
        count = int(real.sum())
        words = torch.randperm(13, generator=generator)[:count].sort().values
        words = torch.arange(13 - count, 13) if layout == "left" else words
        ids[row, words] = batch["input_ids"][row, :count]
        new_mask[row, words] = 1
        places[row, :count] = words
    return batch | {"input_ids": ids, "attention_mask": new_mask}, places


PAPER = {
    **MEMORIES,
    **ABLATION,
    "hybrid, two vocabularies, no scale": {"source_memory": "hybrid", "scale_embedding": False, **BASE, **SEPARATE},
}


@cases("fields", PAPER)
def test_model_and_its_gradients_are_the_papers(fields):
    model = rnn_model(dropout=0.0, label_smoothing=0.0, **fields).double()
    batch = sentence_batch(target_vocab=TARGET_VOCAB)
    weights = dict(model.named_parameters())
    loss, count, expected = 0.0, 0, []
    for source, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        words = labels[labels != -100]
        inputs = [PAD, *words[:-1].tolist()]
        logits = reference.sentence_logits(model.config, weights, source[mask.bool()].tolist(), inputs)
        loss = loss - logits.log_softmax(-1)[range(len(words)), words].sum()
        count += len(words)
        expected.append(logits)
    theirs = torch.autograd.grad(loss / count, list(weights.values()))
    for training in (True, False):
        out = model.train(training)(**batch)
        for row, logits in enumerate(expected):
            torch.testing.assert_close(out.logits[row, : len(logits)], logits, rtol=1e-9, atol=1e-11)
        ours = torch.autograd.grad(out.loss, list(weights.values()))
        for name, a, b in zip(weights, ours, theirs, strict=True):
            assert b.abs().max() > 1e-6, name
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@systems
def test_alone_equals_padded_in_a_batch(system):
    # float64: routing sharpens the rounding differences between a batch and a single sentence
    model = rnn_model(**system).double()
    batch = sentence_batch()
    logits = model(**batch).logits
    together = {beams: generate(model, batch, num_beams=beams).sequences for beams in (1, 4)}
    for row in range(3):
        length, target = int(batch["attention_mask"][row].sum()), int((batch["labels"][row] != -100).sum())
        alone = {"input_ids": batch["input_ids"][row : row + 1, :length]}
        single = model(**alone, labels=batch["labels"][row : row + 1, :target]).logits
        torch.testing.assert_close(single[0], logits[row, :target])
        for beams, sequences in together.items():
            found = model.generate(**alone, **VARIED, num_beams=beams)[0]
            # sentences that end early are filled up with the padding token, or under beam search with EOS
            rest = sequences[row, len(found) :]
            assert torch.equal(found, sequences[row, : len(found)]) and ((rest == PAD) | (rest == EOS)).all()


@pytest.mark.parametrize("layout", ["left", "holes"])
@systems
def test_padding_may_be_anywhere(system, layout):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    moved, places = scattered(batch, layout)
    out, expected = (model(**inputs, output_agreements=True) for inputs in (moved, batch))
    torch.testing.assert_close(out.logits, expected.logits)
    torch.testing.assert_close(out.loss, expected.loss)
    real = batch["attention_mask"].bool()
    if expected.source_agreements is not None:
        for a, b in zip(out.source_agreements, expected.source_agreements, strict=True):
            back = a.gather(1, places.unsqueeze(-1).expand_as(b))
            torch.testing.assert_close(back[real], b[real])
            torch.testing.assert_close(a.sum(-1), moved["attention_mask"].double())
    for options in ({}, {"num_beams": 4}):
        sequences = (generate(model, inputs, **options).sequences for inputs in (moved, batch))
        assert torch.equal(*sequences)


@pytest.mark.parametrize("layout", ["right", "left", "holes"])
@systems
def test_what_padding_holds_does_not_matter(system, layout):
    model = rnn_model(**system)
    batch = sentence_batch()
    batch = batch if layout == "right" else scattered(batch, layout)[0]
    padding = batch["attention_mask"] == 0
    embeddings = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    other = torch.where(padding.unsqueeze(-1), 9 * torch.randn_like(embeddings), embeddings).requires_grad_()
    out = model(inputs_embeds=other, **batch)
    expected = model(inputs_embeds=embeddings, **batch)
    assert torch.equal(out.logits, expected.logits) and torch.equal(out.loss, expected.loss)
    (gradient,) = torch.autograd.grad(out.loss, other)
    assert gradient[padding].abs().max() == 0 and gradient[~padding].abs().amax(dim=-1).min() > 0


@systems
def test_a_row_of_padding_stays_finite(system):
    model = rnn_model(**system)
    batch = assert_padding_row_stays_finite(model)
    assert all(step.isfinite().all() for step in generate(model.eval(), batch, num_beams=3).logits)


@memories
def test_masks_of_every_type_and_none_are_the_same(system):
    model = rnn_model(**system)
    batch = sentence_batch()
    expected = model(**batch).logits
    for dtype in (torch.bool, torch.int32, torch.float32):
        assert torch.equal(model(**batch | {"attention_mask": batch["attention_mask"].to(dtype)}).logits, expected)
    full = {name: values[:1] for name, values in batch.items()}
    assert torch.equal(model(**full | {"attention_mask": None}).logits, model(**full).logits)


@generation
@systems
def test_cached_generation_equals_uncached(system, options):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    cached, uncached = (generate(model, batch, **options, use_cache=use) for use in (True, False))
    assert isinstance(cached.past_key_values, RecurrentCache) and uncached.past_key_values is None
    assert_same_generation(cached, uncached)


@cases("options", {name: GENERATION[name] for name in ("greedy", "beam")})
@memories
def test_generation_continues_a_prefix(system, options):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    prefix = torch.tensor([[PAD, 17, 23], [PAD, 5, 7], [PAD, 31, 3]])
    cached, uncached = (
        generate(model, batch, decoder_input_ids=prefix, use_cache=use, **options) for use in (True, False)
    )
    assert torch.equal(cached.sequences[:, :3], prefix) and cached.sequences.shape[1] > 6
    assert_same_generation(cached, uncached)


@memories
def test_beam_search_needs_reordered_states(system, monkeypatch):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    expected = generate(model, batch, num_beams=4)
    monkeypatch.setattr(RecurrentCacheLayer, "reorder_cache", lambda self, beam_idx: None)
    broken = generate(model, batch, num_beams=4)
    assert not torch.equal(broken.sequences, expected.sequences)


@pytest.mark.parametrize("pieces", [(1,) * 7, (3, 1, 1, 2), (2, 5)], ids=str)
@systems
def test_forward_in_pieces_equals_the_full_forward(system, pieces):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    targets = torch.randint(2, VOCAB, (3, 7), generator=torch.Generator().manual_seed(3))
    expected = model(**source_of(batch), decoder_input_ids=targets, use_cache=False)
    assert expected.past_key_values is None
    encoder_outputs, cache, logits, sizes = model.get_encoder()(**source_of(batch)), None, [], set()
    for piece in targets.split(pieces, dim=1):
        out = model(
            encoder_outputs=encoder_outputs,
            attention_mask=batch["attention_mask"],
            decoder_input_ids=piece,
            past_key_values=cache,
        )
        cache = out.past_key_values
        logits.append(out.logits)
        sizes.add(sum(state.numel() for layer in cache.layers for state in layer.state()))
    torch.testing.assert_close(torch.cat(logits, dim=1), expected.logits)
    # h and c of three layers for three sentences, after one step as after seven; PAST, FUTURE and what has been read
    guided = 3 * (2 * 22 + 11) if model.config.guided_routing == "recurrent" else 0
    assert sizes == {2 * 3 * 3 * 14 + guided} and cache.get_seq_length() == 7


def test_decoding_with_a_fixed_memory_does_not_read_the_source():
    for name in ("simple", "capsule"):
        model = rnn_model(source_memory=name)
        batch = sentence_batch()
        outputs = model.get_encoder()(**source_of(batch))
        expected = model(**source_of(batch), decoder_input_ids=batch["input_ids"]).logits
        outputs.last_hidden_state = torch.full((3, 1, 14), math.nan)
        assert torch.equal(model(encoder_outputs=outputs, decoder_input_ids=batch["input_ids"]).logits, expected)


@cases("cache", {"dynamic": DynamicCache, "pair": lambda: EncoderDecoderCache(DynamicCache(), DynamicCache())})
def test_foreign_caches_are_refused(cache):
    model, batch = rnn_model(), sentence_batch()
    with pytest.raises(ValueError, match=r"keeps its states in a RecurrentCache, not in a .*Cache; leave"):
        model(**source_of(batch), decoder_input_ids=batch["input_ids"], past_key_values=cache())
    with pytest.raises(ValueError, match="keeps its states in a RecurrentCache"):
        generate(model, batch, past_key_values=cache())


@pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
def test_assisted_decoding_is_refused(how):
    model = rnn_model()
    options = {"assistant_model": rnn_model(seed=1)} if how == "assistant" else {"prompt_lookup_num_tokens": 2}
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(torch.tensor([[3, 5, EOS]]), **options)


@generation
@systems
def test_generate_returns_agreements_of_the_chosen_sequences(system, options):
    model = rnn_model(**system).double()
    batch = sentence_batch()
    out = generate(model, batch, **options, output_agreements=True)
    assert torch.equal(out.sequences, generate(model, batch, **options).sequences)
    if model.config.source_memory in ("simple", "attention"):
        assert out.source_agreements is None
        return
    copies = options.get("num_return_sequences", 1)
    repeated = {name: values.repeat_interleave(copies, dim=0) for name, values in source_of(batch).items()}
    # as generate does: without gradient the scores of guided routing are of other roundings
    with torch.no_grad():
        forward = model(**repeated, decoder_input_ids=out.sequences[:, :-1], output_agreements=True)
    assert len(out.source_agreements) == model.config.routing_iterations
    for generated, forced in zip(out.source_agreements, forward.source_agreements, strict=True):
        assert generated.shape == (3 * copies, 11, 5) and torch.equal(generated, forced)
        torch.testing.assert_close(generated.sum(-1), repeated["attention_mask"].double())
    assert forward.source_agreements[-1].std() > 0.05 or model.config.routing_iterations == 1
    assert model(**batch).source_agreements is None
    if model.guided_head is not None:
        assert torch.equal(out.guided_assignment, forward.guided_assignment)


@generation
@memories
def test_source_is_read_once_per_generation(system, options):
    model = rnn_model(**system)
    encoder, seen, steps = model.model.encoder, [], []
    for module in (encoder.layers[0], encoder.source_memory):
        module.register_forward_hook(lambda module, args, output: seen.append((module, len(args[0]))))
    model.model.decoder.register_forward_hook(lambda *_: steps.append(1))
    generate(model, sentence_batch(), **options)
    # three sentences, however many beams and samples
    assert seen == [(encoder.layers[0], 3), (encoder.source_memory, 3)]
    assert len(steps) == 8


@pytest.mark.parametrize("brought", ["own", "BaseModelOutput", "tuple", "tuple of the encoder"])
@systems
def test_encoder_outputs_of_every_class_are_completed(system, brought):
    model = rnn_model(**system)
    batch = sentence_batch()
    own = model.get_encoder()(**source_of(batch))
    outputs = {
        "own": own,
        "BaseModelOutput": BaseModelOutput(own.last_hidden_state),
        "tuple": (own.last_hidden_state,),
        "tuple of the encoder": model.get_encoder()(**source_of(batch), return_dict=False),
    }[brought]
    rest = {"encoder_outputs": outputs, "attention_mask": batch["attention_mask"]}
    torch.testing.assert_close(model(**rest, labels=batch["labels"]).loss, model(**batch).loss)
    if isinstance(outputs, BaseModelOutput):
        expected = generate(model, batch, num_beams=3).sequences
        assert torch.equal(model.generate(**rest, **VARIED, num_beams=3), expected)


@systems
def test_hidden_states_and_attentions(system):
    model = rnn_model(**system)
    batch = sentence_batch()
    out = model(**batch, output_hidden_states=True, output_attentions=True)
    assert torch.equal(out.logits, model(**batch).logits)
    assert [h.shape for h in out.encoder_hidden_states] == [(3, 11, 14)] * 3
    assert [h.shape for h in out.decoder_hidden_states] == [(3, 9, 14)] * 4
    last = out.encoder_hidden_states[-1] if model.config.aggregation == "none" else out.encoder_last_hidden_state
    assert torch.equal(last, out.encoder_last_hidden_state)
    if not model.config.attends():
        assert out.cross_attentions is None
        return
    (weights,) = out.cross_attentions
    assert weights.shape == (3, 1, 9, 11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 9))
    assert weights.permute(0, 3, 1, 2)[batch["attention_mask"] == 0].abs().max() == 0
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[1], out.logits)


@pytest.mark.parametrize("length", [1, 9], ids=lambda n: f"T{n}")
@systems
def test_training_and_evaluation_compute_the_same_without_dropout(system, length):
    model = rnn_model(**system, dropout=0.0).double()
    batch = sentence_batch()
    batch["labels"] = batch["labels"][:, :length]
    losses = [model.train(training)(**batch).loss for training in (True, False)]
    torch.testing.assert_close(*losses, rtol=1e-10, atol=0)


def test_dropout_is_random_in_training_only():
    model, batch = rnn_model(source_memory="hybrid", dropout=0.5), sentence_batch()
    assert torch.equal(model(**batch).loss, model(**batch).loss)
    model.train()
    assert not torch.equal(model(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize(("length", "checkpointing"), [(9, False), (9, True), (1, False)])
@memories
def test_training_runs_each_lstm_once_over_the_sentence(system, length, checkpointing, monkeypatch):
    model = rnn_model(**system).train()
    calls, run = [], torch.nn.LSTM.forward
    monkeypatch.setattr(torch.nn.LSTM, "forward", lambda self, *args: calls.append(args[0].shape) or run(self, *args))
    monkeypatch.setattr(torch, "lstm_cell", lambda *args: pytest.fail("a single step in training"))
    if checkpointing:
        model.gradient_checkpointing_enable()
    batch = sentence_batch()
    model(**batch | {"labels": batch["labels"][:, :length]}).loss.backward()
    # checkpointing runs every layer once more
    assert sorted(calls) == sorted(([(3, 11, 14)] * 4 + [(3, length, 14)] * 3) * (2 if checkpointing else 1))


def test_generation_takes_single_steps(monkeypatch):
    model, calls, step = rnn_model(), [], torch.lstm_cell
    monkeypatch.setattr(torch, "lstm_cell", lambda *args: calls.append(args[0].shape) or step(*args))
    generate(model, sentence_batch(), num_beams=4)
    assert calls == [(12, 14)] * 3 * 8


@systems
def test_gradient_checkpointing_gives_the_same_gradients(system):
    assert_checkpointing_keeps_gradients(rnn_model(**system, dropout=0.0))


@systems
def test_micro_batches_add_up(system):
    model = rnn_model(**system, dropout=0.0, label_smoothing=0.1).double().train()
    whole, expected, parts = run_whole_and_in_parts(model)
    names = ["loss"] + ["translation_loss", "bow_loss", "bca_loss"] * (model.guided_head is not None)
    for name in names:
        torch.testing.assert_close(sum(part[name] for part in parts), whole[name])
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name])


def test_label_smoothed_loss_is_the_definition_and_ignores_padding():
    model = rnn_model(label_smoothing=0.13).double()
    batch = sentence_batch()
    out = model(**batch)
    total, real = 0.0, batch["labels"] != -100
    for logits, label in zip(out.logits[real], batch["labels"][real], strict=True):
        log_probabilities = logits - torch.logsumexp(logits, 0)
        total -= (1 - 0.13) * log_probabilities[label] + 0.13 * log_probabilities.mean()
    torch.testing.assert_close(out.loss, total / real.sum())
    wider = batch | {"labels": torch.nn.functional.pad(batch["labels"], (0, 4), value=-100)}
    torch.testing.assert_close(model(**wider).loss, out.loss)
    assert not torch.isclose(rnn_model(label_smoothing=0.0).double()(**batch).loss, out.loss)


@pytest.mark.parametrize("state", ["new", "trained"])
@cases("system", SYSTEMS | {"separate": SEPARATE | {"source_memory": "hybrid"}})
def test_every_parameter_gets_a_gradient(system, state):
    model = rnn_model(**system) if state == "trained" else CapsuleRNNForConditionalGeneration(rnn_config(**system))
    model.train()(**sentence_batch(target_vocab=TARGET_VOCAB)).loss.backward()
    found = gradients(model)
    # a parameter without any gradient would stop DistributedDataParallel
    assert found.keys() == dict(model.named_parameters()).keys()
    # what a closed gate or a projection that starts at zero hides has zeros at first
    hidden = ("aggregation.combine", "aggregation.layer_norm", "guided_") if state == "new" else ()
    assert not [n for n, g in found.items() if g.abs().max() == 0 and not any(part in n for part in hidden)]
    assert all(gradient.isfinite().all() for gradient in found.values())


@cases("system", SYSTEMS | {"separate": SEPARATE})
def test_save_and_load_round_trip_is_bit_exact(tmp_path, system):
    model = rnn_model(**system)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists() and not list(tmp_path.glob("*.bin"))
    loaded, info = CapsuleRNNForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = sentence_batch(target_vocab=TARGET_VOCAB)
    expected = model(**batch).logits
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert torch.equal(loaded.eval()(**batch).logits, expected)
    encoder, decoder = loaded.model.encoder.embed_tokens.weight, loaded.model.decoder.embed_tokens.weight
    assert loaded.lm_head.weight is decoder and (encoder is decoder) == ("decoder_vocab_size" not in system)
    assert expected.shape[-1] == loaded.config.decoder_vocab_size == system.get("decoder_vocab_size", VOCAB)
    auto = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(auto) is CapsuleRNNForConditionalGeneration and torch.equal(auto(**batch).logits, expected)
    assert type(AutoConfig.from_pretrained(tmp_path)) is CapsuleRNNConfig
    # the fused kernel of training reads the loaded weights, not copies of them
    loaded.train()(**batch).loss.backward()
    assert gradients(loaded).keys() == dict(loaded.named_parameters()).keys()


@cases("fields", {"guided": GUIDED, "guided-em": GUIDED | EM, "recurrent": GUIDED | {"guided_routing": "recurrent"}})
@memories
def test_a_plain_checkpoint_grows_and_translates_as_before(tmp_path, system, fields):
    plain = rnn_model(**system)
    plain.save_pretrained(tmp_path)
    grown = CapsuleRNNForConditionalGeneration.from_pretrained(tmp_path, **fields).eval()
    batch = sentence_batch()
    assert torch.equal(grown(**batch).logits, plain(**batch).logits)
    for options in ({}, {"num_beams": 3}):
        assert torch.equal(generate(grown, batch, **options).sequences, generate(plain, batch, **options).sequences)
    fresh = dict(CapsuleRNNForConditionalGeneration(grown.config).named_parameters())
    new = {name: p for name, p in grown.named_parameters() if name not in dict(plain.named_parameters())}
    assert new
    for name, parameter in new.items():
        if fresh[name].std() == 0:
            torch.testing.assert_close(parameter, fresh[name])
        elif parameter.numel() > 50:
            assert 0.5 < (parameter.std() / fresh[name].std()).item() < 2.0, name
    grown.train()(**batch).loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(grown).values())


def test_layers_missing_in_a_checkpoint_start_as_in_a_new_model(tmp_path):
    rnn_model(source_memory="simple").save_pretrained(tmp_path)
    fields = {"encoder_layers": 3, "decoder_layers": 5, "source_memory": "attention", "dropout": 0.0}
    model, info = CapsuleRNNForConditionalGeneration.from_pretrained(tmp_path, **fields, output_loading_info=True)
    assert {name.split(".")[3] for name in info["missing_keys"] if "lstm" in name} == {"2", "3", "4"}
    encoder, decoder = model.model.encoder, model.model.decoder
    added = [encoder.layers[2].forward_lstm, encoder.layers[2].backward_lstm, *(x.lstm for x in decoder.layers[3:])]
    for lstm in added:
        size = lstm.hidden_size
        bias = (lstm.bias_ih_l0 + lstm.bias_hh_l0).unflatten(0, (4, size))
        assert (bias[1] == 1).all() and (bias[[0, 2, 3]] == 0).all()
        for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0):
            assert 0.8 / math.sqrt(size) < weight.abs().max() <= 1 / math.sqrt(size)
    assert (encoder.layers[1].forward_lstm.bias_hh_l0 != 0).all()
    torch.testing.assert_close(decoder.attention.score_weight.std().item(), 1 / math.sqrt(14), rtol=0.5, atol=0)
    # the fused kernel and single steps read the same weights
    batch = sentence_batch()
    batch["labels"] = batch["labels"][:, :1]
    torch.testing.assert_close(model.train()(**batch).loss, model.eval()(**batch).loss)


def test_resize_token_embeddings_keeps_old_logits(tmp_path):
    model, batch = rnn_model(), sentence_batch()
    before = model(**batch).logits
    model.resize_token_embeddings(VOCAB + 6, mean_resizing=False)
    after = model(**batch).logits
    assert after.shape[-1] == model.config.decoder_vocab_size == model.config.vocab_size == VOCAB + 6
    torch.testing.assert_close(after[..., :VOCAB], before)
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight
    model.resize_token_embeddings(pad_to_multiple_of=16, mean_resizing=False)
    model.save_pretrained(tmp_path)
    loaded = CapsuleRNNForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batch).logits, model(**batch).logits) and loaded.config.vocab_size == 64
    with pytest.raises(ValueError, match="needs share_encoder_decoder_embeddings=True"):
        rnn_model(**SEPARATE).resize_token_embeddings(VOCAB + 6)


@pytest.fixture(scope="module")
def translator():
    """A pipeline around a tiny model that has learnt six sentences by heart."""
    hf_capsule_mt.register()
    tokenizer = tiny_tokenizer()
    torch.manual_seed(3)
    config = rnn_config(
        vocab_size=len(tokenizer), d_model=26, decoder_layers=1, dropout=0.0, init_std=0.1, label_smoothing=0.0
    )
    model = CapsuleRNNForConditionalGeneration(config)
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = tokenizer(TARGETS, padding=True, return_tensors="pt").input_ids
    labels[labels == PAD] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    return pipeline("translation", model=model.eval(), tokenizer=tokenizer)


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_pipeline_translates_what_the_model_has_learnt(translator, num_beams, padding_side):
    translator.tokenizer.padding_side = padding_side
    expected = [{"translation_text": text} for text in TARGETS]
    assert [translator(sentence, num_beams=num_beams)[0] for sentence in SOURCES] == expected
    assert translator(SOURCES, batch_size=6, num_beams=num_beams) == expected
    # another memory of the source gives another translation
    assert translator(SOURCES[0])[0] != translator(SOURCES[1])[0]


@systems
def test_bf16_inference(tmp_path, system):
    full = rnn_model(**system)
    full.save_pretrained(tmp_path)
    model = CapsuleRNNForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    batch = sentence_batch()
    out = model(**batch, output_agreements=True)
    assert out.logits.dtype == torch.bfloat16 and out.logits.isfinite().all()
    for agreement in out.source_agreements or ():
        assert agreement.dtype == torch.float32
    torch.testing.assert_close(out.loss.float(), full(**batch).loss, rtol=0.1, atol=0.1)
    assert all(step.isfinite().all() for step in generate(model, batch, num_beams=2).logits)


@systems
def test_bf16_autocast_trains_and_generates(system):
    model, batch = rnn_model(**system, dropout=0.0).train(), sentence_batch()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
        generated = generate(model.eval(), batch, num_beams=2)
    loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    torch.testing.assert_close(loss, model(**batch).loss, rtol=0.1, atol=0.1)
    assert all(step.isfinite().all() for step in generated.logits)


def test_forward_compiles():
    model, batch = rnn_model(source_memory="hybrid"), sentence_batch()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)


def test_identical_weights_from_the_same_seed():
    first, second = rnn_model(source_memory="hybrid"), rnn_model(source_memory="hybrid")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@cases("fields", MEMORIES | ABLATION)
def test_size_of_the_papers_model(fields):
    config = CapsuleRNNConfig(vocab_size=50_000, pad_token_id=0, decoder_start_token_id=0, **fields)
    with torch.device("meta"):
        model = CapsuleRNNForConditionalGeneration(config)
    d, layers = 512, 4 + 3
    lstm = 4 * (4 * (256 * (512 + 256) + 2 * 256) * 2) + 3 * 4 * (512 * (512 + 512) + 2 * 512)
    memory = {"simple": 4 * d * d, "attention": 0}.get(config.source_memory, 6 * d * d)
    if config.source_memory in ("capsule", "hybrid"):
        memory += 2 * d * d if config.include_end_states else 0
        memory += (1 if config.share_routing_weights else 3) * 6 * d * d
        memory += 2 * (d * d + d) if config.separable_scoring else 0
    # keys, queries, output, scores and norm
    attention = d * d + 2 * (d * d + d) + d + 2 * d if config.attends() else 0
    assert sum(p.numel() for p in model.parameters()) == 50_000 * d + lstm + layers * 2 * d + memory + attention
