"""Whole runs: what they leave behind, where they start from, and mistakes that end before any work."""

import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
)

import hf_capsule_mt.training.run as run_module
import hf_capsule_mt.training.setup as preparation
from hf_capsule_mt import CapsuleMarianMTModel
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.evaluation.scores import score
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.averaging import average_checkpoints
from hf_capsule_mt.training.failures import RunFailure
from hf_capsule_mt.training.run import run
from hf_capsule_mt.training.setup import prepare
from tiny_translation import assert_quiet_limits

ROOT = Path(__file__).parents[2]


def train(arguments: list[str]) -> dict:
    return run(prepare(parse_arguments(arguments)), arguments)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_run_leaves_model_translations_and_results(command, corpus, tmp_path, capsys):
    arguments = command(test_num_beams=[1, 3], length_penalty=0.6, seed=5)
    results = train(arguments)
    folder = tmp_path / "run"

    assert json.loads((folder / "results.json").read_text()) == results
    assert [(row["split"], row["beams"], row["length_penalty"]) for row in results["scores"]] == [
        ("validation", 1, 1.0),
        ("test", 1, 1.0),
        ("test", 3, 0.6),
    ]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, CapsuleMarianMTModel) and model.config.aggregation == "em_routing"
    assert model.config.use_cache
    # Scores are those of limits by the source's length; the saved limit is for callers of generate.
    model.generation_config.max_new_tokens = None
    for row in results["scores"]:
        name = {"validation": "val"}.get(row["split"], row["split"])
        hypotheses = lines(folder / row["file"])
        options = {"num_beams": row["beams"], "length_penalty": row["length_penalty"]}
        assert hypotheses == translate(model, tokenizer, lines(corpus / f"{name}.en"), **options)
        again = score(hypotheses, lines(corpus / f"{name}.de"))
        assert (row["bleu"], row["chrf"], row["ter"]) == (again["bleu"], again["chrf"], again["ter"])
        assert row["signatures"] == again["signatures"] and row["sentences"] == len(hypotheses)
    assert (results["seed"], results["steps"]) == (5, 12)
    assert datetime.now(timezone.utc) - datetime.fromisoformat(results["date"]) < timedelta(hours=1)
    assert results["parameters"] == model.num_parameters()
    assert results["target_tokens"] > 0 and results["tokens_per_second"] > 0 and results["wall_seconds"] > 0
    assert shlex.split(results["command"]) == ["hf-capsule-mt", "train", *arguments]
    # the text that was scored lies beside the translations
    for split, name in (("validation", "val"), ("test", "test")):
        for language in ("en", "de"):
            kept = tmp_path / "run" / "translations" / f"{split}.{language}"
            assert kept.read_bytes() == (corpus / f"{name}.{language}").read_bytes()
    assert results["versions"]["torch"] == torch.__version__

    output = capsys.readouterr().out
    assert output.count("translation  ") == output.count("reference    ") == 5
    for row in results["scores"]:
        assert f"{row['bleu']:.2f}" in output
    assert results["scores"][0]["signatures"]["bleu"] in output


