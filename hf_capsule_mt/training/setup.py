"""What a run needs before it trains: a free output folder, data, tokenizer and model; everything is checked here."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..data.batching import EncodedPairs, encode_pairs
from ..data.corpus import MissingSplitError, load_split, rows_by_pair
from ..data.tokenizer import train_tokenizer
from ..evaluation.encoding import saved_generation_config
from ..evaluation.scores import check_convention
from ..loading import check_states, check_weights, from_checkpoint
from ..models.capsule_configuration import refuse_experts
from ..models.pipeline_translation import max_positions
from ..models.tokenizer_languages import (
    LanguagePair,
    check_target_text,
    ends_with_language,
    is_multilingual,
    languages_of,
    remember_languages,
)
from .arguments import (
    ARCHITECTURE_DEFAULTS,
    MAX_LENGTH,
    REGULARISATION_DEFAULTS,
    Arguments,
    CapsuleSeq2SeqTrainingArguments,
    ModelArguments,
)
from .averaging import WEIGHTS, check_weights_file, checkpoints_by_step, find_damage, last_complete_checkpoint
from .data_arguments import language_check
from .report import RESULTS

logger = logging.getLogger(__name__)

# Families whose decoder starts with the end of a sentence: M2M100 has no position for padding, and mBART's labels are
# wrapped around.
START_WITH_END = ("capsule-m2m100", "capsule-mbart")
# Folders in datasets' cache.
ENCODED_TEXT = "hf_capsule_mt_encoded"
TRAINED_TOKENIZERS = "hf_capsule_mt_tokenizers"


@dataclass
class Setup:
    """
    A run that is ready to train.

    Attributes:
        pairs: the pairs of languages of the training data, in the order of their first sentences.
        groups: the number of its pair of each training example, [N].
    """

    arguments: Arguments
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train: EncodedPairs
    validation: Dataset | None
    test: Dataset | None
    checkpoint: Path | None
    pairs: list[LanguagePair]
    groups: np.ndarray


def prepare(arguments: Arguments) -> Setup:
    """
    Load and check everything that a run needs. Nothing is written but the tokenizer, if a new one is trained, and, in
    datasets' cache folder (environment variable HF_DATASETS_CACHE), that tokenizer and the encoded training text.

    Raises:
        ValueError, FileNotFoundError: something that does not fit, with what to do about it.
    """
    training, data = arguments.training, arguments.data
    if training.process_index != 0:
        # Every process prepares the same and would warn of the same.
        for package in ("data", "training"):
            logging.getLogger(f"hf_capsule_mt.{package}").setLevel(logging.ERROR)
    set_seed(training.seed)
    checkpoint = find_checkpoint(training)
    # For their mistakes, before a tokenizer is trained or loaded.
    if arguments.model.model_name_or_path is None:
        _new_config(arguments.model)
    else:
        _config_class(arguments.model.model_name_or_path)
    # A multilingual one says which languages there are; one that is to be trained needs the text.
    tokenizer = _given_tokenizer(arguments, checkpoint)
    check = language_check(data, tokenizer)
    splits = {split: _load(arguments, split, check) for split in ("train", "validation", "test")}
    if splits["validation"] is None and training.eval_strategy != "no":
        raise ValueError("there is no validation set: give validation_file, or set eval_strategy to no")
    default = LanguagePair(str(data.source_lang), str(data.target_lang))
    for dataset in (splits["validation"], splits["test"]):
        for pair in () if dataset is None else rows_by_pair(dataset, default):
            check_convention(training.score_convention, pair.target)
    tokenizer = tokenizer or _new_tokenizer(arguments, splits["train"])
    model = _model(arguments, tokenizer)
    pairs = list(rows_by_pair(splits["train"], default))
    if is_multilingual(tokenizer):
        _check_languages_fit(model, tokenizer)
        remember_languages(model.generation_config, tokenizer, pairs)
    if checkpoint is not None:
        _check_same_model(model, checkpoint)
    _check_special_tokens(model, tokenizer)
    positions = max_positions(model.config, "encoder")
    limits = {}
    for name in ("max_source_length", "max_target_length"):
        limits[name] = getattr(data, name) or positions or tokenizer.model_max_length
        if positions is not None and limits[name] > positions:
            raise ValueError(f"{name}={limits[name]} is more than the model's max_position_embeddings={positions}")
    # The first process of a machine encodes, the others read what it has written.
    with training.main_process_first(local=True, desc="encoding the training text"):
        parts = [
            _encode(arguments, tokenizer, pair, text, limits, name=str(pair) if len(pairs) > 1 else "")
            for pair, text in _texts(splits["train"], pairs)
        ]
    train = parts[0] if len(parts) == 1 else EncodedPairs.concatenate(parts)
    groups = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    _check_vocabulary(model, tokenizer, train)
    return Setup(arguments, model, tokenizer, train, splits["validation"], splits["test"], checkpoint, pairs, groups)


def _texts(train: Dataset, pairs: list[LanguagePair]) -> Iterator[tuple[LanguagePair, Dataset]]:
    """The training text of each pair of languages."""
    for pair, rows in rows_by_pair(train, pairs[0]).items():
        yield pair, train if len(pairs) == 1 else train.select(rows)


def _encode(
    arguments: Arguments,
    tokenizer: PreTrainedTokenizerBase,
    pair: LanguagePair,
    text: Dataset,
    limits: dict[str, int],
    name: str,
) -> EncodedPairs:
    training = arguments.training
    with languages_of(tokenizer, pair if is_multilingual(tokenizer) else None):
        return encode_pairs(
            text["source"][:],
            text["target"][:],
            tokenizer,
            **limits,
            cache_dir=_cache(ENCODED_TEXT),
            progress=training.process_index == 0 and not training.disable_tqdm,
            name=name,
        )


def find_checkpoint(training: CapsuleSeq2SeqTrainingArguments) -> Path | None:
    """
    The checkpoint to resume from, or None for a new run.

    Raises:
        ValueError: the output folder holds a run that is not to be resumed, or the checkpoint is not complete or holds
            a pickle that would run code.
    """
    output_dir, resume = Path(training.output_dir), training.resume_from_checkpoint
    if resume is None or str(resume).lower() == "false":
        _check_unused(output_dir)
        return None
    # A pickle in place of weights is not a save that was cut off, which would be passed over.
    for folder in [*checkpoints_by_step(output_dir), Path(resume)]:
        check_weights(folder)
    if str(resume).lower() == "true":
        checkpoint = last_complete_checkpoint(output_dir, training.world_size)
        if checkpoint is None:
            logger.warning(f"there is no complete checkpoint in {output_dir} yet: starting from the beginning")
        else:
            check_states(checkpoint)
        return checkpoint
    checkpoint = Path(resume)
    damage = find_damage(checkpoint, training.world_size)
    if damage is not None:
        raise ValueError(
            f"resume_from_checkpoint={resume} is not a complete checkpoint: {damage}; --resume_from_checkpoint true "
            "takes the last complete one of output_dir"
        )
    if checkpoint.parent.resolve() != output_dir.resolve():
        _check_unused(output_dir)
    check_states(checkpoint)
    return checkpoint


def _check_unused(output_dir: Path) -> None:
    for mark in (*checkpoints_by_step(output_dir), output_dir / RESULTS, output_dir / WEIGHTS):
        if mark.exists():
            raise ValueError(
                f"output_dir {output_dir} already holds a run ({mark.name}): continue it with "
                "--resume_from_checkpoint true, or choose another --output_dir; nothing was changed"
            )


def _check_languages_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises a ValueError if a model does not read text as its multilingual tokenizer writes it."""
    check_target_text(tokenizer)
    if ends_with_language(tokenizer) and model.config.model_type != "capsule-mbart":
        raise ValueError(
            f"the tokenizer does not fit the model: {type(tokenizer).__name__} puts the language behind the sentence, "
            f"which only mBART reads, and the model is of type {model.config.model_type}"
        )


