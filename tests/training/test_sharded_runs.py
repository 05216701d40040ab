"""Runs under the configurations of accelerate that ship: two processes of the CPU with FSDP2 do what one does."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.launch_command import CONFIGS, config_path, main
from hf_capsule_mt.training.run import run
from hf_capsule_mt.training.setup import prepare
from hf_capsule_mt.training.sharding import join_embeddings
from tiny_models import BUILDERS, sentence_batch

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
# accelerate shards on accelerators alone. It takes these two processes for such, and all else is as it is there.
SCRIPT = """
import os
import sys
from pathlib import Path
from accelerate.state import DistributedType, PartialState

init = PartialState.__init__

def as_on_accelerators(self, *args, **kwargs):
    init(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU

PartialState.__init__ = as_on_accelerators
import hf_capsule_mt.training.run as run
from hf_capsule_mt.training.command import main
from hf_capsule_mt.training.sharding import own_part

save = run.save

# each process into a file of its own: what two print into one pipe may be mixed
def report_and_save(trainer):
    parts = [own_part(parameter) for parameter in trainer.model.parameters()]
    size = sum(part.numel() * part.element_size() for part in parts)
    Path(trainer.args.output_dir).with_suffix("." + os.environ["RANK"]).write_text(str(size))
    save(trainer)

run.save = report_and_save
sys.exit(main(sys.argv[1:]))
"""
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
OPTIONS = dict(
    validation_file=None, test_file=None, eval_strategy="no", dropout=0.0, adam_epsilon=1e-2, logging_steps=1
)


def launched(name: str) -> dict[str, str]:
    """The environment that `accelerate launch` makes of a configuration."""
    argv = ["--config_file", str(config_path(name)), "--num_processes", "2", "train.py"]
    arguments, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(argv))
    if name.startswith("deepspeed"):
        arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        return prepare_deepspeed_cmd_env(arguments)[1]
    return prepare_multi_gpu_env(arguments)


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_reads_what_ships(name):
    config = load_config_from_file(str(config_path(name)))
    assert isinstance(config, ClusterConfig)
    values = yaml.safe_load(config_path(name).read_text(encoding="utf-8"))
    options = vars(launch_command_parser().parse_args(["train.py"]))
    for part in ("fsdp_config", "deepspeed_config"):
        assert set(values.get(part, {})) <= set(options), part
    # others than the user's number of processes are not assumed
    assert config.num_processes == -1


def test_what_accelerate_makes_of_them():
    fsdp = launched("fsdp")
    assert (fsdp["ACCELERATE_USE_FSDP"], fsdp["FSDP_VERSION"]) == ("true", "2")
    assert fsdp["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
    for stage in "23":
        deepspeed = launched(f"deepspeed_zero{stage}")
        assert deepspeed["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == stage


def test_the_command_prints_the_path_and_the_names(capsys):
    assert main(["fsdp"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES
    assert main(["other"]) == 2
    assert f"there is no configuration 'other'; there are: {', '.join(NAMES)}" in capsys.readouterr().err


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_embeddings_with_one_weight_become_one_module(build):
    model, batch = build().eval(), sentence_batch()
    names, expected = list(model.state_dict()), model(**batch).logits
    join_embeddings(model)
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert len({id(weight) for weight in weights}) == len(weights)
    assert list(model.state_dict()) == names
    assert torch.equal(model(**batch).logits, expected)


@pytest.mark.slow
def test_fsdp_shards_and_trains_as_one_process(command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**launched("fsdp"), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

    def train(**options) -> subprocess.CompletedProcess:
        argv = command(**{**OPTIONS, "max_tokens_per_batch": 150, **options})
        return subprocess.run(
            [*LAUNCHER, str(tmp_path / "train.py"), *argv],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        )

    one, straight, resumed = (tmp_path / name for name in ("one", "straight", "resumed"))
    results = run(prepare(parse_arguments(command(**OPTIONS, output_dir=one))))
    done = train(output_dir=straight)
    assert done.returncode == 0, done.stderr
    assert "2 processes (FSDP)" in done.stdout
    sizes = [int((tmp_path / f"straight.{rank}").read_text()) for rank in range(2)]
    # in float32; positions are not saved but are parameters, too
    whole = sum(p.numel() * 4 for p in AutoModelForSeq2SeqLM.from_pretrained(one).parameters())
    assert all(0.45 * whole < size < 0.55 * whole for size in sizes), (sizes, whole)
    assert losses(straight) == pytest.approx(losses(one), rel=1e-4)
    assert json.loads((straight / "results.json").read_text())["target_tokens"] == results["target_tokens"]
    alone, together = load_file(one / "model.safetensors"), load_file(straight / "model.safetensors")
    assert set(alone) == set(together)
    for name in alone:
        torch.testing.assert_close(together[name], alone[name], rtol=1e-3, atol=1e-3)
    # what a run on one device saves
    assert {path.name for path in straight.iterdir()} == {path.name for path in one.iterdir()}
    for options in ({"max_steps": 8}, {"resume_from_checkpoint": "true"}):
        done = train(output_dir=resumed, **options)
        assert done.returncode == 0, done.stderr
    assert "step 9 of 12" in done.stdout and "step 8 of 12" not in done.stdout
    assert (resumed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_trains_as_one_process(command, tmp_path, stage):
    # its own collectives for CPUs would be compiled first, for minutes
    plain = "import deepspeed.ops\ndeepspeed.ops.__compatible_ops__.clear()\n"
    script = "import sys\nfrom hf_capsule_mt.training.command import main\nsys.exit(main(sys.argv[1:]))\n"
    (tmp_path / "train.py").write_text(plain + script)
    environment = {**os.environ, **launched(f"deepspeed_zero{stage}"), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    one, two = tmp_path / "one", tmp_path / "two"
    run(prepare(parse_arguments(command(**OPTIONS, output_dir=one))))
    argv = command(**{**OPTIONS, "max_tokens_per_batch": 150}, output_dir=two)
    words = [*LAUNCHER, str(tmp_path / "train.py"), *argv]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "2 processes (DeepSpeed)" in done.stdout
    logged, expected = losses(two), losses(one)
    if stage == 2:
        assert logged == pytest.approx(expected, rel=1e-4)
    else:
        # it begins with other weights
        assert expected[0] - expected[-1] == pytest.approx(logged[0] - logged[-1], rel=0.1)
    alone, together = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert {name: together[name].shape for name in alone} == {name: alone[name].shape for name in alone}


def losses(folder: Path) -> list[float]:
    state = json.loads((folder / "checkpoint-12" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]
