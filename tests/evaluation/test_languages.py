"""translate and score with multilingual checkpoints: languages of all lines, and of each."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation.score_pairs import score_pairs
from hf_capsule_mt.evaluation.translate import translate, translate_nbest
from hf_capsule_mt.models.tokenizer_languages import language_id, set_languages
from tiny_multilingual import LANGUAGES
from tiny_translation import SOURCES, tiny_model, tiny_tokenizer


def write_records(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def run(capsysbinary, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsysbinary.readouterr().out.decode().splitlines()


def error(capfd, *arguments):
    assert main([*map(str, arguments)]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hf-capsule-mt")]
    return line


def expected(folder, sentences, source, target):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return translate(model, tokenizer, sentences, num_beams=2, **set_languages(tokenizer, source, target))


@pytest.fixture(params=LANGUAGES)
def kind(request):
    return request.param


@pytest.fixture
def text(tmp_path):
    (tmp_path / "test.en").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return tmp_path / "test.en"


@pytest.fixture
def records(kind, tmp_path):
    """Lines that go into two languages by turns."""
    source, *targets = LANGUAGES[kind]
    rows = [{"source": text, "from": source, "to": targets[n % 2]} for n, text in enumerate([*SOURCES[:4], ""])]
    return write_records(tmp_path / "test.jsonl", rows)


def test_languages_of_all_lines(multilingual, kind, text, capsysbinary):
    source, target, _ = LANGUAGES[kind]
    folder = multilingual(kind)
    found = run(
        capsysbinary, "translate", folder, text, "--source_lang", source, "--target_lang", target, "--num_beams", 2
    )
    assert found == expected(folder, SOURCES, source, target)


def test_languages_of_each_line(multilingual, kind, records, capsysbinary):
    folder, (source, *targets) = multilingual(kind), LANGUAGES[kind]
    fields = ("--source_lang_field", "from", "--target_lang_field", "to")
    lines = run(capsysbinary, "translate", folder, records, "--jsonl", *fields, "--num_beams", 2, "--window", 3)
    found = [json.loads(line)["translation"] for line in lines]
    assert found[0:4:2] == expected(folder, SOURCES[0:4:2], source, targets[0])
    assert found[1:4:2] == expected(folder, SOURCES[1:4:2], source, targets[1])
    assert found[4] == ""


def test_score_is_that_of_the_search(multilingual, kind, records, tmp_path, capsysbinary):
    """The forced or starting language of each line counts as it does in beam search."""
    options = ("--jsonl", "--source_lang", LANGUAGES[kind][0], "--target_lang_field", "to")
    folder = multilingual(kind)
    given = ("--num_beams", 2, "--max_new_tokens", 7, "--num_return_sequences", 2)
    lines = run(capsysbinary, "translate", folder, records, *options, *given)
    translated = tmp_path / "translated.jsonl"
    translated.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    scored = run(capsysbinary, "score", folder, translated, *options, "--nbest")
    for before, after in zip(map(json.loads, lines), map(json.loads, scored), strict=True):
        for one, other in zip(before["translations"], after["translations"], strict=True):
            assert other["score"] == pytest.approx(one["score"], abs=1e-4)


def test_score_of_text_needs_its_language(multilingual, kind, text, capsysbinary):
    """By the model's own loss of labels, without the end of what mBART's labels have behind the sentence."""
    folder, (source, target, _) = multilingual(kind), LANGUAGES[kind]
    languages = ("--source_lang", source, "--target_lang", target)
    (line, *_) = run(capsysbinary, "score", folder, text, text, *languages, "--per_token", "--length_penalty", 0)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.src_lang, tokenizer.tgt_lang = source, target
    batch = tokenizer(SOURCES[0], text_target=SOURCES[0], return_tensors="pt")
    labels = batch.pop("labels")
    chosen = model(**batch, labels=labels).logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1))[0, :, 0].tolist()
    # of the forced language nothing is asked, mBART's is the start
    wanted = chosen[:-1] if kind == "mbart" else [0.0, *chosen[1:]]
    assert [float(value) for value in line.split("\t")[2].split()] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "is multilingual: give the codes of both languages (source_lang, target_lang), such as eng_Latn"),
        (["--source_lang", "eng_Latn", "--target_lang", "de"], "target_lang: 'de' is none of the 202 languages of"),
        (["--source_lang_field", "from"], "--source_lang_field needs --jsonl"),
        (["--jsonl", "--source_lang_field", "from", "--source_lang", "eng_Latn"], "and not both"),
        (["--jsonl", "--source_lang_field", "from"], "give --target_lang or --target_lang_field too"),
        (["--jsonl", "--source_lang_field", "from", "--target_lang", "de"], "target_lang: 'de' is none of"),
        (["--jsonl", "--source_lang", "eng_Latn", "--target_lang_field", "to"], 'test.jsonl, line 2: the field "to"'),
        (
            ["--jsonl", "--source_lang_field", "to", "--target_lang_field", "from"],
            "test.jsonl, line 1: target_lang: 'eng' is none of the 202 languages of NllbTokenizer; did you mean eng_",
        ),
    ],
)
@pytest.mark.parametrize("command", ["translate", "score"])
def test_mistakes_are_one_line(multilingual, text, tmp_path, capfd, command, options, message):
    rows = [{"source": "a", "translation": "b", "from": "eng", "to": "deu_Latn"}, {"source": "a", "translation": "b"}]
    if "--target_lang_field" in options and "from" in options:
        rows = rows[:1]
    file = write_records(tmp_path / "test.jsonl", rows if command == "score" else [_source(row) for row in rows])
    inputs = [file] if "--jsonl" in options else [text] if command == "translate" else [text, text]
    assert message in error(capfd, command, multilingual("nllb"), *inputs, *options)


def _source(row):
    return {key: value for key, value in row.items() if key != "translation"}


def test_fields_for_a_model_of_one_pair(tmp_path, capfd):
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    file = write_records(tmp_path / "test.jsonl", [{"source": "a", "to": "de"}])
    line = error(capfd, "translate", tmp_path, file, "--jsonl", "--target_lang_field", "to")
    assert "one of a single pair of languages: leave out --target_lang_field" in line


def test_target_text_of_old_tokenizers_is_not_scored(multilingual, text, tmp_path, capfd):
    for path in multilingual("nllb").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "legacy_behaviour": True}))
    line = error(capfd, "score", tmp_path, text, text, "--source_lang", "eng_Latn", "--target_lang", "deu_Latn")
    assert "has legacy_behaviour" in line


def test_languages_of_the_tokenizer_are_enough(multilingual, kind):
    """For whoever translates in Python: what they set on a tokenizer, or was saved with it, is what is written."""
    folder, (source, target, other) = multilingual(kind), LANGUAGES[kind]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for function in (translate, translate_nbest):
        with pytest.raises(ValueError, match="is multilingual, and has no languages yet: call set_languages"):
            function(model, tokenizer, SOURCES)
    with pytest.raises(ValueError, match="has no languages yet"):
        score_pairs(model, tokenizer, SOURCES, SOURCES)
    languages = set_languages(tokenizer, source, target)
    options = {"num_beams": 2, "max_new_tokens": 5}
    given = [
        translation.tokens for (translation,) in translate_nbest(model, tokenizer, SOURCES, **options, **languages)
    ]
    for more in (options, {"generation_config": GenerationConfig(**options, eos_token_id=2, pad_token_id=1)}):
        found = translate_nbest(model, tokenizer, SOURCES, **more)
        assert [translation.tokens for (translation,) in found] == given
    # what the call says wins; mBART's language is the start, which is not among the tokens
    (name,) = languages
    found = translate_nbest(model, tokenizer, SOURCES[:1], **options, **{name: language_id(tokenizer, other)})
    assert kind == "mbart" or found[0][0].tokens[0] == language_id(tokenizer, other) != given[0][0]
