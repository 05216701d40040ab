"""Translations as a demonstration makes them, and what its page gets to show."""

import copy
import json
import threading

import pytest
from transformers import BartForConditionalGeneration

from hf_capsule_mt.analysis.examples import example
from hf_capsule_mt.demo.translating import MAX_TOKENS, System
from hf_capsule_mt.evaluation.checkpoints import load_checkpoint
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.models.pipeline_translation import TranslationPipeline
from hf_capsule_mt.models.tokenizer_languages import LanguagePair, remember_languages, set_languages
from tiny_models import plain_bart_config, rnn_model
from tiny_translation import PAIRS, SOURCES, tiny_model, tiny_tokenizer

pytest.importorskip("gradio", reason="needs gradio")

from hf_capsule_mt.demo.app import HINT, build, translations

SENTENCE = SOURCES[1]


@pytest.fixture(scope="module")
def plain():
    return System("plain", tiny_model(), tiny_tokenizer())


@pytest.fixture(scope="module")
def guided(runs):
    return System("guided", *load_checkpoint(str(runs.guided)))


def shown(updates):
    """Notices, and the views after each."""
    notices, views = zip(*updates, strict=True)
    return notices, views


class TestGrowing:
    def test_greedy_translations_grow_word_by_word(self, plain):
        texts = [text for text, _ in plain.translate(SENTENCE, 1)]
        words = PAIRS[SENTENCE].split()
        assert texts[-1] == PAIRS[SENTENCE]
        grown = [text.split() for text in texts]
        assert grown == [words[: len(text)] for text in grown]
        assert len({len(text) for text in grown}) == len(words)

    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_are_those_of_the_pipeline(self, guided, num_beams):
        pipeline = TranslationPipeline(model=guided.model, tokenizer=guided.tokenizer, task="translation")
        expected = pipeline(SENTENCE, num_beams=num_beams)[0]["translation_text"]
        *growing, (text, token_ids) = guided.translate(SENTENCE, num_beams)
        assert text == expected
        assert bool(growing) == (num_beams == 1)
        assert guided.tokenizer.decode(token_ids, skip_special_tokens=True) == text

    def test_routing_is_that_of_the_translation(self, plain, guided):
        *_, (text, token_ids) = plain.translate(SENTENCE, 1)
        assert text == PAIRS[SENTENCE]
        expected = example(guided.model, guided.tokenizer, SENTENCE, "", text)
        routing = guided.routing(SENTENCE, token_ids)
        assert routing == {name: expected[name] for name in routing}
        assert {"guided", "decoder", "encoder"} <= set(routing)

    def test_ends_when_nobody_listens(self, plain):
        endless = System("endless", tiny_model(endless=True), plain.tokenizer)
        before = threading.active_count()
        growing = endless.translate(SENTENCE, 1)
        next(growing)
        growing.close()
        assert threading.active_count() == before

    def test_errors_come_through(self, plain):
        broken = System("broken", copy.deepcopy(plain.model), plain.tokenizer)
        broken.model.model.decoder.forward = lambda *args, **options: 1 / 0
        for num_beams in (1, 2):
            with pytest.raises(ZeroDivisionError):
                list(broken.translate(SENTENCE, num_beams))

    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_closing_waits_for_the_model_and_nobody_asks_it_again(self, num_beams):
        """Python aborts if it ends while a thread computes."""
        system = System("plain", tiny_model(), tiny_tokenizer())
        begun, go_on, calls = threading.Event(), threading.Event(), []

        def held(*_):
            calls.append(1)
            begun.set()
            go_on.wait(60)

        system.model.register_forward_pre_hook(held)
        texts = []
        first = threading.Thread(target=lambda: texts.extend(system.translate(SENTENCE, num_beams)))
        first.start()
        begun.wait(60)
        closing = threading.Thread(target=system.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        go_on.set()
        closing.join(60)
        first.join(60)
        assert not closing.is_alive() and texts[-1][0] == PAIRS[SENTENCE]
        calls.clear()
        later = threading.Thread(target=lambda: list(system.translate(SENTENCE, num_beams)), daemon=True)
        later.start()
        later.join(0.2)
        assert later.is_alive() and not calls

    def test_is_cut_to_what_the_model_can_read(self, plain, runs):
        long = " ".join(SOURCES * 9)
        cut = plain.cut(long)
        assert long.startswith(cut)
        assert len(plain.tokenizer(cut).input_ids) == plain.model.config.max_position_embeddings
        assert plain.cut(SENTENCE) == SENTENCE
        recurrent = System("recurrent", rnn_model(vocab_size=len(plain.tokenizer)), copy.deepcopy(plain.tokenizer))
        recurrent.tokenizer.model_max_length = 10**30
        assert len(recurrent.tokenizer(recurrent.cut(long * 99)).input_ids) == MAX_TOKENS


class TestLanguages:
    @pytest.fixture
    def parts(self, multilingual):
        return load_checkpoint(str(multilingual("nllb")))

    def test_are_chosen(self, parts):
        model, tokenizer = parts
        with pytest.raises(ValueError, match="source_lang, target_lang"):
            System("nllb", model, tokenizer)
        with pytest.raises(ValueError, match="target_lang: 'deu' is none of the 202"):
            System("nllb", model, tokenizer, languages=("eng_Latn", "deu"))
        system = System("nllb", model, tokenizer, languages=("eng_Latn", "deu_Latn"))
        assert len(system.choices) == 202 and system.languages == ("eng_Latn", "deu_Latn")
        for target in ("fra_Latn", "deu_Latn"):
            *_, (notice, (view,)) = translations([system], SENTENCE, 1, ("eng_Latn", target))
            assert notice == ("", "")
            languages = set_languages(tokenizer, "eng_Latn", target)
            data = view["sentences"][0]["systems"]["nllb"]
            (expected,) = translate(model, tokenizer, [SENTENCE], num_beams=1, **languages)
            assert data["translation"] == expected and data["target_tokens"][0] == target
            assert data["source_tokens"][0] == "eng_Latn"
        *_, (notice, _) = translations([system], SENTENCE, 1, ("eng_Latn", "xy"))
        assert notice[0] == "error" and "nllb failed: ValueError: target_lang: 'xy' is none of" in notice[1]

    def test_those_that_it_was_trained_for_come_first(self, parts):
        model, tokenizer = parts
        pairs = [LanguagePair("eng_Latn", "fra_Latn"), LanguagePair("fra_Latn", "eng_Latn")]
        remember_languages(model.generation_config, tokenizer, pairs)
        system = System("nllb", model, tokenizer)
        assert system.languages == pairs[0] and system.choices[:2] == ["eng_Latn", "fra_Latn"]
        assert len(system.choices) == len(set(system.choices)) == 202
        pages = [build([system], SOURCES[:2]), build([System("plain", tiny_model(), tiny_tokenizer())])]
        labels = [{getattr(block, "label", None) for block in page.blocks.values()} for page in pages]
        assert {"From", "To"} <= labels[0] and not {"From", "To"} & labels[1]

    def test_a_model_of_one_pair_beside_it_goes_on(self, parts, plain):
        system = System("nllb", *parts, languages=("eng_Latn", "deu_Latn"))
        *_, (notice, views) = translations([plain, system], SENTENCE, 1, ("fra_Latn", "eng_Latn"))
        assert notice == ("", "") and system.languages == ("fra_Latn", "eng_Latn") and plain.languages is None
        assert views[0]["sentences"][0]["systems"]["plain"]["translation"] == PAIRS[SENTENCE]


class TestUpdates:
    @pytest.mark.parametrize("text", ["", "  \n ", None])
    def test_nothing_happens_without_a_sentence(self, plain, text):
        assert list(translations([plain], text, 1)) == [(("hint", HINT), None)]

    def test_two_systems(self, plain, guided):
        notices, views = shown(translations([plain, guided], f" {SENTENCE}\n", 1))
        assert {kind for kind, _ in notices[:-1]} == {"wait"} and notices[-1] == ("", "")
        # the second begins when the first is ready
        assert views[0][1] is None
        texts = [left["sentences"][0]["systems"]["plain"]["translation"] for left, _ in views]
        assert texts[0] == "" and texts[1] == "die" and texts[-1] == PAIRS[SENTENCE]
        left, right = views[-1]
        assert (left["only"], right["only"], right["systems"]) == ("plain", "guided", ["plain", "guided"])
        own = right["sentences"][0]["systems"]
        assert not own["guided"]["growing"] and "guided" in own["guided"]
        assert own["plain"] == {"source": SENTENCE, "translation": PAIRS[SENTENCE], "growing": False}
        json.dumps(views, allow_nan=False)

    def test_what_was_yielded_does_not_change_later(self, plain):
        updates = translations([plain], SENTENCE, 1)
        _, first = next(updates)
        kept = copy.deepcopy(first)
        list(updates)
        assert first == kept

    def test_a_search_says_that_it_searches(self, plain):
        notices, views = shown(translations([plain], SENTENCE, 4))
        assert notices[0] == ("wait", "plain searches with beam size 4 …")
        assert len(views) == 2 and views[-1][0]["sentences"][0]["systems"]["plain"]["translation"] == PAIRS[SENTENCE]

    def test_long_texts_are_cut_with_a_notice(self, plain, guided):
        notices, views = shown(translations([plain, guided], " ".join(SOURCES * 9), 2))
        kind, text = notices[-1]
        assert kind == "hint" and text.startswith("The text is too long, and was cut after “…")
        assert len(views[-1][0]["sentences"][0]["source"]) < 200

    def test_errors_are_shown_and_the_other_system_goes_on(self, plain, guided):
        broken = System("broken", copy.deepcopy(plain.model), plain.tokenizer)
        broken.model.model.decoder.forward = lambda *args, **options: 1 / 0
        notices, views = shown(translations([broken, guided], SENTENCE, 1))
        assert notices[-1] == ("error", "broken failed: ZeroDivisionError: division by zero")
        left, right = views[-1]
        assert left is None and right["systems"] == ["guided"]

    def test_models_without_routing(self, plain):
        bart = System(
            "bart",
            BartForConditionalGeneration(plain_bart_config(vocab_size=len(plain.tokenizer))).eval(),
            plain.tokenizer,
        )
        _, views = shown(translations([bart], SENTENCE, 1))
        (final,) = views[-1]
        assert not {"guided", "decoder", "memory"} & set(final["sentences"][0]["systems"]["bart"])

    def test_capsules_of_a_source_memory(self, plain):
        model = rnn_model(vocab_size=len(plain.tokenizer), source_memory="capsule")
        _, views = shown(translations([System("capsnmt", model, plain.tokenizer)], SENTENCE, 1))
        (final,) = views[-1]
        memory = final["sentences"][0]["systems"]["capsnmt"]["memory"]["agreement"]
        assert len(memory[0]) == len(plain.tokenizer(SENTENCE).input_ids)


def test_nothing_on_the_page_comes_from_elsewhere(plain):
    config = build([plain], SOURCES, "A <b>title</b>").get_config_file()
    text = json.dumps(config)
    assert not config["analytics_enabled"]
    assert "A &lt;b&gt;title&lt;/b&gt;" in text
    for dependency in config["dependencies"]:
        assert dependency["api_visibility"] == "private"


def test_the_models_are_used_by_one_request_at_a_time(plain):
    functions = build([plain], SOURCES).fns.values()
    uses = [function for function in functions if function.name == "respond"]
    assert len(uses) == 3
    assert {(function.concurrency_id, function.concurrency_limit) for function in uses} == {("models", 1)}
