"""Model cards: what was measured comes from a run's results.json, what a run cannot know from a values file.

A values file is YAML; those of the recorded systems come with the package and go by name. The template and the
citations are those of the package, unless there are some beside it:

    title: EM routing, English-German            heading of the card
    description: >-                              one paragraph: what the model is
    papers: [dou2019]                            keys of citations.yaml
    license: cc-by-nc-4.0                        of the weights, an identifier of the Hub
    license_name: my-licence                     with license: other alone, what it is called,
    license_link: https://...                    and where its text is
    dataset:
      name: Multi30k                             for readers
      id: bentrevett/multi30k                    on the Hub; left out if it is not there
      config: default                            its configuration on the Hub, if it has several
      terms: >-                                  its licence and what it is made of, in sentences
    base_model: user/name                        on the Hub; left out if there is none
    samples: [...]                               sentences that the card shows translated; the first is in its examples
    limitations: [...]                           sentences
    tags: [...]                                  more tags than every card has
    languages: [en, de]                          source and target; results.json and multilingual models say so, too
"""

from __future__ import annotations

import dataclasses
import difflib
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..analysis.tables import SCORE_COLUMNS
from ..markup import Verbatim, link_address, markdown_template, without_breaks
from ..models.capsule_operators import routes_layers
from ..models.configuration_capsule_rnn import CAPSULE_MEMORIES
from ..project import URL, requirement
from ..recipe_files import read_yaml
from ..records import find_paths, public_record, texts
from .languages import ModelLanguages, are_pairs, hub_languages, in_order, is_language, recorded_pairs
from .license_file import CODE_LICENSE, LICENSES

TEMPLATE = "template.md"
CITATIONS = "citations.yaml"
# the package's own
CARD_FILES = Path(__file__).parent / "card"
VALUES_FILES = CARD_FILES / "values"
METRICS = {metric: title for metric, title, _ in SCORE_COLUMNS}
# decimals that the scores of a card have, in its text and in its metadata
DIGITS = {metric: digits for metric, _, digits in SCORE_COLUMNS}
PIPELINE_TAG, LIBRARY = "translation", "transformers"
# of results.json, with their singular
COUNTED = (("processes", "process"), ("threads", "thread"))
SCORE_KEYS = ("split", "beams", "length_penalty", "sentences", *METRICS, "signatures")
RESULT_KEYS = ("seed", "steps", "parameters", "target_tokens", "train_seconds", "command", "arguments", "versions")
# of the machine, not of the model
DROPPED_ARGUMENTS = ("output_dir", "report_to", "debug")
# Of results.json, and of each of its scores.
RESULT_NUMBERS = ("seed", "steps", "parameters", "target_tokens", "train_seconds", "tokens_per_second")
SCORE_TEXTS = ("split", "file", "source_lang", "target_lang")
SCORE_NUMBERS = ("beams", "length_penalty", "sentences", *METRICS)
FIGURE_TEXTS = {
    "layers": "Each map shows how the layers of the encoder or decoder are routed to the capsules of its output in "
    "one iteration (Dou et al. 2019): red is more than an equal share, blue is less, and "
    "the first iteration gives equal shares.",
    "memory": "The map shows to which capsules of the memory each source word is routed (Wang et al. 2019).",
    "guided": "The maps show for each source word (rows) and each decoding step (columns) the probability that the "
    "word is in PAST, meant for what is translated, or in FUTURE, meant for what is not (Zheng et al. 2019).",
}


@dataclass(frozen=True)
class DatasetValues:
    """The training data: its name, terms, and where it is on the Hub, if it is."""

    name: str
    terms: str
    id: str | None = None
    config: str | None = None


@dataclass(frozen=True)
class CardValues:
    """What a card says and a run cannot know; the keys are described at the top of this file.

    `path` is the file that they come from, `citations` are the entries of the papers.
    """

    title: str
    description: str
    license: str
    dataset: DatasetValues
    samples: list[str]
    limitations: list[str]
    papers: list[str] = field(default_factory=list)
    license_name: str | None = None
    license_link: str | None = None
    base_model: str | None = None
    tags: list[str] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    path: Path = Path()
    citations: list[dict[str, str]] = field(default_factory=list)