def _load(arguments: Arguments, split: str, check: Callable[[str], None] | None) -> Dataset | None:
    data = arguments.data
    if not data.has_split(split):
        return None
    try:
        return load_split(split, **data.corpus(split), check_language=check)
    except MissingSplitError as error:
        if split == "train":
            raise
        logger.warning(f"{error}; the run goes without it")
        return None


def _given_tokenizer(arguments: Arguments, checkpoint: Path | None) -> PreTrainedTokenizerBase | None:
    """The run's own tokenizer if it is resumed, else the one asked for; None where a new one is to be trained."""
    source = checkpoint or arguments.data.tokenizer_name_or_path or arguments.model.model_name_or_path
    if source is None:
        return None
    load = partial(from_checkpoint, AutoTokenizer, trust_remote_code=arguments.data.trust_remote_code)
    return _loading("tokenizer", str(source), load)


def _new_tokenizer(arguments: Arguments, train: Dataset) -> PreTrainedTokenizerBase:
    """A tokenizer of the training text, trained by rank 0."""
    data, training = arguments.data, arguments.training
    length = arguments.model.max_position_embeddings or max(
        MAX_LENGTH, data.max_source_length or 0, data.max_target_length or 0
    )
    with training.main_process_first(local=False, desc="training the tokenizer"):
        if training.process_index == 0:
            texts = train["source"][:] + train["target"][:]
            tokenizer = train_tokenizer(
                texts, data.vocab_size, length, data.tokenizer_algorithm, cache_dir=_cache(TRAINED_TOKENIZERS)
            )
            tokenizer.save_pretrained(training.output_dir)
    return from_checkpoint(AutoTokenizer, training.output_dir)


