"""
One page on what checkpoints translate and what their routing does, on a test set.

    python -m hf_capsule_mt report runs/grammar --source test.en --reference test.de
    python -m hf_capsule_mt report runs/baseline runs/em_routing runs/gdr --source test.en --reference test.de

The output folder gets index.html, which holds everything and needs no network, the figures as SVG and PNG, every
number in report.json (in summary.json without examples and maps), the table of systems as Markdown and LaTeX, and the
translations. With several checkpoints the first is the baseline that the others are tested against. Each checkpoint's
part is kept when it is finished: the same command after an interruption goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .._version import __version__
from ..evaluation.adequacy import evaluate_adequacy
from ..evaluation.buckets import by_source_length
from ..evaluation.comet import MODEL as COMET_MODEL
from ..evaluation.comet import comet_score, find_comet
from ..evaluation.scores import score
from ..evaluation.significance import compare
from ..evaluation.translate import translate
from .efficiency import efficiency
from .examples import example
from .plots import draw_figures, save
from .report_page import render
from .routing_statistics import collect
from .tables import SCORE_COLUMNS, Table, comparison_caption, comparison_table, significance_marks

PROGRAM = "hf_capsule_mt report"
NUM_EXAMPLES = 6
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
# arguments of a run that do not make it another system
UNIMPORTANT = ("output_dir", "seed", "report_to", "logging_steps", "save_steps", "save_total_limit", "eval_steps")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TestSet:
    """Sentences and their references, with the names of their files and the codes of their languages."""

    sources: list[str]
    references: list[str]
    source: str
    reference: str
    source_lang: str = ""
    target_lang: str = ""

    def describe(self) -> dict[str, Any]:
        """Everything but the text."""
        return {
            "source": self.source,
            "reference": self.reference,
            "sentences": len(self.sources),
            "source_lang": self.source_lang,
            "target_lang": self.target_lang,
        }


@dataclass(frozen=True)
class Options:
    """How to decode, what to leave out, and COMET's command, if it is to be used."""

    num_beams: int = 5
    length_penalty: float = 1.0
    max_tokens: int = 4096
    num_examples: int = NUM_EXAMPLES
    efficiency: bool = True
    comet: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)


def load_test_set(
    source: str | Path,
    reference: str | Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    max_sentences: int | None = None,
) -> TestSet:
    """Reads two files with one sentence a line; the languages are the ends of their names if not given.

    Raises:
        ValueError: if the files do not have the same number of lines, or none.
        OSError: if a file cannot be read.
    """
    paths = [Path(source), Path(reference)]
    sides = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {reference} {len(sides[1])}: each line needs its translation"
        )
    if not sides[0]:
        raise ValueError(f"{source} is empty")
    sources, references = (side[:max_sentences] for side in sides)
    codes = [path.suffix.lstrip(".") for path in paths]
    codes = [code if code.replace("-", "").isalpha() and len(code) <= 6 else "" for code in codes]
    return TestSet(sources, references, paths[0].name, paths[1].name, source_lang or codes[0], target_lang or codes[1])