FILE_KEYS = tuple(key.name for key in dataclasses.fields(CardValues) if key.name not in ("path", "citations"))
CITATION_KEYS = ("reference", "url", "bibtex")
LIST_KEYS = ("samples", "limitations", "papers", "tags", "languages")


def values_names() -> list[str]:
    """Names of the values files of the package."""
    return sorted(path.stem for path in VALUES_FILES.glob("*.yaml"))


def load_values(path: str | Path) -> CardValues:
    """Reads and checks a values file.

    Args:
        path: of the file, or the name of one of the package such as "grammar_em_routing".

    Raises:
        ValueError: a key that is unknown, missing or of the wrong type, an unknown licence or paper, a name that
            cannot be one of the Hub; says which key of which file, and what is allowed.
        FileNotFoundError: if there is no such file; says which names there are.
    """
    names = values_names()
    path = VALUES_FILES / f"{path}.yaml" if str(path) in names else Path(path)
    if not path.exists():
        near = difflib.get_close_matches(path.stem, names, n=1)
        there_are = f"did you mean {near[0]}?" if near else f"give a path, or one of {', '.join(names)}"
        raise FileNotFoundError(f"no values of a card {path}; {there_are}")
    return make_values(_read_mapping(path), path)


def card_file(name: str, folder: Path) -> Path:
    """The template or the citations of a card: those of its folder, or else the project's own."""
    return folder / name if (folder / name).is_file() else CARD_FILES / name


def make_values(content: dict[str, Any], path: Path) -> CardValues:
    """Checks the content of a values file, see `load_values`; the path stands in its messages."""
    _check_keys(content, CardValues, FILE_KEYS, str(path))
    for key in LIST_KEYS:
        value = content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise ValueError(f"{path}: {key} must be a list of texts, got {value!r}")
    for key in ("title", "description", "license"):
        _check_text(content[key], key, path)
    for key in ("samples", "limitations"):
        if not content[key]:
            raise ValueError(f"{path}: {key} must not be empty")
    dataset = content["dataset"]
    if not isinstance(dataset, dict):
        raise ValueError(f"{path}: dataset must have the keys {', '.join(_names(DatasetValues))}, got {dataset!r}")
    _check_keys(dataset, DatasetValues, _names(DatasetValues), f"{path}, dataset")
    for key, value in dataset.items():
        _check_text(value, f"dataset.{key}", path)
    if content["license"] not in LICENSES:
        raise ValueError(f"{path}: license must be one of {', '.join(LICENSES)}, got {content['license']!r}")
    _check_other_license(content, path)
    for key, repo_id in (("base_model", content.get("base_model")), ("dataset.id", dataset.get("id"))):
        if repo_id is not None and not is_repo_id(repo_id):
            raise ValueError(f"{path}: {key} must be a name on the Hub such as user/name, got {repo_id!r}")
    languages = content.get("languages", [])
    if languages and not (len(languages) == 2 and all(map(is_language, languages))):
        raise ValueError(f"{path}: languages must be two codes of ISO 639 such as [en, de], got {languages!r}")
    citations = _citations(content.get("papers", []), path)
    return CardValues(**{**content, "dataset": DatasetValues(**dataset)}, path=path, citations=citations)


def _check_other_license(content: dict[str, Any], path: Path) -> None:
    given = [key for key in ("license_name", "license_link") if key in content]
    if given and content["license"] != "other":
        raise ValueError(f"{path}: {' and '.join(given)} are for license: other, got license: {content['license']}")
    for key in given:
        _check_text(content[key], key, path)
    if "license_link" in given:
        try:
            link_address(content["license_link"])
        except ValueError as error:
            raise ValueError(f"{path}: license_link: {error}") from None


