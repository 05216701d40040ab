"""What a run on several devices shards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_models import BUILDERS

ROOT = Path(__file__).parents[2]
# Every process shards the model layer by layer, as accelerate's FSDP does, and compares with the whole one.
SCRIPT = """
import json, sys
import torch
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sys.path.insert(0, "tests")
from tiny_models import STACKS, sentence_batch

init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for name, stack in STACKS.items():
    model, batch = stack.model(), sentence_batch()
    model.train()
    torch.manual_seed(1)
    expected = model(**batch).loss.item()
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    units = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    # from the innermost to the outermost: mBART also names its attention
    for module in [*reversed(units), model]:
        fully_shard(module, mesh=mesh)
    mine = sum(p.to_local().numel() * p.element_size() for p in model.parameters())
    torch.manual_seed(1)
    loss = model(**batch).loss
    loss.backward()
    if get_rank() == 0:
        print(json.dumps([name, expected, loss.item(), whole, mine, len(units)]), flush=True)
destroy_process_group()
"""


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_no_layer_is_split(build):
    model = build()
    names = {type(module).__name__ for module in model.modules()}
    assert {name for name in names if name.endswith(("EncoderLayer", "DecoderLayer"))} <= set(model._no_split_modules)
    if "LayerAggregation" in names:
        assert "LayerAggregation" in model._no_split_modules
    assert set(model._no_split_modules) & names and set(model.model._no_split_modules) & names


@pytest.mark.slow
def test_two_processes_hold_half_of_the_parameters_each(tmp_path):
    (tmp_path / "shard.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    address = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    done = subprocess.run(
        [*launcher, *address, str(tmp_path / "shard.py")], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    for name, expected, loss, whole, mine, units in map(json.loads, done.stdout.splitlines()):
        assert loss == pytest.approx(expected, rel=1e-5), name
        # odd sizes are filled up
        assert units >= 5 and 0.45 * whole < mine < 0.6 * whole, name
