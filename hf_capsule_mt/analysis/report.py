"""What `hf-capsule-mt report` computes and writes, as functions; the command is in `report_command`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .._version import __version__
from ..evaluation.adequacy import SEPARATOR, evaluate_adequacy
from ..evaluation.buckets import ENOUGH_SENTENCES, by_source_length
from ..evaluation.checkpoints import checkpoint_fingerprint, digest, explain_failed_load
from ..evaluation.comet import MODEL as COMET_MODEL
from ..evaluation.comet import comet_score
from ..evaluation.scores import UNSPACED_LANGUAGES, base_language, score
from ..evaluation.translate import translate
from ..files import json_text, read_json, read_lines, write_lines, write_whole
from ..loading import from_checkpoint
from ..models.capsule_operators import routes_layers
from ..models.configuration_capsule_rnn import CAPSULE_MEMORIES
from ..models.tokenizer_languages import check_target_text, is_multilingual, saved_languages, set_languages
from .aligned_text import AlignedText, AlignmentFile, read_aligned_text
from .alignment_part import PART as ALIGNMENTS
from .alignment_part import alignment_part
from .comparison import choose_examples, compare_systems, spread_of
from .contributions import contributions
from .efficiency import efficiency, speed_warnings
from .examples import example
from .plots import draw_figures, save
from .provenance import provenance
from .report_page import render
from .routing_statistics import collect
from .tables import (
    COMET_COLUMN,
    SCORE_COLUMNS,
    Table,
    comparison_caption,
    comparison_table,
    empty_notes,
    significance_marks,
    test_in_words,
)

logger = logging.getLogger(__name__)

NUM_EXAMPLES = 6
# the end of a file's name that is one: "de", "pt-BR", "deu_Latn"
LANGUAGE_CODE = re.compile(r"(?!txt$)[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?")
# of a description of a system: what its config says about it, if it differs from nothing
DESCRIBED = (
    "aggregation",
    "guided_routing",
    "source_memory",
    "num_source_capsules",
    "routing_iterations",
    "num_capsules",
    "balanced_routing",
    "bow_loss_weight",
    "bca_loss_weight",
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TestSet:
    """Sentences and their references, with the names of their files and the codes of their languages.

    aligned: the same sentences with their gold word alignments; or None.
    """

    sources: list[str]
    references: list[str]
    source: str
    reference: str
    source_lang: str = ""
    target_lang: str = ""
    aligned: AlignedText | None = None

    def describe(self) -> dict[str, Any]:
        """Everything but the text."""
        return {
            "source": self.source,
            "reference": self.reference,
            "sentences": len(self.sources),
            "blank_sources": sum(not source.strip() for source in self.sources),
            "length_unit": "characters" if base_language(self.source_lang) in UNSPACED_LANGUAGES else "words",
            "source_lang": self.source_lang,
            "target_lang": self.target_lang,
            **({} if self.aligned is None else {ALIGNMENTS: self.aligned.describe()}),
        }


@dataclass(frozen=True)
class Options:
    """How to decode, what to leave out, COMET's command if it is to be used, whether code of checkpoints is run."""

    num_beams: int = 5
    length_penalty: float = 1.0
    max_tokens: int = 4096
    num_examples: int = NUM_EXAMPLES
    efficiency: bool = True
    comet: str | None = None
    trust_remote_code: bool = False
    generation: dict[str, Any] = field(default_factory=dict)


