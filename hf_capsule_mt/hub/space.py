"""
A demonstration of a published model as a Space: a folder that runs without this package.

    app.py             starts the page
    settings.json      which model, in which revision
    capsule_demo/      what `hf-capsule-mt demo` shows: modules and page of this package, as they are, under their
                       paths here
    requirements.txt, README.md, LICENSE
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from ..files import json_text, write_whole
from ..project import NAME as PROJECT
from ..project import URL
from .cards import CardValues
from .license_file import CODE_LICENSE, LICENSE, license_text

PACKAGE = Path(__file__).parents[1]
# the package of the Space, and where it starts
NAME = "capsule_demo"
ENTRY = "demo/space.py"
PAGE = "analysis/page"
PAGE_FILES = ("view.html", "view.css", "view.js", "demo.css")
# what these modules import, with the ranges that this package has been tested with
REQUIREMENTS = ("torch>=2.6", "transformers>=5.17,<6", "numpy")
APP = f'''"""The demonstration of a translation model: `python app.py` serves it."""

from {NAME}.demo.space import main

if __name__ == "__main__":
    main()
'''
README = """
{description}

The page shows how [{model}](https://huggingface.co/{model}) translates a sentence, step by step, and what its routing
does meanwhile. It runs the code that the model brings, of the revision that `settings.json` names.

On your machine: `pip install -r requirements.txt gradio`, then `python app.py`.

The code of this Space is a part of [{project}]({url}), Apache-2.0 ([LICENSE](LICENSE)); the model has its own licence.
"""


def write_space(
    output: str | Path,
    model: str,
    revision: str,
    values: CardValues,
    description: str = "",
    languages: Sequence[str | None] = (None, None),
) -> Path:
    """
    Write the folder of a Space.

    Args:
        output: an empty folder, or one that was written before.
        model: "user/name" of the published model.
        revision: commit, tag or branch of it.
        values: what the model's card says: title, description, samples, which become the examples.
        description: what is special about the model, in a few words.
        languages: codes of source and target, for multilingual tokenizers.

    Returns:
        The folder.

    Raises:
        ImportError: see `require_gradio`.
    """
    output = Path(output)
    for path in travelling(ENTRY):
        target = output / NAME / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / path, target)
        write_whole(target.parent / "__init__.py", "")
    write_whole(output / NAME / "__init__.py", "")
    for name in PAGE_FILES:
        write_whole(output / NAME / PAGE / name, (PACKAGE / PAGE / name).read_text(encoding="utf-8"))
    settings = {
        "model": model,
        "revision": revision,
        "name": model.split("/")[-1],
        "title": values.title,
        "examples": list(values.samples),
        "description": description,
        "languages": list(languages),
    }
    write_whole(output / "settings.json", json_text(settings, indent=2) + "\n")
    write_whole(output / "requirements.txt", "\n".join(REQUIREMENTS) + "\n")
    write_whole(output / "app.py", APP)
    write_whole(output / LICENSE, license_text(CODE_LICENSE))
    write_whole(output / "README.md", _card(model, values))
    return output


def travelling(entry: str) -> list[str]:
    """
    The modules that one needs, itself included, by following relative imports; paths within this package.

    Raises:
        ValueError: one of them imports this package by name, which is not there in a Space.
    """
    found: list[str] = []
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import) and any(alias.name.startswith("hf_capsule_mt") for alias in node.names):
                raise ValueError(f"{path} imports hf_capsule_mt, which a Space does not have")
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = (PACKAGE / path).parents[node.level - 1]
                names = [node.module.replace(".", "/")] if node.module else [alias.name for alias in node.names]
                waiting += [(folder / f"{name}.py").relative_to(PACKAGE).as_posix() for name in names]
    return sorted(found)


def require_gradio() -> str:
    """
    The version of gradio, with which a Space is checked, and which it names.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return version("gradio")
    except PackageNotFoundError:
        raise ImportError('a Space needs gradio to be checked: pip install "hf_capsule_mt[demo]"') from None


def _card(model: str, values: CardValues) -> str:
    data = {
        "title": values.title,
        "sdk": "gradio",
        "sdk_version": require_gradio(),
        "app_file": "app.py",
        "models": [model],
        "license": CODE_LICENSE,
        "pinned": False,
    }
    front = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n# {values.title}\n" + README.format(
        description=values.description, model=model, project=PROJECT, url=URL
    )
