"""Records of runs: no secret gets into them, and no path of a machine into what is published."""

import copy
import dataclasses
import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_capsule_mt.records import (
    command_without_secrets,
    find_paths,
    find_secrets,
    is_secret,
    public_record,
    without_secrets,
)
from hf_capsule_mt.training.arguments import CapsuleSeq2SeqTrainingArguments, DataArguments, ModelArguments
from hf_capsule_mt.training.distillation import DistillationArguments

# put together here, so that no scanner takes this file for a leak
HF = "hf_" + "aB3" * 12
KEY = "-----BEGIN OPENSSH PRIVATE " + "KEY-----"
TOKENS = [
    HF,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 9,
    "sk-" + "a1B2" * 9,
    "sk-proj-" + "a1B2-" * 9,
    "AKIA" + "A1B2" * 4,
    "AIza" + "a1B2-" * 7,
    "xoxb-" + "12345-" * 4,
    "glpat-" + "a1B2" * 5,
    "aws_secret_access_key = " + "a1B2/" * 8,
    "https://jo:" + "pass1word@example.org/x",
    KEY,
]


@pytest.mark.parametrize(
    "name", ["hub_token", "token", "HF_TOKEN", "api_key", "apiKey", "password", "db-password", "client_secret", "key"]
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens_per_batch",
        "tokenizer_name_or_path",
        "target_tokens",
        "pad_token_id",
        "ignore_keys",
        "monkey",
        "keyed",
    ],
)
def test_names_that_only_resemble_them(name):
    assert not is_secret(name)


def test_of_all_arguments_only_the_token_is_secret():
    classes = (ModelArguments, DataArguments, CapsuleSeq2SeqTrainingArguments, DistillationArguments)
    names = {field.name for kind in classes for field in dataclasses.fields(kind)}
    assert {name for name in names if is_secret(name)} == {"hub_token"}


@pytest.mark.parametrize(
    "argv",
    [
        ["r.yaml", "--hub_token", "hf_X", "--seed", "2"],
        ["r.yaml", "--hub_token=hf_X", "--seed", "2"],
        ["r.yaml", "--hub-token", "hf_X", "--seed", "2"],
        ["r.yaml", "--hub_token", "hf_X", "hf_X", "--seed", "2"],
        ["r.yaml", "--seed", "2", "--hub_token", "hf_X"],
    ],
    ids=["two words", "one word", "dashes", "a list", "last"],
)
def test_command_lines(argv):
    assert command_without_secrets(argv) == ["r.yaml", "--seed", "2"]


def test_a_token_anywhere_and_secrets_in_json():
    argv = [f"--run_name={HF}", "--accelerator_config", json.dumps({"api_key": "x", "split": 1}), f"--tag=a:{HF}:b"]
    assert command_without_secrets(argv) == ["--run_name=***", "--accelerator_config", '{"split": 1}', "--tag=a:***:b"]
    record = {"hub_token": "x", "fsdp": {"password": 1, "list": [{"secret": "x", "a": HF}]}, "pad_token_id": 3}
    assert without_secrets(record) == {"fsdp": {"list": [{"a": "***"}]}, "pad_token_id": 3}


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:8])
def test_tokens_are_found_and_removed(token):
    assert [number for number, _ in find_secrets([b"a\n", f'x="{token}"\n'.encode()])] == [2]
    assert token not in without_secrets(f"x {token}")
    assert token not in json.dumps(public_record({"command": f"python train.py --name '{token}'", "name": token}))


@pytest.mark.parametrize(
    "text",
    ["hf_capsule_mt", "task-of-a-very-long-name-with-words-2", "the risk-averse-and-hesitant-translator", "sk-learn",
     "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.4.3", "https://user@example.org", "AKIA"],
)  # fmt: skip
def test_what_is_no_token(text):
    assert list(find_secrets([text.encode()])) == [] and without_secrets(text) == text