def load_test_set(
    source: str | Path,
    reference: str | Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    max_sentences: int | None = None,
    alignments: AlignmentFile | None = None,
) -> TestSet:
    """Reads two files with one sentence a line; the languages are the ends of their names if not given.

    Args:
        alignments: gold word alignments of all lines, see `aligned_text.read_aligned_text`.

    Raises:
        ValueError: if the files do not have the same number of lines, or none, or the alignments do not fit, or one is
            not UTF-8.
        OSError: if a file cannot be read.
    """
    paths = [Path(source), Path(reference)]
    sides = [read_lines(path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {reference} {len(sides[1])}: each line needs its translation"
        )
    if not sides[0]:
        raise ValueError(f"{source} is empty")
    codes = [path.suffix.lstrip(".") for path in paths]
    codes = [code if LANGUAGE_CODE.fullmatch(code) else "" for code in codes]
    languages = {"source_lang": source_lang or codes[0], "target_lang": target_lang or codes[1]}
    aligned = None
    if alignments is not None:
        aligned = read_aligned_text(sides[0], sides[1], alignments, **languages)
        aligned = replace(aligned, pairs=aligned.pairs[:max_sentences])
    sources, references = (side[:max_sentences] for side in sides)
    return TestSet(sources, references, paths[0].name, paths[1].name, **languages, aligned=aligned)


def report_system(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    options: Options = Options(),
    stage: Callable[[str], Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Everything about one run that needs no other: translations, their scores, and the routing.

    Args:
        name: how the report calls it.
        stage: called with a stage's title, gives a context manager of a function (done, in all) to show progress with.

    Returns:
        An entry of the report's "systems", without what `make_report` adds, and the translations.
    """
    stage = stage or _silent
    sources, references = test_set.sources, test_set.references
    with stage(f"{name}: translating") as progress:
        translations = translate(
            model,
            tokenizer,
            sources,
            max_tokens=options.max_tokens,
            progress=progress,
            num_beams=options.num_beams,
            length_penalty=options.length_penalty,
            **options.generation,
        )
    system: dict[str, Any] = {
        "name": name,
        "model_type": model.config.model_type,
        "description": describe(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "scores": score(translations, references, target_lang=test_set.target_lang),
        "empty": sum(
            bool(source.strip()) and not text.strip() for source, text in zip(sources, translations, strict=True)
        ),
        "buckets": by_source_length(
            sources,
            translations,
            references,
            min_sentences=ENOUGH_SENTENCES,
            source_lang=test_set.source_lang,
            target_lang=test_set.target_lang,
        ),
    }
    if options.comet is not None:
        with stage(f"{name}: COMET"):
            system["scores"]["comet"] = _comet(sources, translations, references, options.comet)
        system["scores"]["signatures"]["comet"] = COMET_MODEL
    with stage(f"{name}: routing") as progress:
        system["routing"] = collect(
            model, tokenizer, sources, references, max_tokens=options.max_tokens, progress=progress
        )
    with stage(f"{name}: without its parts") as progress:
        system["contributions"] = contributions(
            model,
            tokenizer,
            sources,
            references,
            max_tokens=options.max_tokens,
            progress=progress,
            warn=not system["routing"],
        )
    if test_set.aligned is not None:
        with stage(f"{name}: PAST and FUTURE beside gold alignments"):
            system[ALIGNMENTS] = alignment_part(model, tokenizer, test_set.aligned)
    return system, translations


def _comet(sources: list[str], translations: list[str], references: list[str], command: str) -> float:
    try:
        return comet_score(sources, translations, references, command=command)
    except RuntimeError as error:
        raise ValueError(f"{error}; leave out --comet to go on without it") from error


def describe(config: Any) -> str:
    """What the config says about the system: the fields of `DESCRIBED` that are set."""
    routes = routes_layers(getattr(config, "aggregation", "none"))
    capsules = getattr(config, "source_memory", "") in CAPSULE_MEMORIES
    shown = []
    for name in DESCRIBED:
        value = getattr(config, name, None)
        unused = {
            "num_capsules": not routes,
            "routing_iterations": not (routes or capsules or getattr(config, "guided_routing", "none") == "routing"),
            "num_source_capsules": not capsules,
        }
        if value not in (None, "none", 0, False) and not unused.get(name, False):
            shown.append(f"{name}={value}")
    return ", ".join(shown) or "no routing"


def use_test_languages(tokenizer: PreTrainedTokenizerBase, test_set: TestSet) -> None:
    """
    Set a multilingual tokenizer to the languages of a test set, in the tokenizer's own codes.

    The ends of file names ("en") are often none of its codes ("eng_Latn"); the pair that was saved with it stands for
    them if it is of the same languages.

    Raises:
        ValueError: it does not have the languages, or its target text is none to score.
    """
    if not is_multilingual(tokenizer):
        return
    saved, asked = saved_languages(tokenizer), (test_set.source_lang, test_set.target_lang)
    if saved is not None and [base_language(code) for code in asked] == [base_language(code) for code in saved]:
        asked = saved
    set_languages(tokenizer, asked[0] or None, asked[1] or None)
    check_target_text(tokenizer)


@contextmanager
def _silent(title: str) -> Iterator[Progress]:
    yield lambda done, total: None


def make_report(
    checkpoints: Mapping[str, str | Sequence[str]],
    test_set: TestSet,
    output: str | Path,
    options: Options = Options(),
    stage: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Computes, or takes up, everything about the checkpoints.

    Args:
        checkpoints: directory or name on the Hub, or those of several runs that differ in their seeds, by the name
            that the report calls the system; the first system is the baseline. Scores are means over the runs; what
            is shown of routing, examples, buckets and speed is that of a system's first run.
        output: folder in which each checkpoint's finished part is kept, under `parts/`.

    Returns:
        The report, for JSON and for the page.

    Raises:
        ValueError: if a checkpoint cannot be loaded, or gives numbers that are not finite.
    """
    stage = stage or _silent
    systems, runs, first = [], {}, {}
    for name, given in checkpoints.items():
        parts = []
        for number, checkpoint in enumerate([given] if isinstance(given, str) else given, 1):
            model, tokenizer = load(checkpoint, options.trust_remote_code)
            use_test_languages(tokenizer, test_set)
            if number == 1:
                first[name] = model, tokenizer
            parts.append(_part_of_run(name, number, checkpoint, model, tokenizer, test_set, output, options, stage))
        systems.append(_joined(name, parts))
        runs[name] = [part["translations"] for part in parts]
    translations = {name: texts[0] for name, texts in runs.items()}
    report = _described(systems, test_set, options)
    if find_spec("systran_align") is not None:
        with stage("word alignments"):
            adequacy = _adequacy(test_set, translations)
        for system in systems:
            system["adequacy"] = adequacy[system["name"]]
    _add_examples(systems, first, translations, test_set, options)
    if options.efficiency:
        with stage("speed, systems in turns") as progress:
            speeds = efficiency(first, test_set.sources, test_set.references, progress=progress)
        for system in systems:
            system["efficiency"] = speeds[system["name"]]
        report["speed_warnings"] = speed_warnings(systems)
    if len(systems) > 1:
        report["comparison"] = _compared(systems, runs, test_set, stage)
    table = systems_table(report)
    report["table"] = {"markdown": table.to_markdown(), "latex": table.to_latex()}
    report["translations"] = {
        name if number == 1 else f"{name}.run{number}": texts
        for name, of_runs in runs.items()
        for number, texts in enumerate(of_runs, 1)
    }
    return report


def _described(systems: list[dict[str, Any]], test_set: TestSet, options: Options) -> dict[str, Any]:
    """The systems, and what they were made to translate."""
    names = [system["name"] for system in systems]
    return {
        "title": f"{' and '.join(names) if len(names) < 3 else f'{len(names)} systems'} on {test_set.source}",
        "created_with": f"hf_capsule_mt {__version__}",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "test_set": test_set.describe(),
        "decoding": {"num_beams": options.num_beams, "length_penalty": options.length_penalty},
        "systems": systems,
    }


def _compared(
    systems: Sequence[dict[str, Any]],
    runs: Mapping[str, Sequence[Sequence[str]]],
    test_set: TestSet,
    stage: Callable[[str], Any],
) -> dict[str, Any]:
    seeds = {system["name"]: [run.get("seed") for run in system["runs"]] for system in systems}
    with stage("significance tests") as progress:
        return compare_systems(
            runs,
            test_set.sources,
            test_set.references,
            seeds=seeds,
            target_lang=test_set.target_lang,
            progress=progress,
        )


def _part_of_run(
    name: str,
    number: int,
    checkpoint: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    output: str | Path,
    options: Options,
    stage: Callable[[str], Any],
) -> dict[str, Any]:
    """What is kept of a run, made if it is not there, with its origin, which may change without it."""
    part = Path(output) / "parts" / f"{file_name(name)}{'' if number == 1 else f'.run{number}'}.json"
    fingerprint = checkpoint_fingerprint(model, tokenizer)
    key = _key(fingerprint, test_set, options)
    kept = _kept_part(part, key)
    if kept is None:
        title = name if number == 1 else f"{name}, run {number}"
        system, texts = report_system(title, model, tokenizer, test_set, options, stage)
        kept = _write_part(part, key, system, texts)
    revision = getattr(model.config, "_commit_hash", None)
    origin = provenance(checkpoint, fingerprint["weights"], revision)
    return {**kept, "origin": origin}


def _joined(name: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A system of its runs: mean scores, everything else of the first."""
    first = parts[0]["system"]
    spread = spread_of([part["system"]["scores"] for part in parts])
    return {
        **first,
        "name": name,
        "scores": {**first["scores"], **{metric: found["mean"] for metric, found in spread.items()}},
        "spread": spread,
        "runs": [{**part["origin"], "empty": part["system"]["empty"]} for part in parts],
    }


def _add_examples(
    systems: Sequence[dict[str, Any]],
    models: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    translations: Mapping[str, Sequence[str]],
    test_set: TestSet,
    options: Options,
) -> None:
    """The same sentences for all systems, but for those that a system has no translation of."""
    sources, references = test_set.sources, test_set.references
    chosen = choose_examples(sources, translations, references, options.num_examples, test_set.target_lang)
    for system in systems:
        texts = translations[system["name"]]
        system["examples"] = [
            example(*models[system["name"]], sources[position], references[position], texts[position])
            for position in chosen
            if texts[position].strip()
        ]


def _adequacy(test_set: TestSet, translations: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    languages: Any = {"source_lang": test_set.source_lang, "target_lang": test_set.target_lang}
    aligned = test_set.aligned
    if aligned is None:
        return evaluate_adequacy(test_set.sources, test_set.references, translations, **languages)
    sources = _words([pair.source_tokens for pair in aligned.pairs])
    references = _words([pair.target_tokens for pair in aligned.pairs])
    words = {
        name: _words([aligned.split(text, test_set.target_lang) for text in texts])
        for name, texts in translations.items()
    }
    gold = [set(pair.alignment) for pair in aligned.pairs]
    return evaluate_adequacy(sources, references, words, reference_alignments=gold, **languages)


def _words(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """The words that gold alignments count, without the one that means something to the aligner."""
    return [["|" if word == SEPARATOR else word for word in text] for text in texts]


def systems_table(report: dict[str, Any]) -> Table:
    """The table of a paper's results section: scores of every system, marked where they differ from the baseline."""
    comparison = report.get("comparison", {"baseline": "", "systems": {}})
    several = any(len(system.get("runs", ())) > 1 for system in report["systems"])
    rows = []
    for system in report["systems"]:
        row = {"name": system["name"], **system["scores"]}
        if several:
            row["runs"] = str(len(system["runs"]))
            for metric, digits in [(key, digits) for key, _, digits in (*SCORE_COLUMNS, COMET_COLUMN)]:
                found = system["spread"].get(metric)
                if found is not None and found["sd"] is not None:
                    row[metric] = f"{found['mean']:.{digits}f} ± {found['sd']:.{digits}f}"
        row["cdr"] = system.get("adequacy", {}).get("cdr")
        row["parameters"] = system["parameters"] / 1e6
        row["marks"] = significance_marks(comparison["systems"].get(system["name"], {}))
        rows.append(row)
    optional = [COMET_COLUMN, ("cdr", "CDR", 3)]
    shown = [column for column in optional if any(row.get(column[0]) is not None for row in rows)]
    runs = [("runs", "Runs", 0)] if several else []
    columns = [*runs, *SCORE_COLUMNS, *shown, ("parameters", "parameters (M)", 2)]
    caption = comparison_caption(
        _table_title(report, several),
        baseline=comparison["baseline"],
        test=test_in_words(comparison),
        signatures=_signatures(report, columns),
    )
    return comparison_table(rows, columns, caption=caption)


def _table_title(report: dict[str, Any], several: bool) -> str:
    """What was translated and how, and which systems left sentences out."""
    tested, decoding = report["test_set"], report["decoding"]
    sentences = [
        f"{tested['source']}, {tested['sentences']:,} sentences, beam {decoding['num_beams']}, length penalty "
        f"{decoding['length_penalty']:g}."
    ]
    if several:
        sentences.append("Mean ± standard deviation over the runs; CDR of the first run.")
    return " ".join([*sentences, *empty_notes(report)])


def _signatures(report: dict[str, Any], columns: Sequence[tuple[str, str, int]]) -> dict[str, str]:
    signatures = report["systems"][0]["scores"]["signatures"]
    return {label: signatures[key] for key, label, _ in columns if key in signatures}


@explain_failed_load
def load(checkpoint: str, trust_remote_code: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model, in evaluation mode on the best device, and tokenizer of a directory or a name on the Hub."""
    model = from_checkpoint(AutoModelForSeq2SeqLM, checkpoint, trust_remote_code=trust_remote_code).eval()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device), from_checkpoint(AutoTokenizer, checkpoint, trust_remote_code=trust_remote_code)


def write_report(report: dict[str, Any], output: str | Path) -> Path:
    """Writes the page, the figures, the numbers, the tables and the translations.

    Returns:
        The page, index.html.
    """
    output = Path(output)
    (output / "figures").mkdir(parents=True, exist_ok=True)
    (output / "translations").mkdir(exist_ok=True)
    for name, texts in report.pop("translations").items():
        write_lines(output / "translations" / f"{file_name(name)}.txt", texts)
    report["figures"], drawn = [], {}
    for figure in draw_figures(report):
        path = output / "figures" / f"{figure.id}.svg"
        save(figure.figure, path)
        save(figure.figure, path.with_suffix(".png"))
        drawn[figure.id] = path.read_text(encoding="utf-8")
        described = {"id": figure.id, "title": figure.title, "caption": figure.caption, "system": figure.system}
        report["figures"].append({**described, "file": f"figures/{path.name}"})
    write_whole(output / "table.md", report["table"]["markdown"])
    write_whole(output / "table.tex", report["table"]["latex"])
    write_whole(output / "report.json", json_text(report, indent=1))
    write_whole(output / "summary.json", json_text(summary(report), indent=1) + "\n")
    write_whole(output / "index.html", render(report, drawn))
    return output / "index.html"


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """The report without examples, maps, figures and tables: small enough to be kept with a project's results."""
    dropped = ("examples", "figures", "table", "translations", "mean", "order", "most_different")

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            # the mean of a map is large, that of a score is a number
            kept = {key: inner for key, inner in value.items() if key not in dropped or isinstance(inner, float)}
            return {key: without(inner) for key, inner in kept.items()}
        return [without(inner) for inner in value] if isinstance(value, list) else value

    return without(report)


def file_name(name: str) -> str:
    """The name of a system as that of its files."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _key(fingerprint: dict[str, str], test_set: TestSet, options: Options) -> str:
    """Of everything that the part of a run depends on; examples and speed are no part of it."""
    asked = replace(options, num_examples=0, efficiency=False)
    parts = [
        __version__,
        fingerprint,
        test_set.describe(),
        repr(asked),
        test_set.sources,
        test_set.references,
        [] if test_set.aligned is None else [(pair.alignment, pair.unsure) for pair in test_set.aligned.pairs],
    ]
    return digest(parts)


def _kept_part(part: Path, key: str) -> dict[str, Any] | None:
    """A finished part of this key; None if there is none, or if it is not what was written."""
    if not part.exists():
        return None
    try:
        kept = read_json(part)
        if kept["digest"] == digest([kept["system"], kept["translations"]]):
            return kept if kept["key"] == key else None
        reason = "its content has changed"
    except (ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    logger.warning(f"{part} is damaged ({reason}), and is made again")
    return None


def _write_part(part: Path, key: str, system: dict[str, Any], translations: list[str]) -> dict[str, Any]:
    """What `_kept_part` gives from now on: numbers and lists as JSON has them."""
    try:
        system = json.loads(json_text(system))
    except ValueError as error:
        raise ValueError(f"{system['name']} gives numbers that are not finite; are its weights whole?") from error
    kept = {"key": key, "digest": digest([system, translations]), "system": system, "translations": translations}
    write_whole(part, json_text(kept))
    return kept
