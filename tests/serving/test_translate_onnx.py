"""An exported model in the place of a checkpoint: `translate --backend onnx`, and where there is no PyTorch at all."""

import io
import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.evaluation.checkpoints import load_checkpoint
from hf_capsule_mt.evaluation.translate import translate_nbest
from hf_capsule_mt.serving.onnx_translator import OnnxTranslator
from launching import WITHOUT_PYTORCH
from tiny_translation import SOURCES

LINES = ["", *SOURCES, " ", "a cat </s> reads", "the " * 40, *SOURCES[::-1]]

REQUEST = """
import json, sys
{before}
sys.path.insert(0, {folder!r})
from translator import OnnxTranslator

translator = OnnxTranslator({folder!r}, threads=1)
nbest = [translator.translate_nbest({sentences!r}, num_beams=beams, num_return_sequences=beams) for beams in (1, 3)]
foreign = {{"torch", "transformers", "hf_capsule_mt"}} & {{name for name, module in sys.modules.items() if module}}
print(json.dumps([sorted(foreign), [[[h.tokens for h in s] for s in found] for found in nbest]]))
"""
BLOCKED = "for name in ('torch', 'transformers', 'hf_capsule_mt'):\n    sys.modules[name] = None"


@pytest.fixture
def checkpoint(exported_run):
    return str(exported_run[0])


@pytest.fixture
def exported(exported_run):
    return str(exported_run[1])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "test.en"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def run(capsysbinary, *arguments) -> list[str]:
    assert main(["translate", *map(str, arguments)]) == 0
    return capsysbinary.readouterr().out.decode().splitlines()


def assert_alike(capsysbinary, checkpoint, exported, *arguments) -> list[str]:
    """The output of both backends, equal but for the last digits of scores; returns that of ONNX."""
    expected = run(capsysbinary, checkpoint, *arguments)
    found = run(capsysbinary, exported, *arguments, "--backend", "onnx")
    assert len(found) == len(expected) > 0
    for line, other in zip(found, expected, strict=True):
        if "--jsonl" in arguments:
            assert without_scores(json.loads(line)) == without_scores(json.loads(other))
        fields, others = (scores_and_texts(value, "--jsonl" in arguments) for value in (line, other))
        assert fields == [pytest.approx(field, abs=1e-4) if isinstance(field, float) else field for field in others]
    return found


def without_scores(record: dict) -> dict:
    for translation in record.get("translations", []):
        del translation["score"]
    return record


def scores_and_texts(line: str, is_json: bool) -> list:
    if is_json:
        return [translation["score"] for translation in json.loads(line).get("translations", [])]
    *fields, text = line.split("\t")
    return [*map(float, fields), text]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--num_beams", 1, "--window", 3],
        ["--scores", "--length_penalty", 0.4, "--max_tokens", 60],
        ["--num_return_sequences", 3, "--max_new_tokens", 5],
        ["--target_prefix", "die kleine", "--scores"],
    ],
    ids=["beams", "greedy", "scores", "several", "prefix"],
)
def test_output_is_that_of_pytorch(checkpoint, exported, text, capsysbinary, options):
    found = assert_alike(capsysbinary, checkpoint, exported, text, *options)
    assert len({line for line in found if line}) > 4


def test_json_lines(checkpoint, exported, tmp_path, capsysbinary):
    starts = ["", "zwei", "die kleine", ""]
    records = [{"id": n, "source": SOURCES[n], "start": start} for n, start in enumerate(starts)]
    records.append({"id": None, "source": " ", "start": ""})
    path = tmp_path / "test.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    options = ["--jsonl", "--prefix_field", "start", "--num_return_sequences", 2]
    found = assert_alike(capsysbinary, checkpoint, exported, path, *options)
    assert json.loads(found[1])["translation"].startswith("zwei ")


