"""Arguments of a training run: three dataclasses, filled from a YAML recipe and the command line."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from transformers import HfArgumentParser, Seq2SeqTrainingArguments
from transformers.trainer_utils import HubStrategy

from ..files import parse_json
from ..models.capsule_operators import check_aggregation
from ..operators import load_operators
from ..recipe_files import Layer, is_text, merge_layers, read_recipe
from .data_arguments import DataArguments
from .help_text import HelpFormatter, argument, print_help_and_leave

# of a command line that names none; a name of the package
DEFAULT_RECIPE = "grammar"
# what stands in the place of a recipe where none is wanted
NO_RECIPE = "none"
# Longest sentence of a new model and its tokenizer, in tokens; recurrent models have no limit of their own.
MAX_LENGTH = 512
# Sizes of the Transformer base model.
TRANSFORMER_BASE: dict[str, Any] = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "max_position_embeddings": MAX_LENGTH,
}
# Architecture of a model from scratch where the recipe says nothing, by model type; the recurrent one is the base
# model of Wang et al. 2019.
ARCHITECTURE_DEFAULTS: dict[str, dict[str, Any]] = {
    "capsule-marian": {
        **TRANSFORMER_BASE,
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
    },
    "capsule-bart": {**TRANSFORMER_BASE, "activation_function": "gelu", "scale_embedding": False},
    "capsule-m2m100": {**TRANSFORMER_BASE, "activation_function": "relu", "scale_embedding": True},
    "capsule-mbart": {**TRANSFORMER_BASE, "activation_function": "gelu", "scale_embedding": False},
    "capsule-rnn": {
        "d_model": 512,
        "encoder_layers": 4,
        "decoder_layers": 3,
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
    },
}
# of an evaluation
SCORES = ("bleu", "chrf", "ter")
REGULARISATION_DEFAULTS = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}


@dataclass
class ModelArguments:
    """The model: a checkpoint to start from, or the family and sizes of a new one, and the systems in it."""

    _argument_group_name = "model"

    model_name_or_path: str | None = argument(
        "Start from this plain Marian, BART, M2M100 (NLLB) or mBART checkpoint, or from a capsule checkpoint (folder "
        "or Hub name); by default a new model is built. A checkpoint keeps its own architecture, but takes the "
        "systems, dropout and label smoothing given here."
    )
    model_type: Literal["capsule-marian", "capsule-bart", "capsule-m2m100", "capsule-mbart", "capsule-rnn"] | None = (
        argument(
            "Family of a new model: a Transformer (capsule-marian, the default, or capsule-bart, which learns its "
            "positions; and as these, but with normalisation before the sub-layers, capsule-m2m100 and "
            "capsule-mbart) or recurrent (capsule-rnn)."
        )
    )
    d_model: int | None = argument("Hidden size; new model: 512.")
    encoder_layers: int | None = argument("New model: 6 (capsule-rnn: 4).")
    decoder_layers: int | None = argument("New model: 6 (capsule-rnn: 3).")
    encoder_attention_heads: int | None = argument("New model: 8.")
    decoder_attention_heads: int | None = argument("New model: 8.")
    encoder_ffn_dim: int | None = argument("New model: 2048.")
    decoder_ffn_dim: int | None = argument("New model: 2048.")
    activation_function: str | None = argument("Of the feed-forward layers; new model: relu (BART, mBART: gelu).")
    scale_embedding: bool | None = argument(
        "Multiply embeddings by sqrt(d_model); new model: true (BART, mBART: false)."
    )
    share_encoder_decoder_embeddings: bool | None = argument(
        "One embedding for both languages; new model: true (BART, M2M100, mBART: always)."
    )
    max_position_embeddings: int | None = argument("Longest sentence in tokens; new model: 512.")
    dropout: float | None = argument("New model: 0.1; capsule-rnn: 0.3.")
    attention_dropout: float | None = argument("New model: 0.")
    activation_dropout: float | None = argument("New model: 0.")
    label_smoothing: float | None = argument("Label smoothing, inside the model; new model: 0; capsule-rnn: 0.1.")
    aggregation: str | None = argument(
        "How the layers of a stack are combined (Dou et al. 2019): none, linear, dynamic, dynamic_routing, "
        "em_routing, or one of --operators; new model: em_routing (capsule-rnn: none)."
    )
    aggregation_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "JSON: options of an aggregation of --operators."}
    )
    aggregate_encoder: bool | None = argument("New model: true.")
    aggregate_decoder: bool | None = argument("New model: true.")
    capsule_inputs: Literal["all_layers", "own_layer"] | None = argument("New model: all_layers.")
    linear_inputs: Literal["layers", "votes"] | None = argument("What 'linear' combines; new model: layers.")
    layer_normalization: Literal["own", "final"] | None = argument(
        "capsule-m2m100, capsule-mbart: layers go through a layer norm of their own or the stack's final one before "
        "they are combined; new model: own."
    )
    num_capsules: int | None = argument("N, a divisor of d_model; new model: d_model.")
    routing_iterations: int | None = argument("R; new model: 3.")
    aggregation_init: Literal["identity", "paper"] | None = argument("New model: identity.")
    aggregation_hidden_size: int | None = argument("Hidden size of the vote networks; new model: d_model.")
    em_inverse_temperature: float | None = argument("Final inverse temperature of EM routing; new model: 1.")
    em_density: Literal["product", "geometric_mean"] | None = argument(
        "EM routing: of a vote, over its dimensions; with few capsules, geometric_mean trains better; new model: "
        "product, as in the paper."
    )
    guided_routing: Literal["none", "routing", "classifier", "attention", "recurrent"] | None = argument(
        "How source words are assigned to PAST and FUTURE at each step (Zheng et al. 2019); new model: none."
    )
    num_past_capsules: int | None = argument("As many as num_future_capsules; new model: 2.")
    num_future_capsules: int | None = argument("New model: 2.")
    num_redundant_capsules: int | None = argument("For words of neither group, may be 0; new model: 2.")
    guided_capsule_size: int | None = argument("Size of a PAST or FUTURE capsule; new model: 256.")
    guided_hidden_size: int | None = argument("Hidden size of the guided head; new model: d_model.")
    bow_loss_weight: float | None = argument("Of the bag-of-words loss of guided routing (paper: 1); new model: 0.")
    bca_loss_weight: float | None = argument(
        "Of the bilingual content agreement loss of guided routing (paper: 1); new model: 0."
    )
    guided_loss_normalization: Literal["sentence", "token"] | None = argument(
        "How the steps of a sentence count in the guided losses; new model: sentence, as printed."
    )
    source_memory: Literal["simple", "capsule", "attention", "hybrid"] | None = argument(
        "capsule-rnn: what the decoder reads of the source (Wang et al. 2019); new model: capsule."
    )
    num_source_capsules: int | None = argument("capsule-rnn: M, output capsules of the memory; new model: 6.")
    share_routing_weights: bool | None = argument("capsule-rnn: one W_j for all iterations; new model: false.")
    position_aware_routing: bool | None = argument("capsule-rnn: capsules have positions; new model: true.")
    separable_scoring: bool | None = argument("capsule-rnn: agreement by g(c) . g(h); new model: true.")
    balanced_routing: bool | None = argument("capsule-rnn: bounded, centred agreements; new model: false.")
    capsule_output: Literal["squash", "mean"] | None = argument(
        "capsule-rnn: what the decoder reads of a capsule; new model: squash, as printed."
    )
    message_activation: Literal["relu", "linear"] | None = argument(
        "capsule-rnn: of the messages to the capsules; new model: relu, as printed."
    )
    routing_positions: Literal["states", "scores"] | None = argument(
        "capsule-rnn: what the positions of the words are added to; new model: states, as printed."
    )
    include_end_states: bool | None = argument(
        "capsule-rnn: first and last state beside the capsules; new model: false."
    )

    def __post_init__(self) -> None:
        if not isinstance(self.aggregation_options, str):
            return
        try:
            options = parse_json(self.aggregation_options)
        except ValueError as error:
            raise ValueError(f"aggregation_options is not JSON: {error}") from None
        if not isinstance(options, dict):
            raise ValueError(f"aggregation_options must be names and values, got {self.aggregation_options}")
        self.aggregation_options = options

    def given(self) -> dict[str, Any]:
        """The config fields that were given, by name."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        for name in ("model_name_or_path", "model_type"):
            values.pop(name, None)
        return values


