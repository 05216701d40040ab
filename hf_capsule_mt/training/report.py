"""What a run leaves behind: results.json, translations as text, a table of scores and samples."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..models.tokenizer_languages import LanguagePair
from ..records import command_without_secrets

PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "datasets", "accelerate", "sacrebleu")
RESULTS = "results.json"
NUM_SAMPLES = 5


@dataclass
class SplitScores:
    """Scores of one split, or of one of its pairs of languages, with one beam size.

    The translations lie in `file` under the output folder.
    """

    split: str
    source_lang: str
    target_lang: str
    beams: int
    length_penalty: float
    sentences: int
    bleu: float
    chrf: float
    ter: float
    signatures: dict[str, str]
    seconds: float
    file: str
    hypotheses: list[str] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the translations."""
        return {name: value for name, value in asdict(self).items() if name != "hypotheses"}


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("hf_capsule_mt", *PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def mean(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each number; there is at least one dict, and all have the same numbers."""
    return {name: sum(row[name] for row in scores) / len(scores) for name in scores[0]}


def mean_scores(rows: Sequence[SplitScores]) -> list[dict[str, Any]]:
    """Of each split and beam size that has several pairs of languages, the means over them."""
    groups: dict[tuple[str, int], list[SplitScores]] = {}
    for row in rows:
        groups.setdefault((row.split, row.beams), []).append(row)
    return [
        {
            "split": split,
            "beams": beams,
            "pairs": len(group),
            "sentences": sum(row.sentences for row in group),
            **mean([{"bleu": row.bleu, "chrf": row.chrf, "ter": row.ter, "seconds": row.seconds} for row in group]),
        }
        for (split, beams), group in groups.items()
        if len(group) > 1
    ]


def score_table(rows: Sequence[SplitScores]) -> str:
    """A table of scores with their signatures under it; of several pairs of languages each, and their mean."""
    table: list[tuple[str, dict[str, Any]]] = []
    means = {(row["split"], row["beams"]): row for row in mean_scores(rows)}
    for index, row in enumerate(rows):
        key = (row.split, row.beams)
        name = f"{row.split}, {'greedy' if row.beams == 1 else f'beam {row.beams}'}"
        pair = f", {row.source_lang}-{row.target_lang}" if key in means else ""
        table.append((f"{name}{pair}", row.to_dict()))
        if key in means and (index + 1 == len(rows) or (rows[index + 1].split, rows[index + 1].beams) != key):
            table.append((f"{name}, mean of {means[key]['pairs']} pairs", means[key]))
    width = max(22, *(len(name) + 1 for name, _ in table))
    lines = [f"{'':<{width}}{'BLEU':>8}{'chrF':>8}{'TER':>8}{'sentences':>11}{'seconds':>9}"]
    lines += [
        f"{name:<{width}}{row['bleu']:8.2f}{row['chrf']:8.2f}{row['ter']:8.2f}{row['sentences']:11,}"
        f"{row['seconds']:9.1f}"
        for name, row in table
    ]
    # languages may be scored in different ways
    signatures: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for metric, signature in row.signatures.items():
            languages = signatures.setdefault((metric, signature), [])
            languages += [row.target_lang] if row.target_lang not in languages else []
    different = len(signatures) > len(rows[0].signatures)
    for (metric, signature), languages in signatures.items():
        lines.append(f"{metric:>4}: {signature}" + (f" ({', '.join(languages)})" if different else ""))
    return "\n".join(lines)


def samples(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """A few translations, evenly spread over the set."""
    count = min(NUM_SAMPLES, len(sources))
    chosen = [index * len(sources) // count for index in range(count)]
    return "\n\n".join(
        f"source       {sources[i]}\ntranslation  {hypotheses[i]}\nreference    {references[i]}" for i in chosen
    )


def translation_command(output_dir: str | Path, sentence: str, pair: LanguagePair | None = None) -> str:
    """
    A shell command that translates a sentence with the saved model.

    Args:
        pair: its languages, for a model of several pairs.
    """
    languages = "" if pair is None else f", src_lang={pair.source!r}, tgt_lang={pair.target!r}"
    code = (
        "import hf_capsule_mt; from transformers import pipeline; hf_capsule_mt.register(); "
        f"print(pipeline('translation', model={str(output_dir)!r}{languages})({sentence!r})[0]['translation_text'])"
    )
    # Double quotes read better than what shlex makes of the single ones inside, unless the shell would see more.
    quoted = shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
    # the running interpreter has the package, whether or not its environment is activated
    return f"{shlex.quote(relative(sys.executable))} -c {quoted}"


def relative(path: str | Path) -> str:
    """The path as seen from the current folder if it lies in it: results are to be read on other machines too."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def run_command(argv: Sequence[str], command: str = "train") -> str:
    """The command line of a run, without the secrets in it."""
    return shlex.join(["hf-capsule-mt", command, *command_without_secrets(argv)])