def test_arguments_in_the_results_are_a_recipe_of_the_same_run(command, tmp_path):
    token = "hf_" + "aB3" * 12
    results = train(command(dropout=0.2, save_total_limit=2, hub_token=token))
    assert "hub_token" not in results["arguments"] and "hub_token" not in results["command"]
    # Nor in anything else that a run leaves, but for the pickle of its arguments, which nothing reads or publishes.
    kept = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "training_args.bin"]
    assert not [path for path in kept if token.encode() in path.read_bytes()]
    recipe = {**results["arguments"], "output_dir": str(tmp_path / "again")}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    again = train([str(tmp_path / "recipe.yaml")])
    assert again["scores"][1]["bleu"] == results["scores"][1]["bleu"]
    one, other = (tmp_path / name / "model.safetensors" for name in ("run", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_printed_command_translates(command, tmp_path, capsys):
    # So few positions that they limit every translation: this model has not learnt to end one.
    train(command(max_position_embeddings=12))
    printed = capsys.readouterr().out.rstrip().splitlines()[-1]
    program, *rest = shlex.split(printed)
    assert Path(program).resolve() == Path(sys.executable).resolve()
    result = subprocess.run([program, *rest], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == lines(tmp_path / "run" / "translations" / "test.greedy.de")[0] + "\n"


def test_saved_generation_config_is_that_of_the_last_test_score(command, tmp_path):
    train(command(test_num_beams=[2, 4], length_penalty=0.5, max_steps=2))
    config = GenerationConfig.from_pretrained(tmp_path / "run")
    # 40 positions, one of which the start token takes
    assert (config.num_beams, config.length_penalty, config.max_new_tokens, config.max_length) == (4, 0.5, 39, None)
    assert (config.eos_token_id, config.pad_token_id, config.decoder_start_token_id) == (1, 0, 0)


@pytest.mark.parametrize("family", ["capsule-marian", "capsule-rnn"])
def test_saved_model_generates_without_a_warning_whoever_sets_the_limit(command, recurrent, tmp_path, caplog, family):
    build = recurrent if family == "capsule-rnn" else command
    setup = prepare(parse_arguments(build(max_source_length=40)))
    run_module.save(run_module.build_trainer(setup))
    assert_quiet_limits(tmp_path / "run", caplog)


def test_limit_of_the_arguments_is_that_of_the_saved_model(command, tmp_path):
    run_module.save(run_module.build_trainer(prepare(parse_arguments(command(generation_max_length=9)))))
    assert GenerationConfig.from_pretrained(tmp_path / "run").max_new_tokens == 8


def test_final_model_is_the_average_of_the_last_checkpoints(command, tmp_path):
    results = train(command(average_checkpoints=2, save_steps=3))
    assert results["final_weights"] == ["checkpoint-9", "checkpoint-12"]
    folder = tmp_path / "run"
    expected = average_checkpoints([folder / "checkpoint-9", folder / "checkpoint-12"])
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in saved)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"save_steps": 5}, [10, 12], id="the end between two saves"),
        pytest.param({"save_steps": 0.4}, [10, 12], id="share of all updates"),
        pytest.param({"save_strategy": "epoch"}, [6, 12], id="epochs"),
        pytest.param({"save_strategy": "epoch", "max_steps": 10}, [6, 10], id="part of an epoch"),
        pytest.param(
            {"learning_rate": 0.0, "early_stopping_patience": 2, "eval_steps": 2, "save_steps": 4, "max_steps": 50},
            [4],
            id="stopped early between two saves",
        ),
        pytest.param({"save_steps": 3, "save_total_limit": 3}, [9, 12], id="with a limit"),
    ],
)
def test_average_is_of_the_last_saves_of_the_run(command, tmp_path, options, expected):
    results = train(command(average_checkpoints=2, **options))
    assert results["final_weights"] == [f"checkpoint-{step}" for step in expected]


def test_average_of_a_copied_folder_is_of_its_last_steps(command, tmp_path):
    options = dict(average_checkpoints=2, save_steps=3, save_total_limit=3, eval_strategy="no")
    train(command(**options, max_steps=9))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    # the times of a copy say nothing, and neither does what a kill left of an old checkpoint
    for age, step in enumerate((9, 6, 3)):
        os.utime(tmp_path / "copy" / f"checkpoint-{step}", (1e9 + 1e3 * age, 1e9 + 1e3 * age))
    (tmp_path / "copy" / "checkpoint-3" / "trainer_state.json").unlink()
    options |= {"output_dir": tmp_path / "copy", "resume_from_checkpoint": "true"}
    assert train(command(**options, max_steps=14))["final_weights"] == ["checkpoint-12", "checkpoint-14"]
    assert {path.name for path in (tmp_path / "copy").glob("checkpoint-*")} == {
        "checkpoint-9",
        "checkpoint-12",
        "checkpoint-14",
    }


