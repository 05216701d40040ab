"""One process from which every command is forked, a Hub on this machine, and what the commands start from."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "hub")]

# found in the folders above
from commands import COMMANDS, Materials  # noqa: E402
from fork_server import Server  # noqa: E402
from harness import Harness  # noqa: E402
from loopback import LoopbackHub  # noqa: E402


@pytest.fixture(scope="session")
def harness(tmp_path_factory):
    root = tmp_path_factory.mktemp("reliability")
    with LoopbackHub() as hub, Server(hub.environment(root)) as server:
        yield Harness(server, hub, _materials(root / "materials", server), root)


def _materials(root: Path, server: Server) -> Materials:
    """A plain model, the same with capsules as a finished run, the values of its card, and a trained run."""
    from tiny_translation import card_values, finished_run

    (root / "cards").mkdir(parents=True)
    run, card = finished_run(root), card_values(root / "cards")
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