def render_card(
    repo_id: str,
    values: CardValues,
    results: dict[str, Any],
    model_type: str,
    samples: Sequence[tuple[str, str]],
    figure: str | None = None,
    template: str | Path | None = None,
    revision: str = "main",
    onnx: bool = False,
    languages: ModelLanguages | None = None,
) -> ModelCard:
    """Renders the card of a run.

    Args:
        repo_id: "user/name", which the examples of the card load.
        values: from `load_values`.
        results: the run's results.json; what the card says of it is what `records.public_record` leaves. Of a model
            that has none, {"parameters": their number}: the card then says that nothing was recorded.
        model_type: of the model's config, a tag of the card.
        samples: pairs of a sentence and its translation by this model; the examples translate the first sentence.
        figure: file name of the agreement figure in the repository, if there is one.
        template: a Jinja template; template.md beside the values file if not given.
        revision: what the examples load, a tag for instance.
        onnx: whether the model is there for ONNX Runtime, too.
        languages: of a multilingual model.

    Raises:
        ValueError: if the results lack scores, signatures or anything else that a card needs, there are no samples, or
            the template asks for something that there is not.
        HFValidationError: if the repo_id cannot be one of the Hub.
        FileNotFoundError: if there is no template.
    """
    validate_repo_id(repo_id)
    results = public_record(results)
    recorded = is_recorded(results)
    if recorded:
        check_results(results)
    if not samples:
        raise ValueError("the card needs at least one sentence and its translation by the model, for its examples")
    pairs: list[Any] = recorded_pairs(results) if recorded else list(languages.pairs) if languages else []
    if not pairs and values.languages:
        pairs = [values.languages]
    codes = hub_languages(in_order(pairs) or (languages.codes if languages else ()))
    codes = [code for code in codes if is_language(code)]
    scores = _named_scores(results, values) if recorded else []
    card_data = ModelCardData(
        language=codes or None,
        license=values.license,
        license_name=values.license_name,
        license_link=values.license_link,
        library_name=LIBRARY,
        base_model=values.base_model,
        pipeline_tag=PIPELINE_TAG,
        tags=_tags(["capsule-routing", "hf_capsule_mt", model_type, *values.tags]),
        # The Hub runs no code of a repository, so that it can only show what comes out.
        widget=[{"text": source, "output": {"text": translation}} for source, translation in samples],
        datasets=None if values.dataset.id is None else [values.dataset.id],
        metrics=list(METRICS) if scores else None,
        model_name=repo_id.split("/")[-1],
        eval_results=[_eval_result(score, metric, values) for score in scores for metric in METRICS] or None,
    )
    fields = {
        "repo_id": repo_id,
        "project": URL,
        "code_license": CODE_LICENSE,
        "install": " ".join(["pip install", *(f'"{requirement(package)}"' for package in (LIBRARY, "torch"))]),
        "revision": revision,
        "onnx": onnx,
        "languages": codes,
        **_language_fields(pairs, languages),
        "parameters": results["parameters"],
        "samples": samples,
        "scores": scores,
        "metrics": METRICS,
        "digits": DIGITS,
        "figure": figure,
        **_text_fields(values, results),
    }
    path = card_file(TEMPLATE, values.path.parent) if template is None else Path(template)
    return ModelCard(_render(path, {**fields, "card_data": Verbatim(card_data.to_yaml())}))


def _language_fields(pairs: Sequence[Sequence[str]], languages: ModelLanguages | None) -> dict[str, Any]:
    """What the template says about languages, by name."""
    if languages is not None:
        example: Sequence[str] = languages.example
    else:
        example = pairs[0] if pairs else ("source", "translation")
    return {
        "source_language": example[0],
        "target_language": example[1],
        "language_pairs": pairs,
        # of a multilingual model that nobody has said any pairs of
        "language_count": len(languages.codes) if languages else 0,
        # where users have to say the pair
        "language_parameter": Verbatim(languages.parameter) if languages is not None and languages.is_told else None,
        "language_token": languages.token if languages is not None else None,
    }


