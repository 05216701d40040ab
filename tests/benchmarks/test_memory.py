"""Peak memory of training."""

import pytest
import torch

import memory
from registry import SIZES


@pytest.mark.skipif(not memory.PEAK_RESET.exists(), reason="only Linux can reset the peak")
def test_peak_follows_what_is_allocated_and_can_be_reset():
    before = memory.reset_resident_peak()
    size = torch.ones(2**24).nbytes
    assert memory.resident_peak() - before > 0.9 * size
    # the tensor is gone
    assert memory.reset_resident_peak() - before < 0.1 * size


@pytest.mark.slow
def test_peak_grows_with_the_batch(setting):
    setting = setting._replace(size=SIZES["yardstick"])
    peaks = [
        memory.peak_bytes("guided_routing", "yardstick", setting._replace(size=setting.size._replace(tokens=tokens)))
        for tokens in (480, 1920)
    ]
    # of the logits alone, in float32
    assert peaks[1] - peaks[0] > (1920 - 480) * 4000 * 4
