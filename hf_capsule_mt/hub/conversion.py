"""
Plain checkpoints become capsule checkpoints, and back.

    hf-capsule-mt convert Helsinki-NLP/opus-mt-en-de my-model --aggregation em_routing
    hf-capsule-mt convert my-model my-model-guided --guided_routing routing --bow_loss_weight 1
    hf-capsule-mt convert my-model plain-model --plain
    hf-capsule-mt convert facebook/nllb-200-distilled-600M my-nllb --source_lang eng_Latn --target_lang deu_Latn

SOURCE is a directory or a name on the Hub: a plain Marian, BART, M2M100 (NLLB) or mBART checkpoint, or a capsule
checkpoint that gets other systems. Until it is trained, the result translates exactly like its source, unless
--aggregation_init paper is given. With --plain, a model without aggregation and guided routing is saved as the plain
model that it is, which transformers loads without this package. Tokenizer, generation config and special tokens come
along. Multilingual models translate the pair of --source_lang and --target_lang unasked, if these are given.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from ..command import run_command
from ..evaluation.checkpoints import is_missing_directory
from ..evaluation.encoding import saved_generation_config
from ..files import empty_folder, parse_json, whole_folder
from ..loading import from_checkpoint
from ..models.capsule_configuration import (
    AGGREGATION_INITS,
    CAPSULE_INPUTS,
    FOLLOW_D_MODEL,
    GUIDED_ROUTINGS,
    LAYER_NORMALIZATIONS,
    LINEAR_INPUTS,
    CapsuleConfigMixin,
    capsule_field_types,
    refuse_experts,
)
from ..models.capsule_operators import known_aggregations
from ..models.configuration_capsule_marian import CapsuleMarianConfig
from ..models.tokenizer_languages import LanguagePair, choose_languages, remember_languages
from ..trust_arguments import add_trust_argument

PROGRAM = "hf-capsule-mt convert"
CHOICES = {
    "capsule_inputs": CAPSULE_INPUTS,
    "linear_inputs": LINEAR_INPUTS,
    "layer_normalization": LAYER_NORMALIZATIONS,
    "aggregation_init": AGGREGATION_INITS,
    "guided_routing": GUIDED_ROUTINGS,
}
# where it is not the same for every model
DEFAULTS = dict.fromkeys(FOLLOW_D_MODEL, "d_model") | {
    "layer_normalization": f"{LAYER_NORMALIZATIONS[0]} for M2M100 and mBART"
}
# options of both directions
SHARED = ("revision", "trust_remote_code", "source_lang", "target_lang")
# in the names of the parameters that conversion adds
NEW_PARAMETERS = ("aggregation.", "guided_")
CAPSULE_FIELDS = capsule_field_types()


def convert(
    source: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **fields: Any,
) -> Path:
    """Saves a checkpoint with other capsule systems; see the module for what a source may be.

    Args:
        source: directory, or name on the Hub.
        output: directory that does not exist yet, or is empty.
        revision: branch, tag or commit of a source on the Hub.
        trust_remote_code: run the code that the source brings, if it needs any.
        source_lang, target_lang: codes of the pair of languages that a multilingual model is saved for, both or none;
            what the source was saved for if not given.
        **fields: of the capsule configuration, `aggregation="em_routing"` for example.

    Returns:
        The output directory: weights, configuration, code of the model, generation config and tokenizer.

    Raises:
        ValueError: if no capsule model can start from the source, a field, its value or a language is not known, or
            there is something in the output directory already.
        OSError: if there is no such checkpoint.
    """
    hub: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    output = empty_folder(output)
    config = _load_config(source, hub)
    family = _capsule_family(config, source)
    unknown = [name for name in fields if name not in CAPSULE_FIELDS]
    if unknown:
        raise ValueError(f"no capsule field is called {', '.join(unknown)}; there are: {', '.join(CAPSULE_FIELDS)}")
    pair = _given_pair(source, hub, source_lang, target_lang)
    config = family.from_pretrained(source, revision=revision, **fields)
    # parameters of one aggregation may have the names of another's, and start anew
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, loading = from_checkpoint(AutoModelForSeq2SeqLM, source, config=config, **options, **hub)
    unusable = [*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])]
    absent = [key for key in unusable if not any(part in key for part in NEW_PARAMETERS)]
    if absent:
        raise ValueError(f"{source} is not a whole checkpoint: it has no {', '.join(sorted(absent))}")
    return _save(model, source, hub, output, pair)


def to_plain(
    source: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Path:
    """Saves a capsule checkpoint without aggregation and guided routing as the plain model that it is.

    Args:
        source: directory, or name on the Hub, of a capsule checkpoint with aggregation="none", guided_routing="none".
        output: directory that does not exist yet, or is empty.
        revision: branch, tag or commit of a source on the Hub.
        trust_remote_code: run the code that the source brings, if it needs any.
        source_lang, target_lang: as of `convert`.

    Returns:
        The output directory, with the tokenizer and the generation config.

    Raises:
        ValueError: if the model has parts that no plain model has, a language is not known, or there is something in
            the output directory.
        OSError: if there is no such checkpoint.
    """
    hub: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    output = empty_folder(output)
    config = _load_config(source, hub)
    plain = config.plain() if isinstance(config, CapsuleConfigMixin) else None
    if plain is None:
        raise ValueError(f"{source} is of type '{config.model_type}', which has no plain model to become")
    for name in ("aggregation", "guided_routing"):
        if getattr(config, name) != "none":
            raise ValueError(
                f"{source} has {name}='{getattr(config, name)}', which no plain model has; only a checkpoint with "
                "aggregation='none' and guided_routing='none' can be saved as one"
            )
    pair = _given_pair(source, hub, source_lang, target_lang)
    model = from_checkpoint(AutoModelForSeq2SeqLM, source, config=plain, **hub)
    return _save(model, source, hub, output, pair)


def _capsule_family(config: PreTrainedConfig, source: str | Path) -> type[Any]:
    """The capsule configuration that can start from this one."""
    refuse_experts(config.model_type, source)
    families: list[Any] = CapsuleConfigMixin.__subclasses__()
    for family in families:
        if config.model_type in (family.model_type, family.parent_model_type):
            return family
    known = [name for family in families for name in (family.parent_model_type, family.model_type) if name]
    raise ValueError(
        f"{source} is of type '{config.model_type}', and no capsule model starts from that; there are: "
        f"{', '.join(known)}"
    )


def _load_config(source: str | Path, hub: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of a checkpoint; a path that does not exist is not taken for a name on the Hub."""
    if is_missing_directory(source):
        raise ValueError(f"there is no directory {source}")
    return from_checkpoint(AutoConfig, source, **hub)


