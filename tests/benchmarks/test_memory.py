"""Peak memory of training."""

import pytest
import torch

import memory
from registry import SIZES


def test_resident_size_follows_what_is_allocated():
    before = memory.resident()
    tensor = torch.ones(2**24)
    assert memory.resident() - before > 0.9 * tensor.nbytes
    # the system notes the largest size only now and then
    assert memory.resident_peak() > 0.99 * memory.resident()


@pytest.mark.slow
def test_peak_grows_with_the_batch(setting):
    setting = setting._replace(size=SIZES["yardstick"])
    peaks = [
        memory.peak_bytes("guided_routing", "yardstick", setting._replace(size=setting.size._replace(tokens=tokens)))
        for tokens in (480, 1920)
    ]
    # of the logits alone, in float32
    assert peaks[1] - peaks[0] > (1920 - 480) * 4000 * 4
