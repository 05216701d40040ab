"""The command `score`: what `translate` wrote gets the score that it was generated with."""

import json
import math

import pytest

from hf_capsule_mt.__main__ import main
from tiny_models import bart_model, capsule_model, rnn_model
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

MODELS = {
    "plain": tiny_model,
    "endless": lambda: tiny_model(endless=True),
    "marian": lambda **sizes: capsule_model(aggregation="em_routing", guided_routing="routing", **sizes),
    "bart": lambda **sizes: bart_model(aggregation="em_routing", **sizes),
    "rnn": lambda **sizes: rnn_model(source_memory="capsule", guided_routing="routing", **sizes),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that gives the checkpoint of a model by its name."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            tokenizer = tiny_tokenizer()
            sizes = {} if name in ("plain", "endless") else {"vocab_size": len(tokenizer)}
            model = MODELS[name](**sizes)
            model.generation_config.update(bad_words_ids=[[0]], forced_eos_token_id=1, max_length=21)
            model.save_pretrained(made[name])
            tokenizer.save_pretrained(made[name])
        return str(made[name])

    return folder


@pytest.fixture
def sources(tmp_path):
    path = tmp_path / "test.en"
    path.write_text("".join(f"{line}\n" for line in ["", *SOURCES]), encoding="utf-8")
    return path


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text("".join(f"{json.dumps({'source': line})}\n" for line in ["", *SOURCES]), encoding="utf-8")
    return path


def run(*arguments):
    assert main([*map(str, arguments)]) == 0


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("options", [[], ["--length_penalty", "0.4"]], ids=["default", "length_penalty"])
@pytest.mark.parametrize("prefix", [[], ["--target_prefix", "die"]], ids=["free", "prefix"])
def test_round_trip_of_text(folders, sources, tmp_path, options, prefix):
    """The tokenizer's own cut of these translations is the one that was generated."""
    run("translate", folders("plain"), sources, "--scores", "--output", tmp_path / "scored", *options, *prefix)
    scores, texts = zip(*(line.split("\t") for line in lines_of(tmp_path / "scored")), strict=True)
    assert prefix or list(texts) == ["", *TARGETS]
    target = tmp_path / "test.de"
    target.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    # the blank pair has no prefix to begin with
    for path in (sources, target):
        path.write_text("".join(f"{line}\n" for line in lines_of(path)[1:]), encoding="utf-8")
    run("score", folders("plain"), sources, target, "--output", tmp_path / "scores", *options, *prefix)
    found = [line.split("\t") for line in lines_of(tmp_path / "scores")]
    assert [float(score) for score, _ in found] == pytest.approx([float(score) for score in scores[1:]], abs=3e-6)
    forced = len(prefix) // 2
    assert [int(tokens) for _, tokens in found] == [len(text.split()) + 1 - forced for text in texts[1:]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("search", [("1", "1"), ("4", "3")], ids=["greedy", "beams"])
@pytest.mark.parametrize("prefix", [[], ["--target_prefix", "die kleine"]], ids=["free", "prefix"])
def test_round_trip_of_tokens(folders, records, tmp_path, name, search, prefix):
    """Whatever the cut, ended or not."""
    num_beams, sequences = search
    command = ["translate", folders(name), records, "--jsonl", "--scores", *prefix]
    run(*command, "--num_beams", num_beams, "--num_return_sequences", sequences, "--output", tmp_path / "translated")
    run(
        "score", folders(name), tmp_path / "translated", "--jsonl", "--nbest", "--output", tmp_path / "scored", *prefix
    )
    translated, scored = (
        [json.loads(line)["translations"] for line in lines_of(tmp_path / file)] for file in ("translated", "scored")
    )
    for before, after in zip(translated, scored, strict=True):
        assert len(before) == int(sequences)
        assert [one["score"] for one in after] == pytest.approx([one["score"] for one in before], abs=2e-5)
        assert all(one["tokens"] == other["tokens"] for one, other in zip(before, after, strict=True))
    if name == "endless":
        # limits of 20 tokens by the source's length, and 21 that end with force
        ends = {one["ended"] for several in translated[1:] for one in several}
        assert ends == {True, False}


def test_json_lines(folders, tmp_path, capsysbinary):
    path = tmp_path / "pairs.jsonl"
    pairs = [{"id": row, "en": source, "de": TARGETS[row]} for row, source in enumerate(SOURCES)]
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    arguments = ["--jsonl", "--source_field", "en", "--target_field", "de", "--per_token", "--window", "4"]
    run("score", folders("plain"), path, *arguments)
    records = [json.loads(line) for line in capsysbinary.readouterr().out.decode().splitlines()]
    for pair, record in zip(pairs, records, strict=True):
        assert {name: record[name] for name in pair} == pair
        assert len(record["log_probs"]) == record["num_tokens"] == len(pair["de"].split()) + 1
        assert record["score"] == pytest.approx(math.fsum(record["log_probs"]) / record["num_tokens"], abs=2e-6)


def test_log_probabilities_of_tokens(folders, sources, tmp_path, capsysbinary):
    target = tmp_path / "test.de"
    target.write_text("".join(f"{line}\n" for line in ["", *TARGETS]), encoding="utf-8")
    run("score", folders("plain"), sources, target, "--per_token", "--length_penalty", 0)
    blank, *lines = capsysbinary.readouterr().out.decode().splitlines()
    assert blank == "0.000000\t0\t"
    for line, text in zip(lines, TARGETS, strict=True):
        score, tokens, log_probs = line.split("\t")
        assert int(tokens) == len(log_probs.split()) == len(text.split()) + 1
        assert float(score) == pytest.approx(sum(map(float, log_probs.split())), abs=1e-5)


def test_impossible_is_null(folders, tmp_path, capsysbinary):
    """The pad token is forbidden by the generation config."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"source": SOURCES[0], "translation": "ein <pad>"}) + "\n", encoding="utf-8")
    run("score", folders("plain"), path, "--jsonl", "--per_token")
    record = json.loads(capsysbinary.readouterr().out)
    assert record["score"] is None
    # between what the tokenizer makes of "ein " and the end
    assert [value is None for value in record["log_probs"]] == [False, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SOURCE"], "give a source and a target file"),
        (["SOURCE", "SHORT", "--jsonl"], "give a source and a target file"),
        (["SOURCE", "SHORT"], "has 7 lines, but"),
        (["SOURCE", "SOURCE", "--nbest"], "--nbest needs --jsonl"),
        (["SOURCE", "SOURCE", "--target_prefix", "ein"], "translation 2 does not begin with the tokens of its prefix"),
        (["SOURCE", "MISSING"], "MISSING"),
        (["FOREIGN", "--jsonl", "--nbest"], "the tokens of 'ein' are another text for this checkpoint's tokenizer"),
        (["RECORDS", "--jsonl"], 'line 1: the field "translation" must be a string, and is missing'),
        (["RECORDS", "--jsonl", "--nbest"], 'line 1: the field "translations" must be a list, and is missing'),
    ],
    ids=["no_target", "both", "lengths", "nbest", "prefix", "missing", "tokenizer", "field", "list"],
)
def test_mistakes(folders, sources, records, tmp_path, capsysbinary, arguments, message):
    (tmp_path / "short").write_text("ein\n", encoding="utf-8")
    foreign = {"source": "a", "translations": [{"text": "ein", "tokens": [5, 1]}]}
    (tmp_path / "foreign").write_text(json.dumps(foreign) + "\n", encoding="utf-8")
    files = {"SOURCE": sources, "SHORT": tmp_path / "short", "MISSING": tmp_path / "MISSING", "RECORDS": records}
    files["FOREIGN"] = tmp_path / "foreign"
    assert main(["score", folders("plain"), *(str(files.get(argument, argument)) for argument in arguments)]) == 2
    captured = capsysbinary.readouterr()
    assert message in captured.err.decode() and captured.out == b""


def test_a_translation_is_named_by_its_line_in_any_window(folders, sources, capsysbinary):
    arguments = ["score", folders("plain"), str(sources), str(sources), "--target_prefix", "a", "--window", "2"]
    assert main(arguments) == 2
    assert "translation 3 does not begin with the tokens of its prefix" in capsysbinary.readouterr().err.decode()
