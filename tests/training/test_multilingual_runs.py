"""Runs that start from multilingual checkpoints: languages, several pairs in one corpus, and how they are sampled."""

import json
import shutil

import pytest
import torch
from sacrebleu.tokenizers import tokenizer_spm
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, pipeline

import hf_capsule_mt
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.models.tokenizer_languages import LanguagePair, languages_of, saved_languages, set_languages
from hf_capsule_mt.training import setup as preparation
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer, run
from hf_capsule_mt.training.setup import prepare
from launching import torchrun
from tiny_multilingual import FRENCH, LANGUAGES
from tiny_translation import SOURCES, TARGETS

# of a tiny run; the model is what the checkpoint is
NOT_GIVEN = dict.fromkeys(
    (
        "vocab_size",
        "d_model",
        "encoder_layers",
        "decoder_layers",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "max_position_embeddings",
        "label_smoothing",
    )
)


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Splits of en and de; of three pairs as files of their own, and as JSON lines."""
    folder = tmp_path_factory.mktemp("texts")
    for split, times in (("train", 3), ("val", 1), ("test", 1)):
        write(folder / f"{split}.en", SOURCES * times)
        write(folder / f"{split}.de", TARGETS * times)
        english, german, french = LANGUAGES["nllb"]
        write(folder / f"{split}.{english}-{german}.{english}", SOURCES * times)
        write(folder / f"{split}.{english}-{german}.{german}", TARGETS * times)
        write(folder / f"{split}.{english}-{french}.{english}", SOURCES[:2])
        write(folder / f"{split}.{english}-{french}.{french}", FRENCH[:2])
        rows = [(english, german, s, t) for s, t in zip(SOURCES * times, TARGETS * times, strict=True)]
        rows += [(english, french, s, t) for s, t in zip(SOURCES[:2], FRENCH[:2], strict=True)]
        records = [{"translation": {"from": s, "to": t}, "a": a, "b": b} for a, b, s, t in rows]
        write(folder / f"{split}.jsonl", [json.dumps(record) for record in records])
    return folder


@pytest.fixture
def fine_tune(command, texts, multilingual):
    """The command line of a tiny run from a multilingual checkpoint."""

    def build(kind="nllb", **overrides):
        source, target, _ = LANGUAGES[kind]
        values = {
            "model_name_or_path": multilingual(kind),
            "data_dir": texts,
            "source_lang": source,
            "target_lang": target,
            "source_column": "en",
            "target_column": "de",
            "aggregation": "linear",
            "max_tokens_per_batch": 150,
            "max_steps": 4,
            "eval_steps": 4,
            "save_steps": 2,
        }
        return command(**NOT_GIVEN, **{**values, **overrides})

    return build


SEVERAL = {
    **dict.fromkeys(("source_lang", "target_lang", "source_column", "target_column")),
    "language_pairs": ["eng_Latn-deu_Latn", "eng_Latn-fra_Latn"],
}
IN_RECORDS = {
    **SEVERAL,
    "language_pairs": None,
    "source_lang_column": "a",
    "target_lang_column": "b",
    "source_column": "from",
    "target_column": "to",
    "train_file": "train.jsonl",
    "validation_file": "val.jsonl",
    "test_file": "test.jsonl",
}


def start(arguments):
    return prepare(parse_arguments(arguments))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_labels_are_target_text(fine_tune, kind, multilingual):
    setup = start(fine_tune(kind))
    tokenizer = AutoTokenizer.from_pretrained(multilingual(kind))
    source, target, _ = LANGUAGES[kind]
    tokenizer.src_lang, tokenizer.tgt_lang = source, target
    expected = tokenizer(SOURCES[0], text_target=TARGETS[0])
    assert setup.train[0]["input_ids"].tolist() == expected["input_ids"]
    assert setup.train[0]["labels"].tolist() == expected["labels"]
    ids = {
        code: tokenizer.convert_tokens_to_ids(f"__{code}__" if kind == "m2m100" else code) for code in (source, target)
    }
    assert ids[source] in expected["input_ids"] and ids[target] in expected["labels"]


@pytest.mark.parametrize("kind", ["nllb", "mbart"])
def test_model_of_one_pair_translates_it_unasked(fine_tune, kind, tmp_path):
    results = run(start(fine_tune(kind)))
    source, target, other = LANGUAGES[kind]
    folder = tmp_path / "run"
    assert results["language_pairs"] == [[source, target]]
    assert [(row["source_lang"], row["target_lang"]) for row in results["scores"]] == [(source, target)] * 2
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert saved_languages(tokenizer) == LanguagePair(source, target)
    name = "decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id"
    for saved in (folder, folder / "checkpoint-4"):
        config = GenerationConfig.from_pretrained(saved)
        assert getattr(config, name) == tokenizer.convert_tokens_to_ids(target)
        assert config.language_pairs == [[source, target]]
    # without the limit of a caller of generate
    model.generation_config.max_new_tokens = None
    hypotheses = lines(folder / results["scores"][-1]["file"])
    assert results["scores"][-1]["file"] == f"translations/test.greedy.{target}"
    assert hypotheses == translate(model, tokenizer, SOURCES, **set_languages(tokenizer, None, None))
    hf_capsule_mt.register()
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    assert [record["translation_text"] for record in translator(SOURCES)] == hypotheses
    tokens = [translator(SOURCES[0], return_tensors=True, **given)[0] for given in ({}, {"tgt_lang": other})]
    wanted = [tokenizer.convert_tokens_to_ids(language) for language in (target, other)]
    assert [language in ids["translation_token_ids"][:2] for language, ids in zip(wanted, tokens, strict=True)] == [
        1,
        1,
    ]


@pytest.mark.parametrize("options", [SEVERAL, IN_RECORDS], ids=["files", "records"])
def test_several_pairs(fine_tune, options, tmp_path, capsys):
    setup = start(fine_tune(**options))
    english, german, french = LANGUAGES["nllb"]
    assert setup.pairs == [LanguagePair(english, german), LanguagePair(english, french)]
    assert setup.groups.tolist() == [0] * 18 + [1] * 2
    code = setup.tokenizer.convert_tokens_to_ids
    assert [int(setup.train[row]["labels"][0]) for row in (0, 17, 18, 19)] == [code(german)] * 2 + [code(french)] * 2

    results = run(setup)
    folder = tmp_path / "run"
    rows = [(row["split"], row["target_lang"], row["sentences"], row["file"]) for row in results["scores"]]
    assert rows[2:] == [
        ("test", german, 6, f"translations/test.{english}-{german}.greedy.{german}"),
        ("test", french, 2, f"translations/test.{english}-{french}.greedy.{french}"),
    ]
    assert lines(folder / f"translations/test.{english}-{french}.{french}") == FRENCH[:2]
    means = results["mean_scores"]
    assert [(row["split"], row["pairs"]) for row in means] == [("validation", 2), ("test", 2)]
    assert means[1]["chrf"] == sum(row["chrf"] for row in results["scores"][2:]) / 2
    log = json.loads((folder / "checkpoint-4/trainer_state.json").read_text())["log_history"]
    evaluated = next(entry for entry in log if "eval_chrf" in entry)
    parts = [evaluated[f"eval_chrf_{english}-{language}"] for language in (german, french)]
    assert evaluated["eval_chrf"] == sum(parts) / 2
    printed = capsys.readouterr().out
    assert f"test, greedy, {english}-{french}" in printed and "test, greedy, mean of 2 pairs" in printed
    assert f"src_lang='{english}', tgt_lang='{german}'" in printed

    # of several pairs none is the model's own
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert saved_languages(tokenizer) is None and model.generation_config.forced_bos_token_id is None
    assert model.generation_config.language_pairs == [[english, german], [english, french]]
    model.generation_config.max_new_tokens = None
    with languages_of(tokenizer, LanguagePair(english, french)) as languages:
        assert translate(model, tokenizer, SOURCES[:2], **languages) == lines(folder / rows[3][3])


def test_temperature_evens_the_pairs_out(fine_tune, capsys):
    setup = start(fine_tune(**SEVERAL, sampling_temperature=1e6))
    trainer = build_trainer(setup)
    seen = [index for batch in trainer.get_train_dataloader().batch_sampler for index in batch]
    assert [setup.groups[seen].tolist().count(group) for group in (0, 1)] == [10, 10]


def test_resumed_run_is_exact(fine_tune, tmp_path):
    options = {**SEVERAL, "sampling_temperature": 3, "max_tokens_per_batch": 60, "max_steps": 6, "eval_strategy": "no"}
    whole = run(start(fine_tune(**options)))
    shutil.copytree(tmp_path / "run", tmp_path / "part", ignore=shutil.ignore_patterns("checkpoint-[46]", "results*"))
    again = run(start(fine_tune(**options, output_dir=tmp_path / "part", resume_from_checkpoint="true")))
    assert again["scores"] == [
        {**row, "seconds": other["seconds"]} for row, other in zip(whole["scores"], again["scores"], strict=True)
    ]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "part")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_two_processes_draw_what_one_with_twice_the_tokens_draws_and_resume(fine_tune, multilingual, tmp_path):
    # rounding of gradients that are nearly zero would become full steps with a small epsilon
    options = {**SEVERAL, "sampling_temperature": 3, "max_steps": 6, "adam_epsilon": 1e-2, "learning_rate": 0.03}
    options |= {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "test_num_beams": [1]}
    one, two = tmp_path / "one", tmp_path / "two"
    expected = run(start(fine_tune(**options, output_dir=one, max_tokens_per_batch=120)))
    use_cpu = "true" if torch.accelerator.is_available() else None
    process = torchrun(fine_tune(**options, output_dir=two, max_tokens_per_batch=60, use_cpu=use_cpu), tmp_path)
    assert process.returncode == 0, process.stderr
    results = json.loads((two / "results.json").read_text())
    assert results["processes"] == 2 and results["target_tokens"] == expected["target_tokens"]
    assert [(row["target_lang"], row["sentences"]) for row in results["scores"]] == [
        (row["target_lang"], row["sentences"]) for row in expected["scores"]
    ]
    alone, together = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name in alone:
        torch.testing.assert_close(together[name], alone[name], rtol=1e-4, atol=1e-4)
    first = load_file(multilingual("nllb") / "model.safetensors")["model.shared.weight"]
    assert (alone["model.shared.weight"] - first).abs().max() > 1e-2
    assert "step 2 of 6: training loss" in process.stdout
    # and go on where they were interrupted
    part = tmp_path / "part"
    shutil.copytree(two, part, ignore=shutil.ignore_patterns("checkpoint-[46]", "results*"))
    (part / "model.safetensors").unlink()
    options |= {"max_tokens_per_batch": 60, "use_cpu": use_cpu, "resume_from_checkpoint": "true"}
    process = torchrun(fine_tune(**options, output_dir=part), tmp_path)
    assert process.returncode == 0, process.stderr
    assert "step 2 of 6: training loss" not in process.stdout and "step 4 of 6: training loss" in process.stdout
    assert (part / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target_lang": "deu"},
            "target_lang: 'deu' is none of the 202 languages of NllbTokenizer; did you mean deu_Latn",
        ),
        ({"target_lang": "de"}, r"did you mean deu_Latn\? \(what the corpus calls it goes into --target_column\)"),
        ({**SEVERAL, "language_pairs": ["eng_Latn-fra"]}, "language_pairs eng_Latn-fra: 'fra' is none of"),
        ({**SEVERAL, "language_pairs": ["eng_Latn"]}, "'eng_Latn' is no pair of two languages"),
        ({**SEVERAL, "language_pairs": ["eng_Latn-ita_Latn"]}, "no text of the pair eng_Latn-ita_Latn: there is none"),
        ({**SEVERAL, "source_lang": "eng_Latn"}, "leave out source_lang"),
        ({"target_lang": "jpn_Jpan", "score_convention": "lc_norm_tok"}, "counts words between spaces"),
        ({"score_convention": "flores200"}, "needs sacreBLEU's model of FLORES-200"),
        ({"sampling_temperature": 5}, "sampling_temperature is one over several pairs"),
        ({**SEVERAL, "sampling_temperature": 0}, "sampling_temperature must be a finite number above 0"),
        ({"source_lang_column": "a"}, "give either source_lang or source_lang_column"),
        ({**IN_RECORDS, "train_file": "train"}, "have no column of languages"),
        ({**IN_RECORDS, "target_lang_column": "c"}, r'train\.jsonl, line 1: no language in the field "c"'),
        ({**IN_RECORDS, "source_lang_column": None, "source_lang": "eng"}, "source_lang: 'eng' is none of"),
    ],
)
def test_mistakes_end_before_anything_is_trained(fine_tune, options, message, tmp_path, monkeypatch):
    # where its models are; none is downloaded
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(
        tokenizer_spm, "SPM_MODELS", {"flores200": {"url": "file:///nowhere", "signature": "flores200"}}
    )
    with pytest.raises((ValueError, OSError), match=message):
        start(fine_tune(**options))


def test_language_of_a_record_that_the_tokenizer_lacks_is_located(fine_tune, texts, tmp_path):
    shutil.copytree(texts, tmp_path / "texts")
    records = lines(texts / "train.jsonl")
    write(tmp_path / "texts" / "train.jsonl", [*records, records[0].replace("deu_Latn", "deutsch")])
    with pytest.raises(ValueError, match=r"train\.jsonl, line 21: 'deutsch' is none of .* did you mean deu_Latn"):
        start(fine_tune(**IN_RECORDS, data_dir=tmp_path / "texts"))


def test_several_pairs_need_a_multilingual_tokenizer(command, texts):
    with pytest.raises(ValueError, match="several pairs of languages need a multilingual model, and a new tokenizer"):
        start(command(data_dir=texts, **SEVERAL))


def test_tokenizer_of_mbart_needs_mbart(fine_tune, multilingual):
    with pytest.raises(ValueError, match="MBartTokenizer puts the language behind the sentence"):
        start(
            fine_tune("mbart", model_name_or_path=multilingual("nllb"), tokenizer_name_or_path=multilingual("mbart"))
        )


def test_tokenizer_of_the_old_kind_is_refused(fine_tune, multilingual, tmp_path):
    shutil.copytree(multilingual("nllb"), tmp_path / "legacy")
    config = json.loads((tmp_path / "legacy/tokenizer_config.json").read_text())
    (tmp_path / "legacy/tokenizer_config.json").write_text(json.dumps({**config, "legacy_behaviour": True}))
    with pytest.raises(ValueError, match="has legacy_behaviour"):
        start(fine_tune(model_name_or_path=tmp_path / "legacy"))


def test_text_of_each_pair_is_kept_encoded(fine_tune, monkeypatch):
    start(fine_tune(**SEVERAL))
    monkeypatch.setattr("hf_capsule_mt.data.batching._encode", None)
    setup = start(fine_tune(**SEVERAL))
    assert len(setup.train) == 20 and preparation.np.bincount(setup.groups).tolist() == [18, 2]
