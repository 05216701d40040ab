"""The wheel, installed outside the checkout: what a user of `pip install` has."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# they stay in the checkout
RECORDS = ROOT / "hf_capsule_mt" / "evidence" / "records"
TINY = (
    "--max_train_samples 40 --max_eval_samples 4 --max_test_samples 3 --vocab_size 500 --d_model 12 "
    "--encoder_attention_heads 2 --decoder_attention_heads 2 --encoder_ffn_dim 14 --decoder_ffn_dim 14 "
    "--warmup_steps 1 --logging_steps 1 --report_to none --disable_tqdm true --use_cpu true"
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the checkout and nothing of an earlier build gets in."""
    source, output = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*pip, "--wheel-dir", str(output)], check=True)
    return next(output.glob("*.whl"))


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """The commands of a fresh environment with the wheel, which has the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, str(wheel)], check=True)
    # A path alone: the .pth files in it, an editable install of the checkout among them, are not read.
    (Path(site) / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return folder / "bin"


@pytest.fixture
def call(bin_folder, tmp_path):
    """Run the command in a folder of its own; returns its output."""

    def run(*argv: object) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        result = subprocess.run(
            [bin_folder / "hf-capsule-mt", *map(str, argv)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def test_everything_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [
        path
        for path in (ROOT / "hf_capsule_mt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(RECORDS)
    ]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "hf_capsule_mt/evidence/records"))]


def test_the_installed_package_is_the_one_that_runs(bin_folder, tmp_path):
    code = "import hf_capsule_mt; print(hf_capsule_mt.__file__)"
    result = subprocess.run(
        [bin_folder / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert all(Path(line).is_relative_to(bin_folder.parent) for line in result.stdout.splitlines())


def test_version_and_help(call):
    from hf_capsule_mt import __version__

    assert call("--version") == f"hf_capsule_mt {__version__}\n"
    assert "hf-capsule-mt train multi30k/em_routing" in call("--help")
    assert "--max_tokens_per_batch" in call("train", "--help")


def test_train_translate_and_publish(call, tmp_path):
    # no recipe is the embedded default
    call("train", "--max_steps", 2, *TINY.split())
    run = tmp_path / "runs" / "grammar"
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert (results["recipe"], results["steps"]) == ("grammar", 2)
    source = run / "translations" / "test.en"
    call("translate", run, source, "--output", "test.de", "--num_beams", 1)
    assert (tmp_path / "test.de").read_text(encoding="utf-8").count("\n") == 3
    said = call("publish", run, "user/name", "--card", "grammar_em_routing", "--dry_run")
    assert "checked: " in said and (run / "hub" / "README.md").is_file()
