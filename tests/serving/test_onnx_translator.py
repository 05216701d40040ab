"""The translator as its users have it: a file in a folder, without PyTorch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported import sentences

from hf_capsule_mt.serving import onnx_translator
from hf_capsule_mt.serving.onnx_translator import FORMAT, SETTINGS, OnnxTranslator

# runs a program in an interpreter where these cannot be imported
BLOCKED = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "hf_capsule_mt", "onnx", "sentencepiece"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder, *arguments, text=None):
    """translator.py of a folder; its status, lines and last line of errors."""
    command = [sys.executable, "-I", "-c", BLOCKED, str(folder / "translator.py"), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines(), (done.stderr.strip().splitlines() or [""])[-1]


@pytest.fixture
def exported(exported_folders, tmp_path):
    """A folder that is far from the checkout."""
    return shutil.copytree(exported_folders("em_and_gdr")[1], tmp_path / "served")


@pytest.fixture(scope="module")
def translator(exported_folders):
    return OnnxTranslator(exported_folders("em_and_gdr")[1], threads=1)


def test_pipes_and_files_without_pytorch(exported, translator, tmp_path):
    sources = sentences([4, 0, 7, 2])
    text = "".join(f"{line}\n" for line in sources)
    (tmp_path / "lines.txt").write_text(text, encoding="utf-8")
    greedy = translator.translate(sources, num_beams=1)
    assert run(exported, "--num_beams", 1, "--threads", 1, text=text) == (0, greedy, "")
    arguments = ["--num_beams", 3, "--num_return_sequences", 2, "--scores", "--window", 3, "--max_tokens", 20]
    status, lines, error = run(exported, tmp_path / "lines.txt", *arguments)
    nbest = translator.translate_nbest(sources, num_beams=3, num_return_sequences=2)
    assert (status, error) == (0, "")
    scores, texts = zip(*(line.split("\t") for line in lines), strict=True)
    assert list(texts) == [h.text for hypotheses in nbest for h in hypotheses]
    # batches differ
    assert [float(score) for score in scores] == pytest.approx([h.score for ranks in nbest for h in ranks], abs=1e-5)


def test_errors_of_the_program_are_one_line(exported, tmp_path):
    status, lines, error = run(exported, tmp_path / "nothing.txt")
    assert status != 0 and not lines and "nothing.txt" in error
    status, lines, error = run(exported, "--num_beams", 0, text="w3\n")
    assert status != 0 and not lines and error == "translator: error: num_beams must be at least 1, got 0"
    (tmp_path / "latin.txt").write_bytes(b"w3\nw\xe4\n")
    status, lines, error = run(exported, tmp_path / "latin.txt")
    assert status != 0 and "latin.txt" in error and "UTF-8" in error


def test_its_classes_are_those_of_the_package(exported):
    """The file that travels is the module, and needs no more than what the README says."""
    text = (exported / "translator.py").read_text(encoding="utf-8")
    assert text == Path(onnx_translator.__file__).read_text(encoding="utf-8")
    readme = (exported / "README.md").read_text(encoding="utf-8")
    assert "pip install onnxruntime tokenizers numpy" in readme
    code = readme.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=exported, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "given, words",
    [
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 needs at least as many beams"),
        ({"num_return_sequences": 0}, "num_return_sequences must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"num_beams": 2.5}, "num_beams must be a whole number"),
        ({"early_stopping": "soon"}, "early_stopping must be True, False or 'never', got 'soon'"),
        ({"temperature": 0.5}, "no generation parameter temperature"),
        ({"prefixes": ["w3"]}, "there are 2 sentences, but 1 prefixes"),
        ({"prefixes": "w3"}, "prefixes must be a list of strings"),
        ({"prefixes": ["", "w3 " * 50]}, "a prefix of 50 tokens leaves no room"),
        ({"forced_bos_token_id": 99}, "forced_bos_token_id=99 is not in the vocabulary"),
    ],
    ids=str,
)
def test_wrong_arguments(translator, given, words):
    with pytest.raises(ValueError, match=words) as error:
        translator.translate_nbest(["w3 w4", "w5"], **given)
    assert len(str(error.value).splitlines()) == 1


def test_a_single_string(translator):
    with pytest.raises(ValueError, match="sentences must be a list of strings, got a single string"):
        translator.translate("w3 w4")


def test_translate_gives_one(translator):
    with pytest.raises(ValueError, match="one translation a sentence, got num_return_sequences=2"):
        translator.translate(["w3"], num_beams=2, num_return_sequences=2)


@pytest.mark.parametrize("field, given", [("source_vocab_size", {}), ("vocab_size", {"prefixes": ["w9"]})])
def test_a_tokenizer_of_another_model(translator, monkeypatch, field, given):
    monkeypatch.setitem(translator.settings, field, 7)
    with pytest.raises(ValueError, match="tokenizer does not fit the model: it gives a text the token 9"):
        translator.translate_nbest(["w9" if field == "source_vocab_size" else "w3"], **given)


def test_nothing_and_blank_lines(translator):
    seen = []
    assert translator.translate([]) == []
    assert translator.translate([" ", ""], progress=lambda *counts: seen.append(counts)) == ["", ""]
    assert seen == [(2, 2)]
    blank, one = translator.translate_nbest(["", "w3"], num_beams=2, num_return_sequences=2)
    assert [h.text for h in blank] == ["", ""] and len(one) == 2


def test_the_first_format(translator, exported):
    """Its graphs have the start token as a constant."""
    expected = [translator.translate_nbest(["w3", "w4 w5"], num_beams=beams) for beams in (1, 2)]
    settings = json.loads((exported / SETTINGS).read_text(encoding="utf-8"))
    for name in ("greedy_search.onnx", "beam_search.onnx"):
        model = onnx.load(exported / name, load_external_data=False)
        (start,) = [value for value in model.graph.input if value.name == "start_token"]
        model.graph.input.remove(start)
        token = np.array(settings["decoder_start_token_id"])
        model.graph.initializer.append(onnx.numpy_helper.from_array(token, start.name))
        onnx.save(model, exported / name)
    (exported / SETTINGS).write_text(json.dumps(settings | {"format": 1}), encoding="utf-8")
    old = OnnxTranslator(exported, threads=1)
    assert [old.translate_nbest(["w3", "w4 w5"], num_beams=beams) for beams in (1, 2)] == expected


def test_wrong_folders(tmp_path, exported):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=f"has no {SETTINGS}: give a folder made by hf-capsule-mt export"):
            OnnxTranslator(folder)
    settings = json.loads((exported / SETTINGS).read_text(encoding="utf-8"))
    settings["format"] = FORMAT + 1
    (exported / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ValueError, match=f"is of format {FORMAT + 1}, newer than this program's"):
        OnnxTranslator(exported)


def test_a_folder_that_is_not_whole(exported):
    (exported / "weights.onnx_data").unlink()
    with pytest.raises(ValueError, match=r"beam_search\.onnx cannot be loaded"):
        OnnxTranslator(exported).translate(["w3"], num_beams=2)
    (exported / "target_tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"has no target_tokenizer\.json: copy the whole folder"):
        OnnxTranslator(exported)


def test_a_sentence_translates_alike_alone_and_in_any_batch(system):
    sources = sentences([3, 9, 1, 25, 6, 6, 14, 2], seed=3)
    for options in ({"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 2}):
        together = system.translator.translate_nbest(sources, **options)
        for max_tokens in (1, 60, 200):
            assert_same(together, system.translator.translate_nbest(sources, max_tokens=max_tokens, **options))
        backwards = system.translator.translate_nbest(sources[::-1], max_tokens=90, **options)
        assert_same(together, backwards[::-1])


def assert_same(expected, found):
    for left, right in zip(expected, found, strict=True):
        assert [h.tokens for h in left] == [h.tokens for h in right]
        assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-5, rel=1e-5)
