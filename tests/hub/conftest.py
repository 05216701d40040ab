"""A finished run to publish, and a Hub on this machine to publish it to."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM

from hf_capsule_mt.evidence.recorded import RECORDS
from hf_capsule_mt.hub.conversion import convert
from loopback import LoopbackHub
from tiny_models import open_gates
from tiny_translation import SOURCES, tiny_model, tiny_tokenizer

RESULTS = RECORDS / "grammar" / "em_routing.json"
VALUES = """
title: A tiny model
description: It knows six sentences by heart.
papers: [dou2019]
license: apache-2.0
dataset: {name: Six sentences, terms: Written for a test.}
samples: %s
limitations: [It knows nothing else.]
"""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """An output folder as train.py leaves it, of a model whose aggregates contribute."""
    root = tmp_path_factory.mktemp("run")
    tiny_model().save_pretrained(root / "plain")
    tiny_tokenizer().save_pretrained(root / "plain")
    run = convert(root / "plain", root / "run", aggregation="em_routing", num_capsules=13)
    open_gates(AutoModelForSeq2SeqLM.from_pretrained(run)).save_pretrained(run)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (run / "translations").mkdir()
    for score in results["scores"]:
        (run / score["file"]).write_text("Ein Hund rennt.\n", encoding="utf-8")
    # what train.py leaves there too, and what must not be published
    (run / "training_args.bin").write_bytes(b"a pickle")
    (run / "checkpoint-10").mkdir()
    (run / "checkpoint-10" / "model.safetensors").write_bytes(b"weights")
    return run


@pytest.fixture(scope="session")
def values_file(tmp_path_factory):
    """The values of its card."""
    folder = tmp_path_factory.mktemp("cards")
    path = folder / "tiny.yaml"
    path.write_text(VALUES % json.dumps(SOURCES[:2]), encoding="utf-8")
    return path


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub
