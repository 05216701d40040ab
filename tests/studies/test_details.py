"""What a study asks for beside its scores: further baselines, BLEU by length, words left out."""

import sys

import numpy as np
import pytest
from test_study_tables import SYSTEMS, finished, record_of  # noqa: F401 (a fixture)

from hf_capsule_mt.evaluation.buckets import by_source_length
from hf_capsule_mt.files import read_lines
from hf_capsule_mt.studies.command import main
from hf_capsule_mt.studies.details import measure
from hf_capsule_mt.studies.tables import write_tables


@pytest.fixture
def detailed(finished, tmp_path):  # noqa: F811
    """The record of a study with everything."""
    pytest.importorskip("systran_align")
    path = finished(baselines=["linear"], details=["length", "adequacy"])
    assert main(["table", str(path), "--draws", "200"]) == 0
    return record_of(tmp_path)


def test_further_baseline_is_compared_with_all(detailed):
    test_set = detailed["test_sets"]["test"]
    (found,) = test_set["baselines"].values()
    assert set(test_set["baselines"]) == {"linear"} and set(found) == {"plain", "same"}
    back = test_set["comparisons"]["bleu"]["linear"]
    assert found["plain"]["difference"] == -back["difference"] and found["plain"]["p"] == pytest.approx(back["p"])
    assert found["plain"]["interval"] == pytest.approx([-bound for bound in reversed(back["interval"])])
    assert found["plain"]["p"] <= found["plain"]["p_holm"] <= 2 * found["plain"]["p"]


def test_lengths_are_means_over_the_seeds(detailed, corpus, tmp_path):
    found = detailed["test_sets"]["test"]["length"]
    assert set(found) == set(SYSTEMS)
    sources, references = (read_lines(corpus / f"test.{language}") for language in ("en", "de"))
    runs = [
        by_source_length(
            sources,
            read_lines(tmp_path / "runs" / "linear" / f"seed-{seed}" / "translations" / "test.greedy.de"),
            references,
        )
        for seed in (1, 2, 3)
    ]
    (bucket,) = found["linear"]
    assert (bucket["low"], bucket["high"], bucket["sentences"]) == (0, 10, 17)
    assert bucket["bleu"] == pytest.approx(np.mean([run[0]["bleu"] for run in runs]))
    assert bucket["by_seed"]["2"] == runs[1][0]["bleu"]


def test_tables_and_figures_show_them(detailed, tmp_path):
    folder = tmp_path / "runs" / "table"
    text, latex = ((folder / name).read_text() for name in ("table.md", "table.tex"))
    bucket = detailed["test_sets"]["test"]["length"]["linear"][0]
    share = detailed["test_sets"]["test"]["adequacy"]["plain"]["under_translated_share"]
    difference = detailed["test_sets"]["test"]["baselines"]["linear"]["plain"]["difference"]
    length = f"{bucket['bleu']:.1f} ({bucket['ratio']:.2f})"
    for said in (length, f"{100 * share:.1f} %", f"{difference:+.2f}", "Differences to linear", "length in words"):
        assert said in text
    assert length in latex and rf"{100 * share:.1f} \%" in latex
    assert {"length_test.svg", "length_test.png"} <= {path.name for path in folder.iterdir()}
    again = write_tables(detailed, tmp_path / "again")
    assert (tmp_path / "again" / "length_test.svg") in again


def test_words_that_are_left_out_are_counted():
    pytest.importorskip("systran_align")
    letters = "abcdefghij"
    words = ["ein", "zwei", "drei", "vier", "sechs", "sieben", "acht", "neun", "zehn", "elf"]
    generator = np.random.default_rng(1)
    rows = [generator.choice(10, 6, replace=False) for _ in range(120)]
    sources, references = ([" ".join(side[i] for i in row) for row in rows] for side in (letters, words))
    # every sixth word is not translated
    short = [" ".join(words[i] for i in row[:5]) for row in rows]
    arguments = {"source_lang": "en", "target_lang": "de"}
    runs = {("whole", 1): references, ("short", 1): short, ("short", 2): references}
    found = measure(["adequacy"], sources, references, runs, arguments, "cased")
    assert set(found) == {"adequacy"} and found["adequacy"]["whole"]["under_translated_share"] == 0
    one, two = (found["adequacy"]["short"]["by_seed"][seed]["under_translated_share"] for seed in ("1", "2"))
    assert one == pytest.approx(1 / 6, abs=0.03) and two == 0
    assert found["adequacy"]["short"]["under_translated_share"] == pytest.approx(one / 2)


def test_without_asking_nothing_is_measured(finished, tmp_path):  # noqa: F811
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    test_set = record_of(tmp_path)["test_sets"]["test"]
    assert "length" not in test_set and "adequacy" not in test_set and test_set["baselines"] == {}


def test_without_an_aligner_adequacy_is_left_out(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "systran_align", None)
    arguments = {"source_lang": "en", "target_lang": "de"}
    found = measure(["length", "adequacy"], ["a"], ["ein"], {("plain", 1): ["ein"]}, arguments, "cased")
    assert set(found) == {"length"} and "without adequacy: word alignments need" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"details": ["lengths"]}, "details: there is no 'lengths' to choose; there are: length, adequacy"),
        ({"details": "length"}, "details must be a list of different names of length, adequacy, got 'length'"),
        ({"baselines": ["plain"]}, "baselines: there is no 'plain' to choose; there are: linear"),
    ],
)
def test_mistakes_name_the_key(write_study, capsys, values, message):
    assert main(["run", str(write_study(**values))]) == 2
    assert message in capsys.readouterr().err
