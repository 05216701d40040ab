"""The translation pipeline and its registration."""

import os
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
    pipelines,
)
from transformers.pipelines.base import PipelineRegistry
from transformers.pipelines.pt_utils import KeyDataset

from hf_capsule_mt.models.pipeline_translation import TranslationPipeline
from hf_capsule_mt.registration import register
from tiny_multilingual import LANGUAGES
from tiny_translation import EOS, MAX_POSITIONS, PAD, SOURCES, TARGETS, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def translator(model, tokenizer):
    register()
    return pipeline("translation", model=model, tokenizer=tokenizer)


def translate_alone(model, tokenizer, sentence, **arguments):
    """Straight through generate, under the limit of the sentence's own length."""
    encoded = tokenizer(sentence, return_tensors="pt", return_token_type_ids=False)
    arguments = {"max_length": min(2 * encoded.input_ids.shape[1] + 10, MAX_POSITIONS)} | arguments
    return tokenizer.decode(model.generate(**encoded, **arguments)[0], skip_special_tokens=True)


@pytest.fixture
def unregistered(monkeypatch):
    """The registry as transformers ships it."""
    registry = pipelines.PIPELINE_REGISTRY
    shipped = {task: entry for task, entry in registry.supported_tasks.items() if task != "translation"}
    monkeypatch.setattr(registry, "supported_tasks", shipped)
    monkeypatch.setattr(registry, "check_task", PipelineRegistry.check_task.__get__(registry))
    if hasattr(pipelines, "REMOVED_TASKS"):
        monkeypatch.setitem(pipelines.REMOVED_TASKS, "translation", "It is gone.")
    return registry


def texts_of(records):
    return [record["translation_text"] for record in records]


class TestRegister:
    @pytest.mark.parametrize("task", ["translation", "translation_en_to_de"])
    def test_brings_the_task_back(self, unregistered, model, tokenizer, task):
        with pytest.raises(KeyError):
            pipeline(task, model=model, tokenizer=tokenizer)
        register()
        assert isinstance(pipeline(task, model=model, tokenizer=tokenizer), TranslationPipeline)

    def test_twice_is_once(self, unregistered, caplog):
        register()
        entry, check_task = unregistered.supported_tasks["translation"], unregistered.check_task
        register()
        assert unregistered.supported_tasks["translation"] is entry
        assert unregistered.check_task is check_task
        assert not caplog.records

    def test_keeps_what_is_registered_already(self, unregistered):
        entry = {"impl": TranslationPipeline, "pt": ()}
        unregistered.supported_tasks["translation"] = entry
        register()
        assert unregistered.supported_tasks["translation"] is entry

    def test_leaves_the_other_tasks_alone(self, unregistered):
        register()
        assert pipelines.check_task("ner")[0] == "token-classification"
        with pytest.raises(KeyError, match="translation_nonsense"):
            pipelines.check_task("translation_nonsense")

    @pytest.mark.parametrize("task", ["translation", "translation_en_to_de"])
    def test_without_a_model(self, unregistered, task):
        register()
        with pytest.raises(ValueError, match="default"):
            pipeline(task)

    @pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "Path"])
    def test_loads_a_saved_model(self, unregistered, model, tokenizer, tmp_path, as_path):
        register()
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        translator = pipeline("translation_en_to_de", model=as_path(tmp_path), dtype="float32")
        assert isinstance(translator.model, MarianMTModel)
        assert texts_of(translator(SOURCES, batch_size=4)) == TARGETS


class TestInputs:
    def test_single_string(self, translator):
        assert translator(SOURCES[0]) == [{"translation_text": TARGETS[0]}]

    @pytest.mark.parametrize("batch_size", [1, 2, 4, 6])
    def test_list(self, translator, batch_size):
        assert translator(SOURCES, batch_size=batch_size) == [{"translation_text": text} for text in TARGETS]

    @pytest.mark.parametrize("batch_size", [1, 4])
    def test_generator(self, translator, batch_size):
        results = translator((sentence for sentence in SOURCES), batch_size=batch_size)
        assert not isinstance(results, list)
        assert list(results) == [[{"translation_text": text}] for text in TARGETS]

    def test_generator_is_read_as_needed(self, translator):
        read = []

        def source():
            for sentence in SOURCES:
                read.append(sentence)
                yield sentence

        next(iter(translator(source(), batch_size=2)))
        assert len(read) < len(SOURCES)

    def test_torch_dataset(self, translator):
        dataset = KeyDataset(Dataset.from_dict({"source": SOURCES}), "source")
        assert list(translator(dataset, batch_size=4)) == [[{"translation_text": text}] for text in TARGETS]

    def test_datasets_column(self, translator):
        column = Dataset.from_dict({"source": SOURCES})["source"]
        assert texts_of(translator(column, batch_size=4)) == TARGETS

    def test_empty_list(self, translator):
        assert translator([]) == []

    def test_not_a_string(self, translator):
        with pytest.raises(ValueError, match="translates strings, got NoneType"):
            translator(["a dog runs .", None])


