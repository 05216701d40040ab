"""Guided routing in the model: its parent at the start, its losses as printed, its votes once per source."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoModelForSeq2SeqLM, MarianMTModel
from transformers.modeling_outputs import BaseModelOutput

from hf_capsule_mt import CapsuleMarianMTModel
from hf_capsule_mt.models import capsule_guided, capsule_kernels, capsule_routing
from hf_capsule_mt.models.capsule_kernels import plain_kernels
from hf_capsule_mt.models.capsule_seq2seq import CapsuleForConditionalGenerationMixin
from hf_capsule_mt.reference import guided_routing as reference
from tiny_models import (
    NEW_PARAMETERS,
    PAD,
    VOCAB,
    SavedTensors,
    assert_checkpointing_keeps_gradients,
    assert_padding_row_stays_finite,
    capsule_config,
    capsule_model,
    gradients,
    run_whole_and_in_parts,
    sentence_batch,
)

GUIDED = ["routing", "classifier", "attention", "recurrent"]
LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
GENERATION = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "beam-3-best": {"num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
    "uncached": {"use_cache": False},
}
guided = pytest.mark.parametrize("system", GUIDED)
generation = pytest.mark.parametrize("options", GENERATION.values(), ids=GENERATION.keys())


def guided_model(system="routing", **fields) -> CapsuleMarianMTModel:
    return capsule_model(**{"aggregation": "none", "guided_routing": system, **LOSSES} | fields)


def source_of(batch: dict) -> dict:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("aggregation", ["none", "em_routing"])
@guided
def test_converted_model_translates_exactly_like_its_parent(plain_checkpoint, system, aggregation):
    plain = MarianMTModel.from_pretrained(plain_checkpoint).eval()
    ours = CapsuleMarianMTModel.from_pretrained(
        plain_checkpoint, aggregation=aggregation, guided_routing=system, guided_capsule_size=5, **LOSSES
    ).eval()
    batch = sentence_batch()
    assert torch.equal(ours(**batch).logits, plain(**batch).logits)
    options = dict(num_beams=3, max_new_tokens=9)
    assert torch.equal(ours.generate(**source_of(batch), **options), plain.generate(**source_of(batch), **options))


@guided
def test_conversion_initialises_like_a_new_model(plain_checkpoint, system):
    fields = {"guided_routing": system, "aggregation_init": "paper", **LOSSES}
    fields |= {"guided_capsule_size": 31, "guided_hidden_size": 13}
    ours = CapsuleMarianMTModel.from_pretrained(plain_checkpoint, aggregation="none", **fields)
    fresh = dict(CapsuleMarianMTModel(capsule_config(aggregation="none", **fields)).named_parameters())
    new = {n: p for n, p in ours.named_parameters() if any(part in n for part in NEW_PARAMETERS)}
    of_source = "summary_proj" if system == "recurrent" else "vote_proj"
    assert {name.split(".")[-2] for name in new} >= {of_source, "input_proj", "output_proj", "past", "future"}
    for name, parameter in new.items():
        if fresh[name].std() == 0:
            torch.testing.assert_close(parameter, fresh[name])
        else:
            assert 0.5 < (parameter.std() / fresh[name].std()).item() < 2.0, name


def test_paper_initialisation_lets_the_capsules_in_at_once(plain_checkpoint):
    plain = MarianMTModel.from_pretrained(plain_checkpoint).eval()
    ours = CapsuleMarianMTModel.from_pretrained(
        plain_checkpoint, aggregation="none", guided_routing="routing", aggregation_init="paper"
    ).eval()
    batch = sentence_batch()
    assert (ours(**batch).logits - plain(**batch).logits).abs().max() > 1e-2


def test_capsules_start_with_a_say(plain_checkpoint):
    # neither vanishing capsules nor one-sided assignments before training
    model = CapsuleMarianMTModel(
        capsule_config(aggregation="none", guided_routing="routing", d_model=48, init_std=0.02)
    )
    source, states = (torch.nn.functional.layer_norm(torch.randn(7, n, 48), (48,)) for n in (19, 13))
    out = model.guided_head(states, *model.model.encoder.guided_source(source), None)
    capsules = torch.cat([out.past, out.future], dim=-1).unflatten(-1, (4, -1))
    assert (capsules.norm(dim=-1) > 0.1).float().mean() > 0.9
    assignment = model.guided_head.group_probabilities(out.agreement)
    assert assignment.mean(dim=(0, 1, 2)).min() > 0.05 and assignment.std() > 0.02


@guided
@pytest.mark.parametrize("normalization", ["sentence", "token"])
def test_losses_are_the_papers(system, normalization):
    model = guided_model(system, label_smoothing=0.1, guided_loss_normalization=normalization).double()
    batch = sentence_batch()
    out = model(**batch)
    states = model.model(
        **source_of(batch),
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(batch["labels"]),
        output_guided_source=True,
    )
    head = model.guided_head
    mask = batch["attention_mask"].bool()
    contents = head(states.last_hidden_state, states.guided_votes, states.guided_keys, states.guided_capsules, mask)
    bow = bca = 0.0
    for row, labels in enumerate(batch["labels"]):
        for bag in ("past", "future"):
            capsules = getattr(contents, bag)[row]
            predicted = capsules * head.scale @ head.bow_proj[bag].weight.T
            bow += reference.bag_of_words_loss(predicted, model.lm_head.weight, labels, bag, normalization)
            bca += reference.content_agreement_loss(
                capsules, states.last_hidden_state[row], head.bca_proj[bag].weight, labels, bag, normalization
            )
    tokens = (batch["labels"] != -100).sum()
    torch.testing.assert_close(out.bow_loss, bow / tokens)
    torch.testing.assert_close(out.bca_loss, bca / tokens)
    without = guided_model(system, label_smoothing=0.1, bow_loss_weight=0.0, bca_loss_weight=0.0).double()
    without.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(out.translation_loss, without(**batch).loss)
    torch.testing.assert_close(out.loss, out.translation_loss + 1.0 * out.bow_loss + 0.7 * out.bca_loss)


def test_routing_in_the_model_is_algorithm_1_of_its_states():
    model = guided_model(bow_loss_weight=0.0, bca_loss_weight=0.0).double()
    batch = sentence_batch()
    out = model(**batch, output_agreements=True)
    states = model.model(
        **source_of(batch), decoder_input_ids=model.prepare_decoder_input_ids_from_labels(batch["labels"])
    )
    head, source = model.guided_head, model.model.encoder.guided_source
    w_b = torch.cat([head.state_proj.weight, source.key_proj.weight, head.capsule_proj.weight], dim=1)
    w_votes = source.vote_proj.weight.unflatten(0, (6, 5))
    for row, step in ((0, 3), (1, 0), (2, 2)):
        h = states.encoder_last_hidden_state[row, : int(batch["attention_mask"][row].sum())]
        z = states.last_hidden_state[row, step]
        capsules, history = reference.guided_dynamic_routing(h, z, w_votes, w_b, head.score_weight, 3)
        groups = torch.stack([group.sum(-1) for group in history[-1].split(2, dim=-1)], dim=-1)
        torch.testing.assert_close(out.guided_assignment[row, step, : len(h)], groups)
        inputs = torch.cat([z, head.scale * capsules[:4].flatten()])
        context = head.output_proj(head.activation_fn(head.input_proj(inputs)))
        torch.testing.assert_close(out.logits[row, step], model.lm_head(context + z) + model.final_logits_bias[0])


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 0.5), (0.0, 0.0)], ids=["bow", "bca", "neither"])
def test_only_configured_losses_exist(weights):
    model = guided_model(bow_loss_weight=weights[0], bca_loss_weight=weights[1])
    out = model(**sentence_batch())
    names = {name.split(".")[1] for name, _ in model.named_parameters() if name.startswith("guided_head")}
    for weight, loss, module in zip(weights, ("bow_loss", "bca_loss"), ("bow_proj", "bca_proj"), strict=True):
        assert (out[loss] is not None if loss in out else False) == (weight > 0)
        assert (module in names) == (weight > 0)
    assert ("translation_loss" in out) == any(weights)


@guided
def test_losses_ignore_padding_and_label_smoothing(system):
    model = guided_model(system, label_smoothing=0.1)
    batch = sentence_batch()
    out = model(**batch)
    wider = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 3), value=PAD),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 3)),
        "labels": torch.nn.functional.pad(batch["labels"], (0, 4), value=-100),
    }
    padded = model(**wider)
    for name in ("loss", "translation_loss", "bow_loss", "bca_loss"):
        torch.testing.assert_close(padded[name], out[name])
    model.config.label_smoothing = 0.0
    plain = model(**batch)
    assert not torch.isclose(plain.translation_loss, out.translation_loss)
    assert torch.equal(plain.bow_loss, out.bow_loss) and torch.equal(plain.bca_loss, out.bca_loss)


@guided
def test_micro_batches_add_up(system):
    model = guided_model(system, label_smoothing=0.1)
    whole, expected, parts = run_whole_and_in_parts(model)
    for name in ("loss", "translation_loss", "bow_loss", "bca_loss"):
        torch.testing.assert_close(sum(part[name] for part in parts), whole[name])
    for name, gradient in expected.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, rtol=1e-3, atol=1e-4)


def test_one_token_targets_have_an_empty_past():
    model = guided_model(bca_loss_weight=0.0)
    batch = sentence_batch(rows=1)
    batch["labels"] = batch["labels"][:, :1]
    out = model(**batch)
    past, future = (
        model.bag_of_words_log_probs(**source_of(batch), decoder_input_ids=torch.full((1, 1), PAD))[i] for i in (0, 1)
    )
    torch.testing.assert_close(out.bow_loss, -future[0, 0, batch["labels"][0, 0]])
    assert past.shape == (1, 1, VOCAB)


def test_bag_of_words_predictions_are_those_of_the_loss():
    model = guided_model(bca_loss_weight=0.0).double()
    batch = sentence_batch()
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    past, future = model.bag_of_words_log_probs(**source_of(batch), decoder_input_ids=decoder_input_ids)
    total, tokens = 0.0, 0
    for row, labels in enumerate(batch["labels"].tolist()):
        words = [label for label in labels if label != -100]
        for t in range(len(words)):
            for log_probs, bag in ((past, words[:t]), (future, words[t:])):
                total -= sum(log_probs[row, t, word] for word in bag) / len(words)
        tokens += len(words)
    torch.testing.assert_close(model(**batch).bow_loss, total / tokens)


@pytest.mark.parametrize("fields", [{"guided_routing": "none"}, {"guided_routing": "routing"}], ids=["none", "no bow"])
def test_bag_of_words_predictions_need_their_loss(fields):
    batch = sentence_batch()
    with pytest.raises(ValueError, match="no bag-of-words predictor: its config has"):
        capsule_model(**fields).bag_of_words_log_probs(**source_of(batch), decoder_input_ids=batch["input_ids"])


@generation
@guided
def test_votes_are_computed_once_per_source(system, options):
    model = guided_model(system, aggregation="em_routing")
    batch = sentence_batch()
    source, seen = model.model.encoder.guided_source, []
    parts = [source.key_proj, source.summary_proj] if system == "recurrent" else [source.vote_proj, source.key_proj]
    for module in (source, *parts):
        module.register_forward_hook(lambda module, args, output: seen.append((module, args[0].shape[0])))
    steps = []
    model.guided_head.register_forward_hook(lambda *_: steps.append(1))
    out = model.generate(**source_of(batch), **options, max_new_tokens=7)
    # three sentences, however many beams and samples
    assert seen == [(module, 3) for module in (*parts, source)]
    assert len(steps) == out.shape[1] - 1 > 2
    seen.clear()
    model.train()(**batch).loss.backward()
    assert seen == [(module, 3) for module in (*parts, source)]


@pytest.mark.parametrize("options", [GENERATION["beam-3-best"], GENERATION["sampling"]], ids=["beam", "sampling"])
@guided
def test_beams_share_what_depends_on_the_source(system, options, monkeypatch):
    model = guided_model(system, aggregation="em_routing").double()
    batch, rows = sentence_batch(), []
    model.guided_head.register_forward_pre_hook(lambda module, args: rows.append((len(args[0]), len(args[1]))))

    def generate():
        torch.manual_seed(11)
        given = dict(max_new_tokens=7, output_scores=True, return_dict_in_generate=True)
        return model.generate(**source_of(batch), **options, **given)

    found = generate()
    beams = options.get("num_beams", options["num_return_sequences"])
    assert set(rows) == {(3 * beams, 3 * beams if system == "recurrent" else 3)}
    rows.clear()
    # as in transformers: a copy of the source for each beam
    monkeypatch.delattr(CapsuleForConditionalGenerationMixin, "_expand_inputs_for_generation")
    expected = generate()
    assert set(rows) == {(3 * beams, 3 * beams)}
    assert torch.equal(found.sequences, expected.sequences)
    for scores in zip(found.scores, expected.scores, strict=True):
        torch.testing.assert_close(*scores)


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["exponentials", "keys too large for them"])
def test_inference_reads_exponentials_of_keys(scale, monkeypatch):
    model = guided_model(bow_loss_weight=0.0, bca_loss_weight=0.0).double()
    with torch.no_grad():
        model.model.encoder.guided_source.key_proj.weight.mul_(scale)
    batch, given = sentence_batch(), []
    scores = capsule_routing.additive_scores
    monkeypatch.setattr(capsule_routing, "additive_scores", lambda *args: given.append(args[3]) or scores(*args))
    expected = model(**batch).logits
    assert given == [None, None]
    given.clear()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected)
    assert [exponentials is None for exponentials in given] == [scale > 1] * 2


@pytest.mark.parametrize("brought", ["BaseModelOutput", "tuple", "tuple of the encoder"])
@guided
def test_encoder_outputs_without_votes_get_them(system, brought):
    model = guided_model(system)
    batch = sentence_batch()
    encoder_outputs = model.get_encoder()(**source_of(batch))
    states = encoder_outputs.last_hidden_state
    plain = {
        "BaseModelOutput": BaseModelOutput(states),
        "tuple": (states,),
        "tuple of the encoder": model.get_encoder()(**source_of(batch), return_dict=False),
    }[brought]
    rest = {"attention_mask": batch["attention_mask"], "labels": batch["labels"]}
    expected = model(**batch)
    for outputs in (plain, encoder_outputs):
        out = model(encoder_outputs=outputs, **rest)
        torch.testing.assert_close(out.logits, expected.logits)
        torch.testing.assert_close(out.loss, expected.loss)


def test_inference_computes_no_guided_loss(monkeypatch):
    model = guided_model()
    batch = sentence_batch()
    calls = []
    for name in ("bag_of_words_loss", "content_agreement_loss"):
        monkeypatch.setattr(capsule_guided, name, lambda *args, name=name: calls.append(name) or torch.zeros(()))
    generated = model.generate(**source_of(batch), num_beams=3, max_new_tokens=7, output_agreements=True)
    model(**source_of(batch), decoder_input_ids=batch["input_ids"])
    assert calls == []
    model(**batch)
    assert sorted(calls) == ["bag_of_words_loss"] * 2 + ["content_agreement_loss"] * 2
    # nor do its parameters matter
    without = guided_model(bow_loss_weight=0.0, bca_loss_weight=0.0)
    without.load_state_dict(model.state_dict(), strict=False)
    expected = without.generate(**source_of(batch), num_beams=3, max_new_tokens=7)
    assert torch.equal(generated.sequences, expected)


@generation
@guided
def test_generate_returns_the_assignment_of_the_chosen_sequences(system, options):
    model = guided_model(system, aggregation="em_routing").double()
    batch = sentence_batch()
    torch.manual_seed(11)
    out = model.generate(**source_of(batch), **options, max_new_tokens=7, output_agreements=True)
    copies = options.get("num_return_sequences", 1)
    steps = out.sequences.shape[1] - 1
    assert out.guided_assignment.shape == (3 * copies, steps, 11, 3 if system in ("routing", "classifier") else 2)
    for sentence, length in enumerate((11, 5, 7)):
        for row in range(sentence * copies, (sentence + 1) * copies):
            assert out.guided_assignment[row, :, length:].abs().max() == 0 if length < 11 else True
            alone = model(
                input_ids=batch["input_ids"][sentence : sentence + 1, :length],
                decoder_input_ids=out.sequences[row : row + 1, :-1],
                output_agreements=True,
            )
            torch.testing.assert_close(out.guided_assignment[row, :, :length], alone.guided_assignment[0])
            total = alone.guided_assignment.sum(dim=2 if system == "attention" else 3)
            torch.testing.assert_close(total, torch.ones_like(total))


def test_assignment_is_returned_only_on_request():
    model = guided_model()
    batch = sentence_batch()
    assert model(**batch).guided_assignment is None
    assert capsule_model()(**batch, output_agreements=True).guided_assignment is None
    no_redundant = guided_model(num_redundant_capsules=0)(**batch, output_agreements=True).guided_assignment
    assert no_redundant.shape == (3, 9, 11, 2)


@guided
def test_nothing_of_the_size_of_the_scores_or_of_the_logits_is_kept(system):
    # sizes at which only the scores' tanh reaches B T S N D, and only logits reach B T V
    fields = dict(d_model=8, vocab_size=1500, guided_capsule_size=64, encoder_layers=1, decoder_layers=1)
    fields |= dict(encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64)
    source = torch.randint(2, 1500, (3, 37))
    labels = torch.randint(2, 1500, (3, 31))
    scores = 3 * 31 * 37 * 64
    logits = 3 * 31 * 1500
    model = guided_model(system, **fields, **LOSSES).train()
    with SavedTensors() as saved:
        model(input_ids=source, labels=labels).loss.backward()
    assert max(saved.sizes.values()) < logits < scores
    # the plain way keeps both: the test can see them
    with plain_kernels(), SavedTensors() as plain:
        model(input_ids=source, labels=labels).loss.backward()
    assert logits in plain.sizes.values() and max(plain.sizes.values()) >= scores


@guided
def test_results_do_not_depend_on_the_pieces(system, monkeypatch):
    batch = sentence_batch(rows=5)

    def backward():
        model = guided_model(system)
        loss = model(**batch).loss
        loss.backward()
        return loss.detach(), gradients(model)

    loss, expected = backward()
    for elements in (1, 200, 3000):
        monkeypatch.setattr(capsule_kernels, "SCORE_ELEMENTS_CPU", elements)
        monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", elements)
        other, found = backward()
        torch.testing.assert_close(other, loss)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


# the others: test_training_over_many_shapes_compiles_at_most_two_graphs
@pytest.mark.parametrize("system", ["routing", "recurrent"])
def test_forward_and_backward_compile(system):
    model = guided_model(system, dropout=0.0)
    batch = sentence_batch()
    expected = copy.deepcopy(model)(**batch).loss
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=system != "recurrent", backend="aot_eager")
    out = compiled(**batch)
    torch.testing.assert_close(out.loss, expected)
    out.loss.backward()
    assert model.guided_head.input_proj.weight.grad.abs().max() > 0


@guided
def test_gradient_checkpointing_gives_the_same_gradients(system):
    assert_checkpointing_keeps_gradients(guided_model(system, dropout=0.0))


@pytest.mark.parametrize(
    ("system", "targets"),
    [
        ("routing", ["vote_proj", "key_proj", "state_proj"]),
        ("recurrent", ["key_proj", "state_proj", "summary_proj", "context_proj.past", "context_proj.future"]),
    ],
    ids=["routing", "recurrent"],
)
def test_lora_reaches_the_maps_of_the_source_and_the_states(system, targets):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=targets)
    lora = peft.get_peft_model(guided_model(system), config)
    batch = sentence_batch()
    lora(**batch).loss.backward()
    trained = [name for name, p in lora.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert {name.split(".")[-4] for name in trained} == {target.split(".")[-1] for target in targets}


@guided
def test_a_row_of_padding_stays_finite(system):
    assert_padding_row_stays_finite(guided_model(system))


def test_size_of_the_papers_model():
    config = capsule_config(
        aggregation="none",
        guided_routing="routing",
        guided_capsule_size=256,
        guided_hidden_size=512,
        d_model=512,
        decoder_attention_heads=8,
        encoder_attention_heads=8,
        **LOSSES,
    )
    with torch.device("meta"):
        model = CapsuleMarianMTModel(config)
    added = {n: p.numel() for n, p in model.named_parameters() if any(part in n for part in NEW_PARAMETERS)}
    votes, scores = 6 * 256 * 512, 256 * (512 + 256 + 256) + 256
    feed_forward = (512 + 4 * 256 + 1) * 512 + (512 + 1) * 512
    assert sum(added.values()) == votes + scores + feed_forward + 2 * 512 * 512 + 2 * 512 * 512


@pytest.mark.parametrize("saved", [True, False], ids=["with the field", "before there was one"])
def test_saved_models_keep_the_normalization_that_they_were_trained_with(saved, tmp_path):
    guided_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    assert values["guided_loss_normalization"] == "sentence"
    if not saved:
        del values["guided_loss_normalization"]
        path.write_text(json.dumps(values))
    for loaded in (CapsuleMarianMTModel.from_pretrained(tmp_path), AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
        assert loaded.config.guided_loss_normalization == ("sentence" if saved else "token")
    asked = CapsuleMarianMTModel.from_pretrained(tmp_path, guided_loss_normalization="sentence")
    assert asked.config.guided_loss_normalization == "sentence"


def test_normalization_of_the_config_is_checked():
    with pytest.raises(StrictDataclassClassValidationError, match="guided_loss_normalization='word' is not known"):
        capsule_config(guided_routing="routing", guided_loss_normalization="word")