def _given_pair(
    source: str | Path, hub: dict[str, Any], source_lang: str | None, target_lang: str | None
) -> LanguagePair | None:
    """The pair of languages that a model is to be saved for; None where none is given."""
    if source_lang is None and target_lang is None:
        return None
    return choose_languages(from_checkpoint(AutoTokenizer, source, **hub), source_lang, target_lang)


def _save(
    model: PreTrainedModel, source: str | Path, hub: dict[str, Any], output: Path, pair: LanguagePair | None
) -> Path:
    tokenizer = from_checkpoint(AutoTokenizer, source, **hub)
    model.generation_config = saved_generation_config(model, tokenizer)
    if pair is not None:
        remember_languages(model.generation_config, tokenizer, [pair])
    if not isinstance(model.config, CapsuleConfigMixin):
        # of a plain model max_new_tokens would win over the max_length of a call
        config = model.generation_config
        config.max_length, config.max_new_tokens = config.max_new_tokens + 1, None
    # of a link, the folder that it leads to
    with whole_folder(output.resolve()) as folder:
        # another process may have been there in the meantime
        empty_folder(output)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="directory or name on the Hub")
    parser.add_argument("output", type=Path, help="new directory")
    parser.add_argument("--revision", help="branch, tag or commit of a source on the Hub")
    add_trust_argument(parser)
    parser.add_argument("--plain", action="store_true", help="back to the plain model of transformers")
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_lang", metavar="CODE", help=f"{side} language of the one pair that a multilingual model is for"
        )
    fields = parser.add_argument_group("capsule systems (see docs/paper_index.md)")
    for name, kind in CAPSULE_FIELDS.items():
        default = DEFAULTS.get(name, getattr(CapsuleMarianConfig, name))
        choices = " | ".join(known_aggregations() if name == "aggregation" else CHOICES.get(name, ()))
        fields.add_argument(
            f"--{name}",
            type=_reader(kind),
            choices=CHOICES.get(name),
            default=argparse.SUPPRESS,
            metavar=_metavar(kind),
            help=f"{choices} (if the source is plain: {default})",
        )
    return parser


def _reader(kind: Any):
    """A function that reads a field of this type from text."""
    kinds = typing.get_args(kind) or (kind,)
    if any(typing.get_origin(part) is dict for part in kinds):
        return _options
    if bool in kinds:
        return _boolean
    return next((number for number in (float, int) if number in kinds), str)


def _metavar(kind: Any) -> str:
    return {_boolean: "true/false", _options: "JSON", int: "INT", float: "FLOAT"}.get(_reader(kind), "NAME")


def _options(text: str) -> dict[str, Any]:
    try:
        options = parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"{text} is not names and values")
    return options


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return text.lower() == "true"


def _command(arguments: dict[str, Any]) -> None:
    source, output, plain = (arguments.pop(name) for name in ("source", "output", "plain"))
    arguments.pop("operators")
    shared = {name: arguments.pop(name) for name in SHARED}
    if plain and arguments:
        raise ValueError(f"a plain model has no {', '.join(arguments)}: leave out --plain or these")
    made = (to_plain if plain else convert)(source, output, **shared, **arguments)
    print(f"{source} -> {made}")


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = vars(_parser().parse_args(argv))
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption="; nothing was written")
