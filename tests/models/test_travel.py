"""The rules for code that travels to the Hub: flat, self-contained, and all of it copied by save_pretrained."""

import ast
import re
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

import hf_capsule_mt.models

FOLDER = Path(hf_capsule_mt.models.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
# what a reader of remote code should have to expect of it: no files, no network, no processes, no pickle
LIBRARIES = {"torch", "transformers", "huggingface_hub"}
STANDARD = {
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "difflib",
    "functools",
    "inspect",
    "logging",
    "math",
    "re",
    "typing",
}
RUNS_TEXT = {"eval", "exec", "compile", "__import__", "open"}
files = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def imports(tree: ast.AST) -> list[tuple[int, str, list[str]]]:
    """Level, module and names of every import, wherever it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", [alias.name for alias in node.names]))
    return found


def problems(source: str) -> list[str]:
    """Everything in a file that would break it, or its readers' trust, on the Hub."""
    tree, found = ast.parse(source), []
    for level, module, names in imports(tree):
        top = module.split(".")[0]
        if level > 1:
            found.append(f"'{'.' * level}{module}' is above the folder, which travels alone")
        elif level == 1 and not module:
            found.append(f"'from . import {names[0]}' is not seen by the copying")
        elif level == 1 and "." in module:
            found.append(f"'.{module}' is in a sub-folder; files travel flat")
        elif level == 1 and not (FOLDER / f"{module}.py").is_file():
            found.append(f"there is no file {module}.py")
        elif level == 0 and top not in LIBRARIES | STANDARD:
            found.append(f"'{module}' is not an import that travelling code may have")
        found += [f"'from {module} import *' hides what is used" for name in names if name == "*"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNS_TEXT:
            found.append(f"{node.func.id}() in line {node.lineno}")
    # transformers finds relative imports by this expression, in comments and docstrings too
    by_expression = set(re.findall(r"^\s*(?:from|import)\s+\.(\S+)", source, flags=re.MULTILINE))
    by_syntax = {module for level, module, _ in imports(tree) if level == 1 and module}
    found += [f"a line of text begins like an import of .{name}" for name in sorted(by_expression - by_syntax)]
    found += [f"the import of .{name} is not seen by the copying" for name in sorted(by_syntax - by_expression)]
    return found


@files
def test_file_travels(path):
    assert problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("from . import capsule_layers", "not seen by the copying"),
        ("from ..data import corpus", "above the folder"),
        ("from .sub.file import name", "sub-folder"),
        ("from .no_such_file import name", "no file no_such_file.py"),
        ("from .capsule_layers import *", "hides what is used"),
        ("import hf_capsule_mt", "not an import"),
        ("def f():\n    from hf_capsule_mt.models import capsule_layers", "not an import"),
        ("import pickle", "not an import"),
        ("import numpy as np", "not an import"),
        ('"""Text\nfrom .capsule_layers imports are copied.\n"""', "begins like an import"),
        ("if True: from .capsule_layers import LayerAggregation", "not seen by the copying"),
        ("exec('1')", "exec"),
    ],
)
def test_each_rule_is_enforced(source, problem):
    assert any(problem in found for found in problems(source)), problems(source)


def test_the_folder_is_flat():
    assert [path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("modeling_*.py")), ids=lambda path: path.name)
def test_a_model_brings_all_that_it_needs_and_the_pipeline(path):
    copied = {Path(name).name for name in get_relative_import_files(path)}
    needed, waiting = set(), [path]
    while waiting:
        tree = ast.parse(waiting.pop().read_text(encoding="utf-8"))
        new = {f"{module}.py" for level, module, _ in imports(tree) if level == 1} - needed
        needed |= new
        waiting += [FOLDER / name for name in new]
    assert copied == needed and "pipeline_translation.py" in copied
    # and nothing of another family
    others = {other.name for other in FOLDER.glob("modeling_*.py")} - {path.name}
    assert not copied & others
