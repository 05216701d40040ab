"""
Aggregations from outside: files of users' own, found by path, by module, or by the entry points of installed packages.

An operator is one file. It imports libraries, and of this project `hf_capsule_mt.models.NAME` alone, so that it can
travel: a saved model has it beside its weights, with these imports made relative, and a file MODELING that registers
it and that the configuration names as the place of the model's classes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .files import write_whole
from .models.capsule_operators import AFTER_SAVING, AGGREGATION_CLASSES, FINDERS, operator_file

logger = logging.getLogger(__name__)

ENTRY_POINTS = "hf_capsule_mt.aggregations"
MODELS = "hf_capsule_mt.models"
# what a saved model with an operator of its own is loaded from, where this package is not installed
MODELING = "modeling_with_operator.py"
MODELING_TEXT = '''"""The model with the aggregation that came with it: importing this registers that."""

from .{operator} import __doc__ as operator_doc  # noqa: F401
{imports}

# whoever saves the model again copies this file, and with it the aggregation
for _class in ({classes}):
    _class.__module__ = __name__
'''


def load_operators(names: Iterable[str | Path] | None) -> None:
    """
    Run files or modules that register aggregations. One that has been run is not run again.

    Args:
        names: paths of Python files, or names of importable modules.

    Raises:
        ValueError: there is no such file or module, it fails, it registers nothing or a name that is taken, or it
            cannot travel (see `travelling_text`).
    """
    for name in names or ():
        if str(name).endswith(".py") or os.sep in str(name):
            _load_file(Path(name))
        else:
            _check_module(_import(str(name)), str(name))


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no operator file {path}")
    text = travelling_text(path)
    # beside the package's own modules, so that it is the same file that travels, whose imports are relative
    name = f"{MODELS}.{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        if travelling_text(Path(str(loaded.__file__))) != text:
            raise ValueError(f"{path} is another file than {loaded.__file__}, which is in use already; rename one")
        return
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    before = dict(AGGREGATION_CLASSES)
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        _check_module(module, str(path))
    except BaseException as error:
        del sys.modules[name]
        AGGREGATION_CLASSES.clear()
        AGGREGATION_CLASSES.update(before)
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        if isinstance(error, Exception):
            # of whatever kind: it is a user's code
            raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
        raise


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"operator module {name}: {error}") from error
        raise ValueError(f"there is no operator module {name}; a file is named with its .py") from None


def _check_module(module: ModuleType, name: str) -> None:
    if not any(operator.__module__ == module.__name__ for operator in AGGREGATION_CLASSES.values()):
        raise ValueError(f"{name} registers no aggregation: decorate its class with @register_aggregation(NAME)")
    travelling_text(Path(str(module.__file__)))


def find_installed(name: str) -> None:
    """
    Load the aggregation of that name which an installed package offers as an entry point, if one does.

    Raises:
        ValueError: its module fails, does not register the name, or cannot travel.
    """
    for point in entry_points(group=ENTRY_POINTS, name=name):
        _check_module(_import(point.module), f"the entry point {point.name} = {point.value}")
        if name not in AGGREGATION_CLASSES:
            raise ValueError(f"the entry point {point.name} = {point.value} does not register {name!r}")


def travelling_text(path: Path) -> str:
    """
    The text of an operator's file as it lies beside weights: imports from this package's models are relative.

    Raises:
        ValueError: names the file and line that would not work there.
        OSError: it cannot be read.
    """
    if not path.stem.isidentifier() or (Path(__file__).parent / "models" / path.name).exists():
        raise ValueError(f"{path}: rename it to a Python name that no file of the models has")
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"{path}{where}: not Python: {getattr(error, 'msg', error)}") from None
    text = re.sub(rf"^(\s*from ){re.escape(MODELS)}(\.\w+ import\b)", r"\1\2", text, flags=re.MULTILINE)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{MODELS}.{node.module or ''}" if node.level == 1 else "." * node.level + (node.module or "")]
            if re.fullmatch(rf"{re.escape(MODELS)}\.\w+", modules[0]) and _is_model_file(modules[0]):
                continue
        else:
            continue
        for module in modules:
            if module.startswith(".") or module.split(".")[0] == "hf_capsule_mt":
                raise ValueError(
                    f"{path}, line {node.lineno}: an operator is one file, which travels with its models: of this "
                    f"project it can have `from {MODELS}.NAME import ...` alone"
                )
    return text


def _is_model_file(module: str) -> bool:
    return (Path(__file__).parent / "models" / f"{module.rpartition('.')[-1]}.py").is_file()


def operator_source(config: Any) -> str | None:
    """The text of the operator that a configuration names, as it travels; None for this project's own."""
    name = getattr(config, "aggregation", "none")
    if operator_file(name) is None:
        return None
    module = sys.modules.get(AGGREGATION_CLASSES[name].__module__)
    if getattr(module, "__file__", None) is None:
        raise ValueError(f"the aggregation '{name}' is defined in no file")
    return travelling_text(Path(str(module.__file__)))  # type: ignore[union-attr]


def carry_operator(model: Any, folder: str | Path) -> None:
    """Put the file of a model's operator beside its weights, and have the configuration in the folder point to it."""
    try:
        text = operator_source(model.config)
    except (ValueError, OSError) as error:
        logger.warning(f"{folder} does not carry its operator, which has to be named to load it: {error}")
        return
    if text is None:
        return
    name = str(operator_file(model.config.aggregation))
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    places = [place.rpartition(".") for place in config.get("auto_map", {}).values()]
    if not places:
        return
    write_whole(Path(folder) / name, text)
    imports = "\n".join(f"from .{module} import {kind}" for module, _, kind in sorted(set(places)))
    classes = ", ".join(sorted({kind for _, _, kind in places}))
    content = MODELING_TEXT.format(operator=name.removesuffix(".py"), imports=imports, classes=classes)
    write_whole(Path(folder) / MODELING, content)
    config["auto_map"] = {
        auto: f"{MODELING.removesuffix('.py')}.{place.rpartition('.')[-1]}"
        for auto, place in config["auto_map"].items()
    }
    write_whole(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


FINDERS.append(find_installed)
AFTER_SAVING.append(carry_operator)
