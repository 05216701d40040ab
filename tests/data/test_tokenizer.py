"""Tokenizers lose no character, load with AutoTokenizer and are the same every time."""

import pytest
from transformers import AutoTokenizer

from hf_capsule_mt.data import tokenizer as tokenizer_module
from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import ALGORITHMS, forget_last_call, train_tokenizer

TEXTS = [
    "A man is sleeping in a green room on a couch.",
    "Ein Mann schläft in einem grünen Raum auf einem Sofa.",
    "Two young, White males are outside near many bushes.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
] * 5


@pytest.fixture(scope="module", params=ALGORITHMS)
def tokenizers(request, tmp_path_factory):
    """A fresh tokenizer and its copy loaded from disk."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = train_tokenizer(TEXTS, 420, 64, request.param)
    tokenizer.save_pretrained(folder)
    return tokenizer, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Zwei Männer schlafen auf einem Sofa.", id="seen"),
        pytest.param("Öl & Übermut: 3½ ﬁlms ¡olé! 漢字 😀👩‍👩‍👧", id="unseen-characters"),
        pytest.param("a  b   c ", id="several-spaces"),
        pytest.param("a\tb\nc", id="tab-and-newline"),
        pytest.param("write </s> and <pad> and <unk>", id="special-tokens-as-text"),
        pytest.param("write <0x41> and <0xE4>", id="byte-pieces-as-text"),
        pytest.param("e\u0301 and \u00e9", id="no-normalisation"),
        pytest.param("", id="empty"),
    ],
)
def test_text_survives(tokenizers, text):
    for tokenizer in tokenizers:
        ids = tokenizer(text)["input_ids"]
        assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_and_limit_are_kept_on_disk(tokenizers):
    for tokenizer in tokenizers:
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
        assert tokenizer.model_max_length == 64
        assert tokenizer.padding_side == "right"
        assert "token_type_ids" not in tokenizer("a")


def test_copy_on_disk_gives_the_same_tokens(tokenizers):
    fresh, loaded = tokenizers
    assert len(fresh) == len(loaded) <= 420
    assert fresh(TEXTS)["input_ids"] == loaded(TEXTS)["input_ids"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_frequent_words_are_short(algorithm):
    texts = [pair.target for pair in generate_corpus(300)]
    tokens = train_tokenizer(texts, 700, 64, algorithm)(texts)["input_ids"]
    assert sum(map(len, tokens)) < 0.35 * sum(map(len, texts))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_text_gives_the_same_tokenizer(algorithm):
    texts = [f"{text} {number * 7919 % 101} wörter {number % 13}" for number, text in enumerate(TEXTS * 20)]
    saved = {train_tokenizer(texts, 500, 64, algorithm).backend_tokenizer.to_str() for _ in range(3)}
    assert len(saved) == 1


@pytest.mark.parametrize(
    "arguments,message",
    [
        pytest.param({"algorithm": "wordpiece"}, "must be one of unigram, bpe, got 'wordpiece'", id="algorithm"),
        pytest.param({"vocab_size": 300}, "vocab_size=300 is too small: .* alone are 354 pieces", id="vocab-size"),
        pytest.param({"texts": ["", " "]}, "there is no text", id="no-text"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**{"texts": TEXTS, "vocab_size": 420, "model_max_length": 64, **arguments})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("vocab_size", [354, 357], ids=["smallest", "one-character-of-many"])
def test_text_survives_where_its_characters_do_not_fit(algorithm, vocab_size):
    tokenizer = train_tokenizer([*TEXTS, "漢字かな交じり文の例"], vocab_size, 64, algorithm)
    assert len(tokenizer) <= vocab_size
    for text in (TEXTS[3], "漢字かな交じり文"):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    # Of the characters beyond ASCII the most frequent one is kept, if any.
    assert (len(tokenizer.tokenize("ä")) < 3) == (vocab_size > 354)


def test_what_was_encoded_before_does_not_change_the_files(tokenizers, tmp_path):
    _, loaded = tokenizers

    def files(name: str) -> dict[str, bytes]:
        forget_last_call(loaded)
        loaded.save_pretrained(tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    before = files("before")
    loaded(TEXTS[:2], truncation=True, max_length=3, padding="max_length")
    assert loaded.backend_tokenizer.truncation and loaded.backend_tokenizer.padding
    assert files("after") == before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_trained_before_is_read(algorithm, tmp_path, monkeypatch):
    def files(name: str) -> dict[str, bytes]:
        train_tokenizer(TEXTS, 420, 64, algorithm, cache_dir=tmp_path / "cache").save_pretrained(tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    first = files("first")

    def refuse(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(tokenizer_module, "_train", refuse)
    assert files("second") == first
    for changed in ({"texts": TEXTS[1:]}, {"vocab_size": 421}, {"algorithm": ALGORITHMS[algorithm == ALGORITHMS[0]]}):
        arguments = {"texts": TEXTS, "vocab_size": 420, "algorithm": algorithm, **changed}
        with pytest.raises(AssertionError, match="trained again"):
            train_tokenizer(**arguments, model_max_length=64, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("damage", ["", '{"version": "1.0"', "{}"])
def test_damaged_tokenizer_in_the_cache_is_trained_again(damage, tmp_path, caplog):
    train_tokenizer(TEXTS, 420, 64, cache_dir=tmp_path)
    (file,) = tmp_path.glob("*.json")
    content = file.read_text(encoding="utf-8")
    file.write_text(damage, encoding="utf-8")
    train_tokenizer(TEXTS, 420, 64, cache_dir=tmp_path)
    assert file.read_text(encoding="utf-8") == content
    assert f"{file} cannot be read" in caplog.text
