"""A finished run to publish, and a Hub on this machine to publish it to."""

import pytest

from loopback import LoopbackHub
from tiny_translation import card_values, finished_run


@pytest.fixture(scope="session", name="finished_run")
def a_finished_run(tmp_path_factory):
    run = finished_run(tmp_path_factory.mktemp("run"))
    # what training leaves there too, and what must not be published
    (run / "training_args.bin").write_bytes(b"a pickle")
    (run / "checkpoint-10").mkdir()
    (run / "checkpoint-10" / "model.safetensors").write_bytes(b"weights")
    return run


@pytest.fixture(scope="session")
def values_file(tmp_path_factory):
    """The values of its card."""
    return card_values(tmp_path_factory.mktemp("cards"))


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub
