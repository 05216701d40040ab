"""Real text with alignments, and the intervals of what is probed on it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from test_past_future import FakeModel, guided_model, right_answers

from hf_capsule_mt.analysis.aligned_text import (
    AlignedPair,
    joined,
    pairs_by_aligner,
    pairs_by_hand,
    words_of,
)
from hf_capsule_mt.analysis.alignment_files import TARGET_FIRST, WordAlignment, read_alignments
from hf_capsule_mt.analysis.past_future import gold_translated, past_future_probe
from hf_capsule_mt.analysis.probe_intervals import RocArea, bootstrap_intervals
from hf_capsule_mt.data.grammar import generate_corpus, write_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import past_future_probe as benchmark

ENGLISH = ["mr president , i agree .", "the second issue 's end"]
GERMAN = ["herr präsident , ich stimme zu .", "das ende der zweiten frage"]
LINKS = ["0-0 1-1 2-2 3-3 4-4 5-4 6-5", "0-0 1?4 2?0 4-2"]
BY_HAND = dict(source_lang="en", target_lang="de")


@pytest.fixture
def gold(tmp_path):
    path = tmp_path / "gold"
    path.write_text("".join(f"{line}\n" for line in LINKS))
    return path


def read_gold(path):
    lengths = [(len(ours.split()), len(theirs.split())) for ours, theirs in zip(ENGLISH, GERMAN, strict=True)]
    return read_alignments(path, lengths, order=TARGET_FIRST).alignments


def test_tokenised_text_becomes_what_a_model_reads(gold):
    cased = (
        ["Dear Mr President, hello", "So I think", "We I"],
        ["Sehr geehrter Herr Präsident", "Eine Frage ohne Ende"],
    )
    first, second = pairs_by_hand(ENGLISH, GERMAN, read_gold(gold), **BY_HAND, cased=cased)
    # word 4 of the source has possible links alone
    assert second.alignment == ((0, 0), (0, 2), (2, 4)) and second.unsure == (4,)
    assert first.source == "Mr President, I agree." and first.target == "Herr Präsident, ich stimme zu."
    assert second.source == "The second issue's end" and second.target == "Das Ende der zweiten Frage"
    assert first.source_tokens == ("Mr", "President", ",", "I", "agree", ".") and len(first.target_tokens) == 7
    tokenizer = train_tokenizer([first.source, first.target, second.source, second.target] * 9, 420, 64)
    answers, pieces = gold_translated(first, tokenizer)
    # the comma belongs to no other word than itself
    assert len(pieces) == 6 and answers.shape[1] == 6 and {*answers[-1]} == {1} and {*answers[0]} == {0}


def test_text_with_capitals_keeps_its_own():
    (pair,) = pairs_by_hand(
        ["A NATO word"], ["Ein Wort"], [WordAlignment(((0, 0),))], **BY_HAND, cased=(["the nato"], ["x"])
    )
    assert pair.source == "A NATO word"


def test_what_the_detokenizer_would_change_stays_between_spaces():
    words = ["a", "&quot;", "b", "@-@", "c"]
    text = joined(words, "en")
    end = 0
    for word in words:
        end = text.index(word, end) + len(word)


def test_aligner_finds_the_words_of_raw_text():
    pytest.importorskip("systran_align")
    words = {f"x{number}": f"Ü{number}" for number in range(40)}
    generator = np.random.default_rng(3)
    rows = [[*generator.permutation(list(words))[:5]] for _ in range(300)]
    sources = [" ".join(row) + "!" for row in rows]
    # the second and the third word change places
    targets = [" ".join(words[row[index]] for index in (0, 2, 1, 3, 4)) + "!" for row in rows]
    pairs = pairs_by_aligner(sources[:9], targets[:9], **BY_HAND, training=zip(sources[9:], targets[9:], strict=True))
    assert [pair.source for pair in pairs] == sources[:9] and pairs[0].source_tokens[-1] == "!"
    expected = ((0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5))
    assert sum(pair.alignment == expected for pair in pairs) >= 8
    assert words_of("Zwei, drei", "de") == ["Zwei", ",", "drei"] and words_of("你 好。", "zh") == ["你", "好", "。"]


def test_areas_of_weighted_decisions_are_those_of_sklearn():
    generator = np.random.default_rng(5)
    scores = generator.integers(0, 7, 300) / 7
    gold = (generator.random(300) < 0.4).astype(float)
    area = RocArea(scores, gold)
    for _ in range(3):
        weights = generator.integers(0, 4, 300).astype(float)
        assert area(weights) == pytest.approx(roc_auc_score(gold, scores, sample_weight=weights))


def test_intervals_are_over_sentences():
    generator = np.random.default_rng(7)

    def sentence(right):
        gold = generator.integers(0, 2, 30).astype(float)
        past = np.where(right, gold, 1 - gold)
        return np.stack([gold, past, 1 - past, generator.random(30) - 0.5], axis=1)

    # all decisions of a sentence are right or wrong together: 40 numbers and not 1,200
    tables = [sentence(number % 4 > 0) for number in range(40)]
    overlaps = [(None if number == 0 else 0.5, number / 39) for number in range(40)]
    found = bootstrap_intervals(tables, overlaps, [(None, None)] * 40, draws=500)
    low, high = found["accuracy"]
    assert low < 0.75 < high and high - low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / 40) ** 0.5, rel=0.2)
    assert found["past_overlap"] == [0.5, 0.5] and "frequent_past_overlap" not in found
    assert found["future_overlap"][0] < 0.5 < found["future_overlap"][1]
    assert found["auc_above_diagonal"][0] > 0 and found["diagonal_auc"][0] < 0.5 < found["diagonal_auc"][1]
    assert bootstrap_intervals(tables, [], [], draws=100).keys() == found.keys() - {"past_overlap", "future_overlap"}
    with pytest.raises(ValueError, match="draws must be at least 100"):
        bootstrap_intervals(tables, [], [], draws=5)


def test_probe_has_intervals_around_its_numbers():
    pairs = generate_corpus(12, seed=5)
    tokenizer = train_tokenizer([text for pair in pairs for text in (pair.source, pair.target)], 420, 64)
    aligned = [AlignedPair(p.source, p.target, p.source_tokens, p.target_tokens, p.alignment) for p in pairs]
    model = guided_model(tokenizer, bow_loss_weight=1.0)
    result, plain = (
        past_future_probe(model, tokenizer, given, progress=False, draws=n)
        for given, n in ((aligned, 200), (pairs, 0))
    )
    assert plain.intervals is None and result.auc == plain.auc and result.past_overlap == plain.past_overlap
    for name, (low, high) in result.intervals.items():
        if not name.endswith("above_diagonal"):
            assert low <= getattr(result, name) <= high and low < high, name
    right = FakeModel(tokenizer, [(pair, right_answers(pair, tokenizer)) for pair in pairs])
    exact = past_future_probe(right, tokenizer, pairs, progress=False, draws=100).intervals
    assert exact["auc"][0] > result.intervals["auc"][1]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run that was trained on files, and these."""
    folder = tmp_path_factory.mktemp("probed")
    pairs = generate_corpus(40, seed=5)
    write_corpus(folder, "train", pairs)
    tokenizer = train_tokenizer([text for pair in pairs for text in (pair.source, pair.target)], 420, 64)
    given = {"source_lang": "en", "target_lang": "de", "train_file": "train", "data_dir": str(folder)}
    results = {"arguments": given, "seed": 1, "steps": 3, "scores": [{"split": "test", "bleu": 1.0, "beams": 5}]}
    for name, weight in (("full", 1.0), ("light", 0.0)):
        guided_model(tokenizer, bow_loss_weight=weight).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        (folder / name / "results.json").write_text(json.dumps(results))
    # as the text with alignments by hand is: lower-cased, between spaces, German first
    for language, side in (("en", "source_tokens"), ("de", "target_tokens")):
        text = "".join(" ".join(getattr(pair, side)).lower() + "\n" for pair in pairs[:9])
        (folder / f"hand.{language}").write_text(text, encoding="utf-8")
    lines = (" ".join(f"{j}-{i}" for i, j in pair.alignment) for pair in pairs[:9])
    (folder / "hand.gold").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_runs_are_probed_on_text_aligned_by_hand(run_folder, tmp_path, capsys):
    output = tmp_path / "found.json"
    options = ["--text", str(run_folder / "hand"), "--alignment", str(run_folder / "hand.gold"), "--target_first"]
    runs = [str(run_folder / name) for name in ("full", "light")]
    command = [*runs, *options, "--output", str(output), "--draws", "100", "--fit_steps", "2"]
    assert benchmark.main(command) == 0
    full, light = json.loads(output.read_text())
    assert (full["text"], full["alignment"], full["results"]["sentences"]) == ("hand", "by hand", 9)
    assert (full["rol_predictor"], light["rol_predictor"]) == ("trained", "fitted")
    assert len(full["results"]["intervals"]["auc"]) == 2 and light["results"]["past_overlap"] is not None
    # the same decisions as those of the corpus itself: capitals and spaces are back
    assert full["results"]["decisions"] > 500
    assert benchmark.main(command) == 0
    assert "already in" in capsys.readouterr().err