def test_average_without_one_of_its_checkpoints_is_refused(command, tmp_path):
    options = dict(average_checkpoints=3, save_steps=3, eval_strategy="no")
    train(command(**options))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    (tmp_path / "run" / "checkpoint-9" / "model.safetensors").write_bytes(b"")
    message = (
        r"of checkpoint-6, checkpoint-9, checkpoint-12, of which .*/checkpoint-6 \(model\.safetensors is missing\)"
        r", .*/checkpoint-9 \(model\.safetensors is truncated"
    )
    with pytest.raises(RunFailure, match=message):
        train(command(**options, resume_from_checkpoint="true"))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    # taken back, the run makes again what is missing
    checkpoint = tmp_path / "run" / "checkpoint-3"
    results = train(command(**options, resume_from_checkpoint=checkpoint))
    assert results["final_weights"] == ["checkpoint-6", "checkpoint-9", "checkpoint-12"]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_average_of_a_run_that_was_continued_in_another_folder(command, tmp_path):
    options = dict(average_checkpoints=3, save_steps=3, eval_strategy="no")
    train(command(**options))
    options["resume_from_checkpoint"] = tmp_path / "run" / "checkpoint-6"
    results = train(command(**options, output_dir=tmp_path / "other"))
    assert results["final_weights"] == ["checkpoint-6", "checkpoint-9", "checkpoint-12"]
    one, other = (tmp_path / name / "model.safetensors" for name in ("run", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_checkpoints_of_a_version_that_kept_no_log_of_them_are_averaged(command, tmp_path):
    options = dict(average_checkpoints=3, save_steps=3, eval_strategy="no")
    expected = train(command(**options, output_dir=tmp_path / "straight"))["final_weights"]
    train(command(**options, max_steps=6))
    for path in (tmp_path / "run").glob("checkpoint-*/trainer_state.json"):
        state = json.loads(path.read_text())
        state["log_history"] = [entry for entry in state["log_history"] if "saved" not in entry]
        path.write_text(json.dumps(state))
    assert train(command(**options, resume_from_checkpoint="true"))["final_weights"] == expected


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        ({"save_steps": 5}, 3),
        ({"save_steps": 4}, 3),
        ({"save_steps": 0.25}, 4),
        ({"save_steps": 0}, 1),
        ({"save_strategy": "epoch"}, 2),
        ({"save_strategy": "epoch", "max_steps": 13}, 3),
        ({"save_strategy": "best", "metric_for_best_model": "bleu"}, None),
        ({"save_strategy": "no"}, 0),
    ],
    ids=str,
)
def test_planned_checkpoints(command, options, planned):
    trainer = run_module.build_trainer(prepare(parse_arguments(command(**options))))
    assert run_module.planned_checkpoints(trainer) == planned


def test_too_few_planned_checkpoints_are_said_before_training(command, caplog):
    setup = prepare(parse_arguments(command(average_checkpoints=5, eval_strategy="no")))
    trainer = run_module.build_trainer(setup)
    trainer.train = lambda **_: caplog.messages.append("training")
    run_module.train(setup, trainer)
    (warning,) = [message for message in caplog.messages if "average_checkpoints=5" in message]
    assert "a run of 12 updates saves only 3: the final model will be the average of these" in warning


