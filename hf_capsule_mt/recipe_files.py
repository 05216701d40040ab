"""Reading the YAML files that people write: recipes, and the values of model cards."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

# Those of the package go by name: their path in it, without the ending.
RECIPES = Path(__file__).parent / "recipes"
EXTENDS = "extends"
_ENDINGS = (".yaml", ".yml")
# what several recipes share
_BASE = re.compile(r"base(_\w+)?")


class Layer(NamedTuple):
    """One file of a recipe: its name in the package or else its path, and what it says itself, without `extends`."""

    name: str
    values: dict[Any, Any]


def read_recipe(name: str) -> list[Layer]:
    """
    A recipe and those that it extends.

    Args:
        name: a path, or the name of a recipe of the package such as "multi30k/em_routing".

    Returns:
        The files from the one that extends nothing to the recipe itself; `merge_layers` puts them together.

    Raises:
        FileNotFoundError: no such recipe, with those that there are.
        ValueError: a file is no recipe, see also `read_yaml`, or extends itself.
    """
    path = _find(name, Path(), [])
    if path is None:
        raise FileNotFoundError(f"no recipe {name}{_there_are(name, Path())}")
    layers: list[Layer] = []
    seen: list[Path] = []
    while path is not None:
        label = recipe_name(path)
        seen.append(path.resolve())
        values = read_yaml(path)
        if not isinstance(values, dict):
            raise ValueError(f"{label}: a recipe is a list of 'argument: value' lines")
        layers.insert(0, Layer(label, {key: value for key, value in values.items() if key != EXTENDS}))
        path = _extended(values[EXTENDS], path, seen) if EXTENDS in values else None
    return layers


def merge_layers(layers: list[Layer]) -> dict[Any, Any]:
    """The values of a recipe: later files win, and a null drops what the files before it say of a key."""
    merged: dict[Any, Any] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if value is None and key in merged:
                del merged[key]
            else:
                merged[key] = value
    return merged


def recipe_names() -> list[str]:
    """Names of the recipes of the package that train something: those that others only extend are left out."""
    return [name for name in _all_names() if not _BASE.fullmatch(Path(name).name)]


def _all_names() -> list[str]:
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))


def recipe_name(path: Path) -> str:
    """What a recipe is called: its name if it is one of the package, or else its path."""
    resolved = path.resolve()
    if resolved.is_relative_to(RECIPES.resolve()):
        return resolved.relative_to(RECIPES.resolve()).with_suffix("").as_posix()
    return str(path)


def _extended(name: Any, path: Path, seen: list[Path]) -> Path:
    """The file that a recipe extends."""
    label = recipe_name(path)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{label}: {EXTENDS} is the name or path of one recipe, got {name!r}")
    # A file may have the name of the recipe of the package that it extends.
    found = _find(name, path.parent, [path.resolve()])
    if found is None and _find(name, path.parent, []) is None:
        raise FileNotFoundError(f"{label}: {EXTENDS}: no recipe {name}{_there_are(name, path.parent)}")
    if found is None or found.resolve() in seen:
        raise ValueError(f"{label}: {EXTENDS}: {name} extends this recipe itself; name another one")
    return found


def _find(name: str, folder: Path, unless: list[Path]) -> Path | None:
    """The file of a recipe; relative paths are looked up in a folder, and before it those of the package."""
    packaged = RECIPES / f"{name.removesuffix(_ENDINGS[0])}.yaml"
    beside = [folder / name, *(folder / f"{name}{ending}" for ending in _ENDINGS)]
    # A name on the command line means the same in every folder, a path and the word in a file what is beside it.
    known = name in _all_names()
    candidates = [packaged, folder / name] if known and folder == Path() else beside
    if recipe_name(packaged) in _all_names():
        candidates = [*candidates, packaged]
    return next((path for path in candidates if path.is_file() and path.resolve() not in unless), None)


def _there_are(name: str, folder: Path) -> str:
    """Which recipe may have been meant."""
    names = recipe_names()
    bare = name.removeprefix("recipes/").removesuffix(_ENDINGS[0])
    near = difflib.get_close_matches(bare, names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    present = sorted(str(path) for path in (folder / name).parent.glob("*.yaml"))
    return f"; there are: {', '.join(present or names)}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML's own loader would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"the key {key.value!r} is given twice: leave one out"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """
    The content of a YAML file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8 or not YAML, a key is given twice, it is nested too deeply, or a text in it is none
            (a lone surrogate); with the file, and the line or key.
    """
    data = path.read_bytes()
    try:
        content = _UniqueKeyLoader(data.decode("utf-8-sig")).get_single_data()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        problem = getattr(error, "problem", None) or str(error)
        raise ValueError(f"{path}: not valid YAML: {' '.join(problem.split())}{where}") from None
    for key, value in content.items() if isinstance(content, dict) else []:
        try:
            text = json.dumps([key, value], ensure_ascii=False, skipkeys=True, default=str)
        except (ValueError, RecursionError):
            raise ValueError(f"{path}: the value of {key!r} contains itself, or is nested too deeply") from None
        if not is_text(text):
            raise ValueError(f"{path}: the value of {key!r} has half of a surrogate pair, which is no text")
    return content


def is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8, i.e. has no lone surrogate, as JSON and YAML can spell one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
