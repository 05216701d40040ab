"""The table of a results section, as Markdown and as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..markup import latex_text, markdown_inline, markdown_text

Column = tuple[str, str, int]

SCORE_COLUMNS: tuple[Column, ...] = (("bleu", "BLEU", 1), ("chrf", "chrF", 1), ("ter", "TER", 1))
COMET_COLUMN: Column = ("comet", "COMET", 3)
# the strictest first
LEVELS = ((0.01, "**"), (0.05, "*"))
MISSING = "-"


class Cell(NamedTuple):
    """A value as text and its mark of significance ("", "*" or "**")."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """
    A table of plain text, escaped when it is written.

    Attributes:
        header: titles of the columns; the first is that of the names.
        rows: a cell for each column; the first holds a name.
        caption: what the table shows and what its marks mean.
        label: for LaTeX's references.
    """

    header: list[str]
    rows: list[list[Cell]]
    caption: str = ""
    label: str = "tab:comparison"

    def to_markdown(self) -> str:
        """A table of GitHub's Markdown, its columns also aligned in the source, with the caption as a paragraph."""
        cells = [[markdown_inline(title) for title in self.header]]
        cells += [[markdown_inline(cell.text + cell.mark) for cell in row] for row in self.rows]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_markdown_row(row, widths) for row in cells]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines.insert(1, "| " + " | ".join(rule) + " |")
        if self.caption:
            lines += ["", markdown_text(self.caption)]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A table environment with booktabs' rules; figures are aligned in spite of the marks behind them."""
        longest = [max((len(cell.mark) for cell in column), default=0) for column in zip(*self.rows, strict=True)]
        rows = [[_latex_cell(cell, mark) for cell, mark in zip(row, longest, strict=True)] for row in self.rows]
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            *([f"  \\caption{{{latex_text(self.caption)}}}"] if self.caption else []),
            f"  \\label{{{self.label}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"    \toprule",
            "    " + " & ".join(map(latex_text, self.header)) + r" \\",
            r"    \midrule",
            *("    " + " & ".join(row) + r" \\" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def comparison_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column] = SCORE_COLUMNS, *, caption: str = ""
) -> Table:
    """
    Systems and their figures, with marks of significance.

    Args:
        rows: of each system its "name", the values of the columns, and optionally "marks", "*" or "**" by column, as
            from `significance_marks`. None, NaN and values that are absent show as "-".
        columns: (key, title, digits behind the decimal point) of each; text is shown as it is.
        caption: what the table shows and what its marks mean, as from `comparison_caption`.

    Raises:
        ValueError: no rows, a row without a name, an unknown mark, or marks without a caption.
    """
    if not rows:
        raise ValueError("a table needs at least one row")
    cells = [_cells(row, columns) for row in rows]
    if not caption and any(cell.mark for row in cells for cell in row):
        raise ValueError("nothing says what the marks of significance mean: pass a caption")
    return Table(["System", *(title for _, title, _ in columns)], cells, caption)


def comparison_caption(
    title: str,
    *,
    baseline: str = "",
    test: str = "approximate randomisation, two-sided",
    signatures: Mapping[str, str] | None = None,
) -> str:
    """
    Caption that explains marks and scores, plain text.

    Args:
        title: what the table shows, for example the test set and the beam.
        baseline: the system that the marks are against; without one, marks are not explained.
        test: the one behind the marks, in words, as from `test_in_words`.
        signatures: sacreBLEU's, by the name of the score ("BLEU").
    """
    sentences = [f"{title.rstrip('.')}."]
    if baseline:
        levels = ", ".join(f"{mark} p < {level}" for level, mark in reversed(LEVELS))
        sentences.append(f"Different from {baseline}: {levels} ({test}).")
    if signatures:
        sentences.append("sacreBLEU: " + "; ".join(f"{name} {text}" for name, text in signatures.items()) + ".")
    return " ".join(sentences)


def test_in_words(comparison: Mapping[str, Any]) -> str:
    """
    The tests behind the marks, and their correction.

    Args:
        comparison: of a report, see `comparison.compare_systems`.
    """
    found = {
        tests[metric]["test"]: None
        for tests in comparison["systems"].values()
        for metric, _, _ in SCORE_COLUMNS
        if metric in tests and "test" in tests[metric]
    }
    count = len(comparison["systems"])
    corrected = [f"Holm's correction over the {count} systems of a metric"] if count > 1 else []
    return ", ".join([" or, of several runs, ".join(found) or "approximate randomisation", "two-sided", *corrected])


def empty_notes(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each system that has left translations empty."""
    tested = report["test_set"]
    full = tested["sentences"] - tested.get("blank_sources", 0)
    notes = []
    for system in report["systems"]:
        runs = system.get("runs") or [system]
        counts = [run.get("empty", 0) for run in runs]
        if any(counts):
            shown = " and ".join(f"all {full:,}" if count == full else f"{count:,} of {full:,}" for count in counts)
            where = f", in its {len(counts)} runs" if len(counts) > 1 else ""
            notes.append(f"{system['name']} has no output for {shown} sentences{where}.")
    return notes


def mark_of(p: float | None) -> str:
    """The mark of a significance level: "**" below 0.01, "*" below 0.05; "" for None and NaN."""
    return next((mark for level, mark in LEVELS if p is not None and p < level), "")


def significance_marks(comparison: Mapping[str, Any]) -> dict[str, str]:
    """
    Marks of a system for `comparison_table`: "**" for p < 0.01, "*" for p < 0.05, in either direction, after Holm's
    correction.

    Args:
        comparison: of one system in what `comparison.compare_systems` returns.

    Returns:
        By score, without those that have no mark.
    """
    marks = {name: mark_of(found["p_holm"]) for name, found in comparison.items() if "p_holm" in found}
    return {name: mark for name, mark in marks.items() if mark}


def _cells(row: Mapping[str, Any], columns: Sequence[Column]) -> list[Cell]:
    if not row.get("name"):
        raise ValueError(f"every row needs a name, got {dict(row)}")
    marks = row.get("marks") or {}
    unknown = set(marks.values()) - {"", *(mark for _, mark in LEVELS)}
    if unknown:
        raise ValueError(f'marks must be "*" or "**", got {", ".join(map(repr, sorted(unknown)))} for {row["name"]!r}')
    values = (Cell(_value(row.get(key), digits), marks.get(key, "")) for key, _, digits in columns)
    return [Cell(str(row["name"])), *values]


def _value(value: Any, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def _markdown_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cells[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
    ]
    return "| " + " | ".join(padded) + " |"


def _latex_cell(cell: Cell, longest_mark: int) -> str:
    """The value, its mark, and the room that a longer mark of the same column takes."""
    text = "--" if cell.text == MISSING else latex_text(cell.text)
    mark = f"$^{{{cell.mark}}}$" if cell.mark else ""
    missing = longest_mark - len(cell.mark)
    return text + mark + (rf"\phantom{{$^{{{'*' * missing}}}$}}" if missing else "")
