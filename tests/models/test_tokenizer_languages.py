"""What is known of the languages of multilingual tokenizers, of all four kinds, new and loaded."""

import pytest
from transformers import AutoTokenizer

from hf_capsule_mt.models.tokenizer_languages import (
    LanguagePair,
    check_language,
    check_target_text,
    choose_languages,
    ends_with_language,
    is_multilingual,
    language_codes,
    language_id,
    languages_of,
    saved_languages,
    set_languages,
)
from tiny_multilingual import LANGUAGES, multilingual_tokenizer
from tiny_translation import SOURCES, TARGETS, tiny_tokenizer

COUNTS = {"m2m100": 100, "nllb": 202, "mbart": 25, "mbart50": 52}


@pytest.fixture(scope="module", params=LANGUAGES)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(multilingual, kind):
    return AutoTokenizer.from_pretrained(multilingual(kind))


def token(kind, code):
    return f"__{code}__" if kind == "m2m100" else code


def test_codes(tokenizer, kind):
    codes = language_codes(tokenizer)
    assert len(codes) == COUNTS[kind] and set(LANGUAGES[kind]) < set(codes)
    for code in codes:
        assert tokenizer.convert_ids_to_tokens(language_id(tokenizer, code)) == token(kind, code)


def test_languages_of_text(tokenizer, kind):
    source, target, _ = LANGUAGES[kind]
    start = set_languages(tokenizer, source, target)
    marks = [
        [token for token in tokenizer.convert_ids_to_tokens(ids) if token in tokenizer.all_special_tokens]
        for ids in tokenizer(SOURCES[0], text_target=TARGETS[0]).values()
        if not set(ids) <= {0, 1}
    ]
    if kind == "mbart":
        assert ends_with_language(tokenizer)
        assert marks == [["</s>", source], ["</s>", target]]
        assert start == {"decoder_start_token_id": language_id(tokenizer, target)}
    else:
        assert not ends_with_language(tokenizer)
        assert marks == [[token(kind, source), "</s>"], [token(kind, target), "</s>"]]
        assert start == {"forced_bos_token_id": language_id(tokenizer, target)}


def test_text_survives_its_languages(tokenizer, kind):
    set_languages(tokenizer, *LANGUAGES[kind][:2])
    ids = tokenizer(text_target=TARGETS[1])["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == TARGETS[1]


def test_pair_is_saved(tokenizer, kind, tmp_path):
    assert saved_languages(tokenizer) is None
    pair = LanguagePair(*LANGUAGES[kind][1:])
    set_languages(tokenizer, *pair)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert saved_languages(loaded) == pair
    assert loaded(SOURCES[0])["input_ids"] == tokenizer(SOURCES[0])["input_ids"]
    assert loaded(text_target=SOURCES[0])["input_ids"] == tokenizer(text_target=SOURCES[0])["input_ids"]
    # what is given wins, what is not is as it was saved
    other = LANGUAGES[kind][0]
    assert choose_languages(loaded, other, None, pair) == (other, pair.target)


def test_languages_within(tokenizer, kind):
    before = tokenizer(SOURCES[0])["input_ids"]
    with languages_of(tokenizer, LanguagePair(*LANGUAGES[kind][1:])):
        assert tokenizer(SOURCES[0])["input_ids"] != before
    assert tokenizer(SOURCES[0])["input_ids"] == before and saved_languages(tokenizer) is None


@pytest.mark.parametrize(
    ("kind", "code", "near"),
    [
        ("nllb", "eng", "eng_Latn"),
        ("nllb", "de", "deu_Latn"),
        ("nllb", "de_DE", "deu_Latn"),
        ("nllb", "zho", "zho_Hans or zho_Hant"),
        ("nllb", "deu-Latn", "deu_Latn"),
        ("nllb", "eng_latn", "eng_Latn"),
        ("m2m100", "deu_Latn", "de"),
        ("m2m100", "de_DE", "de"),
        ("mbart", "en", "en_XX"),
        ("mbart50", "eng_Latn", "en_XX"),
    ],
)
def test_nearest_codes(multilingual, kind, code, near):
    with pytest.raises(ValueError, match=rf"'{code}' is none of the \d+ languages of \w+; did you mean {near}\?"):
        check_language(AutoTokenizer.from_pretrained(multilingual(kind)), code)


def test_code_like_no_other(multilingual):
    with pytest.raises(ValueError, match="it has ace_Arab, ace_Latn, acm_Arab and others"):
        check_language(AutoTokenizer.from_pretrained(multilingual("nllb")), "??")


def test_language_that_was_added(multilingual):
    tokenizer = AutoTokenizer.from_pretrained(multilingual("nllb"), extra_special_tokens=["tyv_Cyrl"])
    assert "tyv_Cyrl" in language_codes(tokenizer)


def test_tokenizer_of_one_pair():
    tokenizer = tiny_tokenizer()
    assert not is_multilingual(tokenizer) and language_codes(tokenizer) == []
    assert set_languages(tokenizer, None, None) == {} and saved_languages(tokenizer) is None
    with languages_of(tokenizer, None) as languages:
        assert languages == {}
    with pytest.raises(ValueError, match="one of a single pair of languages: leave out en and de"):
        set_languages(tokenizer, "en", "de")


def test_languages_are_needed(multilingual):
    tokenizer = AutoTokenizer.from_pretrained(multilingual("m2m100"))
    with pytest.raises(ValueError, match=r"\(source_lang, target_lang\), such as en and de of its 100 languages"):
        set_languages(tokenizer, "en", None)


def test_target_text_of_old_tokenizers(tmp_path):
    tokenizer = multilingual_tokenizer("nllb", tmp_path)
    check_target_text(tokenizer)
    tokenizer.legacy_behaviour = True
    assert set_languages(tokenizer, "eng_Latn", "deu_Latn") == {
        "forced_bos_token_id": language_id(tokenizer, "deu_Latn")
    }
    with pytest.raises(ValueError, match="has legacy_behaviour"):
        check_target_text(tokenizer)
