"""
What is left of finished runs in a folder of their own: results and translations, neither weights nor the corpus.

Such a folder can be committed or copied: elsewhere the study goes on where it was, and its table needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME

from ..files import json_text, read_json, write_whole
from ..records import public_record
from .runner import RESULTS, translation_file
from .study_file import Study, extra_test_sets, hold_to_record


def keep(study: Study, resolved: Mapping[str, Mapping[str, Any]], kept: Path) -> None:
    """
    Copy what is not there yet of the study's finished runs: the translations that the table scores, those of further
    test sets, the model's configuration and, last, results.json, both without paths and secrets.

    Raises:
        OSError: a file cannot be read or written.
    """
    for system, seed in study.runs():
        source, target = study.folder(system, seed), _folder(study, kept, system, seed)
        language = str(resolved[system]["target_lang"])
        files = [translation_file(source, name, language) for name in extra_test_sets(study)]
        if not all(path.is_file() for path in (source / RESULTS, *files)):
            continue
        results = read_json(source / RESULTS)
        for path in (source / results["scores"][-1]["file"], *files):
            copy = target / path.relative_to(source)
            if not copy.exists():
                write_whole(copy, path.read_bytes())
        for name in (CONFIG_NAME, RESULTS):
            if (source / name).is_file() and not (target / name).exists():
                write_whole(target / name, json_text(public_record(read_json(source / name)), indent=2) + "\n")


def restore(study: Study, resolved: Mapping[str, Mapping[str, Any]], kept: Path, *, to_go_on: bool = False) -> None:
    """
    Bring kept runs into the study's output, where they count as finished; what is there already stays.

    Args:
        to_go_on: leave out teachers whose students are not finished: these need its weights, which are not kept, so
            that it is trained again.

    Raises:
        ValueError: a system was something else when its runs were kept; says what differs.
        OSError: a file cannot be read or written.
    """
    hold_to_record(study, resolved, kept)
    for system, seed in study.runs():
        source, target = _folder(study, kept, system, seed), study.folder(system, seed)
        if not (source / RESULTS).is_file() or (target / RESULTS).exists():
            continue
        if to_go_on and _has_to_teach(study, kept, system, seed):
            continue
        for path in sorted(source.rglob("*"), key=lambda path: path.name == RESULTS):
            if path.is_file():
                write_whole(target / path.relative_to(source), path.read_bytes())


def _has_to_teach(study: Study, kept: Path, system: str, seed: int) -> bool:
    """Whether a run has students that are finished neither in the output nor in what is kept."""
    students = [student for student, teacher in study.teachers.items() if teacher == system]
    folders = [(study.folder(student, seed), _folder(study, kept, student, seed)) for student in students]
    return not all(any((folder / RESULTS).is_file() for folder in pair) for pair in folders)


def _folder(study: Study, kept: Path, system: str, seed: int) -> Path:
    return kept / study.folder(system, seed).relative_to(study.output)