def _cache(name: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE) / name


def _model(arguments: Arguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    name = arguments.model.model_name_or_path
    if name is None:
        starts_with_end = arguments.model.model_type in START_WITH_END
        tokens = dict(
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            forced_eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.eos_token_id if starts_with_end else tokenizer.pad_token_id,
        )
        return AutoModelForSeq2SeqLM.from_config(_new_config(arguments.model, **tokens))
    check_weights(name)
    if (Path(name) / WEIGHTS).exists():
        check_weights_file(Path(name) / WEIGHTS)
    config_class = _config_class(name)
    if arguments.model.model_type not in (None, config_class.model_type):
        raise ValueError(f"{name} is of model_type {config_class.model_type}, not {arguments.model.model_type}")
    given = _known(config_class, arguments.model.given())
    kept = ARCHITECTURE_DEFAULTS[config_class.model_type]
    options = {key: value for key, value in given.items() if key not in kept}
    trusted = {"trust_remote_code": arguments.data.trust_remote_code}
    config = _loading("model", name, partial(_valid, partial(from_checkpoint, config_class, **trusted)), **options)
    other = [f"{k}={getattr(config, k)}, not {given[k]}" for k in given if getattr(config, k) != given[k]]
    if other:
        logger.warning(f"{name} keeps its own architecture: {'; '.join(other)}")
    load = partial(from_checkpoint, AutoModelForSeq2SeqLM, **trusted)
    model = _loading("model", name, load, config=config, dtype=torch.float32)
    if model.generation_config.max_length is not None:
        # generate warns of two limits where the other one is given
        model.generation_config = saved_generation_config(model, tokenizer)
    return model


def _new_config(arguments: ModelArguments, **tokens: int) -> PreTrainedConfig:
    config_class = CONFIG_MAPPING[arguments.model_type or "capsule-marian"]
    fields = _field_names(config_class)
    # a family without a parent has defaults of its own
    ours = REGULARISATION_DEFAULTS if config_class.parent_model_type is not None else {}
    regularisation = {name: value for name, value in ours.items() if name in fields}
    given = _known(config_class, arguments.given())
    return _valid(
        config_class, **{**ARCHITECTURE_DEFAULTS[config_class.model_type], **regularisation, **given, **tokens}
    )


def _config_class(name: str) -> type[PreTrainedConfig]:
    """The capsule configuration that reads this checkpoint."""
    model_type = _loading("model", name, PreTrainedConfig.get_config_dict)[0].get("model_type")
    refuse_experts(model_type, name)
    classes = [CONFIG_MAPPING[capsule_type] for capsule_type in ARCHITECTURE_DEFAULTS]
    types = {t: c for c in classes for t in (c.parent_model_type, c.model_type) if t is not None}
    if model_type not in types:
        raise ValueError(
            f"{name} is a model of type {model_type!r}, but training can start from {', '.join(types)} only"
        )
    return types[model_type]


def _known(config_class: type[PreTrainedConfig], given: dict[str, Any]) -> dict[str, Any]:
    """The fields given, all of which this family has to know."""
    foreign = [name for name in given if name not in _field_names(config_class)]
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: a {config_class.model_type} model has no such field; leave it out")
    return given


def _field_names(config_class: type[PreTrainedConfig]) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}


