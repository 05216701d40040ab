"""Study files: which systems are trained with which seeds, and what is compared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import json_text, read_json, write_whole
from ..recipe_files import read_recipe, read_yaml
from ..records import without_secrets
from .curves import curve_lines

TITLES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
SCORES = tuple(TITLES)
STUDY = "study.json"
PACKAGED = Path(__file__).parent
KEYS = (
    *("title", "recipe", "arguments", "systems", "seeds", "test_sets", "compare_with", "baselines", "score", "curves"),
    *("details", "output"),
)
LENGTH, ADEQUACY = "length", "adequacy"
DETAILS = (LENGTH, ADEQUACY)
# What the runner sets for each run.
RESERVED = ("output_dir", "seed", "resume_from_checkpoint")
# They are names of folders and of files, too.
NAME = re.compile(r"[^\W_][\w.+-]*( [\w.+-]+)*")
RECIPE_TEST = "test"
# What a student has from its teacher, and what the two must share for it.
GIVEN_BY_TEACHER = ("tokenizer_name_or_path", "model_name_or_path", "dataset_name")
SHARED_WITH_TEACHER = (
    "source_lang",
    "target_lang",
    "source_column",
    "target_column",
    "train_file",
    "data_dir",
    "max_train_samples",
)
# within the folder of a teacher's run: prefix of its translations of the training text
DISTILLED = Path("distilled", "train")


@dataclass(frozen=True)
class Study:
    """
    A study file, read and checked.

    Attributes:
        path: the file.
        title: one line on what is compared.
        systems: name -> arguments of `train` without seed and output folder: a recipe, and what is said over it.
        seeds: in the order in which they are run.
        test_sets: name -> prefix of its two files, or None for the test set of the recipe.
        compare_with: the system that all others are compared with.
        score: the primary score.
        output: the folder of the runs.
        curves: arguments that the primary score is drawn against, see `curves.curve_lines`.
        teachers: name -> the system whose translations of the training text it is trained on, seed by seed.
        baselines: further systems that all others are compared with, by the primary score.
        details: of DETAILS, what else is measured on the translations.
    """

    path: Path
    title: str
    systems: dict[str, list[str]]
    seeds: list[int]
    test_sets: dict[str, str | None]
    compare_with: str
    score: str
    output: Path
    curves: list[str]
    teachers: dict[str, str] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def runs(self) -> list[tuple[str, int]]:
        """System and seed of each run: the first seed of all systems, then the second one, ..."""
        return [(system, seed) for seed in self.seeds for system in self.systems]

    def arguments(self, system: str, seed: int) -> list[str]:
        """
        The arguments of a run; "{seed}" in them is its seed, so that it can start from another run of that seed. A
        student reads what its teacher has translated, and with the teacher's tokenizer.
        """
        words = [word.replace("{seed}", str(seed)) for word in self.systems[system]]
        if system in self.teachers:
            teacher = self.folder(self.teachers[system], seed)
            corpus = teacher / DISTILLED
            # of the current folder, whatever the data folder
            name = corpus if corpus.is_absolute() else f"./{corpus}"
            words += [f"--train_file={name}", f"--tokenizer_name_or_path={teacher}"]
        return words

    def folder(self, system: str, seed: int) -> Path:
        """The output folder of a run."""
        return run_folder(self.output, system, seed)


def run_folder(folder: Path, system: str, seed: int) -> Path:
    """The folder of a run in that of a study's runs, or of what is kept of them."""
    return folder / system.replace(" ", "_") / f"seed-{seed}"


