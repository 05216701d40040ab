"""One process from which every command is forked, a Hub on this machine, and what the commands start from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "hub")]

# found in the folders above
from commands import COMMANDS, Materials  # noqa: E402
from fork_server import Server  # noqa: E402
from harness import Harness  # noqa: E402
from loopback import LoopbackHub  # noqa: E402

RESULTS = ROOT / "hf_capsule_mt" / "evidence" / "records" / "grammar" / "em_routing.json"
CARD = """
title: A tiny model
description: It knows six sentences by heart.
papers: [dou2019]
license: apache-2.0
dataset: {name: Six sentences, terms: Written for a test.}
samples: %s
limitations: [It knows nothing else.]
"""


@pytest.fixture(scope="session")
def harness(tmp_path_factory):
    root = tmp_path_factory.mktemp("reliability")
    with LoopbackHub() as hub, Server(hub.environment(root)) as server:
        yield Harness(server, hub, _materials(root / "materials", server), root)


def _materials(root: Path, server: Server) -> Materials:
    """A plain model, the same with capsules as a finished run, the values of its card, and a trained run."""
    from transformers import AutoModelForSeq2SeqLM

    from hf_capsule_mt.hub.conversion import convert
    from tiny_models import open_gates
    from tiny_translation import SOURCES, tiny_model, tiny_tokenizer

    tiny_model().save_pretrained(root / "plain")
    tiny_tokenizer().save_pretrained(root / "plain")
    run = convert(root / "plain", root / "run", aggregation="em_routing", num_capsules=13)
    open_gates(AutoModelForSeq2SeqLM.from_pretrained(run)).save_pretrained(run)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (run / "translations").mkdir()
    for score in results["scores"]:
        (run / score["file"]).write_text("Ein Hund rennt.\n", encoding="utf-8")
    card = root / "cards" / "tiny.yaml"
    card.parent.mkdir()
    card.write_text(CARD % json.dumps(SOURCES[:2]), encoding="utf-8")
    return Materials(root / "plain", run, card, _trained(root / "training", server))


def _trained(folder: Path, server: Server) -> Path:
    """A run whose last update is made, and whose final model is not."""
    folder.mkdir()
    outcome = server.run(COMMANDS["average"].argv, folder)
    assert outcome.status == 0, outcome.output
    for path in (folder / "run").iterdir():
        if path.is_dir() and not path.name.startswith("checkpoint-"):
            shutil.rmtree(path)
        elif path.name in ("model.safetensors", "config.json", "generation_config.json", "results.json"):
            path.unlink()
    return folder / "run"