def test_standard_input(checkpoint, exported, text, capsysbinary, monkeypatch):
    expected = run(capsysbinary, checkpoint, text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert run(capsysbinary, exported, "--backend", "onnx") == expected


def test_truncation_is_said(exported, text, capsysbinary, caplog):
    run(capsysbinary, exported, text, "--backend", "onnx")
    assert "1 of 14 sentences were truncated to 29 tokens, the most that this model can read; 13 tokens" in caplog.text


class TestOutputFile:
    @pytest.fixture
    def interrupted(self, exported, text, monkeypatch):
        """The arguments of a command that was interrupted in its third window of four lines."""
        arguments = ["translate", exported, str(text), "--output", f"{text}.de", "--window", "4"]
        arguments += ["--backend", "onnx"]
        real, calls = OnnxTranslator.translate_nbest, []

        def translate_nbest(self, sentences, **options):
            calls.append(sentences)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(self, sentences, **options)

        with monkeypatch.context() as patch:
            patch.setattr(OnnxTranslator, "translate_nbest", translate_nbest)
            assert main(arguments) == 130
        return arguments

    def test_goes_on(self, interrupted, exported, text, capsysbinary):
        assert main(interrupted) == 0
        found = (text.parent / "test.en.de").read_text(encoding="utf-8").splitlines()
        assert found == run(capsysbinary, exported, text, "--backend", "onnx")

    def test_refuses_another_model(self, interrupted, exported, checkpoint, tmp_path, capsysbinary):
        changed = shutil.copytree(exported, tmp_path / "changed")
        settings = json.loads((changed / "translator.json").read_text())
        (changed / "translator.json").write_text(json.dumps({**settings, "made_by": "somebody"}))
        assert main([interrupted[0], str(changed), *interrupted[2:]]) == 2
        assert b"was begun with another settings; remove" in capsysbinary.readouterr().err
        weights = changed / "weights.onnx_data"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        assert main([interrupted[0], str(changed), *interrupted[2:]]) == 2
        assert b"was begun with another weights, settings; remove" in capsysbinary.readouterr().err
        assert main([interrupted[0], checkpoint, *interrupted[2:-2]]) == 2
        assert b"was begun with another backend, " in capsysbinary.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agreements", "--jsonl"], "--agreements needs PyTorch, and --backend onnx translates without it"),
        (["--dtype", "bfloat16"], "--dtype needs PyTorch"),
        (["--device", "cuda"], "--device needs PyTorch"),
        (["--source_lang", "en"], "one of a single pair of languages: leave out en"),
        (["--jsonl", "--target_lang_field", "to"], "of a single pair of languages: leave out --target_lang_field"),
        (["--trust_remote_code"], "--trust_remote_code needs PyTorch"),
        (["--num_return_sequences", "6"], "needs at least as many beams"),
        (["--max_new_tokens", "0"], "--max_new_tokens must be at least 1"),
        (["--target_prefix", "die " * 40], "tokens leaves no room for a translation: the model writes at most 28"),
    ],
    ids=["agreements", "dtype", "device", "language", "language of a line", "trust", "beams", "length", "prefix"],
)
def test_mistakes(exported, text, capsysbinary, options, message):
    assert main(["translate", exported, str(text), "--backend", "onnx", *options]) == 2
    captured = capsysbinary.readouterr()
    assert message in captured.err.decode() and not captured.out.strip()


def test_folders_are_told_apart(checkpoint, exported, text, tmp_path, capsysbinary):
    def message(*arguments) -> str:
        assert main([*map(str, arguments)]) == 2
        *progress, error = capsysbinary.readouterr().err.decode().splitlines()
        assert all("translating" in line for line in progress if line)
        return error

    onnx = ["--backend", "onnx"]
    no_export = "is no folder made by `hf-capsule-mt export --format onnx`"
    assert f"{checkpoint} {no_export}, but a checkpoint: export it" in message("translate", checkpoint, text, *onnx)
    assert f"user/name {no_export}" in message("translate", "user/name", text, *onnx)
    assert "exported for ONNX Runtime, which `hf-capsule-mt translate" in message("translate", exported, text)
    assert "exported for ONNX Runtime" in message("score", exported, text, text)
    published = tmp_path / "published"
    shutil.copytree(exported, published / "onnx")
    assert f"{no_export}; {published}/onnx is" in message("translate", published, text, *onnx)
    weights = published / "onnx" / "weights.onnx_data"
    weights.unlink()
    weights.symlink_to(Path(exported) / "weights.onnx_data")
    assert "is a link, as in the cache of the Hub, and" in message("translate", published / "onnx", text, *onnx)
    weights.unlink()
    assert "copy the whole folder, or export it again" in message("translate", published / "onnx", text, *onnx)
    (published / "onnx" / "target_tokenizer.json").write_text("{}")
    assert "cannot be loaded" in message("translate", published / "onnx", text, *onnx)
    (published / "onnx" / "translator.json").write_text("{")
    assert "translator.json is damaged" in message("translate", published / "onnx", text, *onnx)
    (published / "onnx" / "beam_search.onnx").unlink()
    assert "has no beam_search.onnx: copy the whole" in message("translate", published / "onnx", text, *onnx)


