"""What the commands on lines do with lines, options and outputs that cannot be meant: they say so in one line."""

import io
import json
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation import line_files
from hf_capsule_mt.evaluation.checkpoints import checkpoint_fingerprint, find_device
from hf_capsule_mt.evaluation.encoding import limit_given_length
from hf_capsule_mt.evaluation.translate import translate, translate_nbest
from hf_capsule_mt.files import only_writer
from tiny_models import capsule_model, rnn_model
from tiny_translation import MAX_POSITIONS, SOURCES, TARGETS, TOKENIZER_LIMIT, tiny_model, tiny_tokenizer

MARK = "\ufeff"
PIECES = len(tiny_tokenizer())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "test.en"
    path.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return path


def error_of(capsysbinary, *arguments):
    """The message of a command that ends with status 2."""
    assert main([*map(str, arguments)]) == 2
    *_, last = capsysbinary.readouterr().err.decode().splitlines()
    assert last.startswith(f"hf-capsule-mt {arguments[0]}: error: ")
    return last


def output_of(capsysbinary, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsysbinary.readouterr().out.decode()


@contextmanager
def full_disk(size):
    """No file of this process can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestLines:
    def test_a_byte_order_mark_is_no_text(self, checkpoint, text, capsysbinary, monkeypatch):
        data = MARK.encode() + text.read_bytes().replace(b"\n", b"\r\n")
        text.write_bytes(data)
        assert output_of(capsysbinary, "translate", checkpoint, text).split("\n") == [*TARGETS, ""]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert output_of(capsysbinary, "translate", checkpoint).split("\n") == [*TARGETS, ""]

    def test_of_json_neither(self, checkpoint, tmp_path, capsysbinary):
        (tmp_path / "in").write_text(MARK + json.dumps({"source": SOURCES[0]}), encoding="utf-8")
        (line,) = output_of(capsysbinary, "translate", checkpoint, tmp_path / "in", "--jsonl").splitlines()
        assert json.loads(line)["translation"] == TARGETS[0]

    def test_as_many_as_line_feeds(self, checkpoint, tmp_path, capsysbinary):
        lines = [
            "a\u2028dog",
            "\0",
            "a\x0bdog\x0c.",
            "x" * 5000,
            " \x85",
            "a \rdog .",
            f"a{MARK} dog",
            "two men walk .",
        ]
        (tmp_path / "in").write_bytes("\n".join(lines).encode())
        translated = output_of(capsysbinary, "translate", checkpoint, tmp_path / "in").split("\n")
        assert len(translated) == len(lines) + 1 and translated[-2] == TARGETS[2]
        (tmp_path / "out").write_bytes("\n".join(translated).encode())
        scored = output_of(capsysbinary, "score", checkpoint, tmp_path / "in", tmp_path / "out").split("\n")
        assert len(scored) == len(lines) + 1

    def test_a_translation_is_one_line(self, checkpoint, text, capsysbinary, monkeypatch):
        broken = "ein\nhund\r\nrennt\r."
        monkeypatch.setattr(
            "hf_capsule_mt.evaluation.pytorch_backend.translate", lambda *_, **__: [broken] * len(SOURCES)
        )
        assert output_of(capsysbinary, "translate", checkpoint, text) == "ein hund rennt .\n" * len(SOURCES)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"source": "a", "x": NaN}', "line 2 is not JSON: there is no NaN in JSON; write null"),
            ('{"source": "a", "x": 1e999}', "line 2 is not JSON: a number is not finite"),
            (r'{"source": "\ud800"}', "line 2 is not JSON: it has half of a surrogate pair"),
            ('{"source": "a", "x": ' + "[" * 5000 + "]" * 5000 + "}", "line 2 is not JSON: it is nested too deeply"),
        ],
        ids=["nan", "large", "surrogate", "deep"],
    )
    @pytest.mark.parametrize("command", ["translate", "score"])
    def test_what_is_no_json_is_named(self, checkpoint, tmp_path, capsysbinary, command, line, message):
        good = json.dumps({"source": SOURCES[0], **({"translation": "ein"} if command == "score" else {})})
        (tmp_path / "in.jsonl").write_text(f"{good}\n{line}\n")
        assert f"in.jsonl, {message}" in error_of(
            capsysbinary, command, checkpoint, tmp_path / "in.jsonl", "--jsonl", "--window", 1
        )

    def test_null_in_the_place_of_what_json_has_not(self, checkpoint, tmp_path, capsysbinary, monkeypatch):
        """A model of broken weights gives no valid score, and every line stays JSON."""
        model = tiny_model()
        with torch.no_grad():
            model.model.shared.weight.fill_(float("nan"))
        model.save_pretrained(tmp_path)
        tiny_tokenizer().save_pretrained(tmp_path)
        (tmp_path / "in").write_text(json.dumps({"source": SOURCES[0]}))
        out = output_of(capsysbinary, "translate", tmp_path, tmp_path / "in", "--jsonl", "--scores", "--num_beams", 1)
        assert json.loads(out, parse_constant=lambda name: pytest.fail(name))["translations"][0]["score"] is None

    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            ([10**6], f"the token 1000000 is none of this checkpoint's, which end with {PIECES - 1}"),
            ([-1], "the token -1 is none of this checkpoint's"),
            ([2**70], "the token 1180591620717411303424 is none of this checkpoint's"),
            (["a"], 'a translation without "text" and "tokens", a list of ids'),
            ([True], 'a translation without "text" and "tokens", a list of ids'),
            ("ein", 'a translation without "text" and "tokens", a list of ids'),
        ],
    )
    def test_ids_that_are_none(self, checkpoint, tmp_path, capsysbinary, tokens, message):
        record = {"source": SOURCES[0], "translations": [{"text": "", "tokens": tokens}]}
        (tmp_path / "in.jsonl").write_text(json.dumps(record))
        found = error_of(capsysbinary, "score", checkpoint, tmp_path / "in.jsonl", "--jsonl", "--nbest")
        assert f"in.jsonl, line 1: {message}" in found

    def test_standard_input_is_read_once(self, checkpoint, capsysbinary):
        assert "can only be one of the two" in error_of(capsysbinary, "score", checkpoint, "-", "-")


class TestBeams:
    def test_fewer_translations_than_asked_for(self, tmp_path, capsysbinary):
        """One token each: not as many as beams."""
        model, tokenizer = capsule_model(vocab_size=PIECES), tiny_tokenizer()
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / "model")
        several = translate_nbest(
            model, tokenizer, SOURCES[:1], num_beams=200, num_return_sequences=200, max_new_tokens=1
        )[0]
        empty = [hypothesis for hypothesis in several if not hypothesis.tokens]
        assert empty and all(h.score == float("-inf") and not h.ended and h.text == "" for h in empty)
        assert len([h for h in several if h.tokens]) + len(empty) == 200

        (tmp_path / "in").write_text(json.dumps({"source": SOURCES[0]}))
        command = ["translate", tmp_path / "model", tmp_path / "in", "--jsonl", "--max_new_tokens", 1]
        line = output_of(capsysbinary, *command, "--num_beams", 200, "--num_return_sequences", 200)
        (tmp_path / "nbest").write_text(line, encoding="utf-8")
        scored = output_of(capsysbinary, "score", tmp_path / "model", tmp_path / "nbest", "--jsonl", "--nbest")
        before, after = (json.loads(text)["translations"] for text in (line, scored))
        assert [one["score"] is None for one in before] == [one["score"] is None for one in after]
        assert [one["score"] for one in after if one["tokens"]] == pytest.approx(
            [one["score"] for one in before if one["tokens"]], abs=2e-5
        )

    @pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
    def test_a_length_beyond_all_bounds(self, name, caplog):
        tokenizer = tiny_tokenizer()
        for model, most in (
            (tiny_model(endless=True), MAX_POSITIONS),
            (rnn_model(vocab_size=PIECES), TOKENIZER_LIMIT),
        ):
            limited = limit_given_length(model, tokenizer, {name: 10**8})
            assert limited == {name: most - (name == "max_new_tokens")}
            caplog.clear()
            (found,) = translate_nbest(model, tokenizer, SOURCES[:1], num_beams=2, **{name: 10**8})
            assert len(found[0].tokens) <= most - 1
            assert f"it gets {name}={limited[name]}" in caplog.text
        tokenizer.model_max_length = 10**30
        assert limit_given_length(model, tokenizer, {"max_length": 10**8}) == {"max_length": 4096}
        assert limit_given_length(model, tokenizer, {"max_length": 7}) == {"max_length": 7}

    @pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
    def test_a_length_beyond_all_bounds_in_the_checkpoint(self, name):
        tokenizer = tiny_tokenizer()
        for model in (tiny_model(endless=True), rnn_model(vocab_size=PIECES)):
            # of so few tokens that their own limits are below those of model and tokenizer
            short = [source for source in SOURCES if len(source.split()) < 6]
            expected = translate(model, tokenizer, short, num_beams=2)
            model.generation_config.update(**{name: 10**30})
            assert translate(model, tokenizer, short, num_beams=2) == expected
            assert getattr(model.generation_config, name) == 10**30

    def test_a_tokenizer_of_another_model(self):
        model, tokenizer = tiny_model(), tiny_tokenizer()
        tokenizer.add_tokens(["zebra"])
        assert translate(model, tokenizer, SOURCES[:1]) == TARGETS[:1]
        message = f"does not fit the model: it gives sentence 2 the token {PIECES}, and the model's tokens end with"
        with pytest.raises(ValueError, match=message):
            translate(model, tokenizer, [SOURCES[0], "zebra"])
        with pytest.raises(ValueError, match="does not fit the model: it gives prefix 1 the token"):
            translate_nbest(model, tokenizer, SOURCES[:1], prefixes=["zebra"])


OPTIONS = [
    (["--length_penalty", "nan"], "--length_penalty must be from -10 to 10, got nan"),
    (["--length_penalty", "inf"], "--length_penalty must be from -10 to 10, got inf"),
    (["--length_penalty", "1e308"], "--length_penalty must be from -10 to 10, got 1e+308"),
    (["--num_beams", "0"], "--num_beams must be at least 1, got 0"),
    (["--num_beams", "1000000"], "--num_beams must be at most 1000, got 1000000"),
    (["--max_tokens", "9" * 30], "--max_tokens must be at most 10000000, got 99999"),
    (["--window", "9" * 30], "--window must be at most 10000000, got 99999"),
    (["--device", "warp"], "there is no device 'warp' for PyTorch on this machine; there is: cpu"),
    (["--device", "cpu:x"], "there is no device 'cpu:x'"),
    (["--device", "meta"], "there is no device 'meta'"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[" ".join(options)[:30] for options, _ in OPTIONS])
def test_options_that_cannot_be_meant(checkpoint, text, capsysbinary, options, message):
    assert message in error_of(capsysbinary, "translate", checkpoint, text, *options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(checkpoint, text, capsysbinary):
    assert "there is no device 'cuda'" in error_of(capsysbinary, "translate", checkpoint, text, "--device", "cuda")
    assert find_device().type == find_device("cpu").type == "cpu"


class TestOutputs:
    @pytest.mark.parametrize(
        ("output", "message"),
        [
            ("test.en", "test.en is the input, and cannot be written at the same time"),
            ("link", "test.en is the input, and cannot be written at the same time"),
            (".", "is a folder; name a file"),
            ("absent/out", "there is no folder"),
            ("/proc/out", "cannot write to /proc"),
            ("test.en/out", "there is no folder"),
        ],
    )
    def test_refused_before_work_starts(self, text, capsysbinary, output, message):
        (text.parent / "link").symlink_to(text)
        # the checkpoint is not even looked at
        found = error_of(capsysbinary, "translate", "./absent", text, "--output", text.parent / output)
        assert message in found and text.read_text(encoding="utf-8").splitlines() == SOURCES
        target = [text, text] if output == "absent/out" else [text, text.parent / "test.en"]
        assert message in error_of(capsysbinary, "score", "./absent", *target, "--output", text.parent / output)

    def test_an_input_that_is_a_folder(self, checkpoint, tmp_path, capsysbinary):
        assert f"{tmp_path} is a folder; name a text file" in error_of(capsysbinary, "translate", checkpoint, tmp_path)

    def test_standard_output_into_the_input(self, checkpoint, text, capsysbinary, monkeypatch):
        with text.open("a", encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            assert main(["translate", checkpoint, str(text)]) == 2
        assert b"test.en is the input, and standard output goes into it" in capsysbinary.readouterr().err
        assert text.read_text(encoding="utf-8").splitlines() == SOURCES

    @pytest.mark.parametrize("command", ["translate", "score"])
    def test_has_one_writer(self, checkpoint, text, tmp_path, capsysbinary, command):
        output = tmp_path / "out"
        arguments = [command, checkpoint, *([text] if command == "translate" else [text, text]), "--output", output]
        with only_writer(output):
            assert "out is being written by another process; wait" in error_of(capsysbinary, *arguments)
        assert not (tmp_path / "out.part").exists()
        assert output_of(capsysbinary, *arguments) == "" and len(output.read_text().splitlines()) == len(SOURCES)

    @pytest.mark.parametrize("change", [b"ein esel", b"", b"ein hund rennt .\n"], ids=["other", "shorter", "longer"])
    def test_gets_its_name_only_as_it_was_written(self, checkpoint, text, tmp_path, capsysbinary, monkeypatch, change):
        real = line_files.LineOutput.finish

        def finish(output):
            data = (tmp_path / "out.part").read_bytes()
            changed = {b"": data[:-5], b"ein esel": change + data[len(change) :]}.get(change, data + change)
            (tmp_path / "out.part").write_bytes(changed)
            return real(output)

        monkeypatch.setattr(line_files.LineOutput, "finish", finish)
        message = error_of(capsysbinary, "translate", checkpoint, text, "--output", tmp_path / "out")
        assert "out.part" in message and "to begin anew, or name another output" in message
        assert not (tmp_path / "out").exists()

    def test_a_full_disk(self, checkpoint, text, tmp_path, capsysbinary):
        """What was done before stays, and the command goes on."""
        times = 50
        text.write_text("".join(f"{line}\n" for line in SOURCES * times), encoding="utf-8")
        whole = "".join(f"{line}\n" for line in TARGETS * times)
        command = ["translate", checkpoint, text, "--output", tmp_path / "out", "--window", 100, "--num_beams", 1]
        # two windows of three fit, and the record of the part
        with full_disk(len(whole.encode()) * 5 // 6):
            message = error_of(capsysbinary, *command)
        assert "200 lines are done and kept, and the same command goes on" in message and "out.part" in message
        part = (tmp_path / "out.part").read_text(encoding="utf-8")
        assert len(part.splitlines()) > 200 and whole.startswith(part)
        assert output_of(capsysbinary, *command) == ""
        assert (tmp_path / "out").read_text(encoding="utf-8") == whole

    def test_a_full_disk_behind_standard_output(self, checkpoint, text):
        with open("/dev/full", "wb") as full:
            process = subprocess.run(
                [sys.executable, "-m", "hf_capsule_mt", "translate", checkpoint, str(text)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert process.returncode == 2
        message = process.stderr.splitlines()[-1]
        assert message.startswith("hf-capsule-mt translate: error: ") and "No space left on device" in message

    @pytest.mark.parametrize(
        "damage",
        [lambda text: text[:-9], lambda text: "[]", lambda text: '{"lines": 3}', lambda text: ""],
        ids=["cut", "list", "other", "empty"],
    )
    def test_a_damaged_record(self, checkpoint, text, tmp_path, capsysbinary, damage):
        (tmp_path / "out.part").write_text("ein\n")
        (tmp_path / "out.part.json").write_text(damage('{"options": {}, "lines": 1}'))
        message = error_of(capsysbinary, "translate", checkpoint, text, "--output", tmp_path / "out")
        assert "out.part.json" in message and "to begin anew" in message
        assert (tmp_path / "out.part").read_text() == "ein\n"


def shorter(path):
    path.write_bytes(path.read_bytes()[:2000])


def other_sizes(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 99, "decoder_vocab_size": 99}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", shorter),
        ("config.json", other_sizes),
        ("config.json", lambda path: path.write_text("{")),
        ("tokenizer.json", lambda path: path.write_text("{")),
        ("tokenizer.json", lambda path: path.write_text("{}")),
        ("tokenizer.json", lambda path: path.unlink()),
    ],
    ids=["weights", "sizes", "config", "tokenizer", "empty_tokenizer", "no_tokenizer"],
)
def test_a_damaged_checkpoint(checkpoint, text, tmp_path, capsysbinary, name, damage):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    damage(folder / name)
    assert str(folder) in error_of(capsysbinary, "translate", folder, text)
    command = ["report", folder, "--source", text, "--reference", text, "--output", tmp_path / "out"]
    assert str(folder) in error_of(capsysbinary, *command)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_control_c(checkpoint, text, capsysbinary, monkeypatch):
    monkeypatch.setattr("hf_capsule_mt.evaluation.pytorch_backend.translate", interrupt)
    for output, advice in (([], ""), (["--output", f"{text}.de"], "; what is finished is kept, and the same command")):
        assert main(["translate", checkpoint, str(text), *output]) == 130
        *_, last = capsysbinary.readouterr().err.decode().splitlines()
        assert last.startswith(f"hf-capsule-mt translate: interrupted{advice}") and "Error" not in last


def test_not_enough_memory(checkpoint, text, capsysbinary, monkeypatch):
    def allocate(*_, **__):
        torch.empty(10**15)

    monkeypatch.setattr("hf_capsule_mt.evaluation.pytorch_backend.translate", allocate)
    assert "there is not enough memory; give a smaller --max_tokens" in error_of(
        capsysbinary, "translate", checkpoint, text
    )


def test_the_fingerprint_sees_every_part():
    """Weights, config, generation config and tokenizer, and nothing of where they are."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    before = checkpoint_fingerprint(model, tokenizer)

    def changed():
        after = checkpoint_fingerprint(model, tokenizer)
        return {name for name in before if before[name] != after[name]}

    model.config._name_or_path = "elsewhere"
    assert changed() == set()
    model.config.scale_embedding = not model.config.scale_embedding
    assert changed() == {"config"}
    model.generation_config.bad_words_ids = [[7]]
    assert changed() == {"config", "generation config"}
    tokenizer.add_tokens(["zebra"])
    assert changed() == {"config", "generation config", "tokenizer"}
    with torch.no_grad():
        model.final_logits_bias[0, 3] = 1
    assert changed() == set(before)


def test_a_part_of_another_config_is_not_gone_on_with(checkpoint, text, tmp_path, capsysbinary, monkeypatch):
    arguments = ["translate", checkpoint, text, "--output", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr("hf_capsule_mt.evaluation.pytorch_backend.translate", interrupt)
        assert main([*map(str, arguments)]) == 130
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.generation_config.bad_words_ids = [[7]]
    model.save_pretrained(tmp_path / "other")
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(tmp_path / "other")
    arguments[1] = tmp_path / "other"
    assert "was begun with another generation config, tokenizer; remove" in error_of(capsysbinary, *arguments)
