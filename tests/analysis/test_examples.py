"""The data of one example, against the model's output."""

import json

import numpy as np
import pytest
import torch
from transformers import MarianMTModel

from hf_capsule_mt.analysis.agreement_figure import agreement_arrays
from hf_capsule_mt.analysis.examples import example
from hf_capsule_mt.analysis.sentence_routing import grouped_capsules, joined_words, shown_tokens
from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from tiny_models import bart_model, capsule_model, plain_config, rnn_model

SENTENCE, REFERENCE = "The small dogs sleep in the garden.", "Die kleinen Hunde schlafen im Garten."
TEXTS = [
    *("source", "reference", "translation"),
    *("source_tokens", "target_tokens", "source_words", "target_words"),
]
SYSTEMS = {
    "em_routing": (capsule_model, dict(aggregation="em_routing"), ["decoder", "encoder"]),
    "encoder_only": (bart_model, dict(aggregation="dynamic_routing", aggregate_decoder=False), ["encoder"]),
    "guided": (capsule_model, dict(aggregation="none", guided_routing="routing"), ["guided"]),
    "classifier": (
        capsule_model,
        dict(aggregation="none", guided_routing="classifier", num_redundant_capsules=0),
        ["guided"],
    ),
    "recurrent": (rnn_model, dict(source_memory="attention", guided_routing="recurrent"), ["guided"]),
    "capsnmt": (rnn_model, dict(source_memory="capsule"), ["memory"]),
    "everything": (
        rnn_model,
        dict(source_memory="hybrid", guided_routing="routing", aggregation="em_routing"),
        ["guided", "decoder", "encoder", "memory"],
    ),
}


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for pair in generate_corpus(50, seed=5) for text in (pair.source, pair.target)]
    return train_tokenizer(texts, vocab_size=400, model_max_length=41)


@pytest.mark.parametrize("name", SYSTEMS)
def test_is_what_the_model_did(name, tokenizer):
    build, options, parts = SYSTEMS[name]
    model = build(vocab_size=len(tokenizer), dropout=0.5, **options).train()
    data = example(model, tokenizer, SENTENCE, "given", REFERENCE)
    assert model.training
    assert list(data) == TEXTS + parts
    assert (data["source"], data["reference"], data["translation"]) == (SENTENCE, "given", REFERENCE)
    batch = tokenizer(SENTENCE, text_target=REFERENCE, return_tensors="pt")
    with torch.no_grad():
        output = model.eval()(**batch, output_agreements=True)
    source, target = len(data["source_tokens"]), len(data["target_tokens"])
    assert (source, target) == (batch["input_ids"].shape[1], batch["labels"].shape[1])
    if "guided" in parts:
        assignment = np.array(data["guided"]["assignment"])
        assert (
            data["guided"]["groups"]
            == ["PAST", "FUTURE", "REDUNDANT"][: 2 if name in ("classifier", "recurrent") else 3]
        )
        np.testing.assert_allclose(assignment, output.guided_assignment[0], atol=6e-5)
    if "memory" in parts:
        expected = torch.stack(output.source_agreements)[:, 0]
        np.testing.assert_allclose(data["memory"]["agreement"], expected, atol=6e-5)
    if "decoder" in parts:
        # [R, T, L, N]
        expected = torch.stack(output.decoder_agreements)[:, 0].transpose(0, 1)[..., data["decoder"]["order"]]
        np.testing.assert_allclose(data["decoder"]["agreement"], expected, atol=6e-6)
    if "encoder" in parts:
        assert data["encoder"]["capsules"] == model.config.num_capsules
        expected = torch.stack(output.encoder_agreements)[:, 0].mean(1)[..., data["encoder"]["order"]]
        np.testing.assert_allclose(data["encoder"]["agreement"], expected, atol=6e-6)
    json.dumps(data, allow_nan=False)


def test_tokens_are_shown_as_in_the_figure(tokenizer):
    model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
    source = "The dogsxq 猫 sleep."
    data = example(model, tokenizer, source, REFERENCE, "Hundxq Ä.")
    arrays = agreement_arrays(model, tokenizer, source, max_new_tokens=2)
    assert data["source_tokens"] == arrays.source_tokens
    assert "-x" in data["target_tokens"] and data["target_tokens"][-1] == "</s>"