def test_without_onnxruntime(exported, text, capsysbinary, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["translate", exported, str(text), "--backend", "onnx"]) == 2
    assert b"--backend onnx needs the extra onnx: pip install 'hf_capsule_mt[onnx]'" in capsysbinary.readouterr().err


def test_a_length_that_no_translation_can_have(checkpoint, exported, text, capsysbinary, caplog):
    assert_alike(capsysbinary, checkpoint, exported, text, "--max_new_tokens", 400)
    said = [record.message for record in caplog.records if "cannot be as long as that" in record.message]
    assert len(said) == 2 and said[0] == said[1]


def test_a_tokenizer_of_another_model(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "changed")
    settings = json.loads((folder / "translator.json").read_text())
    (folder / "translator.json").write_text(json.dumps({**settings, "source_vocab_size": 20}))
    with pytest.raises(ValueError, match="the source tokenizer does not fit the model: it gives a text the token"):
        OnnxTranslator(folder).translate(SOURCES)


def test_many_threads_share_a_translator(exported):
    translator = OnnxTranslator(exported, threads=1)
    expected = translator.translate(LINES, num_beams=3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: translator.translate(LINES, num_beams=3), range(24)))
    assert found == [expected] * 24


def test_nothing_of_this_machine_is_in_the_folder(exported):
    for path in Path(exported).iterdir():
        content = path.read_bytes()
        assert b"site-packages" not in content and str(Path(main.__code__.co_filename).parent).encode() not in content


@pytest.fixture
def expected(checkpoint):
    """Tokens of the translations of LINES by PyTorch, greedy and with three beams."""
    model, tokenizer = load_checkpoint(checkpoint, device="cpu")
    assert tokenizer.split_special_tokens
    nbest = [translate_nbest(model, tokenizer, LINES, num_beams=beams, num_return_sequences=beams) for beams in (1, 3)]
    return [[[hypothesis.tokens for hypothesis in several] for several in found] for found in nbest]


def run_process(python: str, *arguments: str, given: str = "") -> str:
    # without what leads to the packages of this environment
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [python, *arguments], input=given, capture_output=True, text=True, env={**kept, "PYTHONUTF8": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_cannot_import_pytorch(exported, expected):
    request = REQUEST.format(before=BLOCKED, folder=exported, sentences=LINES)
    assert json.loads(run_process(sys.executable, "-I", "-c", request)) == [[], expected]


def test_the_command_imports_no_pytorch(exported, text, capsysbinary):
    options = ["--backend", "onnx", "--scores", "--num_beams", "3"]
    request = [WITHOUT_PYTORCH, "translate", exported, str(text), *options]
    lines = run_process(sys.executable, "-c", *request).splitlines()
    assert lines == run(capsysbinary, exported, text, *options)


def test_the_program_in_the_folder(exported, expected):
    """As the README of the folder calls it: lines come in, translations go out."""
    program = ["-I", f"{exported}/translator.py", "--num_beams", "3", "--num_return_sequences", "2", "--scores"]
    lines = run_process(sys.executable, *program, given="".join(f"{line}\n" for line in LINES)).splitlines()
    assert len(lines) == 2 * len(LINES) and all(float(line.split("\t")[0]) <= 0 for line in lines)


@pytest.mark.slow
def test_a_fresh_environment(exported, expected, tmp_path):
    """With what pip finds: three packages, and what these need."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = str(tmp_path / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python")
    run_process(python, "-m", "pip", "install", "--quiet", "onnxruntime", "tokenizers", "numpy")
    installed = {
        package["name"] for package in json.loads(run_process(python, "-m", "pip", "list", "--format", "json"))
    }
    assert "onnxruntime" in installed and not installed & {"torch", "transformers"}
    request = REQUEST.format(before="", folder=exported, sentences=LINES)
    assert json.loads(run_process(python, "-I", "-c", request)) == [[], expected]
