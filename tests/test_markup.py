"""Text that stays text: Markdown is read by a reader of CommonMark, LaTeX by its special characters."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hf_capsule_mt.analysis.tables import comparison_table
from hf_capsule_mt.markup import (
    latex_text,
    link_address,
    markdown_block,
    markdown_code,
    markdown_prose,
    markdown_template,
    markdown_text,
    without_breaks,
)

READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "<script>alert(1)</script>",
    "a | b || c",
    "two\n\n# lines",
    "CR\r# heading\r\n- item",
    "](javascript:alert(1)) [x](javascript:alert(1)) ![y](z)",
    r"\input{/etc/passwd} 50 % of $x^2$ & #1 ~",
    "{{ 7*7 }} {% raw %} {# x #}",
    "```\n<b>out</b>\n```",
    "` `` ``` ````",
    "---\nlicense: mit\n---",
    "--- \n",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "    code",
    "===",
    "*a* _b_ **c** ~~d~~",
    "&lt;script&gt; &#60;",
    "http://evil.example www.evil.example a@b.example <http://evil.example>",
    "<!-- comment",
    "\\",
    "\\\\`",
    "[ref]: http://x",
    "\u202eright to left \x1b[31m \u2028 line",
    "",
]


def plain(markdown: str) -> str:
    """The text that a reader of the Markdown sees, if it is one paragraph of nothing but text and code."""
    kinds = [token.type for token in READER.parse(markdown)]
    assert kinds in (["paragraph_open", "inline", "paragraph_close"], []), kinds
    shown = []
    for token in READER.parse(markdown):
        for child in token.children or []:
            assert child.type in ("text", "text_special", "code_inline"), child.type
            shown.append(child.content)
    return "".join(shown)


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_hostile_text_is_shown_as_it_is(text):
    assert plain(markdown_text(text)) == without_breaks(text)
    assert plain(f"x {markdown_code(text)} y").strip() == f"x {without_breaks(text) or '  '} y"
    rows = READER.parse(f"| a | b |\n|---|---|\n| {markdown_text(text)} | {markdown_text(text)} |\n\nend")
    cells = [token.children for token in rows if token.type == "inline"][2:4]
    assert ["".join(child.content for child in cell) for cell in cells] == [without_breaks(text)] * 2
    assert not re.search(r"(?<!\\)\{[{%#]", markdown_text(text))


@given(st.text(alphabet=st.sampled_from("ab1 \n\r`*_[]()<>{}|~$@!#+-=.:/\\&\"'"), max_size=12))
def test_any_text_is_shown_as_it_is(text):
    assert plain(markdown_text(text)) == without_breaks(text)
    # GitHub's formulas and links, which this reader does not know
    assert not re.search(r"(?<!\\)\$|://|(?<!\\)@", markdown_text(text))


@given(st.text(alphabet=st.sampled_from("ab`~ \n\r\x0b\u2028<"), max_size=14), st.sampled_from([0, 2]))
def test_any_text_stays_in_its_block(text, indent):
    block = markdown_block(text, "bash", indent)
    page = f"- item\n\n  {block}\n\nend" if indent else f"{block}\n\nend"
    kinds = [token.type for token in READER.parse(page)]
    assert kinds.count("fence") == 1 and kinds[-3:] == ["paragraph_open", "inline", "paragraph_close"]
    fence = next(token for token in READER.parse(page) if token.type == "fence")
    assert (
        fence.content.splitlines()
        == re.split("[\n\x0b\u2028]", text.replace("\r\n", "\n").replace("\r", "\n"))[: len(text.splitlines())]
    )


def test_prose_keeps_its_code():
    assert markdown_prose("Made by `a_b.yaml` in <b>2016</b>") == r"Made by `a_b.yaml` in \<b\>2016\</b\>"
    assert plain(markdown_prose("- `<b>` and ``` and `")) == "- <b> and ``` and `"


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_latex(text):
    latex = latex_text(text)
    bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}", "", latex)
    bare = re.sub(r"\\textbar\\allowbreak\{\}|\\[&%$#_{}]", "", bare)
    assert not re.search(r"[\\&%$#_~^<>|\n\r\x00-\x1f]", bare)
    assert set(re.findall(r"\{[^}]*\}", bare)) <= {"{}", "{[}", "{*}"}
    table = comparison_table(
        [{"name": text or "x", "bleu": text}], [("bleu", text or "x", 1)], caption=text
    ).to_latex()
    assert table.count(r"\\") == 2 and table.count(r"\input") == 0


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip()], ids=repr)
def test_tables(text):
    table = comparison_table([{"name": text, "bleu": 1.0}], [("bleu", text, 1)], caption=text).to_markdown()
    tokens = READER.parse(table)
    kinds = [token.type for token in tokens]
    assert kinds.count("tr_open") == 2 and kinds.count("td_open") == 2 and kinds.count("th_open") == 2
    shown = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    assert shown == ["System", without_breaks(text), without_breaks(text), "1.0", without_breaks(text)]


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "https://x.org/a)b", "http://x y", ""])
def test_addresses_that_are_refused(address):
    with pytest.raises(ValueError, match="cannot be the address of a link"):
        link_address(address)


def test_templates_escape_what_they_are_given():
    template, asked = markdown_template("{{ a }} {{ b | code }} {{ c | str }}")
    assert asked == {"a", "b", "c"}
    assert template.render(a="<b> {{ 7*7 }}", b="`", c='"') == r"\<b\> \{\{ 7\*7 \}\} `` ` `` " + '"\\""'
    with pytest.raises(ValueError, match="line 2: "):
        markdown_template("a\n{% if %}")
