"""Seq2SeqTrainer with batches by tokens and evaluation by translation."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from huggingface_hub.errors import HTTPError
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    TrainerCallback,
)
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.hub import hf_api

from ..data.batching import EncodedPairs, TokenBatchSampler, TranslationCollator
from ..data.corpus import rows_by_pair
from ..data.tokenizer import forget_last_call
from ..evaluation.checkpoints import absent_weights
from ..evaluation.scores import score
from ..evaluation.translate import translate
from ..files import write_whole
from ..models.tokenizer_languages import LanguagePair, is_multilingual, languages_of
from .arguments import SCORES, CapsuleSeq2SeqTrainingArguments
from .averaging import checkpoint_step, is_complete, rotate_checkpoints
from .callbacks import EpochCallback, LineCallback, ThroughputCallback, TokenProgressCallback
from .divergence import DivergenceCallback
from .monitoring import MONITORED, measure, samples, show_samples
from .report import RESULTS, mean
from .sharding import load_whole

# key of the log's entries about saved checkpoints
SAVED = "saved"
# ends of the names of what is uploaded; those after .py are of tokenizers
UPLOADED = (".safetensors", ".json", ".py", ".jinja", ".txt", ".model", ".spm")
# of the model's output, in the order in which they are logged
LOSS_PARTS = ("translation_loss", "bow_loss", "bca_loss")


class CapsuleSeq2SeqTrainer(Seq2SeqTrainer):
    """
    Trains on batches of `max_tokens_per_batch` padded tokens and evaluates by translating raw text.

    Args:
        model: computes its own loss, label smoothing included, normalised by `num_items_in_batch`.
        args: the training arguments.
        train_dataset: encoded sentence pairs.
        eval_dataset: raw pairs with the columns "source" and "target".
        processing_class: the tokenizer.
        target_lang: language of the targets, which some scoring conventions depend on.
        source_lang: language of the sources, for the model card, and for a multilingual tokenizer.
        groups: the number of its pair of languages of each training example, where there are several; the evaluation
            data then has the columns "source_lang" and "target_lang".
        callbacks: more callbacks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: CapsuleSeq2SeqTrainingArguments,
        *,
        train_dataset: EncodedPairs,
        eval_dataset: Dataset | None,
        processing_class: PreTrainedTokenizerBase,
        target_lang: str = "",
        source_lang: str = "",
        groups: Sequence[int] | np.ndarray | None = None,
        sampling_temperature: float = 1.0,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.source_lang, self.target_lang = source_lang, target_lang
        self._loss_parts: dict[str, torch.Tensor] = {}
        self._parts_since = 0
        self.divergence = DivergenceCallback(lambda tensor: self.accelerator.reduce(tensor, reduction="sum"))
        self.batch_sampler = TokenBatchSampler(
            train_dataset.lengths,
            args.max_tokens_per_batch,
            seed=args.seed if args.data_seed is None else args.data_seed,
            num_splits=args.world_size * args.gradient_accumulation_steps,
            rank=args.process_index,
            world_size=args.world_size,
            groups=groups,
            temperature=sampling_temperature,
        )
        super().__init__(
            model=model,
            args=args,
            data_collator=TranslationCollator(processing_class.pad_token_id),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            # The default flow (when to log, evaluate and save) comes before these, the progress bar after them.
            callbacks=[EpochCallback(self.batch_sampler), ThroughputCallback(), self.divergence, *callbacks],
        )
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        self.add_callback(LineCallback if args.disable_tqdm else TokenProgressCallback)

    @property
    def throughput(self) -> ThroughputCallback:
        """The counter of tokens and seconds; looked up, as a resumed run replaces it by that of the checkpoint."""
        return next(c for c in self.callback_handler.callbacks if isinstance(c, ThroughputCallback))

    def get_train_dataloader(self) -> DataLoader:
        """
        The loader of this process's share of the token batches.

        The sampler already splits over processes, so `accelerator.prepare`, which would split again and even out the
        batches, is left out; the Trainer itself moves each batch to the device.
        """
        workers = self.args.dataloader_num_workers
        return DataLoader(
            self.train_dataset,
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            # Of its own, so that the loader draws nothing from the random state that dropout uses.
            generator=torch.Generator().manual_seed(self.args.seed),
        )

    def get_total_train_batch_size(self, args: CapsuleSeq2SeqTrainingArguments) -> int:
        """Sentences of one update, on average."""
        return round(len(self.train_dataset) / self.batch_sampler.num_updates)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """As the parent's; counts the target tokens, and watches the loss."""
        tokens = inputs["labels"].ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        share = 1 if num_items_in_batch is None else self.current_gradient_accumulation_steps
        self.throughput.tokens += float(tokens) / share
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.divergence.observe(loss)
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As the parent's; sums up the parts of the loss, which `log` reports, where the model has several."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if not self._loss_parts:
            self._parts_since = self.state.global_step
        for name in LOSS_PARTS:
            if (part := outputs.get(name)) is not None:
                self._loss_parts[name] = self._loss_parts.get(name, 0) + part.detach()
        return (loss, outputs) if return_outputs else loss

    def translate(self, sentences: Sequence[str], description: str = "", **generate_kwargs: Any) -> list[str]:
        """
        Translate with the model as it is, each process its share; every process returns all translations.

        Args:
            sentences: raw source text.
            description: of the progress bar.
            generate_kwargs: for `model.generate`.
        """
        rank, world_size = self.args.process_index, self.args.world_size
        share = list(range(rank, len(sentences), world_size))
        with tqdm(
            total=len(share),
            desc=description,
            leave=False,
            dynamic_ncols=True,
            disable=self.args.disable_tqdm or not self.is_world_process_zero(),
        ) as bar:
            translations = translate(
                self.model,
                self.processing_class,
                [sentences[index] for index in share],
                max_tokens=self.args.eval_max_tokens_per_batch,
                progress=_updater(bar),
                **generate_kwargs,
            )
        pairs = list(zip(share, translations, strict=True))
        if world_size > 1:
            pairs = gather_object(pairs)
        return [translation for _, translation in sorted(pairs)]

    def rows_by_pair(self, dataset: Dataset) -> dict[LanguagePair, list[int]]:
        """The rows of each pair of languages of raw pairs."""
        return rows_by_pair(dataset, LanguagePair(self.source_lang, self.target_lang))

    def translate_pairs(self, dataset: Dataset, description: str = "", **generate_kwargs: Any) -> list[str]:
        """`translate` of the sources of raw pairs, each into the target language of its row."""
        translations = [""] * len(dataset)
        sources = dataset["source"][:]
        for pair, rows in self.rows_by_pair(dataset).items():
            with languages_of(self.processing_class, self._known(pair)) as languages:
                found = self.translate([sources[row] for row in rows], description, **generate_kwargs, **languages)
            for row, translation in zip(rows, found, strict=True):
                translations[row] = translation
        return translations

    def score_pairs(self, dataset: Dataset, hypotheses: Sequence[str]) -> dict[LanguagePair, dict[str, Any]]:
        """The scores (see `scores.score`) of translations of raw pairs, by their languages."""
        references = dataset["target"][:]
        return {
            pair: score(
                [hypotheses[row] for row in rows],
                [references[row] for row in rows],
                convention=self.args.score_convention,
                target_lang=pair.target,
            )
            for pair, rows in self.rows_by_pair(dataset).items()
        }

    def _known(self, pair: LanguagePair) -> LanguagePair | None:
        """The pair for a tokenizer that has to know it, and None for any other."""
        return pair if is_multilingual(self.processing_class) else None

    def _measure(self, dataset: Dataset) -> dict[str, float]:
        """What `monitoring.measure` says, mean over the pairs of languages."""
        by_pair = self.rows_by_pair(dataset)
        sources, targets = dataset["source"][:], dataset["target"][:]
        measured = []
        for pair, rows in by_pair.items():
            with languages_of(self.processing_class, self._known(pair)):
                found = measure(
                    self.model,
                    self.processing_class,
                    [sources[row] for row in rows],
                    [targets[row] for row in rows],
                    max_tokens=self.args.eval_max_tokens_per_batch,
                    most=max(1, MONITORED // len(by_pair)),
                )
            # no numbers where all sides are blank
            measured += [found] if found else []
        return mean(measured) if measured else {}

    def evaluate(
        self,
        eval_dataset: Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """
        Translate the data set and score it: BLEU, chrF and TER; measure the loss and what the capsules do on the first
        sentences of it, and show some translations in TensorBoard (see `monitoring`). With several pairs of languages
        the scores are those of each (eval_bleu_eng_Latn-deu_Latn) and their mean (eval_bleu).

        Args:
            eval_dataset: raw pairs, by default the validation set.
            ignore_keys: without effect; the parent's signature.
            metric_key_prefix: "eval" gives eval_bleu, eval_chrf, eval_ter, eval_loss and eval_runtime (seconds).
            gen_kwargs: for `model.generate`; by default the beam size and length penalty of the arguments.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        start = time.perf_counter()
        gen_kwargs = {**self.generation_options(), **gen_kwargs}
        hypotheses = self.translate_pairs(dataset, "translating", **gen_kwargs)
        by_pair = {
            pair: {name: scores[name] for name in SCORES}
            for pair, scores in self.score_pairs(dataset, hypotheses).items()
        }
        values = mean(list(by_pair.values())) | self._measure(dataset)
        if len(by_pair) > 1:
            values |= {f"{name}_{pair}": value for pair, scores in by_pair.items() for name, value in scores.items()}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - start, 3)
        self.log(metrics)
        if self.is_world_process_zero():
            show_samples(self, samples(dataset["source"], hypotheses, dataset["target"]))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def generation_options(self, num_beams: int | None = None) -> dict[str, Any]:
        """Options of generate: the beam size (default: generation_num_beams, or greedy) and the length penalty."""
        options: dict[str, Any] = {"num_beams": num_beams or self.args.generation_num_beams or 1, "do_sample": False}
        if options["num_beams"] > 1:
            options["length_penalty"] = self.args.length_penalty
        if self.args.generation_max_length is not None:
            # without the start token, and by the name of the limit that a saved model has
            options["max_new_tokens"] = self.args.generation_max_length - 1
        return options

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the parent's; entries of the training loss get the parts of the loss and the speed."""
        if "loss" in logs:
            logs.update(self._measure_loss_parts())
            logs.update(self.throughput.measure())
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As the parent's; the saved tokenizer does not depend on what was translated before."""
        forget_last_call(self.processing_class)
        super().save_model(output_dir, _internal_call)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """
        As the parent's: find the repository, or make it.

        Raises:
            OSError: the Hub refuses it, or cannot be reached.
        """
        try:
            super().init_hf_repo(token=token, private=private)
        except HTTPError as error:
            raise OSError(f"no repository to upload to: {error}") from error

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """
        Save the model and upload it with its code, its tokenizer and this project's card.

        The parent uploads the whole output folder; here logs, the record with its paths of this machine, and pickles
        stay at home.

        Args:
            commit_message, revision: of the commit; the branch is that of the arguments if not given.
            blocking: wait for the end of the upload.
            token: that of the arguments, or of the login, if not given.
            private: visibility of a new repository; that of the arguments if not given.
            kwargs: for `create_model_card`.

        Returns:
            The commit, or its Future; None in all processes but the first.

        Raises:
            ValueError: the values of the card do not fit.
            OSError: the Hub refuses the upload.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        # not as a call from outside, which would push again
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        folder = Path(self.args.output_dir)
        return hf_api().upload_folder(
            repo_id=self.hub_model_id,
            folder_path=folder,
            allow_patterns=[path.name for path in folder.iterdir() if _is_of_the_model(path)],
            commit_message=commit_message,
            token=token,
            run_as_future=not blocking,
            revision=self.args.hub_revision if revision is None else revision,
        )

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As the parent's; a sharded model is saved as what it was before FSDP2 made a class of its own of it."""
        kind = type(self.model)
        if issubclass(kind, FSDPModule):
            self.model.__class__ = kind.__bases__[1]
            state_dict = {k: v for k, v in (state_dict or {}).items() if k not in self.model.all_tied_weights_keys}
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.model.__class__ = kind

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """As the parent's; that of a sharded model cannot load weights that have several names."""
        if isinstance(self.model, FSDPModule):
            load_whole(self.model, load_file(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """
        Write this project's model card, see `hub.cards`, as README.md, and LICENSE; `push_to_hub` uploads them.

        What it says comes from results.json and card.yaml of the output folder, as far as they are there.

        Args:
            license: of the weights; "unknown" if neither this nor card.yaml says so.
            tags: more tags.
            model_name: of the repository, if the arguments do not name one.
            finetuned_from: name on the Hub of the model that this one starts from.
            dataset: name of the training data.
            language, tasks, dataset_tags, dataset_args: without effect; the parent's signature.

        Raises:
            ValueError: the values do not fit.
        """
        # a part of a model cannot translate the samples of the card
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super().create_model_card(license=license, tags=tags, model_name=model_name, finetuned_from=finetuned_from)
            return
        if not self.is_world_process_zero():
            return
        from ..hub.license_file import LICENSE, license_text
        from ..hub.trainer_card import trainer_card

        said: dict[str, Any] = {"license": license, "base_model": finetuned_from}
        if dataset is not None:
            name = dataset if isinstance(dataset, str) else ", ".join(dataset)
            said["dataset"] = {"name": name, "terms": "Its terms were not recorded."}
        if tags:
            said["tags"] = [tags] if isinstance(tags, str) else list(tags)
        # samples of one pair of languages
        pair, samples = LanguagePair(self.source_lang, self.target_lang), []
        if self.eval_dataset is not None:
            pair, rows = next(iter(self.rows_by_pair(self.eval_dataset).items()), (pair, []))
            samples = self.eval_dataset.select(rows[:3])["source"][:]
        card = trainer_card(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            self.hub_model_id or model_name or Path(self.args.output_dir).name,
            Path(self.args.output_dir),
            pair,
            samples,
            **{key: value for key, value in said.items() if value is not None},
        )
        write_whole(Path(self.args.output_dir) / "README.md", str(card))
        named: Any = card.data
        text = license_text(named.license, named.get("license_name"), named.get("license_link"))
        write_whole(Path(self.args.output_dir) / LICENSE, text)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """
        As the parent's, but old checkpoints go by their step, the log keeps which were saved, and one that cannot be
        written to the end is removed.
        """
        step = self.state.global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        self.state.log_history.append({SAVED: folder.name, "step": step})
        # The parent deletes by the time of change, which is wrong in a copied folder.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        except Exception:
            if self.args.should_save and not is_complete(folder, resumable=False):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self.args.save_total_limit = limit
        self.rotate()

    def rotate(self) -> None:
        """Delete the checkpoints that are too many, the last one being that of the last update."""
        if self.args.should_save:
            limit, step = self.args.save_total_limit, self.state.global_step
            rotate_checkpoints(self.args.output_dir, limit, step, self._best_steps())

    def _best_steps(self) -> set[int]:
        """Of the best checkpoint; by name, as the folder may have been moved since."""
        best = self.state.best_model_checkpoint
        steps = {self.state.best_global_step, checkpoint_step(Path(best)) if best else None}
        return {step for step in steps if step}

    def _measure_loss_parts(self) -> dict[str, float]:
        """The parts of the loss, means over the updates since the last call.

        Each part is divided by the target tokens of its whole update, so that micro-batches and processes add up.
        """
        updates = max(self.state.global_step - self._parts_since, 1)
        reduction = "sum" if self.args.average_tokens_across_devices else "mean"
        parts, self._loss_parts = self._loss_parts, {}
        return {
            name: round(self.accelerator.reduce(total, reduction=reduction).item() / updates, 4)
            for name, total in parts.items()
        }

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = absent_weights(self.model, load_result.missing_keys)
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))


def _is_of_the_model(path: Path) -> bool:
    """Whether who uses the model needs a file of the output folder: weights, configurations, code, tokenizer, card."""
    return path.name in ("README.md", "LICENSE") or (path.suffix in UPLOADED and path.name != RESULTS)


def _updater(bar: tqdm) -> Callable[[int, int], None]:
    return lambda done, total: bar.update(done - bar.n)
