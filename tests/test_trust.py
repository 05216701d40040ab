"""No command runs code of a checkpoint or of a data set unasked, takes standard input for an answer, or unpickles."""

import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

import hf_capsule_mt
from hf_capsule_mt.__main__ import main
from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.loading import check_states, check_weights, from_checkpoint
from hf_capsule_mt.training import command as train
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("run")
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast
class ForeignConfig(MarianConfig):
    model_type = "foreign"
class ForeignModel(MarianMTModel):
    config_class = ForeignConfig
class ForeignTokenizer(PreTrainedTokenizerFast):
    pass
"""


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def save(folder: Path) -> Path:
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return save(tmp_path_factory.mktemp("plain"))


def change(path: Path, **values) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


@pytest.fixture
def mark(tmp_path):
    """What is there when foreign code was run."""
    return tmp_path / "mark"


def with_code(plain: Path, folder: Path, mark: Path) -> Path:
    shutil.copytree(plain, folder)
    (folder / "foreign.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    return folder


@pytest.fixture
def foreign(plain, tmp_path, mark):
    """A checkpoint of a type that only the code beside it knows."""
    folder = with_code(plain, tmp_path / "foreign", mark)
    auto_map = {"AutoConfig": "foreign.ForeignConfig", "AutoModelForSeq2SeqLM": "foreign.ForeignModel"}
    change(folder / "config.json", model_type="foreign", auto_map=auto_map)
    return folder


@pytest.fixture
def foreign_tokenizer(plain, tmp_path, mark):
    """A capsule model whose tokenizer is one that only the code beside it knows."""
    folder = with_code(plain, tmp_path / "foreign_tokenizer", mark)
    change(folder / "config.json", model_type="capsule-marian", aggregation="none")
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="ForeignTokenizer",
        auto_map={"AutoTokenizer": [None, "foreign.ForeignTokenizer"]},
    )
    return folder


@pytest.fixture
def files(tmp_path):
    for language, lines in (("en", SOURCES), ("de", TARGETS)):
        (tmp_path / f"test.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def training(folder: Path, files: Path) -> list[str]:
    command = [f"--output_dir={files / 'run'}", f"--train_file={files / 'test'}", f"--model_name_or_path={folder}"]
    return [*command, "--source_lang=en", "--target_lang=de", "--eval_strategy=no", "--report_to=none"]


def command_line(name: str, folder: Path, files: Path) -> list[str]:
    source, target = str(files / "test.en"), str(files / "test.de")
    return {
        "translate": [str(folder)],
        "score": [str(folder), source, target],
        "report": [str(folder), "--source", source, "--reference", target, "--output", str(files / "report")],
        "convert": [str(folder), str(files / "converted"), "--aggregation", "linear"],
        "to_plain": [str(folder), str(files / "converted"), "--plain"],
        "distill": [
            *("--teacher_name_or_path", str(folder), "--output_prefix", str(files / "out"), "--train_file"),
            *(str(files / "test"), "--source_lang", "en", "--target_lang", "de"),
        ],
        "train.py": training(folder, files),
    }[name]


def run(name: str, arguments: list[str]) -> int:
    if name == "train.py":
        return train.main(["--recipe=none", *arguments])
    return main([name.replace("to_plain", "convert"), *arguments])


@pytest.fixture
def yes(monkeypatch):
    """Standard input that says yes to whatever is asked."""
    stream = io.TextIOWrapper(io.BytesIO(b"y\n" * 20))
    monkeypatch.setattr(sys, "stdin", stream)
    return stream


@pytest.mark.parametrize("name", ["translate", "score", "report", "convert", "to_plain", "distill", "train.py"])
@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_code_of_a_checkpoint_is_not_run_whatever_standard_input_says(
    name, part, foreign, foreign_tokenizer, files, mark, yes, capsys
):
    folder = foreign if part == "model" else foreign_tokenizer
    if name == "report":
        pytest.importorskip("matplotlib")
    assert run(name, command_line(name, folder, files)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(folder) in error
    if (name, part) != ("train.py", "model"):
        # training knows from the type alone that it cannot start there
        assert "brings code of its own" in error and "--trust_remote_code" in error
    assert not mark.exists()
    assert yes.buffer.tell() == 0


def test_no_prompt_in_a_pipe(foreign, mark):
    """As in `printf 'y\\nThe dog.\\n' | ...`, in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", "hf_capsule_mt", "translate", str(foreign)],
        input="y\nThe dog.\n",
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2 and finished.stdout == "" and "[y/N]" not in finished.stderr
    assert finished.stderr.count("\n") == 1 and f"{foreign} brings code of its own" in finished.stderr
    assert not mark.exists()