def test_runs_are_probed_on_text_that_an_aligner_aligns(run_folder, tmp_path, capsys):
    pytest.importorskip("systran_align")
    output = tmp_path / "found.json"
    options = ["--text", str(run_folder / "train"), "--sentences", "7", "--draws", "100", "--output", str(output)]
    assert benchmark.main([str(run_folder / "full"), *options]) == 0
    (entry,) = json.loads(output.read_text())
    assert (entry["alignment"], entry["results"]["sentences"], entry["draws"]) == ("fast_align", 7, 100)
    assert "[0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "was not trained on the grammar corpus: give --text"),
        (["--target_first"], "--alignment and --target_first are of --text"),
        (["--text", "nothing"], "there is no file nothing.en"),
        (["--text", "HAND", "--alignment", "HAND.gold"], "hand.gold, line "),
        (["--text", "SHORT"], "short.* have 1 and 0 lines, but are translations"),
    ],
)
def test_mistakes_are_one_line(run_folder, tmp_path, capsys, options, message):
    (tmp_path / "short.en").write_text("a\n")
    (tmp_path / "short.de").write_text("")
    options = [o.replace("HAND", str(run_folder / "hand")).replace("SHORT", str(tmp_path / "short")) for o in options]
    assert benchmark.main([str(run_folder / "full"), *options, "--output", str(tmp_path / "o.json")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