def test_best_checkpoint_is_kept_in_a_copied_folder(command, tmp_path):
    # nothing is better than the first
    options = dict(learning_rate=0.0, save_steps=3, eval_steps=3, save_total_limit=2)
    train(command(**options, max_steps=6))
    (tmp_path / "run").rename(tmp_path / "moved")
    options |= {"output_dir": tmp_path / "moved", "resume_from_checkpoint": "true"}
    assert train(command(**options, max_steps=12))["best"]["step"] == 3
    assert {path.name for path in (tmp_path / "moved").glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-12"}


def test_translation_with_line_breaks_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_capsule_mt.training.trainer.translate", lambda *a, **k: ["a\r\nb\nc\rd"] * len(a[2]))
    results = train(command(max_steps=1, validation_file=None, eval_strategy="no"))
    content = (tmp_path / "run" / results["scores"][0]["file"]).read_bytes()
    assert content == b"a b c d\n" * 17


def test_final_model_is_the_best_one_if_asked_for(command, tmp_path):
    # After a sensible start, a huge learning rate spoils the model.
    results = train(
        command(
            load_best_model_at_end="true",
            metric_for_best_model="chrf",
            lr_scheduler_type="constant",
            learning_rate=0.8,
            eval_steps=2,
            save_steps=2,
            max_steps=8,
        )
    )
    step = results["best"]["step"]
    assert results["final_weights"] == [f"checkpoint-{step}"]
    best = (tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors").read_bytes()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == best
    assert results["scores"][0]["chrf"] == results["best"]["value"]


def test_early_stopping_ends_the_run(command):
    results = train(command(learning_rate=0.0, early_stopping_patience=2, eval_steps=2, save_steps=2, max_steps=50))
    assert results["steps"] == 6


def test_run_without_validation_and_test_set(command, tmp_path):
    results = train(command(validation_file=None, test_file=None, eval_strategy="no", max_steps=2))
    assert results["scores"] == []
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_run_counts_epochs_where_no_steps_are_given(command):
    results = train(command(max_steps=None, num_train_epochs=1.5, save_strategy="no"))
    assert (results["steps"], results["epochs"]) == (9, 1.5)


def test_embedded_corpus_needs_no_files(command):
    sizes = dict(max_train_samples=60, max_eval_samples=5, max_test_samples=6, vocab_size=500)
    files = dict.fromkeys(("train_file", "validation_file", "test_file", "data_dir"))
    results = train(command(dataset_name="grammar", max_steps=2, **files, **sizes))
    assert [row["sentences"] for row in results["scores"]] == [5, 6]


@pytest.fixture
def plain_marian(corpus, tmp_path) -> Path:
    """A plain Marian checkpoint with a tokenizer for the tiny corpus."""
    folder = tmp_path / "plain"
    tokenizer = train_tokenizer([*lines(corpus / "train.en"), *lines(corpus / "train.de")], 400, 40)
    sizes = dict(d_model=12, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    tokens = dict(vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    config = MarianConfig(
        **sizes, **tokens, encoder_ffn_dim=14, decoder_ffn_dim=14, max_position_embeddings=40, forced_eos_token_id=1
    )
    torch.manual_seed(1)
    MarianMTModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_start_from_a_plain_marian_checkpoint(command, plain_marian, caplog):
    setup = prepare(parse_arguments(command(model_name_or_path=plain_marian, decoder_layers=2, dropout=0.3)))
    assert isinstance(setup.model, CapsuleMarianMTModel)
    assert setup.model.config.aggregation == "em_routing" and setup.model.config.dropout == 0.3
    assert "keeps its own architecture: decoder_layers=1, not 2" in caplog.text
    assert setup.tokenizer(["ein zwei"]) == AutoTokenizer.from_pretrained(plain_marian)(["ein zwei"])
    # Aggregation starts as the identity: the model translates as its parent did.
    inputs = {"input_ids": torch.tensor([[5, 6, 1]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    parent = MarianMTModel.from_pretrained(plain_marian).eval()
    torch.testing.assert_close(setup.model.eval()(**inputs).logits, parent(**inputs).logits, rtol=0, atol=0)
    results = run(setup)
    assert results["steps"] == 12


def test_start_from_an_earlier_capsule_checkpoint(command, tmp_path):
    train(command(output_dir=tmp_path / "first", max_steps=4))
    setup = prepare(parse_arguments(command(model_name_or_path=tmp_path / "first", label_smoothing=0.2)))
    first = load_file(tmp_path / "first" / "model.safetensors")
    state = setup.model.state_dict()
    assert all(torch.equal(state[name], first[name]) for name in first)
    assert setup.model.config.label_smoothing == 0.2
    assert run(setup)["steps"] == 12


def test_new_tokenizer_can_be_given_or_of_another_algorithm(command, plain_marian):
    given = prepare(parse_arguments(command(tokenizer_name_or_path=plain_marian)))
    assert given.model.config.vocab_size == len(given.tokenizer)
    bpe = prepare(parse_arguments(command(tokenizer_algorithm="bpe")))
    assert type(bpe.tokenizer.backend_tokenizer.model).__name__ == "BPE"


def test_folder_that_holds_a_run_is_refused_and_left_alone(command, tmp_path):
    train(command(max_steps=4))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"already holds a run .*--resume_from_checkpoint true.*--output_dir"):
        prepare(parse_arguments(command(max_steps=4)))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_folder_of_another_run_is_refused_where_a_checkpoint_is_given(command, tmp_path):
    train(command(max_steps=4))
    train(command(max_steps=2, output_dir=tmp_path / "other"))
    checkpoint = tmp_path / "run" / "checkpoint-4"
    with pytest.raises(ValueError, match=r"other already holds a run"):
        prepare(parse_arguments(command(output_dir=tmp_path / "other", resume_from_checkpoint=checkpoint)))
    setup = prepare(parse_arguments(command(output_dir=tmp_path / "third", resume_from_checkpoint=checkpoint)))
    assert setup.checkpoint == checkpoint


def test_checkpoint_to_resume_from_must_be_complete(command, tmp_path):
    with pytest.raises(ValueError, match="is not a complete checkpoint"):
        prepare(parse_arguments(command(resume_from_checkpoint=tmp_path / "nowhere")))


@pytest.mark.parametrize(
    "options,message",
    [
        pytest.param({"num_capsules": 5}, "num_capsules=5 does not divide d_model=12", id="capsules"),
        pytest.param({"routing_iterations": 0}, "routing_iterations=0", id="iterations"),
        pytest.param({"encoder_layers": 0}, "encoder_layers=0", id="layers"),
        pytest.param({"label_smoothing": 1.0}, "label_smoothing=1", id="label-smoothing"),
        pytest.param({"target_lang": "fr"}, r"train\.fr for the language 'fr'", id="language"),
        pytest.param({"validation_file": "dev"}, r"no file .*dev\.en", id="validation-file"),
        pytest.param({"validation_file": None}, "there is no validation set", id="no-validation"),
        pytest.param({"vocab_size": 100}, "vocab_size=100 is too small", id="vocabulary"),
        pytest.param({"max_source_length": 41}, "max_source_length=41 is more than", id="source-length"),
        pytest.param({"max_source_length": 2}, "of 211 training pairs none is left", id="nothing-left"),
        pytest.param({"model_name_or_path": "/nowhere"}, "cannot load the .* from /nowhere", id="no-model"),
        pytest.param({"tokenizer_name_or_path": "/nowhere"}, "cannot load the tokenizer", id="no-tokenizer"),
    ],
)
def test_mistakes_end_before_anything_is_trained(command, tmp_path, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        prepare(parse_arguments(command(**options)))
    assert not list(tmp_path.glob("run/checkpoint-*"))


def test_truncated_checkpoint_is_named(command, plain_marian):
    weights = plain_marian / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"plain/model\.safetensors is truncated or damaged"):
        prepare(parse_arguments(command(model_name_or_path=plain_marian)))


def test_tokenizer_of_another_model_is_named(command, corpus, plain_marian, tmp_path):
    texts = [*lines(corpus / "train.en"), *lines(corpus / "train.de"), "a much larger vocabulary of other words"] * 9
    train_tokenizer(texts, 470, 40, "bpe").save_pretrained(tmp_path / "large")
    with pytest.raises(ValueError, match="the tokenizer does not fit the model: it gives source token"):
        prepare(parse_arguments(command(model_name_or_path=plain_marian, tokenizer_name_or_path=tmp_path / "large")))


@pytest.mark.parametrize("name", ["pad_token_id", "eos_token_id"])
def test_tokenizer_with_other_special_tokens_is_refused(command, plain_marian, name):
    config = json.loads((plain_marian / "config.json").read_text())
    (plain_marian / "config.json").write_text(json.dumps({**config, name: 2}))
    with pytest.raises(ValueError, match=f"does not fit the model: its {name} is [01], the model's is 2; use the"):
        prepare(parse_arguments(command(model_name_or_path=plain_marian)))


def test_special_token_of_a_checkpoint_beyond_its_vocabulary_is_refused(command, plain_marian):
    config = json.loads((plain_marian / "config.json").read_text())
    (plain_marian / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": -1}))
    with pytest.raises(ValueError, match="decoder_start_token_id=-1 is not in the vocabulary"):
        prepare(parse_arguments(command(model_name_or_path=plain_marian)))


def test_tokens_below_zero_are_no_tokens(command):
    setup = prepare(parse_arguments(command()))
    setup.train._targets[3] = -1
    with pytest.raises(ValueError, match=r"it gives target token -1 \(of"):
        preparation._check_vocabulary(setup.model, setup.tokenizer, setup.train)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_damaged_checkpoint_to_resume_from_is_named(command, tmp_path, name):
    train(command(max_steps=2, validation_file=None, test_file=None, eval_strategy="no"))
    path = tmp_path / "run" / "checkpoint-2" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        ValueError, match=rf"checkpoint-2 is not a complete checkpoint: {name} is truncated or damaged"
    ):
        prepare(parse_arguments(command(resume_from_checkpoint=path.parent)))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("content", [b"", b'{"a": ', b'{"version": "9"}'], ids=["empty", "cut off", "foreign"])
def test_damaged_file_of_a_checkpoint_is_located(command, plain_marian, name, content):
    (plain_marian / name).write_bytes(content)
    try:
        prepare(parse_arguments(command(model_name_or_path=plain_marian)))
    except ValueError as error:
        assert re.match(
            f"cannot load the (tokenizer|model) from {plain_marian}: |{plain_marian} is a model", str(error)
        )
    else:
        # nothing has to be in it
        assert (name, content) == ("tokenizer_config.json", b'{"version": "9"}')


def test_layerdrop_of_a_plain_checkpoint_becomes_none(command, plain_marian, caplog):
    config = json.loads((plain_marian / "config.json").read_text())
    (plain_marian / "config.json").write_text(json.dumps({**config, "encoder_layerdrop": 0.1}))
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        setup = prepare(parse_arguments(command(model_name_or_path=plain_marian)))
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert setup.model.config.encoder_layerdrop == 0
    assert caplog.text.count("encoder_layerdrop=0.1 becomes 0: layer aggregation reads every layer") == 1


def test_mistake_on_the_command_line_is_one_line(command, tmp_path):
    arguments = [sys.executable, str(ROOT / "train.py"), *command(target_lang="fr")]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("hf-capsule-mt train: error: no file") and result.stderr.count("\n") == 1
