"""Reading the YAML files that people write: recipes, and the values of model cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


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