def _valid(build: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """Build a config; what is wrong with a field is the cause of huggingface_hub's error, in one line."""
    try:
        return build(*args, **fields)
    except StrictDataclassError as error:
        raise ValueError(str(error.__cause__ or error)) from error


def _loading(what: str, name: str, load: Callable[..., Any], **options: Any) -> Any:
    try:
        return load(name, **options)
    except Exception as error:
        # Damaged files end in errors of many kinds, that of a tokenizer in a bare Exception.
        raise ValueError(f"cannot load the {what} from {name}: {error}") from error


def _check_same_model(model: PreTrainedModel, checkpoint: Path) -> None:
    """The weights of another model would be refused late, or be loaded in part."""
    config_class = _config_class(str(checkpoint))
    if config_class is not type(model.config):
        raise ValueError(
            f"{checkpoint} cannot be resumed with another model: model_type={model.config.model_type} (checkpoint: "
            f"{config_class.model_type})"
        )
    saved = config_class.from_pretrained(checkpoint)
    free = {"model_name_or_path", "label_smoothing", *REGULARISATION_DEFAULTS}
    fields = _field_names(config_class) - free
    names = [field.name for field in dataclasses.fields(ModelArguments) if field.name in fields]
    other = [
        f"{name}={getattr(model.config, name)} (checkpoint: {getattr(saved, name)})"
        for name in names
        if getattr(model.config, name) != getattr(saved, name)
    ]
    if other:
        raise ValueError(f"{checkpoint} cannot be resumed with another model: {', '.join(other)}")


def _check_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Padding and the end of a sentence have to be the same tokens to both."""
    for name in ("pad_token_id", "eos_token_id"):
        ours, theirs = getattr(tokenizer, name), getattr(model.config, name)
        known = theirs if isinstance(theirs, list) else [theirs]
        if ours is None or ours not in known:
            raise ValueError(
                f"the tokenizer does not fit the model: its {name} is {ours}, the model's is {theirs}; use the "
                "tokenizer of the model"
            )


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, train: EncodedPairs) -> None:
    sizes = (model.get_encoder().get_input_embeddings().num_embeddings, model.get_output_embeddings().out_features)
    extremes = zip(train.smallest_tokens, train.largest_tokens, strict=True)
    for side, tokens, size in zip(("source", "target"), extremes, sizes, strict=True):
        for token in tokens:
            if not 0 <= token < size:
                raise ValueError(
                    f"the tokenizer does not fit the model: it gives {side} token {token} (of {len(tokenizer)}), but "
                    f"the model knows {size} {side} tokens; use the tokenizer of the model"
                )
