"""Text as the published Multi30k is."""

import pytest

from hf_capsule_mt.__main__ import main

RAW = {"en": "A dog's ball, isn't it?\nTwo men.\n", "de": "Der Ball eines Hundes, oder?\nZwei Männer.\n"}


@pytest.fixture
def corpus(tmp_path):
    for language, text in RAW.items():
        (tmp_path / f"train.{language}").write_text(text, encoding="utf-8")
    return tmp_path / "train"


def test_text_is_lower_cased_and_tokenised(corpus, tmp_path):
    assert main(["prepare", str(corpus), "--languages", "en", "de", "--output", str(tmp_path / "lc")]) == 0
    assert (tmp_path / "lc" / "train.en").read_text().splitlines() == [
        "a dog &apos;s ball , isn &apos;t it ?",
        "two men .",
    ]
    assert (tmp_path / "lc" / "train.de").read_text().splitlines() == [
        "der ball eines hundes , oder ?",
        "zwei männer .",
    ]


def test_what_is_prepared_is_taken_as_it_is(corpus, tmp_path):
    (tmp_path / "train.lc.norm.tok.en").write_text("as published\nin two lines\n")
    assert main(["prepare", str(corpus), "--languages", "en", "de", "--output", str(tmp_path / "lc")]) == 0
    assert (tmp_path / "lc" / "train.en").read_text() == "as published\nin two lines\n"


def test_mistakes_are_one_line(corpus, tmp_path, capsys):
    output = ["--output", str(tmp_path / "lc")]
    assert main(["prepare", str(corpus), "--languages", "en", "--output", str(tmp_path)]) == 2
    assert "is where the raw text is; name another folder" in capsys.readouterr().err
    assert main(["prepare", str(corpus), "--languages", "en", "fr", *output]) == 2
    assert "train.fr" in capsys.readouterr().err
    corpus.with_name("train.de").write_text("eine Zeile\n")
    assert main(["prepare", str(corpus), "--languages", "en", "de", *output]) == 2
    assert "must have the same number of lines" in capsys.readouterr().err and not (tmp_path / "lc").exists()