PATHS = {
    "/home/lena/data": "path/to/data",
    "/home/lena/My Documents/data set": "path/to/data set",
    "/data": "path/to/data",
    "~/corpora/train": "path/to/train",
    "~lena/x": "path/to/x",
    "~/": "path/to/folder",
    r"C:\Users\lena\x": "path/to/x",
    "C:/Users/lena/x": "path/to/x",
    r"\\server\share\lena\x": "path/to/x",
    "//server/lena/x": "path/to/x",
    "file:///home/lena/x": "path/to/x",
    "file://localhost/home/lena/x": "path/to/x",
    "file:/home/lena/x": "path/to/x",
    "../../lena/x": "path/to/x",
    "train:/home/lena/x": "train:path/to/x",
    "ab:/home/lena/x;/home/lena/y": "ab:path/to/x;path/to/y",
    "x=/home/lena/my x": "x=path/to/my x",
    "(/home/lena/x, /home/lena/y)": "(path/to/x,path/to/y)",
    "runs/grammar": "runs/grammar",
    "./runs/grammar": "./runs/grammar",
    "user/name": "user/name",
    "https://huggingface.co/a/b": "https://huggingface.co/a/b",
    "either/or": "either/or",
    "a / b": "a / b",
    "8:1": "8:1",
    "<b>x</b>": "<b>x</b>",
    "</home/lena/x": "<path/to/x",
    "": "",
}


@pytest.mark.parametrize("path, expected", PATHS.items(), ids=lambda value: value)
def test_paths(path, expected):
    cleaned = public_record({"a": {"b": [path]}, "command": shlex.join(["python", "train.py", f"--data_dir={path}"])})
    if "," not in path:
        assert cleaned["a"]["b"] == [expected]
        assert shlex.split(cleaned["command"])[2] == f"--data_dir={expected}"
    assert "lena" not in json.dumps(cleaned)


def test_a_whole_record():
    record = {
        "recipe": "/home/lena/r.yaml",
        "scores": [{"file": "translations/test.de", "bleu": 3.0}],
        "arguments": {"output_dir": "/tmp/lena/run", "hub_token": "hf_X", "model_name_or_path": "file:///home/lena/m"},
        "command": "python train.py /home/lena/r.yaml --hub_token hf_X --output_dir '/tmp/lena/my run' --seed 3",
        "versions": {"torch": "2.13.0+cpu"},
        "train_seconds": 3.5,
    }
    before = copy.deepcopy(record)
    cleaned = public_record(record)
    assert record == before
    assert cleaned == {
        "recipe": "path/to/r.yaml",
        "scores": [{"file": "translations/test.de", "bleu": 3.0}],
        "arguments": {"output_dir": "path/to/run", "model_name_or_path": "path/to/m"},
        "command": "python train.py path/to/r.yaml --output_dir 'path/to/my run' --seed 3",
        "versions": {"torch": "2.13.0+cpu"},
        "train_seconds": 3.5,
    }
    assert list(cleaned) == list(record)


@given(
    st.lists(st.sampled_from([*PATHS, "x", HF, "="]), max_size=6), st.sampled_from([" ", ": ", "\n", '"', ", ", "="])
)
def test_cleaned_once_is_cleaned(pieces, separator):
    text = separator.join(pieces)
    once = public_record({"text": text})
    assert public_record(once) == once
    assert "lena/" not in once["text"] and HF not in once["text"]


@pytest.mark.parametrize(
    "text",
    ["in /home/jo/run", "file:///home/x", r"from C:\Users\jo", r"\\server\share\x", "~/run", "~jo/run", 
     "see:/home/jo/x", "(/mnt/data/x)"],
)  # fmt: skip
def test_paths_in_sentences_are_found(text):
    assert find_paths(text)


@pytest.mark.parametrize(
    "text", ["and/or", "a / b", "https://a.b/c/d/e", "`recipes/x.yaml`", "1/2", "</s>", "~3 words"]
)
def test_sentences_without_paths(text):
    assert not find_paths(text)