def _text_fields(values: CardValues, results: dict[str, Any]) -> dict[str, Any]:
    """What the template says about the model and its training, by name; what was not recorded is None."""
    said = {key: getattr(values, key) for key in FILE_KEYS if key not in ("samples", "tags", "papers", "languages")}
    said |= {"citations": values.citations, "results": results}
    if not is_recorded(results):
        names = ("recipe", "command", "arguments", "final_weights", "training_time", "versions")
        return {**said, "signatures": "", "figure_text": _figure_text({}), **dict.fromkeys(names)}
    arguments = results["arguments"]
    return {
        **said,
        "signatures": _signatures(results["scores"]),
        "figure_text": _figure_text(arguments),
        "recipe": results.get("recipe"),
        "command": results["command"],
        "arguments": _arguments_as_yaml(arguments),
        "final_weights": _final_weights(results),
        "training_time": _training_time(results),
        "versions": ", ".join(f"{package} {version}" for package, version in results["versions"].items()),
    }


def _tags(tags: Sequence[str]) -> list[str]:
    """Each once, and without those that the Hub adds of its own from other fields."""
    return [tag for tag in dict.fromkeys(tags) if tag not in (PIPELINE_TAG, LIBRARY)]


def is_recorded(results: dict[str, Any]) -> bool:
    """Whether these are the results of a run, and not the little that is known of a model that came without any."""
    return set(results) != {"parameters"}


def check_card(card: ModelCard, scored: bool = True) -> None:
    """Checks a card as far as that is possible without the Hub.

    Args:
        card: the card.
        scored: whether it has to have scores, in its text and in its metadata.

    Raises:
        ValueError: lists everything that is missing or wrong.
    """
    wrong = []
    data: Any = card.data
    try:
        again = ModelCard(str(card)).data
        if again.to_dict() != data.to_dict():
            wrong.append("the metadata is not the same after it has been written and read")
    except (ValueError, yaml.YAMLError) as error:
        wrong.append(f"the metadata cannot be read: {error}")
    languages = [data.language] if isinstance(data.language, str) else data.language or []
    if not languages:
        wrong.append("language is missing")
    wrong += [f"language {code!r} is not an ISO 639 code" for code in languages if not is_language(code)]
    if data.license not in LICENSES:
        wrong.append(f"license {data.license!r} is not known to the Hub" if data.license else "license is missing")
    if data.library_name != LIBRARY:
        wrong.append(f"library_name must be {LIBRARY}")
    if data.pipeline_tag != PIPELINE_TAG:
        wrong.append(f"pipeline_tag must be {PIPELINE_TAG}")
    tags = list(data.tags or [])
    wrong += [f"the tag {tag} is there twice" for tag in dict.fromkeys(tags) if tag not in _tags(tags)]
    wrong += [f"the tag {tag} is there twice" for tag in _tags(tags) if tags.count(tag) > 1]
    for key, names in (("base_model", data.base_model), ("datasets", data.datasets)):
        for name in [names] if isinstance(names, str) else names or []:
            if not is_repo_id(name):
                wrong.append(f"{key} {name!r} cannot be a name on the Hub")
    if scored and not data.eval_results:
        wrong.append("model-index has no results")
    for result in data.eval_results or []:
        if not (result.metric_args or {}).get("signature"):
            wrong.append(f"{result.metric_name or result.metric_type} on {result.dataset_name} has no signature")
    if not card.text.strip():
        wrong.append("there is no text")
    marks = dict.fromkeys(re.findall(r"(?<!\\)\{[{%]", _without_code(card.text)))
    wrong += [f"{mark} of the template is left in the text" for mark in marks]
    # As it is read, without the backslashes before special characters.
    shown = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", card.text)
    paths = find_paths("\n".join([shown, *texts(data.to_dict())]))
    wrong += [f"{path} is a path of some machine" for path in paths]
    if wrong:
        raise ValueError("the model card cannot be published: " + "; ".join(wrong))


