"""`hf-capsule-mt demo` before its server starts: what it takes, and what it refuses in one line."""

import re
import socket
import sys
from pathlib import Path

import pytest

import hf_capsule_mt
from hf_capsule_mt.__main__ import main
from hf_capsule_mt.demo import command
from hf_capsule_mt.demo.command import MAX_EXAMPLES, find_examples
from tiny_translation import SOURCES


def refusal(capsys, *arguments) -> str:
    """The one line that the command says."""
    assert main(["demo", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("hf-capsule-mt demo: error: ")


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    """Nothing here may come as far as the server."""
    monkeypatch.setitem(sys.modules, "hf_capsule_mt.demo.app", None)


class TestRefusals:
    def test_no_such_folder(self, capsys, tmp_path, runs):
        assert refusal(capsys, runs.plain, tmp_path / "absent") == f"there is no directory {tmp_path / 'absent'}"

    def test_no_model(self, capsys, tmp_path):
        assert str(tmp_path) in refusal(capsys, tmp_path)

    def test_three_models(self, capsys, runs):
        said = refusal(capsys, runs.plain, runs.plain, runs.guided)
        assert said == "a page has room for two models, got 3: name one or two"

    def test_the_same_name_twice(self, capsys, runs):
        said = refusal(capsys, runs.plain, runs.plain)
        assert said == "several checkpoints would be called plain, plain: tell them apart with --names"
        assert "--names needs one name for each of the 2 checkpoints" in refusal(
            capsys, runs.plain, runs.guided, "--names", "one"
        )

    def test_several_runs_of_a_model(self, capsys, runs):
        said = refusal(capsys, f"both={runs.plain},{runs.guided}")
        assert said == f"a page shows one run of a model, got both={runs.plain},{runs.guided}: name one of them"

    def test_languages_of_a_model_of_one_pair(self, capsys, runs):
        said = refusal(capsys, runs.plain, "--source_lang", "en")
        assert said == f"{runs.plain}: of a single pair of languages; leave out --source_lang and --target_lang"

    def test_languages_that_a_multilingual_model_does_not_have(self, capsys, multilingual):
        run = multilingual("nllb")
        said = refusal(capsys, run, "--source_lang", "eng_Latn", "--target_lang", "de")
        assert said == (
            f"{run}: target_lang: 'de' is none of the 202 languages of NllbTokenizer; did you mean deu_Latn?"
        )
        assert refusal(capsys, run).startswith(f"{run}: the model is multilingual: give the codes of both languages")

    def test_no_gradio(self, capsys, runs, monkeypatch):
        monkeypatch.setattr(command, "find_spec", lambda name: None)
        said = refusal(capsys, runs.plain)
        assert said == 'the demonstration needs gradio: pip install "hf_capsule_mt[demo]"'

    def test_addresses_where_nobody_can_listen(self, capsys, runs):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            said = refusal(capsys, runs.plain, "--port", port)
        assert said == (
            f"cannot listen on 127.0.0.1, port {port} (Address already in use); name another --host or --port"
        )
        # an address for documentation, which no machine has
        assert refusal(capsys, runs.plain, "--host", "192.0.2.1").startswith("cannot listen on 192.0.2.1 (")
        assert refusal(capsys, runs.plain, "--port", 99999).startswith("99999 is no port")

    def test_examples_that_are_none(self, capsys, tmp_path, runs):
        empty = tmp_path / "empty.txt"
        empty.write_text("\n \n", encoding="utf-8")
        assert refusal(capsys, runs.plain, "--examples", empty).startswith(f"{empty} has no sentences")
        assert refusal(capsys, runs.plain, "--examples", tmp_path) == f"{tmp_path} is a folder; name a text file"
        empty.write_bytes(b"caf\xe9\n")
        assert f"{empty}, line 1: not UTF-8" in refusal(capsys, runs.plain, "--examples", empty)


class TestExamples:
    def test_are_the_saved_test_source_of_a_run(self, runs):
        assert find_examples([str(runs.plain), str(runs.guided)], None) == SOURCES[:3]
        assert find_examples([str(runs.plain), "user/name"], None) == []

    def test_are_those_of_a_file(self, tmp_path, runs):
        path = tmp_path / "sentences.txt"
        path.write_text("\n".join(f"Sentence {number}." for number in range(99)), encoding="utf-8")
        found = find_examples([str(runs.guided)], path)
        assert found == [f"Sentence {number}." for number in range(MAX_EXAMPLES)]


def test_gradio_is_imported_by_the_page_alone():
    package = Path(hf_capsule_mt.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) gradio", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {"demo/app.py"}
