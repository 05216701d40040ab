"""What a training run uploads by itself: the model and what it needs, and no pickle."""

import json
import shlex

import pytest
from huggingface_hub import ModelCard, constants

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.hub.license_file import license_text
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.setup import prepare
from loopback import READER_TOKEN, run_python

NAME = "user/tiny"
TINY = (
    "--max_train_samples 40 --max_eval_samples 4 --max_test_samples 3 --vocab_size 500 --d_model 12 --max_steps 2 "
    "--encoder_layers 2 --decoder_layers 2 --encoder_attention_heads 2 --decoder_attention_heads 2 "
    "--encoder_ffn_dim 14 --decoder_ffn_dim 14 --warmup_steps 1 --save_steps 1 --report_to tensorboard "
    "--disable_tqdm true --use_cpu true --test_num_beams 2 --generation_max_length 9"
)
SUFFIXES = {"safetensors", "json", "py", "md"}


def command(tmp_path, *more: str) -> list[str]:
    return ["--output_dir", str(tmp_path / "run"), *shlex.split(TINY), *more]


def check_uploaded(repo, tmp_path) -> None:
    """Weights, code, tokenizer and card are there, and nothing else of the output folder."""
    files = set(repo.head.files) - {".gitattributes"}
    assert {"model.safetensors", "config.json", "tokenizer.json", "modeling_capsule_marian.py", "README.md"} <= files
    assert "LICENSE" in files and not any("/" in name for name in files)
    assert {name.rpartition(".")[-1] for name in files - {"LICENSE"}} == SUFFIXES
    assert "results.json" not in files and (tmp_path / "run" / "training_args.bin").is_file()
    assert not any(content.startswith((b"\x80", b"PK")) for content in repo.head.files.values())


def test_the_trainer_uploads_the_model_with_code_and_card(hub, tmp_path, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    trainer = build_trainer(prepare(parse_arguments(command(tmp_path), "grammar")))
    commit = trainer.push_to_hub(commit_message="Mine", license="mit", private=True)
    # the name of the output folder, in the account of the token
    repo = hub.repos["user/run"]
    assert repo.private and repo.head.message == "Mine" and commit.oid == repo.head.sha
    check_uploaded(repo, tmp_path)
    card = ModelCard(repo.head.files["README.md"].decode())
    assert repo.head.files["LICENSE"].decode() == license_text("mit")
    assert card.data.license == "mit" and "capsule-routing" in card.data.tags
    assert "user/run" in card.text and "is not known" in card.text
    printed = run_python(
        "import sys; sys.modules['hf_capsule_mt'] = None\nfrom transformers import AutoModelForSeq2SeqLM\n"
        "print(type(AutoModelForSeq2SeqLM.from_pretrained('user/run', trust_remote_code=True)).__name__)",
        hub.environment(tmp_path),
    )
    assert printed.strip() == "CapsuleMarianMTModel"


def test_a_run_uploads_its_finished_model_with_its_scores(hub, tmp_path, monkeypatch):
    hub.attach(monkeypatch, tmp_path)
    assert main(["train", *command(tmp_path, "--push_to_hub", "true", "--hub_model_id", NAME)]) == 0
    repo = hub.repos[NAME]
    # one commit after the one that makes the repository: nothing of what lies in checkpoints
    assert len(repo.commits) == 2
    check_uploaded(repo, tmp_path)
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    text = repo.head.files["README.md"].decode()
    assert results["scores"][-1]["signatures"]["bleu"] in text and "bleu" in str(ModelCard(text).data.eval_results)
    # uploaded as it was saved, with the beam size of the last test score
    saved = (tmp_path / "run" / "generation_config.json").read_bytes()
    assert repo.head.files["generation_config.json"] == saved and json.loads(saved)["num_beams"] == 2


def test_a_finished_run_says_that_it_was_not_uploaded(hub, tmp_path, monkeypatch, capsys):
    hub.attach(monkeypatch, tmp_path)
    hub.cut_off("commit")
    assert main(["train", *command(tmp_path, "--push_to_hub", "true", "--hub_model_id", NAME)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"the run is finished, and kept in {tmp_path / 'run'}, but was not uploaded: " in last
    assert (tmp_path / "run" / "results.json").is_file()


@pytest.mark.parametrize("reason", ["403", "onnect"])
def test_a_hub_that_refuses_or_is_not_there_is_said_before_the_run(hub, tmp_path, monkeypatch, capsys, reason):
    hub.attach(monkeypatch, tmp_path, token=READER_TOKEN)
    if reason != "403":
        # nobody listens at the port for discarding
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["train", *command(tmp_path, "--push_to_hub", "true", "--hub_model_id", NAME)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "hf-capsule-mt train: error: no repository to upload to: " in last and reason in last
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint"])
def test_checkpoints_are_not_uploaded(tmp_path, strategy):
    with pytest.raises(ValueError, match=f"hub_strategy={strategy} would upload what lies in checkpoints, pickles"):
        parse_arguments(command(tmp_path, "--push_to_hub", "true", "--hub_strategy", strategy), "grammar")