def test_trust_is_given_by_the_flag(foreign, files, mark, capsys):
    arguments = [str(foreign), str(files / "test.en"), "--trust_remote_code", "--max_tokens", "512"]
    assert main(["translate", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == TARGETS
    assert mark.read_text() == "run"


def test_what_this_package_saved_needs_no_trust(plain, tmp_path, yes):
    folder = convert(plain, tmp_path / "capsule", aggregation="linear")
    change(folder / "config.json", custom_pipelines={"translation": {"impl": "pipeline_translation.X"}})
    (folder / "modeling_capsule_marian.py").write_text("raise RuntimeError('run')", encoding="utf-8")
    assert "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for trusted in (False, True):
        model = from_checkpoint(AutoModelForSeq2SeqLM, folder, trust_remote_code=trusted)
        assert type(model) is hf_capsule_mt.CapsuleMarianMTModel
        from_checkpoint(AutoConfig, folder, trust_remote_code=trusted)
    assert from_checkpoint(AutoTokenizer, folder)("a dog runs .").input_ids
    assert yes.buffer.tell() == 0


def test_code_in_a_folder_of_a_known_type_is_left_alone(plain, tmp_path, mark):
    folder = with_code(plain, tmp_path / "marian", mark)
    auto_map = {"AutoConfig": "foreign.ForeignConfig", "AutoModelForSeq2SeqLM": "foreign.ForeignModel"}
    change(folder / "config.json", auto_map=auto_map)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    assert type(from_checkpoint(AutoModelForSeq2SeqLM, folder)).__module__.startswith("transformers.")
    assert not mark.exists()


def test_a_script_beside_a_data_set_is_not_run(files, mark, yes, capsys):
    folder = files / "data"
    folder.mkdir()
    (folder / "data.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    arguments = [f"--output_dir={files / 'run'}", f"--dataset_name={folder}", "--source_lang=en", "--target_lang=de"]
    assert train.main(["--recipe=none", *arguments]) == 2
    assert "cannot load the data set" in capsys.readouterr().err
    assert not mark.exists() and yes.buffer.tell() == 0


class TestWeights:
    def test_a_pickle_under_the_name_of_safetensors(self, plain, tmp_path, mark, files, capsys):
        for number, content in enumerate((pickle.dumps(Evil(mark)), None)):
            folder = shutil.copytree(plain, tmp_path / f"pickled{number}")
            if content is None:
                torch.save(Evil(mark), folder / "model.safetensors")
            else:
                (folder / "model.safetensors").write_bytes(content)
            for name in ("translate", "convert", "distill", "train.py"):
                assert run(name, command_line(name, folder, files)) == 2
                error = capsys.readouterr().err.strip().splitlines()[-1]
                assert f"{folder / 'model.safetensors'} is a pickle and not safetensors" in error
        assert not mark.exists()

    def test_only_a_pickle_says_how_to_convert_it(self, plain, tmp_path, files, capsys, monkeypatch):
        folder = tmp_path / "old"
        shutil.copytree(plain, folder)
        (folder / "model.safetensors").unlink()
        torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
        for name in ("translate", "score", "convert", "distill", "train.py"):
            assert run(name, command_line(name, folder, files)) == 2
            error = capsys.readouterr().err.strip().splitlines()[-1]
            assert f"{folder} has its weights as a pickle alone (pytorch_model.bin)" in error
        # what it says works
        monkeypatch.chdir(tmp_path)
        exec(re.search(r'python -c "(.*)"', error)[1])
        assert main(["translate", "NEW_FOLDER", str(files / "test.en")]) == 0
        assert capsys.readouterr().out.splitlines() == TARGETS

    def test_a_name_on_the_hub_with_a_pickle_alone(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise OSError("user/name does not appear to have a file named model.safetensors")

        monkeypatch.setattr(AutoModelForSeq2SeqLM, "from_pretrained", refuse)
        with pytest.raises(ValueError, match=r"user/name has no weights as safetensors.*convert it to safetensors"):
            from_checkpoint(AutoModelForSeq2SeqLM, "user/name")

    @pytest.mark.parametrize("shard", ["evil.bin", "../model.safetensors", "/etc/model.safetensors"])
    def test_an_index_names_safetensors_of_its_folder(self, plain, tmp_path, shard):
        folder = shutil.copytree(plain, tmp_path / "sharded")
        (folder / "model.safetensors").unlink()
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": shard}}), encoding="utf-8")
        with pytest.raises(ValueError, match=f"index.json names '{re.escape(shard)}'"):
            from_checkpoint(AutoModelForSeq2SeqLM, folder)
        index.write_text("{}", encoding="utf-8")
        with pytest.raises(ValueError, match="is no index of weights"):
            check_weights(folder)

    def test_a_header_may_begin_like_a_pickle(self, tmp_path):
        from safetensors.torch import save_file

        # 128 is the first byte of a pickle: names of this length make a header of that size
        for length in range(1, 70):
            save_file({"x" * length: torch.zeros(1)}, tmp_path / "model.safetensors")
            if (tmp_path / "model.safetensors").read_bytes()[:1] == b"\x80":
                break
        else:
            raise AssertionError("no header begins like that")
        check_weights(tmp_path)


class TestStates:
    @pytest.fixture
    def checkpoint(self, tmp_path):
        """What transformers itself writes into a checkpoint."""
        folder = tmp_path / "checkpoint-1"
        folder.mkdir()
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        torch.save(schedule.state_dict(), folder / "scheduler.pt")
        import random

        import numpy as np

        state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
        torch.save(state, folder / "rng_state.pth")
        return folder

    def test_what_a_run_writes_passes(self, checkpoint):
        check_states(checkpoint)

    @pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_1.pth"])
    def test_what_would_call_something_is_named(self, checkpoint, name, mark):
        torch.save({"state": Evil(mark)}, checkpoint / name)
        with pytest.raises(ValueError, match=rf"{name} is a pickle that would call posix\.mkdir"):
            check_states(checkpoint)
        assert not mark.exists()

    def test_a_bare_pickle_is_named(self, checkpoint, mark):
        (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Evil(mark)))
        with pytest.raises(ValueError, match=r"optimizer\.pt is not what torch\.save writes"):
            check_states(checkpoint)
        assert not mark.exists()
