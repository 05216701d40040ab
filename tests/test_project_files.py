"""What only other tools read: the workflow, the hooks of pre-commit, the citation."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_calls_the_one_script():
    steps = [step["run"] for job in read(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"][2:]]
    assert steps == ["bash .ci/run"] and (ROOT / ".ci/run").is_file()


def test_the_site_that_is_published_is_built_as_in_the_tests():
    build = read(".github/workflows/site.yml")["jobs"]["build"]["steps"]
    command = next(step["run"] for step in build if "sphinx" in step.get("run", ""))
    assert command == "python -m sphinx -W --keep-going -q docs site"
    assert '"-m", "sphinx", "-W", "--keep-going", "-q", "docs"' in (ROOT / "tests/documents/test_site.py").read_text()


def test_hooks_run_the_tools_of_the_environment():
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"].split()[0] for hook in local["hooks"]] == [".venv/bin/ruff"] * 2 + [".venv/bin/mypy"]
    # "ruff check --fix" is what .ci/run asks for, made
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert all(hook["entry"].split()[0] in script for hook in local["hooks"])


def test_the_citation_has_the_papers_of_the_cards():
    citation, papers = read("CITATION.cff"), read("hf_capsule_mt/hub/card/citations.yaml")
    assert citation["authors"] == [{"name": "hf_capsule_mt contributors"}]
    titles = [reference["title"] for reference in citation["references"]]
    assert len(titles) == len(papers) == 3
    for title, paper, reference in zip(titles, papers.values(), citation["references"], strict=True):
        assert title in paper["reference"] and title in paper["bibtex"]
        for author in reference["authors"]:
            assert author.get("family-names", "others") in paper["bibtex"]
        assert str(reference.get("doi", reference.get("url"))).split("/abs/")[-1] in paper["bibtex"]