class TestGeneration:
    @pytest.mark.parametrize("at", ["init", "call"])
    def test_arguments_reach_generate(self, model, tokenizer, at):
        register()
        arguments = {"num_beams": 3, "max_new_tokens": 4}
        initial, later = (arguments, {}) if at == "init" else ({}, arguments)
        translator = pipeline("translation", model=model, tokenizer=tokenizer, **initial)
        direct = translate_alone(model, tokenizer, SOURCES[1], **arguments, max_length=None)
        assert direct == "die kleine katze schläft"
        assert translator(SOURCES[1], **later) == [{"translation_text": direct}]

    def test_generation_config_object(self, translator):
        config = GenerationConfig(num_beams=3, max_new_tokens=4)
        assert translator(SOURCES, generation_config=config) == translator(SOURCES, num_beams=3, max_new_tokens=4)

    def test_generation_config_object_without_a_length(self, translator):
        config = GenerationConfig(num_beams=3)
        assert translator(SOURCES, generation_config=config, batch_size=6) == translator(SOURCES, num_beams=3)
        assert config.max_length is None

    def test_model_generation_config_sets_the_length(self, translator, model):
        model.generation_config.max_new_tokens = 3
        records = translator(SOURCES, return_tensors=True)
        assert max(len(record["translation_token_ids"]) for record in records) == 1 + 3

    def test_several_sequences(self, translator):
        one = translator(SOURCES, num_beams=3, batch_size=4)
        several = translator(SOURCES, num_beams=3, num_return_sequences=2, batch_size=4)
        assert [len(records) for records in several] == [2] * len(SOURCES)
        assert [records[0] for records in several] == one
        assert several[0] == translator(SOURCES[0], num_beams=3, num_return_sequences=2)

    @pytest.mark.parametrize("own", [None, MAX_POSITIONS], ids=["no length", "longest length"])
    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_every_translation_has_its_own_limit(self, tokenizer, num_beams, own):
        register()
        endless = tiny_model(endless=True)
        # as saved models have it, so that their generate does not stop at 20 tokens
        endless.generation_config.max_length = own
        translator = pipeline("translation", model=endless, tokenizer=tokenizer, num_beams=num_beams)
        alone = [translate_alone(endless, tokenizer, sentence, num_beams=num_beams) for sentence in SOURCES]
        assert texts_of(translator(SOURCES, batch_size=6)) == alone
        for batch_size in (1, 6):
            records = translator(SOURCES, return_tensors=True, batch_size=batch_size)
            lengths = [len(record["translation_token_ids"]) for record in records]
            assert lengths == [20, MAX_POSITIONS, 20, MAX_POSITIONS, 20, 26]

    @pytest.mark.parametrize("early_stopping", [True, False, "never"])
    @pytest.mark.parametrize("endless", [False, True], ids=["ending", "endless"])
    @pytest.mark.parametrize("padding_side", ["right", "left"])
    def test_batch_is_single(self, endless, early_stopping, padding_side):
        register()
        tokenizer = tiny_tokenizer()
        tokenizer.padding_side = padding_side
        translator = pipeline("translation", model=tiny_model(endless=endless), tokenizer=tokenizer)
        arguments = {"num_beams": 3, "early_stopping": early_stopping}
        single = [translator(sentence, **arguments)[0] for sentence in SOURCES]
        assert translator(SOURCES, batch_size=6, **arguments) == single

    def test_return_tensors(self, translator, tokenizer):
        single = translator(SOURCES[0], return_tensors=True)
        assert list(single[0]) == ["translation_token_ids"]
        assert single[0]["translation_token_ids"].tolist() == [PAD, *tokenizer(TARGETS[0]).input_ids]
        batch = translator([SOURCES[0], " ", *SOURCES[1:]], return_tensors=True, batch_size=7)
        assert batch[0]["translation_token_ids"].equal(single[0]["translation_token_ids"])
        assert batch[1]["translation_token_ids"].shape == (0,)
        assert all(PAD not in record["translation_token_ids"][1:] for record in batch)

    def test_clean_up_tokenization_spaces(self, translator, tokenizer, monkeypatch):
        seen = []
        decode = tokenizer.decode
        monkeypatch.setattr(tokenizer, "decode", lambda ids, **kwargs: seen.append(kwargs) or decode(ids, **kwargs))
        translator(SOURCES[0])
        translator(SOURCES[0], clean_up_tokenization_spaces=True)
        assert [kwargs["clean_up_tokenization_spaces"] for kwargs in seen] == [False, True]

    def test_training_mode_is_restored_and_without_effect(self, translator, model):
        model.train()
        model.model.encoder.eval()
        assert texts_of(translator(SOURCES)) == TARGETS
        assert model.training and model.model.decoder.training and not model.model.encoder.training


