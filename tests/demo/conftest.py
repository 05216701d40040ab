"""Two tiny models for demonstrations: a plain one that knows six sentences, and a guided one with EM routing."""

import json
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from tiny_translation import SOURCES, taught_run

# a token that the models have no embedding for
BROKEN = "kaputt"


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders "plain" and "run"; the second has saved its test source, and cannot read the word `broken`."""
    folder = tmp_path_factory.mktemp("demo")
    run = taught_run(folder)
    tokenizer = AutoTokenizer.from_pretrained(run)
    tokenizer.add_tokens([BROKEN])
    tokenizer.save_pretrained(run)
    (run / "results.json").write_text(json.dumps({"arguments": {"source_lang": "en"}}), encoding="utf-8")
    (run / "translations").mkdir()
    (run / "translations" / "test.en").write_text("\n".join(["", *SOURCES[:3]]) + "\n", encoding="utf-8")
    return SimpleNamespace(plain=folder / "plain", guided=run, broken=BROKEN)
