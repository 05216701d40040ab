"""The values of a model card that a run, or a model without a record, can answer for by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, AutoTokenizer

from ..files import write_whole
from ..loading import from_checkpoint
from ..models.capsule_configuration import CapsuleConfigMixin
from ..models.capsule_operators import operator_file, routes_layers
from ..models.configuration_capsule_rnn import CAPSULE_MEMORIES
from .cards import is_repo_id
from .languages import ModelLanguages, are_pairs, hub_language, is_language

VALUES = "card.yaml"
NOT_RECORDED = "What it was trained on was not recorded."
TERMS = "Its licence and what it is made of were not recorded with the run."
# A sentence to show translated, by language, for runs that have none at hand.
SENTENCES = {
    "cs": "Muž jde po ulici.",
    "de": "Ein Mann geht die Straße entlang.",
    "en": "A man is walking down the street.",
    "es": "Un hombre camina por la calle.",
    "fr": "Un homme marche dans la rue.",
    "it": "Un uomo cammina per strada.",
    "nl": "Een man loopt over straat.",
    "pt": "Um homem caminha pela rua.",
    "ro": "Un bărbat merge pe stradă.",
    "ru": "Мужчина идёт по улице.",
    "tr": "Bir adam sokakta yürüyor.",
    "zh": "一个男人走在街上。",
}
TO_CHECK = ("title", "description", "license", "dataset", "samples", "limitations", "languages")
COMMENT = f"""\
# Values of the model card, written from what is known of the model. Go over {", ".join(TO_CHECK)}:
# license is that of the weights (an identifier of the Hub), dataset has the name and the terms of the training data,
# samples are sentences that the card shows translated, languages are source and target, such as [en, de].
"""


def write_starter(
    path: Path,
    run: Path,
    record: dict[str, Any] | None,
    languages: ModelLanguages | None = None,
    *,
    trust_remote_code: bool = False,
) -> None:
    """
    Write a values file for a run.

    Args:
        path: the file.
        run: folder of the model.
        record: its results, if it has any.
        languages: of a multilingual model.
        trust_remote_code: run the code that the tokenizer brings.

    Raises:
        ValueError: the folder is of no capsule model.
        OSError: it cannot be read or written.
    """
    config = from_checkpoint(AutoConfig, run)
    if not isinstance(config, CapsuleConfigMixin):
        raise ValueError(f"{run} is of type '{config.model_type}', which is no capsule model")
    tokenizer = from_checkpoint(AutoTokenizer, run, trust_remote_code=trust_remote_code)
    # as Marian's tokenizers have them
    own = [str(getattr(tokenizer, key, None) or "") for key in ("source_lang", "target_lang")]
    values = starter_values(config, record, own, languages)
    comment = COMMENT
    if languages is not None:
        comment += "# The samples are in {}, and are translated to {}.\n".format(*languages.example)
    write_whole(path, comment + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110))


def starter_values(
    config: Any,
    record: dict[str, Any] | None,
    own: Sequence[str] = ("", ""),
    languages: ModelLanguages | None = None,
    samples: list[str] | None = None,
) -> dict[str, Any]:
    """
    The values as they stand in a file.

    Args:
        config: of the model.
        record: the results of its run, if it has any.
        own: codes of source and target where nothing else says them, "" if not known.
        languages: of a multilingual model.
        samples: sentences to show translated.

    Returns:
        Everything that a values file must have; `languages` only if they are known.
    """
    arguments = (record or {}).get("arguments", {})
    pairs = _pairs(record or {}, own, languages)
    codes = [hub_language(code) for code in pairs[0]] if len(pairs) == 1 else []
    known = len(codes) == 2 and all(map(is_language, codes))
    source = hub_language(languages.example.source if languages else pairs[0][0] if pairs else "")
    systems = _systems(config)
    pair = f", {codes[0]}-{codes[1]}" if known else f", {len(pairs)} pairs of languages" if len(pairs) > 1 else ""
    base = arguments.get("model_name_or_path")
    limitations = ["It was tested on nothing but the test sets above."] if record else ["It was not tested."]
    values: dict[str, Any] = {
        "title": f"{config.model_type} with {systems[0][0]}{pair}" if systems else f"{config.model_type}{pair}",
        "description": f"A translation model of the family {config.model_type}: "
        + (", ".join(name for name, _ in systems) or "no capsule routing")
        + ".",
        "papers": [paper for _, paper in systems if paper],
        "license": "unknown",
        "dataset": {"name": _dataset_name(arguments), "terms": TERMS if record else NOT_RECORDED},
        "samples": samples or [SENTENCES.get(source, SENTENCES["en"])],
        "limitations": limitations,
    }
    if isinstance(base, str) and not Path(base).exists() and base.count("/") == 1 and is_repo_id(base):
        values["base_model"] = base
    return {**values, "languages": codes} if known else values


def _pairs(record: dict[str, Any], own: Sequence[str], languages: ModelLanguages | None) -> list[Any]:
    """The pairs of languages as far as they are known."""
    arguments, recorded = record.get("arguments", {}), record.get("language_pairs")
    if recorded and are_pairs(recorded):
        return recorded
    if languages is not None:
        return list(languages.pairs)
    return [[str(arguments.get(key) or code) for key, code in zip(("source_lang", "target_lang"), own, strict=True)]]


def _systems(config: Any) -> list[tuple[str, str]]:
    """What the model routes, in words, and the paper of it; "" of an operator from outside, whose is not known."""
    found = []
    if routes_layers(config.aggregation):
        found.append(
            (f"layer aggregation {config.aggregation}", "" if operator_file(config.aggregation) else "dou2019")
        )
    if getattr(config, "source_memory", None) in CAPSULE_MEMORIES:
        found.append((f"source memory {config.source_memory}", "wang2019"))
    if config.guided_routing != "none":
        found.append((f"guided routing {config.guided_routing}", "zheng2019"))
    return found


def _dataset_name(arguments: dict[str, Any]) -> str:
    name = arguments.get("dataset_name") or arguments.get("train_file")
    return Path(str(name)).parent.name or Path(str(name)).name if name else "Not recorded"
