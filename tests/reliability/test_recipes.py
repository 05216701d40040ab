"""Recipes of any text and any values: arguments, or one line that says what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hf_capsule_mt.training.arguments import Arguments, build_parser, parse_arguments
from record import note

ALL = sorted(action.dest for action in build_parser()._actions if action.dest != "help")
# what transformers does with these changes the whole process, or needs a package
FOREIGN = {"deepspeed", "fsdp", "fsdp_config", "accelerator_config", "parallelism_config"}
KEYS = [key for key in ALL if key not in FOREIGN]
NEEDED = {"output_dir": "run", "dataset_name": "grammar", "source_lang": "en", "target_lang": "de"}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [10**6, 10**20, -(10**20), 0.5, 1e-300, float("inf"), float("nan"), "no", "steps", "", " ", "\x00", "%", "--x"]
    ),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(SCALARS, inner, max_size=2)),
    max_leaves=4,
)
NAMES = st.one_of(st.sampled_from(KEYS), st.text(max_size=10), st.integers(), st.none(), st.booleans())
PARTS = [
    "d_model: 12\n",
    "output_dir: run\n",
    ":",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!python/none ",
    "\t",
    "\n",
]
RARE = [
    "? ",
    "| \n",
    "'",
    '"',
    "#",
    "---\n",
    "...\n",
    "<<: *a\n",
    "!!int x",
    "\ufeff",
    "\x07",
    "2024-99-99",
    "0o9",
    ".inf",
]
# pieces of YAML, put together to texts that are often nearly a recipe
TEXTS = st.lists(st.one_of(st.sampled_from([*PARTS, *RARE]), st.text(max_size=6)), max_size=12).map("".join)
counts: Counter = Counter()


def check(path: Any) -> None:
    counts["tried"] += 1
    try:
        arguments = parse_arguments([str(path)])
    except (ValueError, FileNotFoundError) as error:
        message = " ".join(str(error).split())
        assert message and "Traceback" not in message
        counts["refused"] += 1
    else:
        assert isinstance(arguments, Arguments)
        counts["accepted"] += 1


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts.clear()
    return tmp_path / "recipe.yaml"


def test_any_values(recipe):
    @given(st.dictionaries(NAMES, VALUES, max_size=4), st.booleans())
    def run(values: dict[Any, Any], complete: bool) -> None:
        recipe.write_text(
            yaml.safe_dump({**NEEDED, **values} if complete else values, allow_unicode=True), encoding="utf-8"
        )
        check(recipe)

    run()
    note("properties", "recipes: keys and values", dict(counts))


def test_any_text(recipe):
    @given(st.one_of(TEXTS.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=60)))
    def run(content: bytes) -> None:
        recipe.write_bytes(content)
        check(recipe)

    run()
    note("properties", "recipes: texts and bytes", dict(counts))


@pytest.mark.parametrize("value", [None, True, -1, 0.5, "x", "", [], [1, "x"], {}, {"a": [1]}], ids=repr)
def test_every_argument_with_values_of_every_type(recipe, value):
    failed = []
    for key in KEYS:
        recipe.write_text(yaml.safe_dump({**NEEDED, key: value}), encoding="utf-8")
        try:
            check(recipe)
        except Exception as error:
            failed.append(f"{key}: {value!r}: {type(error).__name__}: {str(error).splitlines()[:1]}")
    note("properties", f"recipes: every argument as {value!r}", dict(counts))
    assert not failed, "\n".join(failed)
