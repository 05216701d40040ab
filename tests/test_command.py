"""The console command: what it answers before any work, and what it does not import for that."""

import importlib
import subprocess
import sys

import pytest

from hf_capsule_mt import __version__
from hf_capsule_mt.__main__ import COMMANDS, main
from launching import WITHOUT_PYTORCH


@pytest.mark.parametrize(
    "argv, status, said",
    [
        (["--help"], 0, "hf-capsule-mt train"),
        (["--version"], 0, f"hf_capsule_mt {__version__}\n"),
        (["trian"], 2, "unknown command 'trian'; there are: "),
        ([], 2, "no command; there are: "),
    ],
    ids=["help", "version", "unknown", "nothing"],
)
def test_answers_without_importing_what_is_slow(argv, status, said):
    code = (
        "import sys\n"
        "from hf_capsule_mt.__main__ import main\n"
        "status = main()\n"
        "slow = {'torch', 'transformers', 'numpy', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else status)"
    )
    result = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert result.returncode == status, result.stderr
    assert said in result.stdout + result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["data", "launch-config", "prepare", "translate"])
def test_commands_that_do_without_pytorch(name):
    result = subprocess.run([sys.executable, "-c", WITHOUT_PYTORCH, name, "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and f"usage: hf-capsule-mt {name} " in result.stdout, result.stderr


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"hf-capsule-mt {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_exist(name):
    assert callable(importlib.import_module(COMMANDS[name]).main)


def test_train_is_a_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "multi30k/em_routing", "--data_dir", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hf-capsule-mt train: error: ") and "multi30k/train" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_and_mistakes_call_a_command_as_it_is_typed(name, capsys):
    """Whether the console command was typed or `python -m`: one name everywhere."""
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([name, "--help"]))
    text = capsys.readouterr().out
    assert not ended.value.code and f"usage: hf-capsule-mt {name} " in text and "python -m" not in text
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([name, "--no_such_argument", "1"]))
    assert ended.value.code == 2 and f"hf-capsule-mt {name}: error: " in capsys.readouterr().err
