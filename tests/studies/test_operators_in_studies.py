"""A study of an operator from outside: its file is found by the processes of the runs, and is in the record."""

import json
import sys

import pytest

from hf_capsule_mt.models.capsule_operators import AGGREGATION_CLASSES
from hf_capsule_mt.studies.command import main

OPERATOR = '''
"""The last layer, each dimension with a learned weight."""

import torch
from torch import nn
from transformers import initialization as init

from hf_capsule_mt.models.capsule_layers import InitialisesItself
from hf_capsule_mt.models.capsule_operators import register_aggregation


@register_aggregation("study_last")
class LastLayer(InitialisesItself, nn.Module):
    def __init__(self, config, num_layers: int, start: float = 1.0) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(config.d_model))

    def forward(self, layers, output_agreements: bool = False):
        return self.weight * layers[..., -1, :], None

    def init_weights(self) -> None:
        init.constant_(self.weight, self.start)
'''
OWN = {"aggregation": "study_last", "aggregation_options": {"start": 0.5}, "operators": ["operators/study_last.py"]}


@pytest.fixture
def study(write_study, tmp_path, monkeypatch):
    """A study whose operator is named relative to the current folder."""
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "study_last.py").write_text(OPERATOR)
    monkeypatch.chdir(tmp_path)
    yield write_study(systems={"plain": {}, "own": OWN}, seeds=[1], arguments={"max_steps": 3}, output="runs")
    if "study_last" in AGGREGATION_CLASSES:
        # the module with it, or else the file counts as run in the next test of this process
        sys.modules.pop(AGGREGATION_CLASSES.pop("study_last").__module__)


@pytest.mark.slow
def test_an_operator_from_outside_runs_in_a_study(study, tmp_path):
    assert main(["run", str(study), "--jobs", "2", "--threads", "1"]) == 0
    folder = tmp_path / "runs" / "own" / "seed-1"
    config = json.loads((folder / "config.json").read_text())
    assert config["aggregation"] == "study_last" and config["aggregation_options"] == {"start": 0.5}
    assert (folder / "study_last.py").is_file()
    assert json.loads((folder / "results.json").read_text())["arguments"]["operators"] == OWN["operators"]
    kept = json.loads((tmp_path / "runs" / "study.json").read_text())["systems"]["own"]
    # as on a command line
    assert kept == {**kept, **OWN, "aggregation_options": '{"start": 0.5}'}
    # what is finished is what the study says, still
    assert main(["run", str(study)]) == 0
    assert main(["table", str(study), "--draws", "100"]) == 0
    record = (tmp_path / "runs" / "table" / "record.json").read_text()
    assert json.loads(record)["systems"]["own"]["arguments"]["aggregation"] == "study_last"
    assert str(tmp_path) not in record


def test_an_operator_that_is_not_there_is_one_line_before_any_work(study, tmp_path, capsys):
    (tmp_path / "operators" / "study_last.py").unlink()
    assert main(["run", str(study)]) == 2
    error = capsys.readouterr().err
    assert "systems: own: there is no operator file operators/study_last.py" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_changed_operator_is_another_system(study, stand_in, tmp_path, capsys):
    assert main(["run", str(study), "--jobs", "1"]) == 0
    assert main(["run", str(study)]) == 0
    path = tmp_path / "operators" / "study_last.py"
    path.write_text(path.read_text().replace("self.weight * layers", "2 * self.weight * layers"))
    capsys.readouterr()
    assert main(["run", str(study)]) == 2
    error = capsys.readouterr().err
    assert 'was begun with: system own: operator_files {"operators/study_last.py": "' in error
    assert "system plain" not in error