class TestBlankSentences:
    @pytest.mark.parametrize("blank", ["", "   ", "\t\n", "\u3000\u00a0"], ids=["empty", "spaces", "tab", "wide"])
    @pytest.mark.parametrize("batch_size", [1, 3, 8])
    def test_become_empty_strings(self, translator, blank, batch_size):
        sentences = [blank, SOURCES[0], blank, *SOURCES[1:]]
        assert texts_of(translator(sentences, batch_size=batch_size)) == ["", TARGETS[0], "", *TARGETS[1:]]

    def test_alone(self, translator):
        assert translator("") == [{"translation_text": ""}]
        assert (
            translator(["", " "], batch_size=2, num_beams=2, num_return_sequences=2)
            == [[{"translation_text": ""}] * 2] * 2
        )

    def test_never_reach_generate(self, translator, model, monkeypatch):
        shapes = []
        generate = model.generate
        monkeypatch.setattr(
            model, "generate", lambda **kwargs: shapes.append(tuple(kwargs["input_ids"].shape)) or generate(**kwargs)
        )
        translator(["", SOURCES[0], " ", SOURCES[1], "", " "], batch_size=4)
        assert shapes == [(2, 10)]


class TestTruncation:
    def test_counts_and_warns(self, translator, tokenizer, caplog):
        long = " ".join(["dog"] * 40)
        assert len(tokenizer(long, verbose=False).input_ids) == 41
        results = translator([long, SOURCES[0], long + " cat"], batch_size=3)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 2
        assert "41 tokens was truncated to its first 29" in messages[0] and "(1 truncated so far)" in messages[0]
        assert "42 tokens was truncated to its first 29" in messages[1] and "(2 truncated so far)" in messages[1]
        assert results[0] == results[2] == translator(" ".join(["dog"] * 28))[0]

    def test_tokenizer_limit(self, model, caplog):
        tokenizer = tiny_tokenizer()
        tokenizer.model_max_length = 4
        pipeline("translation", model=model, tokenizer=tokenizer)(SOURCES[0])
        assert "5 tokens was truncated to its first 4" in caplog.text

    def test_exact_fit_is_silent(self, translator, caplog):
        translator(" ".join(["dog"] * 28))
        assert not caplog.records

    def test_off(self, translator):
        with pytest.raises(IndexError):
            translator(" ".join(["dog"] * 40), truncation=False)


