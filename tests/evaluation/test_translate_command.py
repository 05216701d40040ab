"""The command `translate`: files, pipes, JSON lines, and what an interruption leaves."""

import io
import json
import subprocess
import sys

import pytest
import torch

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation import pytorch_backend
from hf_capsule_mt.evaluation.checkpoints import load_checkpoint, weights_digest
from hf_capsule_mt.evaluation.translate import translate_nbest
from tiny_models import capsule_model
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

LINES = ["", *SOURCES, " ", *SOURCES[::-1]]
TRANSLATED = ["", *TARGETS, "", *TARGETS[::-1]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def capsule_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capsule")
    capsule_model(guided_routing="routing", vocab_size=len(tiny_tokenizer())).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "test.en"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def write_records(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def run(capsysbinary, *arguments, command="translate"):
    """The lines that the command writes to standard output."""
    assert main([command, *map(str, arguments)]) == 0
    return capsysbinary.readouterr().out.decode().splitlines()


def records_of(lines):
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("window", [1, 5, 100])
@pytest.mark.parametrize("max_tokens", [1, 4096])
def test_file(checkpoint, text, capsysbinary, window, max_tokens):
    assert run(capsysbinary, checkpoint, text, "--window", window, "--max_tokens", max_tokens) == TRANSLATED


def test_tensors_keep_no_account(checkpoint, text, capsysbinary, monkeypatch):
    modes, translate = [], pytorch_backend.translate

    def observed(*args, **kwargs):
        modes.append(torch.is_inference_mode_enabled())
        return translate(*args, **kwargs)

    monkeypatch.setattr(pytorch_backend, "translate", observed)
    assert run(capsysbinary, checkpoint, text) == TRANSLATED
    assert modes == [True] and not torch.is_inference_mode_enabled()


def test_standard_input(checkpoint, text, capsysbinary, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert run(capsysbinary, checkpoint, "--window", 4) == TRANSLATED


def test_a_reader_that_has_enough(checkpoint, text, tmp_path):
    long = tmp_path / "long.en"
    long.write_text("a dog runs .\n" * 12_000, encoding="utf-8")
    command = [sys.executable, "-m", "hf_capsule_mt", "translate", checkpoint, str(long)]
    command += ["--window", "4000", "--num_beams", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ein hund rennt .\n"
        process.stdout.close()
        messages = process.stderr.read().decode()
        assert process.wait() == 1
    assert "Error" not in messages and "error" not in messages


def test_progress_is_on_standard_error(checkpoint, text, capsysbinary):
    assert main(["translate", checkpoint, str(text)]) == 0
    assert b"14/14" in capsysbinary.readouterr().err


def test_scores(checkpoint, text, capsysbinary):
    lines = run(capsysbinary, checkpoint, text, "--scores", "--length_penalty", 0.5)
    nbest = translate_nbest(tiny_model(), tiny_tokenizer(), LINES, num_beams=5, length_penalty=0.5)
    for line, (hypothesis,) in zip(lines, nbest, strict=True):
        score, translation = line.split("\t")
        assert translation == hypothesis.text
        assert float(score) == pytest.approx(hypothesis.score, abs=2e-6)


def test_several_translations(checkpoint, text, capsysbinary):
    lines = run(capsysbinary, checkpoint, text, "--num_return_sequences", 3, "--window", 4)
    columns = [line.split("\t") for line in lines]
    assert [int(number) for number, _, _ in columns] == [row for row in range(len(LINES)) for _ in range(3)]
    assert [translation for _, _, translation in columns][::3] == TRANSLATED
    assert all(float(score) <= 0 for _, score, _ in columns)


class TestJsonLines:
    def test_other_fields_pass_through(self, checkpoint, tmp_path, capsysbinary):
        records = [{"id": row, "source": line, "größe": [1, None]} for row, line in enumerate(LINES)]
        path = write_records(tmp_path / "test.jsonl", records)
        lines = run(capsysbinary, checkpoint, path, "--jsonl", "--window", 5)
        expected = [{**record, "translation": text} for record, text in zip(records, TRANSLATED, strict=True)]
        assert records_of(lines) == expected
        assert "schläft" in lines[2]

    def test_own_prefixes(self, checkpoint, tmp_path, capsysbinary):
        records = [{"en": SOURCES[0], "start": start} for start in ("", "zwei", "die kleine")]
        path = write_records(tmp_path / "test.jsonl", records)
        lines = run(capsysbinary, checkpoint, path, "--jsonl", "--source_field", "en", "--prefix_field", "start")
        texts = [record["translation"] for record in records_of(lines)]
        assert texts[0] == TARGETS[0]
        assert texts[1].startswith("zwei ") and texts[2].startswith("die kleine ")

    def test_lists_and_agreements(self, capsule_checkpoint, tmp_path, capsysbinary):
        path = write_records(tmp_path / "test.jsonl", [{"source": SOURCES[0]}, {"source": ""}])
        lines = run(capsysbinary, capsule_checkpoint, path, "--jsonl", "--num_return_sequences", 2, "--agreements")
        first, blank = records_of(lines)
        assert len(first["translations"]) == 2
        for translation in first["translations"]:
            assert set(translation) == {"text", "score", "tokens", "ended", "agreements"}
            past = translation["agreements"]["past"]
            assert len(past) == len(translation["tokens"]) and len(past[0]) == 5
        assert first["translation"] == first["translations"][0]["text"]
        assert blank["translation"] == ""
        assert blank["translations"] == [{"text": "", "score": 0.0, "tokens": [], "ended": True}] * 2

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "line 3 is not JSON"),
            ("[]", "line 3 is no JSON object, but a list"),
            ('{"text": "a"}', 'line 3: the field "source" must be a string, and is missing'),
            ('{"source": 7}', 'line 3: the field "source" must be a string, and is a int'),
            ('{"source": "a", "translation": "b"}', 'line 3 has a field "translation" already'),
        ],
        ids=["broken", "list", "missing", "number", "taken"],
    )
    def test_bad_lines(self, checkpoint, tmp_path, capsysbinary, line, message):
        path = tmp_path / "test.jsonl"
        path.write_text(f'{{"source": "{SOURCES[0]}"}}\n' * 2 + line + "\n", encoding="utf-8")
        assert main(["translate", checkpoint, str(path), "--jsonl", "--window", "2"]) == 2
        captured = capsysbinary.readouterr()
        assert message in captured.err.decode()
        # windows before it are whole
        assert len(captured.out.splitlines()) == 2


class TestOutputFile:
    @pytest.fixture
    def interrupted(self, checkpoint, text, monkeypatch):
        """A command that was interrupted in its third window of four lines; its arguments."""
        arguments = ["translate", checkpoint, str(text), "--output", f"{text}.de", "--window", "4"]
        real, calls = pytorch_backend.translate, []

        def translate(model, tokenizer, sentences, **options):
            calls.append(sentences)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(model, tokenizer, sentences, **options)

        with monkeypatch.context() as patch:
            patch.setattr(pytorch_backend, "translate", translate)
            assert main(arguments) == 130
        return arguments

    @pytest.fixture
    def seen(self, monkeypatch):
        """The sentences that are translated from now on."""
        real, sentences_seen = pytorch_backend.translate, []
        monkeypatch.setattr(
            pytorch_backend,
            "translate",
            lambda model, tokenizer, sentences, **options: (
                sentences_seen.extend(sentences) or real(model, tokenizer, sentences, **options)
            ),
        )
        return sentences_seen

    @staticmethod
    def folder(text):
        return sorted(path.name for path in text.parent.iterdir() if path.name != ".test.en.de.lock")

    def test_is_there_when_it_is_complete(self, checkpoint, text, capsysbinary):
        assert run(capsysbinary, checkpoint, text, "--output", f"{text}.de", "--window", 3) == []
        assert (text.parent / "test.en.de").read_text(encoding="utf-8").splitlines() == TRANSLATED
        assert self.folder(text) == ["test.en", "test.en.de"]

    def test_goes_on(self, interrupted, text, seen):
        assert self.folder(text) == ["test.en", "test.en.de.part", "test.en.de.part.json"]
        with (text.parent / "test.en.de.part").open("ab") as stream:
            stream.write(b"half a li")
        # neither batches nor windows change a translation
        assert main([*interrupted[:-1], "3", "--max_tokens", "50"]) == 0
        assert (text.parent / "test.en.de").read_text(encoding="utf-8").splitlines() == TRANSLATED
        assert seen == LINES[8:]
        assert self.folder(text) == ["test.en", "test.en.de"]

    def test_refuses_other_options(self, interrupted, text, seen, capsysbinary):
        before = (text.parent / "test.en.de.part").read_bytes()
        assert main([*interrupted, "--num_beams", "2", "--scores"]) == 2
        assert b"was begun with another num_beams, scores; remove" in capsysbinary.readouterr().err
        assert (text.parent / "test.en.de.part").read_bytes() == before and seen == []

    def test_refuses_other_weights(self, interrupted, text, capsysbinary, tmp_path):
        model = tiny_model(endless=True)
        model.save_pretrained(tmp_path / "other")
        tiny_tokenizer().save_pretrained(tmp_path / "other")
        assert main([interrupted[0], str(tmp_path / "other"), *interrupted[2:]]) == 2
        assert b"was begun with another weights; remove" in capsysbinary.readouterr().err

    def test_refuses_other_input(self, interrupted, text, capsysbinary):
        text.write_text("a dog runs .\n" * 20, encoding="utf-8")
        assert main(interrupted) == 2
        assert b"was made of another input; remove" in capsysbinary.readouterr().err

    def test_refuses_a_damaged_part(self, interrupted, text, capsysbinary):
        (text.parent / "test.en.de.part").write_text("ein", encoding="utf-8")
        assert main(interrupted) == 2
        assert b"is shorter than when it was written" in capsysbinary.readouterr().err

    @pytest.mark.parametrize("name", ["test.en.de", "test.en.de.part"])
    def test_refuses_what_is_there(self, checkpoint, text, capsysbinary, name):
        (text.parent / name).write_text("mine\n", encoding="utf-8")
        assert main(["translate", checkpoint, str(text), "--output", f"{text}.de"]) == 2
        assert b"remove it" in capsysbinary.readouterr().err
        assert (text.parent / name).read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_return_sequences", "6"], "--num_return_sequences 6 needs at least as many beams, got --num_beams 5"),
        (["--agreements"], "--agreements needs --jsonl"),
        (["--agreements", "--jsonl"], "--agreements are those of capsule models, and"),
        (["--prefix_field", "start"], "--prefix_field needs --jsonl"),
        (["--prefix_field", "start", "--jsonl", "--target_prefix", "ein"], "either --prefix_field or"),
        (["--window", "0"], "--window must be at least 1, got 0"),
        (["--max_tokens", "-1"], "--max_tokens must be at least 1, got -1"),
        (["--target_lang", "de"], "the model is one of a single pair of languages: leave out de"),
    ],
    ids=["beams", "agreements", "plain", "field", "prefixes", "window", "max_tokens", "language"],
)
def test_mistakes(checkpoint, text, capsysbinary, arguments, message):
    assert main(["translate", checkpoint, str(text), *arguments]) == 2
    captured = capsysbinary.readouterr()
    assert message in captured.err.decode() and captured.out == b""


