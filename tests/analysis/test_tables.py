"""Tables as they are written, sign for sign."""

import math

import pytest

from hf_capsule_mt.analysis.tables import comparison_caption, comparison_table, significance_marks

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

    def test_other_test(self):
        assert "paired bootstrap" in comparison_caption("t", baseline="b", test="bootstrap_p")
        with pytest.raises(ValueError, match="test must be one of"):
            comparison_caption("t", baseline="b", test="t_test")


class TestSignificanceMarks:
    COMPARISON = {  # noqa: RUF012
        "bleu": {"randomization_p": 0.0099, "bootstrap_p": 0.2},
        "chrf": {"randomization_p": 0.01, "bootstrap_p": 0.001},
        "ter": {"randomization_p": 0.05, "bootstrap_p": 0.049},
        "sign_test": {"p": 0.0},
        "signatures": {"bleu": {"bootstrap": "s"}},
    }

    def test_levels(self):
        assert significance_marks(self.COMPARISON) == {"bleu": "**", "chrf": "*"}
        assert significance_marks(self.COMPARISON, test="bootstrap_p") == {"chrf": "**", "ter": "*"}
