"""Translation of whole files."""

import pytest
from transformers import GenerationConfig, pipeline

from hf_capsule_mt import register
from hf_capsule_mt.evaluation.translate import translate
from tiny_translation import MAX_POSITIONS, SOURCES, TARGETS, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def shapes(model, monkeypatch):
    """The shapes of the batches that reach generate."""
    seen = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **kwargs: seen.append(tuple(kwargs["input_ids"].shape)) or generate(**kwargs)
    )
    return seen


@pytest.mark.parametrize("max_tokens", [1, 20, 60, 4096])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_keeps_the_order_whatever_the_batches(model, tokenizer, num_beams, max_tokens):
    assert translate(model, tokenizer, SOURCES, max_tokens=max_tokens, num_beams=num_beams) == TARGETS


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_endless_translations_do_not_depend_on_the_batches(tokenizer, early_stopping):
    model = tiny_model(endless=True)
    arguments = {"num_beams": 3, "early_stopping": early_stopping}
    alone = [translate(model, tokenizer, [sentence], **arguments)[0] for sentence in SOURCES]
    for max_tokens in (1, 60, 100, 4096):
        assert translate(model, tokenizer, SOURCES, max_tokens=max_tokens, **arguments) == alone


def test_translates_as_the_pipeline_does(tokenizer):
    model = tiny_model(endless=True)
    register()
    records = pipeline("translation", model=model, tokenizer=tokenizer)(SOURCES, num_beams=2)
    assert translate(model, tokenizer, SOURCES, num_beams=2) == [record["translation_text"] for record in records]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_tokens": 4096}, [(6, 12)]),
        ({"max_tokens": 24}, [(2, 12), (3, 8), (1, 5)]),
        ({"max_tokens": 24, "num_beams": 2}, [(1, 12), (1, 10), (1, 8), (2, 5), (1, 5)]),
        ({"max_tokens": 11}, [(1, 12), (1, 10), (1, 8), (2, 5), (1, 5)]),
    ],
    ids=["one_batch", "greedy", "beams", "too_long_for_a_batch"],
)
def test_batches_hold_at_most_max_tokens(model, tokenizer, shapes, arguments, expected):
    translate(model, tokenizer, SOURCES, **arguments)
    assert shapes == expected


def test_beams_of_a_generation_config_count(model, tokenizer, shapes):
    translate(model, tokenizer, SOURCES, max_tokens=24, generation_config=GenerationConfig(num_beams=2))
    model.generation_config.num_beams = 2
    translate(model, tokenizer, SOURCES, max_tokens=24)
    assert shapes == [(1, 12), (1, 10), (1, 8), (2, 5), (1, 5)] * 2


def test_blank_sentences_stay_blank_and_unseen(model, tokenizer, shapes):
    sentences = ["", SOURCES[0], " \t", *SOURCES[1:], "\u3000"]
    assert translate(model, tokenizer, sentences) == ["", TARGETS[0], "", *TARGETS[1:], ""]
    assert shapes == [(6, 12)]


@pytest.mark.parametrize("sentences", [[], ["", " "]], ids=["empty", "blank"])
def test_nothing_to_translate(model, tokenizer, shapes, sentences):
    assert translate(model, tokenizer, sentences) == [""] * len(sentences)
    assert shapes == []


def test_progress(model, tokenizer):
    calls = []
    translate(model, tokenizer, ["", *SOURCES], max_tokens=24, progress=lambda *numbers: calls.append(numbers))
    assert calls == [(3, 7), (6, 7), (7, 7)]


def test_progress_of_blank_sentences(model, tokenizer):
    calls = []
    translate(model, tokenizer, ["", ""], progress=lambda *numbers: calls.append(numbers))
    assert calls == [(2, 2)]


def test_truncation_is_counted(model, tokenizer, caplog):
    long = " ".join(["dog"] * 40)
    results = translate(model, tokenizer, [long, *SOURCES, f"{long} cat"])
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"2 of 8 sentences were truncated to {MAX_POSITIONS} tokens")
    assert "25 tokens were cut, 13 from the longest" in message
    assert results[1:-1] == TARGETS
    assert results[0] == results[-1] == translate(model, tokenizer, [" ".join(["dog"] * (MAX_POSITIONS - 1))])[0]


def test_model_mode_is_restored_and_without_effect(model, tokenizer):
    model.train()
    model.model.encoder.eval()
    assert translate(model, tokenizer, SOURCES) == TARGETS
    assert model.training and model.model.decoder.training and not model.model.encoder.training


def test_model_mode_is_restored_after_an_error(model, tokenizer):
    model.train()
    with pytest.raises(ValueError, match="nonsense"):
        translate(model, tokenizer, SOURCES, nonsense=1)
    assert model.training


def test_length_of_the_caller_wins(model, tokenizer):
    assert translate(model, tokenizer, SOURCES[:2], max_new_tokens=2) == ["ein hund", "die kleine"]
    model.generation_config.max_new_tokens = 1
    assert translate(model, tokenizer, SOURCES[:2]) == ["ein", "die"]


@pytest.mark.parametrize(
    ("sentences", "arguments", "message"),
    [
        (SOURCES, {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ("a dog runs .", {}, "single string"),
        (SOURCES, {"num_beams": 2, "num_return_sequences": 2}, "num_return_sequences=2"),
    ],
    ids=["max_tokens", "string", "several"],
)
def test_errors(model, tokenizer, sentences, arguments, message):
    with pytest.raises(ValueError, match=message):
        translate(model, tokenizer, sentences, **arguments)
