"""The benchmarks are scripts: their folder has to be on the path to import them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from registry import SIZES, Setting


@pytest.fixture(scope="session")
def setting():
    """The tiny size, with sentences of different lengths to decode."""
    return Setting(SIZES["tiny"], (3, 5, 4, 6) * 4)
