"""Exports of multilingual models: the tokens of languages around the source, and before the translation."""

import json
import random
import shutil
import subprocess
import sys

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.models.tokenizer_languages import set_languages
from hf_capsule_mt.serving.export import _readme, export_onnx
from hf_capsule_mt.serving.onnx_translator import SETTINGS, OnnxTranslator
from hf_capsule_mt.serving.tokenizer_files import language_settings, source_and_target
from tiny_multilingual import LANGUAGES, save_pair, sentencepiece_model
from tiny_translation import SOURCES, TARGETS

# the last but one is truncated
TEXT = [*SOURCES[:3], " ".join(["the dog sleeps"] * 30), ""]


@pytest.fixture(scope="module", params=["nllb", "mbart"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def exported(request, multilingual, kind, tmp_path_factory):
    """A checkpoint with its pair of languages, and its export."""
    if kind == "nllb":
        return request.getfixturevalue("exported_nllb")
    folder = tmp_path_factory.mktemp("exported")
    run = save_pair(kind, multilingual(kind), folder / "run")
    return run, export_onnx(run, folder / "onnx")


def expected(run, pair, **options):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    return translate(model, tokenizer, TEXT, **options, **set_languages(tokenizer, *pair))


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_are_those_of_the_model(exported, kind, num_beams):
    run, folder = exported
    source, target, other = LANGUAGES[kind]
    translator = OnnxTranslator(folder, threads=1)
    # the saved pair
    assert translator.translate(TEXT, num_beams=num_beams) == expected(run, (source, target), num_beams=num_beams)
    languages = {"source_lang": target, "target_lang": other}
    found = translator.translate(TEXT, num_beams=num_beams, **languages)
    assert found == expected(run, (target, other), num_beams=num_beams)


def test_mistakes_are_named(exported, kind):
    source = LANGUAGES[kind][0]
    translator = OnnxTranslator(exported[1], threads=1)
    near = {"nllb": "deu_Latn", "mbart": "de_DE"}[kind]
    with pytest.raises(ValueError, match=rf"target_lang: 'de' is none of the \d+ languages .*; did you mean {near}"):
        translator.translate(TEXT, source_lang=source, target_lang="de")


def records_file(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("num_beams", ["1", "3"])
def test_languages_of_each_line(exported, kind, tmp_path, capsysbinary, num_beams):
    """Lines of two pairs by turns, in windows that are no multiple of them, as PyTorch translates them."""
    source, target, other = LANGUAGES[kind]
    pairs = [(source, target), (target, other)]
    rows = [
        {"id": number, "source": text, "from": pairs[number % 2][0], "to": pairs[number % 2][1]}
        for number, text in enumerate([*SOURCES[:4], "", *SOURCES[:3]])
    ]
    file = records_file(tmp_path / "test.jsonl", rows)
    fields = ["--jsonl", "--source_lang_field", "from", "--target_lang_field", "to", "--num_beams", num_beams]
    found = []
    for folder, backend in ((exported[0], "pytorch"), (exported[1], "onnx")):
        assert main(["translate", str(folder), file, *fields, "--window", "3", "--backend", backend]) == 0
        found.append([json.loads(line) for line in capsysbinary.readouterr().out.splitlines()])
    assert found[0] == found[1] and [row["id"] for row in found[1]] == [*range(8)]
    assert len({row["translation"] for row in found[1]}) > 3


def test_mistakes_of_a_line_are_named(exported, kind, tmp_path, capsysbinary):
    source, target, _ = LANGUAGES[kind]
    rows = [{"source": "a dog", "from": source, "to": target}, {"source": "a dog", "from": source, "to": "de"}]
    file = records_file(tmp_path / "test.jsonl", rows)
    command = ["translate", str(exported[1]), file, "--jsonl", "--backend", "onnx", "--target_lang_field", "to"]
    assert main([*command, "--source_lang_field", "from"]) == 2
    said = capsysbinary.readouterr().err.decode()
    near = {"nllb": "deu_Latn", "mbart": "de_DE"}[kind]
    assert "test.jsonl, line 2: target_lang: 'de' is none of the" in said and f"did you mean {near}" in said
    # before any line is read
    assert main([*command, "--source_lang", "xx"]) == 2
    said = capsysbinary.readouterr().err.decode()
    assert "source_lang: 'xx' is none of the" in said and "line" not in said


def test_translator_alone(exported, kind):
    """The file that travels, as a program."""
    run, folder = exported
    options = ["--source_lang", LANGUAGES[kind][2], "--num_beams", "1", "--threads", "1"]
    command = [sys.executable, folder / "translator.py", *options]
    done = subprocess.run(command, input="\n".join(TEXT), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected(run, LANGUAGES[kind][2:0:-1], num_beams=1)[: len(TEXT) - 1]


def test_without_a_saved_pair(exported, kind, multilingual, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(multilingual(kind))
    for path in exported[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = json.loads((tmp_path / SETTINGS).read_text())
    settings["languages"] = language_settings(tokenizer)
    codes = sorted(settings["languages"]["ids"])
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(
        ValueError, match=rf"is multilingual: give source_lang, one of its {len(codes)} \({codes[0]}, "
    ):
        OnnxTranslator(tmp_path, threads=1).translate(TEXT)
    languages = dict(zip(("source_lang", "target_lang"), LANGUAGES[kind], strict=False))
    found = OnnxTranslator(tmp_path, threads=1).translate(TEXT, num_beams=1, **languages)
    assert found == expected(exported[0], LANGUAGES[kind][:2], num_beams=1)
    readme = _readme(exported[0], AutoModelForSeq2SeqLM.from_pretrained(exported[0]), False, settings["languages"])
    first, second = list(settings["languages"]["ids"])[:2]
    assert f"translator.py --source_lang {first} --target_lang {second}\n" in readme
    assert f'num_beams=5, source_lang="{first}", target_lang="{second}")' in readme
    assert "source_lang" not in (exported[1] / "README.md").read_text()


CHARACTERS = "".join(sorted({*"".join(SOURCES + TARGETS)})) + "魚鳥éñ▁\u200b\t  ＡＢ①½"


def random_texts(count):
    """Half of them of sentences with other characters put in, half of characters alone."""
    draw = random.Random(1)
    for _ in range(count):
        letters = list(draw.choice(SOURCES + TARGETS))
        for _ in range(draw.randint(0, 4)):
            letters[draw.randrange(len(letters))] = draw.choice(CHARACTERS)
        yield "".join(letters)
        yield "".join(draw.choice(CHARACTERS) for _ in range(draw.randint(1, 25)))


@pytest.fixture(scope="module")
def tokenizer(multilingual):
    tokenizer = AutoTokenizer.from_pretrained(multilingual("m2m100"))
    set_languages(tokenizer, "en", "de")
    return tokenizer


class TestM2M100:
    def test_ids_are_those_of_sentencepiece(self, tokenizer):
        side, _ = source_and_target(tokenizer)
        for text in [*random_texts(500), "a </s> dog", "__de__a dog", "x __fr__ y", " ", "\u3000"]:
            found = side.tokenizer.encode(text, add_special_tokens=False).ids
            assert found == tokenizer(text, add_special_tokens=False)["input_ids"], repr(text)

    def test_texts_are_those_of_sentencepiece(self, tokenizer):
        side, _ = source_and_target(tokenizer)
        draw = random.Random(2)
        for _ in range(300):
            ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randint(1, 9))]
            expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert side.tokenizer.decode(ids, skip_special_tokens=True) == expected, ids

    def test_settings(self, tokenizer):
        settings = language_settings(tokenizer)
        assert settings["ids"]["de"] == tokenizer.get_lang_id("de") and settings["forced"]
        assert (settings["before"], settings["behind"]) == ([None], [tokenizer.eos_token_id])

    def test_other_models_are_refused(self, multilingual, tmp_path):
        shutil.copytree(multilingual("m2m100"), tmp_path, dirs_exist_ok=True)
        (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model("unigram"))
        with pytest.raises(ValueError, match="the SentencePiece model of the tokenizer is no BPE model"):
            source_and_target(AutoTokenizer.from_pretrained(tmp_path))
