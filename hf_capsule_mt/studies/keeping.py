"""
Finished runs that lie elsewhere: what is kept of them in a folder of their own, and those of other studies.

What is kept are results and translations, neither weights nor the corpus: it can be committed or copied, the study
goes on where it was, and its table needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME

from ..files import json_text, read_json, write_whole
from ..records import public_record
from .runner import RESULTS, has_weights, translation_file
from .study_file import STUDY, Study, extra_test_sets, hold_to_record, run_folder


def keep(study: Study, resolved: Mapping[str, Mapping[str, Any]], kept: Path) -> None:
    """
    Copy what is not there yet of the study's finished runs: the translations that the table scores, those of further
    test sets, the model's configuration and, last, results.json, both without paths and secrets.

    Raises:
        OSError: a file cannot be read or written.
    """
    for system, seed in study.runs():
        source, target = study.folder(system, seed), run_folder(kept, system, seed)
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
        source, target = run_folder(kept, system, seed), study.folder(system, seed)
        if not (source / RESULTS).is_file() or (target / RESULTS).exists():
            continue
        if to_go_on and _has_to_teach(study, kept, system, seed):
            continue
        _copy(source, target)


def reuse(study: Study, resolved: Mapping[str, Mapping[str, Any]], others: Sequence[Path]) -> None:
    """
    Bring finished runs of other studies into the study's output, of systems with the same arguments, whatever their
    names; students, and teachers whose weights are gone, are left out. What is there already stays.

    Args:
        others: folders of the runs of other studies, or of what is kept of them.

    Raises:
        FileNotFoundError: a folder is none of a study.
        OSError: a file cannot be read or written.
    """
    for other in others:
        if not (other / STUDY).is_file():
            raise FileNotFoundError(f"--reuse {other}: no study has its runs there: there is no {other / STUDY}")
        known = read_json(other / STUDY)["systems"]
        for system, seed in study.runs():
            target = study.folder(system, seed)
            if system in study.teachers or (target / RESULTS).exists():
                continue
            same = [name for name, arguments in known.items() if arguments == resolved[system]]
            for source in (run_folder(other, name, seed) for name in same):
                if (source / RESULTS).is_file() and _is_enough(study, resolved, source, system, seed):
                    _copy(source, target)
                    break


def _is_enough(study: Study, resolved: Mapping[str, Mapping[str, Any]], source: Path, system: str, seed: int) -> bool:
    """Whether nothing is left to do for a finished run that its folder lacks the weights for."""
    language = str(resolved[system]["target_lang"])
    files = [translation_file(source, name, language) for name in extra_test_sets(study)]
    idle = all(path.is_file() for path in files) and not _has_to_teach(study, study.output, system, seed)
    return idle or has_weights(source)


def _copy(source: Path, target: Path) -> None:
    """Copy a finished run without its checkpoints; the results come last, with which it counts as finished."""
    for path in sorted(source.rglob("*"), key=lambda path: path.name == RESULTS):
        if path.is_file() and not path.relative_to(source).parts[0].startswith("checkpoint-"):
            write_whole(target / path.relative_to(source), path.read_bytes())


def _has_to_teach(study: Study, kept: Path, system: str, seed: int) -> bool:
    """Whether a run has students that are finished neither in the output nor in what is kept."""
    students = [student for student, teacher in study.teachers.items() if teacher == system]
    folders = [(study.folder(student, seed), run_folder(kept, student, seed)) for student in students]
    return not all(any((folder / RESULTS).is_file() for folder in pair) for pair in folders)