def report_system(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    options: Options = Options(),
    stage: Callable[[str], Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Everything about one checkpoint that needs no other.

    Args:
        name: how the report calls it.
        stage: called with a stage's title, gives a context manager of a function (done, in all) to show progress with.

    Returns:
        An entry of the report's "systems", without adequacy, and the translations.
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
        "buckets": by_source_length(
            sources,
            translations,
            references,
            source_lang=test_set.source_lang,
            target_lang=test_set.target_lang,
        ),
    }
    if options.comet is not None:
        with stage(f"{name}: COMET"):
            system["scores"]["comet"] = comet_score(sources, translations, references, command=options.comet)
        system["scores"]["signatures"]["comet"] = COMET_MODEL
    with stage(f"{name}: routing") as progress:
        system["routing"] = collect(
            model, tokenizer, sources, references, max_tokens=options.max_tokens, progress=progress
        )
    chosen = choose_examples(sources, translations, options.num_examples)
    system["examples"] = [
        example(model, tokenizer, sources[position], references[position], translations[position])
        for position in chosen
    ]
    if options.efficiency:
        with stage(f"{name}: speed") as progress:
            system["efficiency"] = efficiency(model, tokenizer, sources, references, progress=progress)
    return system, translations


def describe(config: Any) -> str:
    """What the config says about the system: the fields of `DESCRIBED` that are set."""
    routes = getattr(config, "aggregation", "none") in ("dynamic_routing", "em_routing")
    capsules = getattr(config, "source_memory", "") in ("capsule", "hybrid")
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


def choose_examples(sources: Sequence[str], translations: Sequence[str], count: int) -> list[int]:
    """Positions of sentences evenly spread over the lengths, without the longest tenth."""
    usable = [i for i in range(len(sources)) if sources[i].strip() and translations[i].strip()]
    usable.sort(key=lambda position: (len(sources[position].split()), position))
    usable = usable[: max(count, (9 * len(usable)) // 10)]
    count = min(count, len(usable))
    return [usable[(2 * number + 1) * len(usable) // (2 * count)] for number in range(count)]


def sweep(records: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """BLEU against one argument, from recorded runs that differ in nothing else (Dou et al., Figures 2 and 3).

    Args:
        records: results.json of runs of train.py.
        name: the argument, "num_capsules" or "routing_iterations".

    Returns:
        "value", "bleu" (of the test set with the most beams) and "name" (the recipe) of every run of the largest
        group, by value; nothing if there are not two values.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    defaults = {"num_capsules": lambda arguments: arguments.get("d_model"), "routing_iterations": lambda _: 3}
    for record in records:
        arguments = record["arguments"]
        if arguments.get("aggregation") not in ("dynamic_routing", "em_routing"):
            continue
        value = arguments.get(name) or defaults[name](arguments)
        rest = {key: arguments[key] for key in sorted(arguments) if key not in (name, *UNIMPORTANT)}
        tested = [row for row in record["scores"] if row["split"] == "test"] or record["scores"]
        best = max(tested, key=lambda row: row["beams"])
        point = {"value": value, "bleu": best["bleu"], "name": Path(record.get("recipe") or "run").stem}
        groups.setdefault(json.dumps(rest, sort_keys=True, default=str), []).append(point)
    largest = max(groups.values(), key=lambda points: len({point["value"] for point in points}), default=[])
    if len({point["value"] for point in largest}) < 2:
        return []
    return sorted(largest, key=lambda point: point["value"])


def compare_systems(
    systems: dict[str, list[str]], test_set: TestSet, stage: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Every system against the first: see `evaluation.significance.compare`.

    Args:
        systems: translations by name.
    """
    (baseline, first), *others = systems.items()
    compared = {}
    with (stage or _silent)("significance tests") as progress:
        for number, (name, translations) in enumerate(others, 1):
            compared[name] = compare(first, translations, test_set.references, target_lang=test_set.target_lang)
            progress(number, len(others))
    return {"baseline": baseline, "systems": compared}


@contextmanager
def _silent(title: str) -> Iterator[Progress]:
    yield lambda done, total: None


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    with tqdm(desc=title, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def make_report(
    checkpoints: dict[str, str],
    test_set: TestSet,
    output: str | Path,
    options: Options = Options(),
    records: Sequence[dict[str, Any]] = (),
    stage: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Computes, or takes up, everything about the checkpoints.

    Args:
        checkpoints: directory or name on the Hub, by the name that the report calls it; the first is the baseline.
        output: folder in which each checkpoint's finished part is kept, under `parts/`.
        records: results.json of runs, for `sweep`.

    Returns:
        The report, for JSON and for the page.

    Raises:
        ValueError: if a checkpoint cannot be loaded.
    """
    stage = stage or _silent
    systems, translations = [], {}
    for name, checkpoint in checkpoints.items():
        part = Path(output) / "parts" / f"{_file_name(name)}.json"
        key = _fingerprint(checkpoint, test_set, options)
        kept = json.loads(part.read_text(encoding="utf-8")) if part.is_file() else {}
        if kept.get("key") != key:
            model, tokenizer = load(checkpoint)
            system, texts = report_system(name, model, tokenizer, test_set, options, stage)
            kept = {"key": key, "system": system, "translations": texts}
            write_whole(part, json.dumps(kept, ensure_ascii=False))
        systems.append(kept["system"] | {"name": name})
        translations[name] = kept["translations"]
    report: dict[str, Any] = {
        "title": f"{' and '.join(checkpoints) if len(checkpoints) < 3 else f'{len(checkpoints)} systems'}"
        f" on {test_set.source}",
        "created_with": f"hf_capsule_mt {__version__}",
        "test_set": test_set.describe(),
        "decoding": {"num_beams": options.num_beams, "length_penalty": options.length_penalty},
        "systems": systems,
    }
    if find_spec("systran_align") is not None:
        with stage("word alignments"):
            adequacy = evaluate_adequacy(
                test_set.sources,
                test_set.references,
                translations,
                source_lang=test_set.source_lang,
                target_lang=test_set.target_lang,
            )
        for system in systems:
            system["adequacy"] = adequacy[system["name"]]
    if len(systems) > 1:
        report["comparison"] = compare_systems(translations, test_set, stage)
    sweeps = {name: sweep(records, name) for name in ("num_capsules", "routing_iterations")}
    if any(sweeps.values()):
        report["sweeps"] = {name: points for name, points in sweeps.items() if points}
    table = systems_table(report)
    report["table"] = {"markdown": table.to_markdown(), "latex": table.to_latex()}
    report["translations"] = translations
    return report


def systems_table(report: dict[str, Any]) -> Table:
    """The table of a paper's results section: scores of every system, marked where they differ from the baseline."""
    comparison = report.get("comparison", {"baseline": "", "systems": {}})
    rows = []
    for system in report["systems"]:
        row = {"name": system["name"], **system["scores"]}
        row["cdr"] = system.get("adequacy", {}).get("cdr")
        row["parameters"] = system["parameters"] / 1e6
        row["marks"] = significance_marks(comparison["systems"].get(system["name"], {}))
        rows.append(row)
    optional = [("comet", "COMET", 3), ("cdr", "CDR", 3)]
    shown = [column for column in optional if any(row.get(column[0]) is not None for row in rows)]
    columns = [*SCORE_COLUMNS, *shown, ("parameters", "parameters (M)", 2)]
    tested, decoding = report["test_set"], report["decoding"]
    title = (
        f"{tested['source']}, {tested['sentences']:,} sentences, beam {decoding['num_beams']}, length penalty "
        f"{decoding['length_penalty']:g}"
    )
    signatures = report["systems"][0]["scores"]["signatures"]
    named = {label: signatures[key] for key, label, _ in columns if key in signatures}
    caption = comparison_caption(title, baseline=comparison["baseline"], signatures=named)
    return comparison_table(rows, columns, caption=caption)


def load(checkpoint: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model, in evaluation mode on the best device, and tokenizer of a directory or a name on the Hub."""
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device), AutoTokenizer.from_pretrained(checkpoint)


def write_report(report: dict[str, Any], output: str | Path) -> Path:
    """Writes the page, the figures, the numbers, the tables and the translations.

    Returns:
        The page, index.html.
    """
    output = Path(output)
    (output / "figures").mkdir(parents=True, exist_ok=True)
    (output / "translations").mkdir(exist_ok=True)
    for name, texts in report.pop("translations").items():
        write_whole(output / "translations" / f"{_file_name(name)}.txt", "".join(f"{text}\n" for text in texts))
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
    write_whole(output / "report.json", json.dumps(report, ensure_ascii=False, indent=1))
    write_whole(output / "summary.json", json.dumps(summary(report), ensure_ascii=False, indent=1) + "\n")
    write_whole(output / "index.html", render(report, drawn))
    return output / "index.html"


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """The report without examples, maps, figures and tables: small enough to be kept with a project's results."""
    dropped = ("examples", "figures", "table", "translations", "mean", "order")

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key not in dropped}
        return [without(inner) for inner in value] if isinstance(value, list) else value

    return without(report)


def write_whole(path: Path, text: str) -> None:
    """Writes a file in one step, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _fingerprint(checkpoint: str, test_set: TestSet, options: Options) -> str:
    """Of everything that a checkpoint's part depends on; weights by their size and time."""
    files = sorted(Path(checkpoint).glob("*.safetensors")) if Path(checkpoint).is_dir() else []
    weights = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    parts = [
        __version__,
        checkpoint,
        weights,
        test_set.describe(),
        repr(options),
        test_set.sources,
        test_set.references,
    ]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def _names(checkpoints: Sequence[str], given: Sequence[str] | None) -> dict[str, str]:
    """Checkpoints by the names that the report calls them: given, or the last parts of their paths."""
    if given is not None and len(given) != len(checkpoints):
        raise ValueError(f"--names needs one name for each of the {len(checkpoints)} checkpoints, got {len(given)}")
    names = list(given or (Path(checkpoint).name or checkpoint for checkpoint in checkpoints))
    files = [_file_name(name) for name in names]
    if len(set(files)) < len(files):
        raise ValueError(f"several checkpoints would be called {', '.join(names)}: tell them apart with --names")
    return dict(zip(names, checkpoints, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+", help="directories or names on the Hub; the first is the baseline")
    parser.add_argument("--source", type=Path, required=True, help="text file with one sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translation, line by line")
    parser.add_argument("--output", type=Path, default=Path("report"), help="folder to write (report)")
    parser.add_argument("--names", nargs="+", help="what to call the checkpoints; the names of their folders")
    parser.add_argument("--source_lang", help="language code; the end of the file's name if not given")
    parser.add_argument("--target_lang", help="language code; the end of the file's name if not given")
    parser.add_argument("--num_beams", type=int, default=5, help="beam size (5)")
    parser.add_argument(
        "--length_penalty", type=float, default=1.0, help="exponent of the length; 1 is not neutral (1.0)"
    )
    parser.add_argument("--max_sentences", type=int, help="use the first sentences only")
    parser.add_argument("--max_tokens", type=int, default=4096, help="tokens of a batch, beams included (4096)")
    parser.add_argument(
        "--examples", type=int, default=NUM_EXAMPLES, help=f"sentences to step through ({NUM_EXAMPLES})"
    )
    parser.add_argument("--comet", metavar="COMMAND", help="path of COMET's comet-score, to have its scores too")
    parser.add_argument("--no_speed", action="store_true", help="leave operations and speed out")
    parser.add_argument(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        help="results.json of runs, for BLEU against capsules and iterations",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if find_spec("matplotlib") is None:
            raise ValueError('the figures need matplotlib: pip install "hf_capsule_mt[plots]"')
        checkpoints = _names(arguments.checkpoints, arguments.names)
        for name, checkpoint in checkpoints.items():
            if not Path(checkpoint).is_dir() and (Path(checkpoint).is_absolute() or checkpoint.startswith(".")):
                raise ValueError(f"there is no directory {checkpoint} ({name})")
            AutoConfig.from_pretrained(checkpoint)
        for name in ("num_beams", "max_tokens", "examples", "max_sentences"):
            value = getattr(arguments, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        foreign = arguments.output.is_dir() and any(arguments.output.iterdir())
        if foreign and not (arguments.output / "parts").is_dir():
            raise ValueError(f"{arguments.output} is not empty and holds no report; name another folder")
        test_set = load_test_set(
            arguments.source,
            arguments.reference,
            arguments.source_lang,
            arguments.target_lang,
            arguments.max_sentences,
        )
        if arguments.comet is not None:
            find_comet(arguments.comet)
        records = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.runs]
        options = Options(
            num_beams=arguments.num_beams,
            length_penalty=arguments.length_penalty,
            max_tokens=arguments.max_tokens,
            num_examples=arguments.examples,
            efficiency=not arguments.no_speed,
            comet=arguments.comet,
        )
        report = make_report(checkpoints, test_set, arguments.output, options, records, _bar)
        page = write_report(report, arguments.output)
    except (ValueError, OSError, ImportError, StrictDataclassError, SafetensorError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    if find_spec("systran_align") is None:
        print(f'{PROGRAM}: no adequacy: pip install "hf_capsule_mt[align]"', file=sys.stderr)
    print(report["table"]["markdown"])
    print(f"written: {page}")
    return 0