def _read_mapping(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must have the keys {', '.join(FILE_KEYS)}")
    return content


def _names(kind: type) -> tuple[str, ...]:
    return tuple(key.name for key in dataclasses.fields(kind))


def _check_keys(content: dict[str, Any], kind: type, allowed: Sequence[str], where: str) -> None:
    unknown = [str(key) for key in content if key not in allowed]
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; there are: {', '.join(allowed)}")
    required = [
        key.name
        for key in dataclasses.fields(kind)
        if key.default is dataclasses.MISSING and key.default_factory is dataclasses.MISSING
    ]
    missing = [key for key in required if key not in content]
    if missing:
        raise ValueError(f"{where}: missing key {', '.join(missing)}; required are: {', '.join(required)}")


def _check_text(value: Any, key: str, path: Path) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{path}: {key} must be a text, got {value!r}")


def is_repo_id(name: Any) -> bool:
    """Whether this can be the name of a repository on the Hub."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _citations(papers: list[str], path: Path) -> list[dict[str, str]]:
    if not papers:
        return []
    file = card_file(CITATIONS, path.parent)
    known = _read_mapping(file)
    unknown = [paper for paper in papers if paper not in known]
    if unknown:
        raise ValueError(
            f"{path}: papers has {', '.join(unknown)}, which {file} has not; there are: {', '.join(known)}"
        )
    citations = [{key: str(known[paper].get(key, "")).strip() for key in CITATION_KEYS} for paper in papers]
    for paper, citation in zip(papers, citations, strict=True):
        try:
            link_address(citation["url"])
        except ValueError as error:
            raise ValueError(f"{file}: {paper}.url: {error}") from None
    return citations


def check_results(results: dict[str, Any]) -> None:
    """Checks that a run's results have what a card needs.

    Raises:
        ValueError: names what is missing.
    """
    scores = results.get("scores")
    if scores and not (isinstance(scores, list) and all(isinstance(score, dict) for score in scores)):
        raise ValueError(
            "the results have scores of the wrong type: pass the results.json that hf-capsule-mt train wrote"
        )
    if not scores:
        raise ValueError(
            "the results have no scores, and a card without them says nothing: publish the output folder of a "
            "finished hf-capsule-mt train with a validation or test set"
        )
    missing = [key for key in RESULT_KEYS if key not in results]
    _check_types(results)
    for score in results["scores"]:
        missing += [f"scores.{key}" for key in SCORE_KEYS if key not in score]
        missing += [f"scores.signatures.{key}" for key in METRICS if not score.get("signatures", {}).get(key)]
    if missing:
        raise ValueError(
            f"the results lack {', '.join(dict.fromkeys(missing))}: pass the results.json that "
            "hf-capsule-mt train wrote, not a part of it"
        )


def _check_types(results: dict[str, Any]) -> None:
    """What is no number, text or mapping where one belongs would be somebody else's text in the card."""
    wrong = []
    kinds: tuple[tuple[type, tuple[str, ...]], ...] = (
        (numbers.Real, RESULT_NUMBERS),
        (dict, ("arguments", "versions")),
        (str, ("command", "device")),
    )
    wrong += [key for kind, keys in kinds for key in keys if key in results and not isinstance(results[key], kind)]
    if not are_pairs(results.get("language_pairs", [])):
        wrong.append("language_pairs")
    for score in results["scores"]:
        wrong += [
            f"scores.{key}"
            for keys, kind in ((SCORE_NUMBERS, numbers.Real), (SCORE_TEXTS, str), (("signatures",), dict))
            for key in keys
            if key in score and not isinstance(score[key], kind)
        ]
    if wrong:
        raise ValueError(
            f"the results have {', '.join(dict.fromkeys(wrong))} of the wrong type: pass what "
            "hf-capsule-mt train wrote"
        )


def _named_scores(results: dict[str, Any], values: CardValues) -> list[dict[str, Any]]:
    """The scores, each with the name of its test set, of its way to decode and, if there are several, of its pair."""
    pairs = ["-".join(score.get(key, "") for key in ("source_lang", "target_lang")) for score in results["scores"]]
    several = len(set(pairs)) > 1
    return [
        _named(score, values, results["arguments"], pair if several else None)
        for score, pair in zip(results["scores"], pairs, strict=True)
    ]


def _named(score: dict[str, Any], values: CardValues, arguments: dict[str, Any], pair: str | None) -> dict[str, Any]:
    file = arguments.get(f"{score['split']}_file")
    beams = score["beams"]
    decoding = "greedy" if beams == 1 else f"beam {beams}"
    if beams > 1 and score["length_penalty"] != 1:
        decoding += f", length penalty {score['length_penalty']:g}"
    name = f"{values.dataset.name} {Path(file).name if file else score['split']}"
    return {**score, "dataset": name if pair is None else f"{name}, {pair}", "pair": pair, "decoding": decoding}


def _eval_result(score: dict[str, Any], metric: str, values: CardValues) -> EvalResult:
    return EvalResult(
        task_type="translation",
        task_name="Translation",
        dataset_type=values.dataset.id or re.sub(r"[^\w.-]+", "-", values.dataset.name).lower(),
        dataset_name=score["dataset"],
        # results of one set in the same configuration would become those of the same pair
        dataset_config=", ".join(filter(None, (values.dataset.config, score["pair"]))) or None,
        dataset_split=score["split"],
        metric_type=metric,
        metric_name=f"{METRICS[metric]} ({score['decoding']})",
        metric_value=round(score[metric], DIGITS[metric]),
        metric_args={
            "signature": score["signatures"][metric],
            "num_beams": score["beams"],
            "length_penalty": score["length_penalty"],
        },
    )


def _signatures(scores: Sequence[dict[str, Any]]) -> str:
    """A line for each metric, with its name and signature; a metric that was used in two ways has two."""
    lines = [f"{name:4} {score['signatures'][metric]}" for metric, name in METRICS.items() for score in scores]
    return "\n".join(dict.fromkeys(without_breaks(line) for line in lines))


def _figure_text(arguments: dict[str, Any]) -> str:
    texts = []
    if routes_layers(arguments.get("aggregation")):
        texts.append(FIGURE_TEXTS["layers"])
    if arguments.get("source_memory") in CAPSULE_MEMORIES:
        texts.append(FIGURE_TEXTS["memory"])
    if arguments.get("guided_routing", "none") != "none":
        texts.append(FIGURE_TEXTS["guided"])
    return " ".join(texts) or "The maps show the probabilities with which this model routes its inputs to capsules."


def _final_weights(results: dict[str, Any]) -> str:
    checkpoints = results.get("final_weights", "last update")
    if isinstance(checkpoints, str):
        return f"those of the {checkpoints}"
    updates = [int(re.sub(r"\D", "", checkpoint)) for checkpoint in checkpoints]
    return f"the average of {len(updates)} checkpoints, from update {min(updates):,} to {max(updates):,}"


def _training_time(results: dict[str, Any]) -> str:
    minutes = max(1, round(results["train_seconds"] / 60))
    text = f"{minutes:,} minute{'' if minutes == 1 else 's'}"
    if "tokens_per_second" in results:
        text += f" at {results['tokens_per_second']:,.0f} target tokens a second"
    counted = [f"{results[key]} {key if results[key] != 1 else one}" for key, one in COUNTED if key in results]
    device = [results["device"].split(":")[0].upper()] if "device" in results else []
    return f"{text} ({', '.join(device + counted)})" if device + counted else text


def _arguments_as_yaml(arguments: dict[str, Any]) -> str:
    kept = {key: value for key, value in arguments.items() if key not in DROPPED_ARGUMENTS}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100).strip()


def _render(path: Path, fields: dict[str, Any]) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"there is no template {path}; the package's own is {CARD_FILES / TEMPLATE}")
    try:
        template, asked = markdown_template(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no template: {error}") from error
    unknown = asked - set(fields)
    if unknown:
        raise ValueError(f"{path} asks for {', '.join(sorted(unknown))}; there are: {', '.join(sorted(fields))}")
    return template.render(fields)


def _without_code(text: str) -> str:
    """The text without blocks of code and code within lines, which may hold anything."""
    text = re.sub(r"^ *(`{3,}).*?^ *\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
