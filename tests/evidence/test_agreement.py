"""A score stands with the same value on every page; tables that show one have it found."""

import re

import pytest

from hf_capsule_mt.evidence.agreement import Score, disagreements, shown_scores
from hf_capsule_mt.evidence.recorded import ROOT, load

NAMES = ("README.md", "docs/analysis.md", "docs/paper_index.md", "docs/results.md", "docs/speed.md")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
# a page that shows what another one does
COPY = "docs/copy.md"
PAGES[COPY] = PAGES["docs/results.md"]
# a row of a study, and its score
ROW, LINEAR = re.findall(r"table: study grammar -->.*?(\| linear +\| +3 \| +([\d.]+) )", PAGES[COPY], re.DOTALL)[0]


def table(name: str, *lines: str) -> str:
    return "\n".join(["text", f"<!-- table: {name} -->", *lines, "<!-- end -->"]) + "\n"


def test_no_two_pages_disagree():
    assert disagreements(PAGES) == []


@pytest.mark.parametrize(
    ("page", "row", "after", "message"),
    [
        (
            COPY,
            ROW,
            ROW.replace(LINEAR, "99.9"),
            f"study grammar linear table 1 BLEU: {LINEAR} in docs/results.md, 99.9 in {COPY}",
        ),
        (
            "docs/results.md",
            " 27.5 ± 1.0 |",
            " 27.9 ± 1.0 |",
            "study grammar_recurrent calibrated relu table 1 BLEU: 27.5 in docs/paper_index.md, 27.9 in "
            "docs/results.md",
        ),
    ],
    ids=["a-copy", "another-table"],
)
def test_a_number_that_differs_is_found(page, row, after, message):
    assert row in PAGES[page]
    assert disagreements({**PAGES, page: PAGES[page].replace(row, after, 1)}) == [message]


def test_what_is_compared_between_pages():
    pages: dict[Score, set[str]] = {}
    for page, text in PAGES.items():
        for score, _ in shown_scores(page, text):
            pages.setdefault(score, set()).add(page)
    for system in ("none", "GDR", "EM+GDR+losses"):
        assert pages["study grammar", system, "table 1", "BLEU", ""] == {"docs/results.md", COPY}, system
    parts = pages["study grammar_recurrent", "calibrated squash", "table 1", "BLEU", ""]
    assert parts == {"docs/results.md", COPY, "docs/paper_index.md"}
    assert pages["Multi30k", "Transformer", "test2016", "BLEU", "beam 5"] == {"docs/analysis.md"}


def test_every_column_that_names_a_score_is_read():
    found = 0
    for page, text in PAGES.items():
        for name, block in re.findall(r"<!-- table: ([^\n]+) -->\n(.*?)<!-- end -->", text, re.S):
            read = {score.test_set for score, _ in shown_scores(page, table(name, block.strip()))}
            for header in re.findall(r"(?:^|\n\n)(\|.*)\n\| ?-", block):
                for cell in (cell.strip() for cell in header.split("|")):
                    if re.search(r"BLEU|chrF|TER\b|^val|^test", cell) and not cell.startswith("Difference"):
                        test_set = re.search(r"val|test\w*", cell)
                        assert (test_set[0] if test_set else "table 1") in read, (page, name, cell)
                        found += 1
    assert found > 10


def test_rounding_to_fewer_digits_is_no_disagreement():
    pages = {"a": table("x", "| system | val |", "|---|---|", "| s | 37.46 |"), "b": ""}
    for shown, differs in (("37.5", 0), ("37.4", 1), ("37.46", 0), ("37.47", 1), ("not run", 0)):
        pages["b"] = table("x", "| a | system | val |", "|---|---|---|", f"| - | s | {shown} |")
        assert len(disagreements(pages)) == differs, shown


def test_two_tables_of_one_page_are_compared():
    lines = ["| system | val |", "|---|---|"]
    page = table("x", *lines, "| s | 37.7 |") + table("y", *lines, "| s | 37.9 |")
    assert disagreements({"a": page}) == ["Multi30k s val BLEU: 37.7 in a, 37.9 in a"]


def test_tables_of_studies_are_settings_of_their_own():
    lines = ["| System | BLEU | Difference in BLEU |", "| --- | ---: | ---: |", "| s | 31.2 ± 0.1** | +0.1 |"]
    pages = {"a": table("study one", *lines), "b": table("study two", *lines[:2], "| s | 40.0 | - |")}
    assert disagreements(pages) == []
    pages["b"] = pages["b"].replace("two", "one")
    assert disagreements(pages) == ["study one s table 1 BLEU: 31.2 in a, 40.0 in b"]


def test_the_analysis_is_of_the_recorded_runs():
    """The checkpoints are those of the study's first seed: their scores are the same, as they are shown."""
    for system in load("multi30k/analysis.json")["systems"]:
        results = load(f"runs/multi30k/{system['name'].replace(' ', '_')}/seed-1/results.json")
        run = next(row for row in results["scores"] if row["split"] == "test" and row["beams"] == 5)
        for score in ("bleu", "chrf", "ter"):
            assert f"{run[score]:.1f}" == f"{system['scores'][score]:.1f}", (system["name"], score)