def find_study(name: str) -> Path:
    """
    The file of a study: a path, or the name of one that comes with the package.

    Raises:
        FileNotFoundError: there is none; says which come with the package.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = PACKAGED / f"{name}.yaml"
    if re.fullmatch(r"[\w-]+", name) and packaged.is_file():
        return packaged
    names = ", ".join(sorted(p.stem for p in PACKAGED.glob("*.yaml")))
    raise FileNotFoundError(
        f"there is no study {name}: name a file, or one of those that come with the package ({names})"
    )


def find_recipe(name: str, folder: Path) -> str:
    """
    What `train` is to call a recipe: a file as seen from the current folder or the study's, or a recipe's name.

    Raises:
        ValueError, OSError: there is none, or it is none.
    """
    beside = folder / name
    return read_recipe(str(beside) if beside.is_file() and not Path(name).is_file() else name)[-1].name


def read_study(path: Path, output: Path | None = None) -> Study:
    """
    Read a study file.

    Args:
        path: see `find_study`.
        output: in place of the file's own output folder.

    Raises:
        ValueError: a key is unknown or missing, or a value is none that it can have; names file and key.
        OSError: it cannot be read.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a study is a list of 'key: value' lines with {', '.join(KEYS)}")
    try:
        return _study(path, values, output)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _study(path: Path, values: dict[Any, Any], output: Path | None) -> Study:
    for key in values:
        if key not in KEYS:
            raise ValueError(f"unknown key {key!r}; there are: {', '.join(KEYS)}")
    for key in ("systems", "compare_with"):
        if values.get(key) is None:
            raise ValueError(f"missing key {key}")
    systems = values["systems"]
    if not isinstance(systems, dict) or not systems:
        raise ValueError("systems must be 'name: recipe' or 'name: {argument: value}' lines")
    _check_names("systems", systems)
    common = _mapping("arguments", values.get("arguments"))
    teachers = _teachers(systems)
    arguments = {
        name: _system(name, value, values.get("recipe"), common, path.parent) for name, value in systems.items()
    }
    compare_with, score = values["compare_with"], values.get("score", "bleu")
    if compare_with not in systems:
        raise ValueError(f"compare_with: there is no system {compare_with!r}; there are: {', '.join(systems)}")
    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
    test_sets = values.get("test_sets") or {RECIPE_TEST: None}
    if not isinstance(test_sets, dict) or not all(v is None or isinstance(v, str) for v in test_sets.values()):
        raise ValueError("test_sets must be 'name: prefix of the two files' lines; null is the recipe's own test set")
    _check_names("test_sets", test_sets)
    return Study(
        path=path,
        title=" ".join(str(values.get("title") or path.stem).split()),
        systems=arguments,
        seeds=_seeds(values.get("seeds", [1, 2, 3])),
        test_sets=dict(test_sets),
        compare_with=compare_with,
        score=score,
        output=Path(output or _text("output", values.get("output", f"runs/studies/{path.stem}"))),
        curves=_names("curves", values.get("curves"), "arguments, such as [num_capsules]"),
        teachers=teachers,
        baselines=_chosen("baselines", values.get("baselines"), [name for name in systems if name != compare_with]),
        details=_chosen("details", values.get("details"), DETAILS),
    )


def _teachers(systems: Mapping[str, Any]) -> dict[str, str]:
    """The teachers of those systems that have one; each stands above its students."""
    teachers: dict[str, str] = {}
    above: list[str] = []
    for name, value in systems.items():
        if isinstance(value, dict) and "teacher" in value:
            teacher = value["teacher"]
            if teacher not in above:
                raise ValueError(
                    f"systems: {name}: teacher {teacher!r} must be a system that stands above it"
                    + (f"; there are: {', '.join(above)}" if above else "")
                )
            teachers[name] = teacher
        above.append(name)
    return teachers


def _system(name: str, value: Any, base: Any, common: dict[str, Any], folder: Path) -> list[str]:
    """The arguments of a system: a recipe in place of the base, arguments over the base, or both."""
    own = {"recipe": value} if isinstance(value, str) else dict(_mapping(f"systems: {name}", value))
    recipe = own.pop("recipe", base)
    own.pop("teacher", None)
    if recipe is None:
        raise ValueError(f"systems: {name}: there is no recipe; give the study a base recipe, or this system its own")
    try:
        found = find_recipe(_text("recipe", recipe), folder)
        return [found, *_as_arguments({**common, **own})]
    except (ValueError, OSError) as error:
        raise ValueError(f"systems: {name}: {error}") from None


def _as_arguments(values: Mapping[str, Any]) -> list[str]:
    words = []
    for key, value in values.items():
        if key in RESERVED:
            raise ValueError(f"{key} is set by the study for each run; leave it out")
        if value is None:
            raise ValueError(f"{key} is null; a value of a recipe is dropped by a recipe without it")
        if isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        else:
            words.append(f"--{key}={json.dumps(value) if isinstance(value, bool | dict) else value}")
    return words


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must be 'argument: value' lines")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be text, got {value!r}")
    return value


def _seeds(value: Any) -> list[int]:
    if not isinstance(value, list) or not value or any(type(seed) is not int or seed < 0 for seed in value):
        raise ValueError(f"seeds must be a list of whole numbers of at least 0, such as [1, 2, 3], got {value!r}")
    if len(set(value)) < len(value):
        raise ValueError(f"seeds: a number is given twice in {value}")
    return value


def _names(key: str, value: Any, of_what: str) -> list[str]:
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError(f"{key} must be a list of different {of_what}, got {value!r}")
    return names


def _chosen(key: str, value: Any, choices: Sequence[str]) -> list[str]:
    names = _names(key, value, f"names of {', '.join(choices)}")
    for name in names:
        if name not in choices:
            raise ValueError(f"{key}: there is no {name!r} to choose; there are: {', '.join(choices)}")
    return names


