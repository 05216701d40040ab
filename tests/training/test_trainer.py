"""The Trainer: accumulation equals a large batch, evaluation translates, logs count."""

import math
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import TrainerCallback

from hf_capsule_mt.data.corpus import load_split
from hf_capsule_mt.evaluation.scores import score
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.setup import prepare
from tiny_models import GUIDED


class Spy(TrainerCallback):
    """Keeps the gradients of every update and the scores of every evaluation."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.evaluations: list[dict[str, float]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(gradients).clone())

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.evaluations.append(dict(metrics))


def train(command, **options) -> SimpleNamespace:
    trainer = build_trainer(prepare(parse_arguments(command(**options))))
    spy = Spy()
    trainer.add_callback(spy)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return SimpleNamespace(trainer=trainer, gradients=spy.gradients, evaluations=spy.evaluations, losses=losses)


def test_accumulation_gives_the_loss_and_gradient_of_one_large_batch(command, tmp_path):
    options = dict(eval_strategy="no", save_strategy="no", dropout=0.0, max_steps=4, logging_steps=1, max_grad_norm=0)
    whole = train(command, max_tokens_per_batch=300, output_dir=tmp_path / "whole", **options)
    parts = train(
        command, max_tokens_per_batch=100, gradient_accumulation_steps=3, output_dir=tmp_path / "parts", **options
    )
    assert whole.losses == pytest.approx(parts.losses, rel=1e-5)
    for one, other in zip(whole.gradients, parts.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_logged_loss_is_the_smoothed_cross_entropy_per_target_token(command):
    run = train(command, eval_strategy="no", save_strategy="no", dropout=0.0, max_steps=1, logging_steps=1)
    setup = prepare(parse_arguments(command(dropout=0.0)))
    trainer = build_trainer(setup)
    batch = next(iter(trainer.get_train_dataloader()))
    logits = setup.model(**batch).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    assert run.losses == [pytest.approx(expected.item(), rel=1e-5)]


def logged_parts(run) -> list[dict[str, float]]:
    names = ("loss", "translation_loss", "bow_loss", "bca_loss")
    return [{name: entry[name] for name in names} for entry in run.trainer.state.log_history if "loss" in entry]


def test_guided_losses_are_logged_apart_and_add_up_over_micro_batches(command, tmp_path):
    options = dict(eval_strategy="no", save_strategy="no", dropout=0.0, max_steps=4, max_grad_norm=0, **GUIDED)
    # Adam would turn the rounding of small gradients into whole steps
    options |= dict(optim="sgd", learning_rate=0.1)
    whole = train(command, max_tokens_per_batch=300, output_dir=tmp_path / "whole", logging_steps=1, **options)
    parts = train(
        command,
        max_tokens_per_batch=100,
        gradient_accumulation_steps=3,
        output_dir=tmp_path / "parts",
        logging_steps=1,
        **options,
    )
    rarely = train(command, max_tokens_per_batch=300, output_dir=tmp_path / "rarely", logging_steps=2, **options)
    logged = logged_parts(whole)
    for entry, other in zip(logged, logged_parts(parts), strict=True):
        assert entry["loss"] == pytest.approx(
            entry["translation_loss"] + entry["bow_loss"] + 0.5 * entry["bca_loss"], abs=3e-4
        )
        assert min(entry.values()) > 0.1
        assert other == pytest.approx(entry, rel=1e-4, abs=2e-4)
    for one, other in zip(whole.gradients, parts.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for index, entry in enumerate(logged_parts(rarely)):
        mean = {name: (logged[2 * index][name] + logged[2 * index + 1][name]) / 2 for name in entry}
        assert entry == pytest.approx(mean, abs=2e-4)


def test_a_model_without_guided_losses_logs_one_loss(command):
    run = train(command, eval_strategy="no", save_strategy="no", max_steps=2, logging_steps=1)
    assert not any("loss" in name and name != "loss" for entry in run.trainer.state.log_history[:-1] for name in entry)


def test_resumed_run_logs_the_parts_of_its_own_updates(command, tmp_path):
    options = dict(
        eval_strategy="no", save_steps=4, logging_steps=2, dropout=0.0, output_dir=tmp_path / "run", **GUIDED
    )
    straight = train(command, max_steps=8, **options | {"output_dir": tmp_path / "straight"})
    train(command, max_steps=4, **options)
    trainer = build_trainer(prepare(parse_arguments(command(max_steps=8, resume_from_checkpoint="true", **options))))
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    resumed = logged_parts(SimpleNamespace(trainer=trainer))
    assert len(resumed) == 4
    for entry, expected in zip(resumed, logged_parts(straight), strict=True):
        assert entry == pytest.approx(expected, rel=1e-4, abs=2e-4)


def test_tokens_are_counted_without_padding(command):
    run = train(command, save_strategy="no", max_steps=12, gradient_accumulation_steps=2, max_tokens_per_batch=150)
    # Two epochs.
    dataset = run.trainer.train_dataset
    tokens = sum(len(dataset[index]["labels"]) for index in range(len(dataset)))
    assert run.trainer.batch_sampler.num_updates == 6
    assert run.trainer.throughput.tokens == 2 * tokens
    logged = [entry for entry in run.trainer.state.log_history if "loss" in entry]
    assert logged[-1]["target_tokens"] == 2 * tokens
    assert all(entry["tokens_per_second"] > 0 for entry in logged)


def test_evaluation_scores_the_translations_of_the_raw_text(command, corpus):
    run = train(command, max_steps=4)
    validation = load_split("validation", source_lang="en", target_lang="de", file="val", data_dir=str(corpus))
    hypotheses = translate(run.trainer.model, run.trainer.processing_class, validation["source"], num_beams=1)
    scores = score(hypotheses, validation["target"])
    (metrics,) = run.evaluations
    assert {name: metrics[f"eval_{name}"] for name in ("bleu", "chrf", "ter")} == {
        name: scores[name] for name in ("bleu", "chrf", "ter")
    }
    assert run.trainer.state.best_metric == scores["bleu"]


def test_evaluation_generates_once_and_computes_no_loss(command, monkeypatch):
    trainer = build_trainer(prepare(parse_arguments(command())))
    forward, calls = type(trainer.model).forward, []

    def spy(self, *args, labels=None, **kwargs):
        calls.append(labels)
        return forward(self, *args, labels=labels, **kwargs)

    monkeypatch.setattr(type(trainer.model), "forward", spy)
    trainer.evaluate()
    assert calls and all(labels is None for labels in calls)


def test_evaluation_leaves_training_as_it_was(command, tmp_path):
    # Evaluating draws no random numbers: the weights do not depend on how often it is done.
    options = dict(save_strategy="no", dropout=0.3, max_steps=6)
    often = train(command, output_dir=tmp_path / "often", eval_steps=2, **options)
    never = train(command, output_dir=tmp_path / "never", eval_strategy="no", **options)
    for one, other in zip(often.trainer.model.parameters(), never.trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_generation_options_follow_the_arguments(command):
    trainer = build_trainer(prepare(parse_arguments(command(generation_num_beams=3, length_penalty=0.6))))
    assert trainer.generation_options() == {"num_beams": 3, "length_penalty": 0.6, "do_sample": False}
    assert trainer.generation_options(1) == {"num_beams": 1, "do_sample": False}


def test_schedule_warms_up_and_falls_with_the_inverse_square_root(command):
    run = train(command, eval_strategy="no", save_strategy="no", max_steps=9, warmup_steps=4, logging_steps=1)
    rates = [entry["learning_rate"] for entry in run.trainer.state.log_history if "loss" in entry]
    expected = [0.01 * (step / 4 if step < 4 else math.sqrt(4 / step)) for step in range(9)]
    assert rates == pytest.approx(expected)


def test_progress_bar_shows_loss_speed_and_evaluations(command, capsys):
    train(command, disable_tqdm="false", max_steps=4, save_strategy="no", logging_steps=1)
    output = capsys.readouterr()
    assert "loss " in output.err and " tokens/s" in output.err
    lines = [line for line in output.out.splitlines() if line.startswith("step 4: loss ")]
    assert len(lines) == 1 and "chrF" in lines[0] and "TER" in lines[0]


def test_tensorboard_gets_loss_speed_and_scores(command, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(command, report_to="tensorboard", max_steps=4, save_strategy="no")
    (events,) = (tmp_path / "run").rglob("events.out.tfevents.*")
    log = EventAccumulator(str(events)).Reload()
    tags = log.Tags()["scalars"]
    assert {"train/loss", "train/tokens_per_second", "eval/bleu", "eval/chrf", "eval/ter", "eval/loss"} <= set(tags)
    text = log.Tensors("eval/samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == "| source | translation | reference |" and len(text.splitlines()) == 2 + 5


def test_the_trainer_writes_this_projects_card(command, tmp_path):
    run = train(command, eval_strategy="no", save_strategy="no", max_steps=1, dropout=0.3)
    assert run.trainer.model.training
    run.trainer.create_model_card(license="mit", tags="mine", finetuned_from="user/base", model_name="tiny")
    assert run.trainer.model.training
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert card.data.license == "mit" and card.data.language == ["en", "de"] and card.data.base_model == "user/base"
    assert {"capsule-routing", "mine"} <= set(card.data.tags)
    assert "not known" in card.text and run.trainer.eval_dataset["source"][0] in card.text