class TestLanguages:
    @pytest.fixture(params=LANGUAGES)
    def kind(self, request):
        register()
        return request.param

    @pytest.fixture
    def checkpoint(self, multilingual, kind):
        return str(multilingual(kind))

    def expected(self, checkpoint, kind, sentence, target):
        """As transformers' documentation of each model has it."""
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
        tokenizer.src_lang = LANGUAGES[kind][0]
        token = tokenizer.convert_tokens_to_ids(f"__{target}__" if kind == "m2m100" else target)
        name = "decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id"
        return model.generate(**tokenizer(sentence, return_tensors="pt"), max_new_tokens=5, **{name: token})[0]

    @pytest.mark.parametrize("way", ["task", "arguments", "arguments_win"])
    def test_reach_tokenizer_and_model(self, checkpoint, kind, way):
        source, target, other = LANGUAGES[kind]
        task, languages = {
            "task": (f"translation_{source}_to_{target}", {}),
            "arguments": ("translation", {"src_lang": source, "tgt_lang": target}),
            "arguments_win": (f"translation_{target}_to_{other}", {"src_lang": source, "tgt_lang": target}),
        }[way]
        translate = pipeline(task, model=checkpoint, max_new_tokens=5, return_tensors=True)
        direct = self.expected(checkpoint, kind, SOURCES[0], target)
        for batch_size in (1, 3):
            records = translate([SOURCES[0], "", SOURCES[1]], batch_size=batch_size, **languages)
            assert records[0]["translation_token_ids"].equal(direct)
            assert len(records[1]["translation_token_ids"]) == 0
        # a call leaves the languages of the next one alone
        if way == "arguments":
            with pytest.raises(ValueError, match="is multilingual"):
                translate(SOURCES[0])
            again = translate(SOURCES[0], src_lang=source, tgt_lang=other)[0]["translation_token_ids"]
            assert again.equal(self.expected(checkpoint, kind, SOURCES[0], other))

    def test_saved_with_the_tokenizer(self, checkpoint, kind, tmp_path):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        tokenizer.src_lang, tokenizer.tgt_lang = LANGUAGES[kind][:2]
        tokenizer.save_pretrained(tmp_path)
        translate = pipeline("translation", model=checkpoint, tokenizer=str(tmp_path), max_new_tokens=5)
        direct = self.expected(checkpoint, kind, SOURCES[0], LANGUAGES[kind][1])
        assert translate(SOURCES[0], return_tensors=True)[0]["translation_token_ids"].equal(direct)

    def test_mistakes_are_named(self, multilingual):
        register()
        translate = pipeline("translation", model=str(multilingual("nllb")))
        with pytest.raises(ValueError, match=r"\(src_lang, tgt_lang\), such as eng_Latn and deu_Latn of its 202"):
            translate(SOURCES[0])
        with pytest.raises(ValueError, match=r"tgt_lang: 'de' is none of the 202 .* did you mean deu_Latn"):
            translate(SOURCES[0], src_lang="eng_Latn", tgt_lang="de")

    def test_ignored_by_models_of_one_pair(self, translator):
        assert texts_of(translator(SOURCES, src_lang="en", tgt_lang="de")) == TARGETS

    def test_task_parameters_of_older_checkpoints(self, model, tokenizer, translator):
        model.config.task_specific_params = {"translation_en_to_de": {"prefix": "two men ", "num_beams": 3}}
        older = pipeline("translation_en_to_de", model=model, tokenizer=tokenizer)
        assert older(SOURCES[0]) == translator("two men " + SOURCES[0], num_beams=3)
        assert older("") == [{"translation_text": ""}]


class TestModels:
    @pytest.mark.parametrize("family", ["t5", "bart"])
    def test_other_encoder_decoders(self, tokenizer, family):
        register()
        torch.manual_seed(0)
        common = {"vocab_size": 163, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
        if family == "t5":
            config = T5Config(**common, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
            other = T5ForConditionalGeneration(config)
        else:
            sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
            config = BartConfig(
                **common,
                **sizes,
                d_model=16,
                encoder_ffn_dim=24,
                decoder_ffn_dim=24,
                max_position_embeddings=MAX_POSITIONS,
                bos_token_id=2,
                forced_eos_token_id=None,
                init_std=1.0,
            )
            other = BartForConditionalGeneration(config)
        translator = pipeline("translation", model=other, tokenizer=tokenizer)
        single = [translator(sentence, num_beams=2)[0] for sentence in SOURCES]
        assert translator(SOURCES, num_beams=2, batch_size=4) == single

    def test_decoder_only(self, tokenizer):
        register()
        decoder = GPT2LMHeadModel(GPT2Config(vocab_size=163, n_embd=8, n_layer=1, n_head=2, n_positions=32))
        with pytest.raises(ValueError, match=r"encoder-decoder model .* got GPT2LMHeadModel"):
            pipeline("translation", model=decoder, tokenizer=tokenizer)

    def test_without_a_tokenizer(self, model):
        with pytest.raises(ValueError, match="needs a tokenizer"):
            TranslationPipeline(model=model, task="translation")

    def test_works_alone_as_remote_code(self, translator, tmp_path):
        saved = tmp_path / "saved"
        translator.save_pretrained(saved)
        script = (
            "import sys\n"
            "from transformers import pipeline\n"
            f"translator = pipeline('translation', model={str(saved)!r}, trust_remote_code=True, dtype='float32')\n"
            f"texts = [record['translation_text'] for record in translator({SOURCES!r}, batch_size=4)]\n"
            f"assert texts == {TARGETS!r}, texts\n"
            "assert 'hf_capsule_mt' not in sys.modules\n"
        )
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")
        }
        environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
