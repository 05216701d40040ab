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

from ..records import command_without_secrets

PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "datasets", "accelerate", "sacrebleu")
RESULTS = "results.json"
NUM_SAMPLES = 5


@dataclass
class SplitScores:
    """Scores of one split with one beam size; the translations lie in `file` under the output folder."""

    split: str
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


def score_table(rows: Sequence[SplitScores]) -> str:
    """A table of scores with their signatures under it."""
    lines = [f"{'':<22}{'BLEU':>8}{'chrF':>8}{'TER':>8}{'sentences':>11}{'seconds':>9}"]
    for row in rows:
        name = f"{row.split}, {'greedy' if row.beams == 1 else f'beam {row.beams}'}"
        lines.append(f"{name:<22}{row.bleu:8.2f}{row.chrf:8.2f}{row.ter:8.2f}{row.sentences:11,}{row.seconds:9.1f}")
    lines += [f"{metric:>4}: {signature}" for metric, signature in rows[0].signatures.items()]
    return "\n".join(lines)


def samples(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """A few translations, evenly spread over the set."""
    count = min(NUM_SAMPLES, len(sources))
    chosen = [index * len(sources) // count for index in range(count)]
    return "\n\n".join(
        f"source       {sources[i]}\ntranslation  {hypotheses[i]}\nreference    {references[i]}" for i in chosen
    )


def translation_command(output_dir: str | Path, sentence: str) -> str:
    """A shell command that translates a sentence with the saved model."""
    code = (
        "import hf_capsule_mt; from transformers import pipeline; hf_capsule_mt.register(); "
        f"print(pipeline('translation', model={str(output_dir)!r})({sentence!r})[0]['translation_text'])"
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
