"""Tables as they are written, sign for sign."""

import math

import pytest

from hf_capsule_mt.analysis import tables
from hf_capsule_mt.analysis.tables import comparison_caption, comparison_table, empty_notes, significance_marks

ROWS = [
    {"name": "Transformer", "bleu": 27.314, "ter": 55.0, "parameters": 88_000_000},
    {"name": "EM_routing", "bleu": 28.809, "ter": None, "parameters": 144_800_000, "marks": {"bleu": "**"}},
    {"name": "linear", "bleu": 7.73, "ter": math.nan, "marks": {"bleu": "*", "ter": "*"}},
]
COLUMNS = [("bleu", "BLEU", 1), ("ter", "TER", 2), ("parameters", "parameters", 0)]


class TestMarkdown:
    def test_text(self):
        assert comparison_table(ROWS, COLUMNS, caption="test2016.").to_markdown() == (
            "| System      |     BLEU |   TER |  parameters |\n"
            "| ----------- | -------: | ----: | ----------: |\n"
            "| Transformer |     27.3 | 55.00 |  88,000,000 |\n"
            "| EM\\_routing | 28.8\\*\\* |     - | 144,800,000 |\n"
            "| linear      |    7.7\\* |   -\\* |           - |\n"
            "\n"
            "test2016.\n"
        )

    def test_escaping(self):
        name = "a|b*c_d`e<f>[g]~\\$1\nline"
        table = comparison_table([{"name": name, "bleu": 1}])
        row = table.to_markdown().splitlines()[2]
        assert r"a\|b\*c\_d\`e\<f\>\[g\]\~\\\$1 line" in row
        assert len(table.to_markdown().splitlines()) == 3


class TestLatex:
    def test_text(self):
        assert comparison_table(ROWS, COLUMNS, caption="50 % of test_2016").to_latex() == (
            "% needs \\usepackage{booktabs}\n"
            "\\begin{table}\n"
            "  \\centering\n"
            "  \\caption{50 \\% of test\\_2016}\n"
            "  \\label{tab:comparison}\n"
            "  \\begin{tabular}{lrrr}\n"
            "    \\toprule\n"
            "    System & BLEU & TER & parameters \\\\\n"
            "    \\midrule\n"
            "    Transformer & 27.3\\phantom{$^{**}$} & 55.00\\phantom{$^{*}$} & 88,000,000 \\\\\n"
            "    EM\\_routing & 28.8$^{**}$ & --\\phantom{$^{*}$} & 144,800,000 \\\\\n"
            "    linear & 7.7$^{*}$\\phantom{$^{*}$} & --$^{*}$ & -- \\\\\n"
            "    \\bottomrule\n"
            "  \\end{tabular}\n"
            "\\end{table}\n"
        )

    @pytest.mark.parametrize(
        ("name", "latex"),
        [
            ("R&D 5% #1 a_b {c}", r"R\&D 5\% \#1 a\_b \{c\}"),
            ("$x^2$ ~", r"\$x\textasciicircum{}2\$ \textasciitilde{}"),
            ("\\input{x}", r"\textbackslash{}input\{x\}"),
            # behind \midrule and \\ these would begin an argument
            ("[ours]", "{[}ours]"),
            ("*ours", "{*}ours"),
            ("a|b<c>--d", r"a\textbar\allowbreak{}b\textless{}c\textgreater{}-{}-{}d"),
            ("two\n\nlines", "two lines"),
        ],
    )
    def test_escaping(self, name, latex):
        text = comparison_table([{"name": name, "bleu": 1.0}], [("bleu", "BLEU", 0)]).to_latex()
        assert f"    {latex} & 1 \\\\\n" in text
        assert text.count("{") == text.count("}") or "\\{" in latex

    def test_every_row_has_every_column(self):
        body = comparison_table(ROWS, COLUMNS, caption="c").to_latex()
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert [row.count(" & ") for row in rows] == [3] * 4


class TestComparisonTable:
    def test_score_columns_are_the_default(self):
        table = comparison_table([{"name": "one", "bleu": 30.25, "chrf": 50.0, "ter": 60.04, "other": 1}])
        assert table.header == ["System", "BLEU", "chrF", "TER"]
        assert [cell.text for cell in table.rows[0]] == ["one", "30.2", "50.0", "60.0"]

    def test_text_is_shown_as_it_is(self):
        table = comparison_table([{"name": "one", "speed": "0.61x"}], [("speed", "speed", 2)])
        assert table.rows[0][1].text == "0.61x"

    def test_rejects(self):
        with pytest.raises(ValueError, match="at least one row"):
            comparison_table([])
        with pytest.raises(ValueError, match="needs a name"):
            comparison_table([{"bleu": 1.0}])
        with pytest.raises(ValueError, match="got '†' for 'one'"):
            comparison_table([{"name": "one", "marks": {"bleu": "†"}}], caption="c")
        with pytest.raises(ValueError, match="pass a caption"):
            comparison_table(ROWS, COLUMNS)


class TestCaption:
    def test_text(self):
        signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
        caption = comparison_caption("test2016, beam 5.", baseline="Transformer", signatures={"BLEU": signature})
        assert caption == (
            "test2016, beam 5. Different from Transformer: * p < 0.05, ** p < 0.01 (approximate randomisation,"
            f" two-sided). sacreBLEU: BLEU {signature}."
        )
        latex = comparison_table(ROWS, COLUMNS, caption=caption).to_latex()
        assert r"{*} p \textless{} 0.05, {*}{*} p \textless{} 0.01" in latex
        assert r"nrefs:1\textbar\allowbreak{}case:mixed" in latex

    def test_the_test_and_its_correction_in_words(self):
        one, several = {"test": "approximate randomisation"}, {"test": "test over seeds and sentences together"}
        assert tables.test_in_words({"systems": {"a": {"bleu": one}}}) == "approximate randomisation, two-sided"
        assert tables.test_in_words({"systems": {"a": {"bleu": one}, "b": {"bleu": several}}}) == (
            "approximate randomisation or, of several runs, test over seeds and sentences together, two-sided,"
            " Holm's correction over the 2 systems of a metric"
        )

    def test_systems_without_output_are_named(self):
        systems = [
            {"name": "all", "empty": 8},
            {"name": "some", "runs": [{"empty": 0}, {"empty": 2}]},
            {"name": "none", "empty": 0},
        ]
        assert empty_notes({"test_set": {"sentences": 10, "blank_sources": 2}, "systems": systems}) == [
            "all has no output for all 8 sentences.",
            "some has no output for 0 of 8 and 2 of 8 sentences, in its 2 runs.",
        ]


class TestSignificanceMarks:
    def test_levels_of_corrected_values(self):
        comparison = {
            "bleu": {"p": 0.001, "p_holm": 0.0099},
            "chrf": {"p": 0.001, "p_holm": 0.01},
            "ter": {"p": 0.01, "p_holm": 0.05},
            "sign_test": {"p": 0.0},
            "signatures": {"bleu": {"bootstrap": "s"}},
        }
        assert significance_marks(comparison) == {"bleu": "**", "chrf": "*"}
