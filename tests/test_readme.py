"""The README: its code runs, its commands and the numbers that it quotes exist."""

import json
import re

import pytest

from pages import ROOT, Page

README = Page("README.md")


def test_translating_takes_six_lines(capsule_and_plain, capsys):
    assert len([line for line in README.code["translate"].splitlines() if line.strip()]) <= 6
    README.execute("translate")
    assert capsys.readouterr().out.endswith("\n")


def test_every_code_block_is_tested():
    # that of published models is tested where there is a Hub: tests/hub/test_documentation.py
    assert set(README.code) == {"translate", "published"}
    assert README.text.count("```python") == len(README.code)


def test_a_newcomer_reads_it_in_two_minutes():
    """At 250 words a minute, without tables and code, which one does not read word by word."""
    prose = re.sub(r"```.*?```|^\|.*$|<!--.*?-->|\]\([^)]*\)", " ", README.text, flags=re.S | re.M)
    assert len(prose.split()) < 500


def test_two_commands_do_all_the_set_up():
    commands = re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)\n```", README.text, re.S)
    assert [name for name, _ in commands] == ["run", "test"]
    assert all("-c constraints.txt" in command and "\n" not in command for _, command in commands)
    start = Page("docs/start.md").text
    assert all(command in start for _, command in commands)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_quoted_end_of_the_default_run_is_the_recorded_one(page):
    results = json.loads((ROOT / "hf_capsule_mt/evidence/records/grammar/em_routing.json").read_text(encoding="utf-8"))
    assert results["recipe"].endswith("recipes/grammar.yaml") and len(results["scores"]) == 2
    for row in results["scores"]:
        quoted = f"{row['bleu']:8.2f}{row['chrf']:8.2f}{row['ter']:8.2f}{row['sentences']:11,}"
        assert quoted in Page(page).text