def _check_names(key: str, names: Mapping[Any, Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"{key}: {name!r} cannot be a name; it is one of a folder, too: letters, digits, and ._+- or single "
                "spaces within it (no, yes, on, off and numbers need quotes)"
            )
    files = [name.replace(" ", "_").casefold() for name in names]
    if len(set(files)) < len(files):
        raise ValueError(f"{key}: two names are the same to a file system: {', '.join(names)}")


def resolve_arguments(study: Study) -> dict[str, dict[str, Any]]:
    """
    What each system's arguments come to, with its recipe in them, and "operator_files", digests of the content of
    --operators; all of it is checked as `train` checks it.

    Raises:
        ValueError, OSError: an argument is unknown or wrong; names study file and system.
    """
    from ..training.arguments import parse_arguments

    resolved = {}
    for name, arguments in study.systems.items():
        argv = [*arguments, "--output_dir", str(study.output), "--seed", "1"]
        try:
            given = parse_arguments(argv).given
        except (ValueError, OSError) as error:
            raise ValueError(f"{study.path}: systems: {name}: {error}") from None
        # through JSON, as the other side of a comparison has been
        kept = {key: value for key, value in without_secrets(given).items() if key not in RESERVED}
        resolved[name] = json.loads(json_text(kept))
        if operators := kept.get("operators"):
            resolved[name]["operator_files"] = {file: _digest(Path(file)) for file in operators}
    for name, teacher in study.teachers.items():
        _check_student(study.path, name, resolved[name], teacher, resolved[teacher])
        resolved[name]["teacher"] = teacher
    for argument in study.curves:
        if not curve_lines(resolved, argument):
            raise ValueError(
                f"{study.path}: curves: no two systems differ in {argument} alone; give it a number in each of the "
                "systems that are to be compared"
            )
    return resolved


def _digest(path: Path) -> str:
    """By which a changed file is noticed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _check_student(
    path: Path, name: str, arguments: Mapping[str, Any], teacher: str, taught: Mapping[str, Any]
) -> None:
    """Raises a ValueError if a student cannot be trained on what its teacher translates."""
    for key in GIVEN_BY_TEACHER:
        if key in arguments:
            why = (
                "only files are translated by a teacher"
                if key == "dataset_name"
                else "its teacher gives the tokenizer"
            )
            raise ValueError(f"{path}: systems: {name}: {key} and teacher exclude each other: {why}")
    for key in SHARED_WITH_TEACHER:
        if arguments.get(key) != taught.get(key):
            raise ValueError(
                f"{path}: systems: {name}: its teacher {teacher} must have the same {key}, whose text it translates: "
                f"{_shown(arguments, key)}, and the teacher {_shown(taught, key)}"
            )


def hold_to_record(study: Study, resolved: Mapping[str, Mapping[str, Any]], folder: Path | None = None) -> None:
    """
    Compare a study with what a folder, by default its output, was begun with, and record it there; new systems, seeds
    and test sets are added.

    Raises:
        ValueError: a system or a test set of the same name was something else before; says what differs.
        OSError: the record cannot be read or written.
    """
    folder = study.output if folder is None else folder
    path = folder / STUDY
    before: dict[str, Any] = {"systems": {}, "test_sets": {}, "seeds": []}
    if path.exists():
        before |= read_json(path)
    differences = [
        f"system {name}: {_changes(before['systems'][name], arguments)}"
        for name, arguments in resolved.items()
        if name in before["systems"] and before["systems"][name] != arguments
    ]
    differences += [
        f"test set {name}: {file or 'that of the recipe'} (was {before['test_sets'][name] or 'that of the recipe'})"
        for name, file in study.test_sets.items()
        if name in before["test_sets"] and before["test_sets"][name] != file
    ]
    if differences:
        raise ValueError(
            f"{study.path} is not the study that {folder} was begun with: {'; '.join(differences)}; undo the "
            "change, give the system a new name, or name another --output"
        )
    record = {
        "study": study.path.stem,
        "title": study.title,
        "compare_with": study.compare_with,
        "score": study.score,
        "seeds": sorted({*before["seeds"], *study.seeds}),
        "test_sets": {**before["test_sets"], **study.test_sets},
        "systems": {**before["systems"], **resolved},
    }
    write_whole(path, json_text(record, indent=2) + "\n")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {_shown(after, name)} (was {_shown(before, name)})" for name in names)


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json_text(values[name]) if name in values else "the default"


def extra_test_sets(study: Study) -> dict[str, str]:
    """The test sets that are not the recipe's own, by name: prefixes of their files."""
    return {name: prefix for name, prefix in study.test_sets.items() if prefix is not None}


def source_files(study: Study, resolved: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """
    The source file of each further test set.

    Raises:
        ValueError: systems translate between different languages, or between several.
        FileNotFoundError: source or reference of a test set is not there.
    """
    for name, values in resolved.items():
        for key in ("language_pairs", "source_lang_column", "target_lang_column"):
            if values.get(key) is not None:
                raise ValueError(
                    f"{study.path}: systems: {name}: a study is of one pair of languages: give source_lang and "
                    f"target_lang in the place of {key}"
                )
    pairs = {(values.get("source_lang"), values.get("target_lang")) for values in resolved.values()}
    if len(pairs) > 1:
        raise ValueError(f"{study.path}: the systems must have one source_lang and target_lang, got {sorted(pairs)}")
    from ..data.corpus import resolve

    arguments = resolved[study.compare_with]
    files = {}
    for name, prefix in extra_test_sets(study).items():
        base = resolve(prefix, arguments.get("data_dir"))
        for side in ("target", "source"):
            language = arguments.get(f"{side}_column") or arguments[f"{side}_lang"]
            files[name] = base.with_name(f"{base.name}.{language}")
            if not files[name].is_file():
                raise FileNotFoundError(f"{study.path}: test_sets: {name}: there is no file {files[name]}")
    return files
