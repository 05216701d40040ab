"""The tables of README and documents are what the records give, and the command says where they are not."""

import re
import shutil

import pytest

from hf_capsule_mt.evidence import __main__ as command
from hf_capsule_mt.evidence import documents
from hf_capsule_mt.evidence.recorded import RECORDS, ROOT


@pytest.fixture(scope="module")
def tables():
    return documents.all_tables()


@pytest.fixture
def copies(tables, tmp_path, monkeypatch):
    """The documents in a folder of their own, which the command works on."""
    for document in tables:
        (tmp_path / document).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / document, tmp_path / document)
    for figure in (*(ROOT / "docs").glob("study_*.svg"), *(ROOT / "docs").glob("capsules_*.svg")):
        shutil.copy(figure, tmp_path / "docs")
    monkeypatch.setattr(documents, "all_tables", lambda: tables)
    monkeypatch.setattr(command, "update", lambda write: documents.update(tmp_path, write=write))
    return tmp_path


def test_documents_are_what_the_records_give(tables, monkeypatch):
    monkeypatch.setattr(documents, "all_tables", lambda: tables)
    assert documents.update(write=False) == ([], [])


def test_a_stale_document_is_named_and_rewritten(copies, capsys):
    page = copies / "docs" / "results.md"
    written = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r" \d+\.\d ± 0\.\d \|", " 99.9 ± 0.7 |", written, count=1), encoding="utf-8")
    stale = page.read_text(encoding="utf-8")
    assert command.main(["--check"]) == 1 and page.read_text(encoding="utf-8") == stale != written
    assert capsys.readouterr().out == "docs/results.md is not what the records give\n"
    assert command.main([]) == 0 and page.read_text(encoding="utf-8") == written
    assert command.main(["--check"]) == 0


def test_a_document_without_a_place_for_its_table(copies, capsys):
    path = copies / "docs" / "analysis.md"
    path.write_text(path.read_text(encoding="utf-8").replace("<!-- table: analysis -->", ""), encoding="utf-8")
    assert command.main(["--check"]) == 2
    assert "docs/analysis.md: there must be exactly one table marked analysis" in capsys.readouterr().err


def test_without_records_the_command_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "RECORDS", tmp_path / "records")
    assert command.main([]) == 2
    assert "run this in a checkout" in capsys.readouterr().err


def test_every_table_of_a_document_is_made_from_records(tables):
    for document in ("README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / document).read_text(encoding="utf-8")
        assert len(re.findall("^<!-- table: ", text, re.M)) == len(tables.get(document, ())), document
    assert list(RECORDS.glob("*/*.json"))