@dataclass
class CapsuleSeq2SeqTrainingArguments(Seq2SeqTrainingArguments):
    """Every field of transformers' Seq2SeqTrainingArguments, with defaults for translation, and a few more."""

    _argument_group_name = "training"

    learning_rate: float = argument("Peak learning rate.", 5e-4)
    lr_scheduler_type: str = argument("Learning rate schedule of transformers.", "inverse_sqrt")
    warmup_steps: float = argument("Steps of linear warm-up; below 1: share of all steps.", 4000)
    adam_beta2: float = argument("Second moment decay.", 0.98)
    adam_epsilon: float = argument("Added to the denominator of Adam.", 1e-9)
    logging_steps: float = argument("Log every so many updates; below 1: share of all steps.", 50)
    eval_strategy: str = argument("When to translate the validation set: no, steps or epoch.", "steps")
    eval_steps: float | None = argument("Translate the validation set every so many updates.", 1000)
    save_strategy: str = argument("When to save a checkpoint: no, steps, epoch or best.", "steps")
    save_steps: float = argument("Save a checkpoint every so many updates.", 1000)
    save_total_limit: int | None = argument("Keep the last so many checkpoints, and the best one.", 6)
    metric_for_best_model: str | None = argument("Score that the best checkpoint maximises: bleu, chrf.", "bleu")
    hub_strategy: str = argument("When push_to_hub uploads: end, the finished model; no checkpoints.", "end")
    report_to: str = argument("Where to log: tensorboard, none, all, ...", "tensorboard")
    restore_callback_states_from_checkpoint: bool = argument("A resumed run keeps counting for early stopping.", True)
    use_cache: bool = argument("Of the model's config; the model needs no cache for training in any case.", True)
    ddp_find_unused_parameters: bool | None = argument("The models use every parameter.", False)
    remove_unused_columns: bool = argument("Without effect here: the batches have no other columns.", False)

    max_tokens_per_batch: int = argument(
        "Padded tokens of a batch, sentences * max(longest source, longest target), per process and accumulation "
        "step; takes the place of per_device_train_batch_size.",
        4096,
    )
    eval_max_tokens_per_batch: int = argument("Bound on sentences * longest source * beams in translation.", 8192)
    average_checkpoints: int = argument("The final model is the average of the last so many checkpoints.", 1)
    early_stopping_patience: int | None = argument(
        "Stop after so many evaluations in a row without a better metric_for_best_model."
    )
    score_convention: Literal["cased", "lc_norm_tok", "flores200"] = argument(
        "Cased detokenised text; the lower-cased, punctuation-normalised, Moses-tokenised one; or cased text with the "
        "BLEU of the pieces of FLORES-200, which compares languages.",
        "cased",
    )
    test_num_beams: list[int] = field(
        default_factory=lambda: [5],
        metadata={"help": "Beam sizes to score the test set with; the saved model uses the last one."},
    )
    length_penalty: float = argument("Exponent: a hypothesis' log-probability is divided by length^this.", 1.0)

    def __post_init__(self) -> None:
        self._check()
        # unless told, several processes on a machine without an accelerator do not find each other
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        # a bar that is drawn anew fills a log that is a file
        if self.disable_tqdm is None and not sys.stderr.isatty():
            self.disable_tqdm = True
        super().__post_init__()

    def _check(self) -> None:
        if self.output_dir is None:
            raise ValueError("missing key output_dir: where the run is kept")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor} would take the labels away from the model, "
                f"whose own loss terms would vanish: use label_smoothing={self.label_smoothing_factor} instead"
            )
        for name in ("max_tokens_per_batch", "eval_max_tokens_per_batch", "average_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.early_stopping_patience is not None and self.early_stopping_patience < 1:
            raise ValueError(f"early_stopping_patience must be at least 1, got {self.early_stopping_patience}")
        if self.early_stopping_patience is not None and "no" in (self.eval_strategy, self.metric_for_best_model):
            raise ValueError("early_stopping_patience needs evaluations: set eval_strategy to steps or epoch")
        if self.push_to_hub and self.hub_strategy != HubStrategy.END:
            raise ValueError(
                f"hub_strategy={self.hub_strategy} would upload what lies in checkpoints, pickles among it: leave it "
                "out, and push_to_hub uploads the finished model"
            )
        if not 0 <= self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a finite number of at least 0, got {self.learning_rate}")
        if self.dataloader_num_workers < 0:
            raise ValueError(f"dataloader_num_workers must be at least 0, got {self.dataloader_num_workers}")
        if (self.metric_for_best_model or "no").removeprefix("eval_") not in (*SCORES, "no"):
            raise ValueError(
                f"metric_for_best_model must be one of {', '.join(SCORES)}, got {self.metric_for_best_model!r}"
            )
        if self.generation_max_length is not None and self.generation_max_length < 2:
            raise ValueError(f"generation_max_length must be at least 2, got {self.generation_max_length}")
        if not self.test_num_beams or min(self.test_num_beams) < 1:
            raise ValueError(f"test_num_beams must be beam sizes of at least 1, got {self.test_num_beams}")
        if self.average_checkpoints > 1:
            self._check_averaging()

    def _check_averaging(self) -> None:
        if self.load_best_model_at_end:
            raise ValueError(
                f"average_checkpoints={self.average_checkpoints} and load_best_model_at_end both choose the final "
                "model: give one of them"
            )
        if self.save_strategy == "no":
            raise ValueError(f"average_checkpoints={self.average_checkpoints} needs checkpoints: set save_strategy")
        # The best checkpoint is kept beside the last ones.
        needed = self.average_checkpoints + 1
        if self.save_total_limit is not None and self.save_total_limit < needed:
            raise ValueError(
                f"average_checkpoints={self.average_checkpoints} needs a save_total_limit of at least {needed} (the "
                f"best checkpoint is kept as well), got {self.save_total_limit}"
            )


class Arguments(NamedTuple):
    """Everything that defines a run. `given` has what differs from the defaults, by name: a recipe of the same run."""

    model: ModelArguments
    data: DataArguments
    training: CapsuleSeq2SeqTrainingArguments
    recipe: str | None
    given: dict[str, Any]


class ParsedArguments(NamedTuple):
    """The dataclasses of a parser, filled; `given` has what differs from the defaults, by name."""

    parts: tuple[Any, ...]
    recipe: str | None
    given: dict[str, Any]


class _Parser(HfArgumentParser):
    """Raises ValueError instead of printing the usage of 170 arguments and leaving."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def build_parser() -> HfArgumentParser:
    """The parser of `hf-capsule-mt train`, with one argument group per dataclass."""
    return recipe_parser(
        (ModelArguments, DataArguments, CapsuleSeq2SeqTrainingArguments),
        "hf-capsule-mt train",
        "Train a translation model. RECIPE is the path of a YAML file with arguments by name, or the name of a recipe "
        "of the package, such as multi30k/em_routing; the command line overrides it. Without one it is "
        f"{DEFAULT_RECIPE}, a few minutes on an embedded corpus; --recipe none is no recipe at all.",
    )


def recipe_parser(dataclass_types: Sequence[type], program: str, description: str) -> HfArgumentParser:
    """The parser of a command that takes a recipe and arguments over it, with one argument group per dataclass."""
    return _Parser(
        dataclass_types,
        prog=program,
        usage=f"{program} [RECIPE] [--argument value ...]",
        description=description,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )


def parse_arguments(argv: Sequence[str], default_recipe: str | None = None) -> Arguments:
    """
    Parse the command line of `hf-capsule-mt train`.

    Args:
        argv: arguments without the program name; the first may be a recipe.
        default_recipe: the recipe of a command line that names none; by default there is none.

    Raises:
        ValueError: an unknown, missing or invalid argument, with the nearest valid name.
        FileNotFoundError: no such recipe.
        SystemExit: the help was asked for, and is printed.
    """
    parsed = parse_recipe(build_parser(), argv, default_recipe)
    arguments = Arguments(*parsed.parts, recipe=parsed.recipe, given=parsed.given)
    arguments.data.validate()
    load_operators(arguments.data.operators)
    if arguments.model.aggregation is not None:
        check_aggregation(arguments.model.aggregation, arguments.model.given().get("aggregation_options"))
    return arguments


def parse_recipe(parser: HfArgumentParser, argv: Sequence[str], default_recipe: str | None = None) -> ParsedArguments:
    """
    Fill the dataclasses of a parser from a recipe and the command line.

    Args:
        parser: from `recipe_parser`.
        argv, default_recipe: as for `parse_arguments`.

    Raises:
        ValueError, FileNotFoundError, SystemExit: as for `parse_arguments`.
    """
    for token in argv:
        if not is_text(token):
            raise ValueError(f"the argument {token!r} is not UTF-8 text")
    print_help_and_leave(parser, argv)
    named, argv = _take_recipe(list(argv), default_recipe)
    known = [name for dtype in parser.dataclass_types for name in _field_names(dtype)]
    layers = [] if named is None else read_recipe(named)
    recipe = layers[-1].name if layers else None
    values = _merged(layers, parser, known)
    given = _tokens(values)
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(**{name: None for name, value in values.items() if value is None})
    namespace, unknown = parser.parse_known_args([*given, *argv])
    if unknown:
        raise ValueError(_describe_unknown(unknown[0], known, parser.prog))
    # Before the dataclasses convert them and fill in others.
    differing = {name: value for name, value in vars(namespace).items() if value != defaults[name]}
    parts = tuple(_filled(dtype, namespace) for dtype in parser.dataclass_types)
    return ParsedArguments(parts, recipe, differing)


def _filled(dtype: type, namespace: Any) -> Any:
    """The dataclass of these values; what transformers and accelerate raise of values they cannot use is one error."""
    try:
        return dtype(**{name: getattr(namespace, name) for name in _field_names(dtype)})
    except (TypeError, AttributeError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"these arguments cannot be used: {reason}") from error


def _take_recipe(argv: list[str], default: str | None) -> tuple[str | None, list[str]]:
    """The recipe that a command line names, and the rest of it."""
    chosen = [argv.pop(0)] if argv and not argv[0].startswith("-") else []
    while position := next((i for i, token in enumerate(argv, 1) if token.split("=")[0] == "--recipe"), 0):
        _, has_value, value = argv.pop(position - 1).partition("=")
        if not has_value:
            if position > len(argv):
                raise ValueError("--recipe needs a value: the name or path of a recipe, or none")
            value = argv.pop(position - 1)
        chosen.append(value)
    if len(chosen) > 1:
        raise ValueError(f"give one recipe, not {', '.join(chosen)}: a recipe can extend another (extends: NAME)")
    recipe = chosen[0] if chosen else default
    return None if recipe == NO_RECIPE else recipe, argv


def _merged(layers: list[Layer], parser: HfArgumentParser, known: list[str]) -> dict[str, Any]:
    """The values of a recipe, each file of which is checked by itself, so that a mistake is named with its file."""
    checked = []
    for name, own in layers:
        for key in own:
            if key not in known:
                raise ValueError(f"{name}: unknown key {key!r}{_nearest(str(key), known, parser.prog)}")
        # An unquoted no is false in YAML.
        values = {key: "no" if value is False and key.endswith("_strategy") else value for key, value in own.items()}
        try:
            parser.parse_args(_tokens(values))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        checked.append(Layer(name, values))
    merged = merge_layers(checked)
    for key in _without_null(parser.dataclass_types):
        if key in merged and merged[key] is None:
            name = next(layer.name for layer in layers if layer.values.get(key, 0) is None)
            raise ValueError(f"{name}: {key} cannot be null; leave the key out for its default")
    return merged


def _tokens(values: dict[str, Any]) -> list[str]:
    return [token for name, value in values.items() for token in _as_tokens(name, value)]


def _field_names(dtype: type) -> list[str]:
    return [f.name for f in dataclasses.fields(dtype) if f.init]


def _without_null(dataclass_types: Sequence[type]) -> list[str]:
    """The arguments that cannot be None."""
    hints = {name: hint for dtype in dataclass_types for name, hint in typing.get_type_hints(dtype).items()}
    fields = [f for dtype in dataclass_types for f in dataclasses.fields(dtype) if f.init]
    return [f.name for f in fields if f.default is not None and type(None) not in typing.get_args(hints[f.name])]


def _as_tokens(name: str, value: Any) -> list[str]:
    """A recipe's value as command line tokens, so that both are converted and checked in the same way."""
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    try:
        text = json.dumps(value) if isinstance(value, dict | bool) else str(value)
    except TypeError as error:
        # a date, for example
        raise ValueError(f"{name}: not a value that JSON has: {error}") from None
    return [f"--{name}={text}"]


def _describe_unknown(token: str, known: list[str], program: str) -> str:
    if not token.startswith("-"):
        return f"unexpected value {token!r}: a recipe comes first, everything else is --argument value"
    name = token.lstrip("-").split("=")[0].replace("-", "_")
    return f"unknown argument --{name}{_nearest(name, known, program, '--')}"


def _nearest(name: str, known: list[str], program: str, prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {prefix}{matches[0]}?" if matches else f"; see {program} --help"
