"""The notebook of the tutorial runs from its first cell to its last, with a model of two updates."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pages import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
TINY = "UPDATES, PAIRS, PIECES = 2, 150, 400"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.mark.slow
def test_it_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    assert parameters.source.startswith(TINY.partition("=")[0])
    parameters.source = TINY
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert {"runs", "exported", "routing.png", "progress.png"} <= {path.name for path in tmp_path.iterdir()}
    said = [[output.get("text", "") for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]
    # nothing is installed where the package is there, and the exported model translates
    assert said[0] == [] and "".join(said[-1]).strip()
    assert any("translated so far" in text for texts in said for text in texts)


def test_it_can_be_opened_in_colab_and_read_on_github(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert "%pip install" in first.source
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # what it shows was made by a run, on no machine in particular
    assert sum(bool(cell.outputs) for cell in code) > len(code) / 2
    assert str(Path.home()) not in NOTEBOOK.read_text(encoding="utf-8") and NOTEBOOK.stat().st_size < 400_000
    links = [word for cell in notebook.cells if cell.cell_type == "markdown" for word in cell.source.split("](")[1:]]
    for link in (link.partition(")")[0] for link in links):
        assert link.startswith("https://") or (ROOT / "docs" / link).is_file(), link