def test_pieces_are_joined_to_words(tokenizer):
    model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
    source = "The dogsxq 猫 sleep, 1234."
    data = example(model, tokenizer, source, "", "Die Hundxq schlafen.")
    words = data["source_words"]
    assert [word for word, _ in words if word not in ("<unk>", "▁")] == [
        *("The", "dogsxq", "猫", "sleep", ",", "1234", ".", "</s>")
    ]
    for side in ("source", "target"):
        assert sum(count for _, count in data[f"{side}_words"]) == len(data[f"{side}_tokens"])
    assert dict(map(tuple, words))["dogsxq"] > 1
    assert ("Hundxq" in dict(data["target_words"])) and data["target_words"][-1] == ("</s>", 1)


def test_without_marks_of_words_every_piece_is_one(tokenizer):
    ids = tokenizer("猫猫", add_special_tokens=False, return_tensors="pt").input_ids[0]
    ids = ids[[not name.startswith("▁") for name in tokenizer.convert_ids_to_tokens(ids)]]
    assert all(count == 1 for _, count in joined_words(tokenizer, ids))


def test_tokens_beyond_the_tokenizer_are_shown_by_number(tokenizer):
    # the vocabulary of NLLB-200's models is a little larger than their tokenizer's
    unknown = len(tokenizer) + 1
    ids = torch.tensor([*tokenizer("The", add_special_tokens=False)["input_ids"], unknown])
    assert shown_tokens(tokenizer, ids)[-1] == f"<{unknown}>"
    assert joined_words(tokenizer, ids)[-1] == (f"<{unknown}>", 1)


def test_without_routing_there_are_the_texts(tokenizer):
    model = MarianMTModel(plain_config(vocab_size=len(tokenizer)))
    data = example(model, tokenizer, SENTENCE, REFERENCE, "")
    assert list(data) == TEXTS and data["target_tokens"] == ["</s>"]


def test_blank_source(tokenizer):
    model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
    with pytest.raises(ValueError, match="blank"):
        example(model, tokenizer, " ", "a", "b")


def test_long_texts_are_cut(tokenizer):
    model = capsule_model(vocab_size=len(tokenizer), aggregation="none", guided_routing="routing")
    data = example(model, tokenizer, SENTENCE * 20, "", REFERENCE * 20)
    assert np.shape(data["guided"]["assignment"]) == (41, 41, 3)


class TestGroups:
    def test_by_hand(self):
        # three capsules: 1 is the first layer's, 0 and 2 the second's, 2 more so
        last = np.array([[0.4, 0.5, 0.1], [0.5, 0.1, 0.4]])
        agreements = np.stack([np.full((2, 3), 1 / 3), last])[None]
        data = grouped_capsules(agreements)
        assert (data["capsules"], data["order"]) == (3, [1, 0, 2])
        np.testing.assert_allclose(data["agreement"], agreements[..., [1, 0, 2]], atol=6e-5)

    @pytest.mark.parametrize("capsules, groups", [(32, 32), (33, 32), (100, 32), (512, 32)])
    def test_wide_layers(self, capsules, groups):
        agreements = np.random.default_rng(3).dirichlet(np.ones(capsules), (5, 2, 3))
        agreements[:, 0] = 1 / capsules
        data = grouped_capsules(agreements)
        shown = np.array(data["agreement"])
        assert shown.shape == (5, 2, 3, groups)
        assert sorted(data["order"]) == list(range(capsules))
        # uniform stays 1 / N, to four digits even where that is small
        np.testing.assert_allclose(shown[:, 0] * capsules, 1, atol=5e-4)
        if capsules == 512:
            first = agreements[..., data["order"][:16]].mean(-1)
            np.testing.assert_allclose(shown[..., 0], first, atol=6e-7)
            # from those of the first layer to those of the last, where the order is made
            mean = shown[:, 1].mean(0)
            assert mean[0, :8].sum() > mean[0, -8:].sum() and mean[2, :8].sum() < mean[2, -8:].sum()
