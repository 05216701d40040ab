"""COMET, if it is installed: it cannot share an environment with transformers 5, so it runs as its own command."""

from __future__ import annotations

import re
import shutil
import subprocess  # nosec B404
import tempfile
from collections.abc import Sequence
from pathlib import Path

MODEL = "Unbabel/wmt22-comet-da"


def find_comet(command: str = "comet-score") -> str:
    """The path of COMET's command.

    Raises:
        ValueError: if it is not installed; says how to.
    """
    found = shutil.which(command)
    if found is None:
        raise ValueError(
            f"there is no command {command}: install COMET into an environment of its own (python -m venv comet && "
            "comet/bin/pip install unbabel-comet) and give the path comet/bin/comet-score"
        )
    return found


def comet_score(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    *,
    command: str = "comet-score",
    model: str = MODEL,
) -> float:
    """The system's score by COMET (Rei et al. 2020), as its command prints it.

    Args:
        sources, translations, references: one sentence each, in the same order.
        command: name or path of comet-score.
        model: of COMET; its command downloads it unless it is a path.

    Raises:
        ValueError: if COMET is not installed, or the lists differ in length or are empty.
        RuntimeError: if the command fails or prints no score.
    """
    if not sources or not len(sources) == len(translations) == len(references):
        lengths = f"{len(sources)} sources, {len(translations)} translations and {len(references)} references"
        raise ValueError(f"COMET needs as many of each, and at least one, got {lengths}")
    program = find_comet(command)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, sentences in (("source", sources), ("translation", translations), ("reference", references)):
            path = Path(folder) / name
            path.write_text("".join(" ".join(text.split()) + "\n" for text in sentences), encoding="utf-8")
            paths.append(str(path))
        arguments = ["-s", paths[0], "-t", paths[1], "-r", paths[2], "--model", model, "--quiet", "--only_system"]
        # The user's own command, found by its name, and no shell between it and the arguments.
        finished = subprocess.run(  # nosec B603
            [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    scores = re.findall(r"score: (-?[\d.]+)\s*$", finished.stdout, re.M)
    if finished.returncode != 0 or not scores:
        reason = (finished.stderr or finished.stdout).strip().splitlines() or ["it printed nothing"]
        raise RuntimeError(f"{command} gave no score: {reason[-1]}")
    return float(scores[-1])