@pytest.mark.parametrize(
    ("checkpoint_name", "file", "message"),
    [("./nowhere", "test.en", "there is no directory ./nowhere"), (None, "nothing.en", "nothing.en")],
    ids=["checkpoint", "file"],
)
def test_what_is_not_there(checkpoint, text, capsysbinary, checkpoint_name, file, message):
    assert main(["translate", checkpoint_name or checkpoint, str(text.parent / file)]) == 2
    assert message in capsysbinary.readouterr().err.decode()


def test_not_utf8(checkpoint, text, capsysbinary):
    text.write_bytes(b"a dog runs .\n\xff\n")
    assert main(["translate", checkpoint, str(text)]) == 2
    assert "test.en, line 2: not UTF-8" in capsysbinary.readouterr().err.decode()


def test_checkpoints_lack_nothing(checkpoint, tmp_path):
    model, _ = load_checkpoint(checkpoint, "bfloat16", "cpu")
    assert str(model.dtype) == "torch.bfloat16" and not model.training
    state = model.state_dict()
    del state["model.encoder.layers.0.fc1.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"not a whole checkpoint: it has no model.encoder.layers.0.fc1.weight \(1 "):
        load_checkpoint(str(tmp_path))


def test_weights_digest():
    one, same, other = tiny_model(), tiny_model(), tiny_model(endless=True)
    assert weights_digest(one) == weights_digest(same) != weights_digest(other)
