"""PAST and FUTURE beside gold alignments: from a file of links to the section of a report."""

import copy
import json

import pytest
from test_past_future import guided_model
from test_report import GUIDED, command, save
from test_report_page import Parsed
from transformers import AutoTokenizer

from hf_capsule_mt.analysis import alignment_part as module
from hf_capsule_mt.analysis.aligned_text import AlignedPair, AlignedText, AlignmentFile, read_aligned_text
from hf_capsule_mt.analysis.alignment_part import alignment_part, alignment_section, says
from hf_capsule_mt.analysis.gold import piece_links, words_without_link
from hf_capsule_mt.analysis.past_future import past_future_probe
from hf_capsule_mt.analysis.report_page import render
from hf_capsule_mt.data.grammar import generate_corpus, write_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.models.tokenizer_languages import set_languages
from tiny_models import capsule_model
from tiny_multilingual import LANGUAGES as CODES
from tiny_translation import SOURCES, TARGETS, tiny_tokenizer

LANGUAGES = dict(source_lang="en", target_lang="de")
# word by word, from 1; "the" of the second sentence has no link, "the" of the fourth a possible one alone
LINKS = [
    "1-1 2-2 3-3 4-4",
    "2-2 3-3 4-4 5-5 6-6 7-7 8-8 9-9",
    "1-1 2-2 3-3 4-4",
    "1-1 2-2 3-3 4-4 5-5 6-6 7-7 8-8 9p8 10-9 11-10",
    "1-1 2-2 3-3 4-4",
    "1-1 2-2 3-3 4-4 5p4 6-5 7-6",
]


@pytest.fixture(scope="module")
def corpus():
    pairs = generate_corpus(12, seed=5)
    return pairs, train_tokenizer([text for pair in pairs for text in (pair.source, pair.target)], 420, 90)


@pytest.fixture(scope="module")
def aligned(corpus, tmp_path_factory):
    """The embedded corpus as its files have it."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs, _ = corpus
    write_corpus(folder, "test", pairs)
    sides = [(folder / f"test.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")]
    return read_aligned_text(*sides, AlignmentFile(folder / "test.align"), **LANGUAGES)


def test_the_corpus_own_alignments_are_read(corpus, aligned):
    pairs, _ = corpus
    assert (aligned.words, aligned.base, aligned.order) == ("marks", 0, "source-target")
    assert [(pair.source_tokens, pair.alignment) for pair in aligned.pairs] == [
        (pair.source_tokens, tuple(sorted(pair.alignment))) for pair in pairs
    ]


def test_the_numbers_are_those_of_the_probe(corpus, aligned):
    pairs, tokenizer = corpus
    model = guided_model(tokenizer, bow_loss_weight=1.0)
    part = alignment_part(model, tokenizer, aligned, draws=100)
    expected = past_future_probe(model, tokenizer, pairs, progress=False, draws=100).to_dict()
    assert {key: part[key] for key in expected} == expected
    assert set(part["groups"]) == {"PAST", "FUTURE", "REDUNDANT"} and part["left_out"] == 0 and part["draws"] == 100
    low, high = part["groups"]["PAST"]["intervals"]["auc"]
    assert low <= part["groups"]["PAST"]["auc"] <= high
    (shown,) = part["examples"]
    assert shown["source"] in {pair.source for pair in pairs}
    pair = next(pair for pair in aligned.pairs if pair.source == shown["source"])
    assert [tuple(frame) for frame in shown["frames"]] == piece_links(pair, tokenizer)
    assert len(shown["guided"]["assignment"]) == len(shown["target_tokens"])
    for i, j in shown["frames"]:
        assert i < len(shown["source_tokens"]) and j < len(shown["target_tokens"])


def test_words_without_a_link_are_redundant_unless_a_possible_one_is():
    pair = AlignedPair("a b c d", "x y", ("a", "b", "c", "d"), ("x", "y"), ((0, 1), (2, 0)), unsure=(1,))
    assert words_without_link(pair) == [3]


def test_what_cannot_be_probed_is_said_and_left_out(corpus, aligned, monkeypatch):
    pairs, tokenizer = corpus
    assert alignment_part(guided_model(tokenizer, "none"), tokenizer, aligned) is None
    model = guided_model(tokenizer)
    empty = AlignedText([AlignedPair(p.source, p.target, (), (), ()) for p in pairs], "gold", "spaces", 0, "x")
    part = alignment_part(model, tokenizer, empty)
    assert part == {
        "not_probed": "nothing to probe: there are no sentence pairs, or none of their words is aligned",
        "left_out": 0,
    }
    blank, long = AlignedPair("", "", (), (), ()), AlignedPair("a " * 200, "b", ("a",) * 200, ("b",), ((0, 0),))
    more = AlignedText([*aligned.pairs, blank, long], "gold", "marks", 0, "source-target")
    found = alignment_part(model, tokenizer, more, draws=0)
    assert found["left_out"] == 2 and found["auc"] == alignment_part(model, tokenizer, aligned, draws=0)["auc"]
    slow = copy.copy(tokenizer)
    monkeypatch.setattr(type(slow), "is_fast", False)
    assert "does not say where in the text" in alignment_part(model, slow, aligned)["not_probed"]


def part_of(auc, above, redundant=(0.4, 0.6)):
    groups = {
        "PAST": {"auc": 0.7, "intervals": {"auc_above_diagonal": [0.1, 0.2]}},
        "FUTURE": {"auc": 0.7, "intervals": {"auc_above_diagonal": [-0.2, -0.1]}},
        "REDUNDANT": {"auc": 0.5, "intervals": {"auc": list(redundant)}},
    }
    return {
        "auc": sum(auc) / 2,
        "diagonal_auc": 0.9,
        "groups": groups,
        "intervals": {"auc": list(auc), "auc_above_diagonal": list(above)},
    }


@pytest.mark.parametrize(
    ("auc", "above", "said"),
    [
        ((0.1, 0.3), (-0.8, -0.6), "have changed places"),
        ((0.4, 0.6), (-0.5, -0.3), "do not tell translated words from untranslated ones"),
        ((0.7, 0.8), (-0.2, -0.1), "but less well than the diagonal"),
        ((0.88, 0.92), (-0.02, 0.02), "not measurably better than the diagonal. The probability of FUTURE by itself"),
        (
            (0.95, 0.96),
            (0.05, 0.06),
            "and better than the diagonal does. The probability of FUTURE by itself",
        ),
    ],
)
def test_what_is_said_is_what_is_seen(auc, above, said):
    text = says(part_of(auc, above))
    assert said in text and text.endswith("REDUNDANT does not tell words without a link from the others.")


@pytest.mark.parametrize(
    ("redundant", "said"), [((0.6, 0.7), "is likelier for words without"), ((0.2, 0.3), "is less likely for words")]
)
def test_what_is_said_of_redundant(redundant, said):
    assert said in says(part_of((0.95, 0.96), (0.05, 0.06), redundant))


@pytest.fixture(scope="module")
def files_and_gold(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_set")
    for suffix, side in (("en", SOURCES), ("de", TARGETS)):
        (folder / f"test.{suffix}").write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    (folder / "gold").write_text("".join(f"{line}\n" for line in LINKS))
    return folder / "test.en", folder / "test.de", folder / "gold"


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    model = capsule_model(vocab_size=len(tiny_tokenizer()), aggregation="none", **GUIDED)
    return str(save(model, tmp_path_factory.mktemp("checkpoints") / "gdr"))


def test_a_report_with_gold_alignments(guided, files_and_gold, tmp_path):
    *files, gold = files_and_gold
    options = ["--alignments", gold, "--no_speed", "--examples", 1]
    assert command([guided], files, tmp_path / "out", *options) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["test_set"]["alignments"] == {
        "file": "gold",
        "words": "spaces",
        "base": 1,
        "order": "source-target",
    }
    part = report["systems"][0]["alignments"]
    # "the" of the second sentence has no link; the word with a possible link alone is of no group
    steps = [len(tiny_tokenizer()(text_target=text)["input_ids"]) for text in TARGETS]
    assert part["groups"]["REDUNDANT"]["meant"] == steps[1] and part["sentences"] == 6
    assert part["groups"]["REDUNDANT"]["decisions"] == part["decisions"] + steps[1]
    (figure,) = [figure for figure in report["figures"] if figure["title"] == module.FIGURE_TITLE]
    assert (tmp_path / "out" / figure["file"]).is_file()
    page = Parsed((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    text = " ".join(text for _, text in page.texts)
    assert "gold, links read as source-target, words between spaces counted from 1." in text
    assert f"{part['auc']:.3f}" in text and f"diagonal {part['diagonal_auc']:.3f}" in text
    assert says(part) in text and text.count(module.FIGURE_TITLE) == 1
    # another alignment is another report
    gold_again = tmp_path / "gold"
    gold_again.write_text(gold.read_text().replace("3-3 ", ""))
    assert command([guided], files, tmp_path / "out", *[gold_again if o == gold else o for o in options]) == 0
    other = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert other["systems"][0]["alignments"]["decisions"] < part["decisions"]
    kept = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["systems"][0]["alignments"]
    assert "examples" not in kept and "auc" in kept


def test_a_report_of_a_multilingual_system(multilingual, files_and_gold, tmp_path):
    *files, gold = files_and_gold
    run = tmp_path / "nllb"
    convert(multilingual("nllb"), run, aggregation="em_routing", num_capsules=4, guided_routing="routing")
    languages = ["--source_lang", "eng_Latn", "--target_lang", "deu_Latn"]
    options = [*languages, "--alignments", gold, "--no_speed", "--examples", 1]
    assert command([str(run)], files, tmp_path / "out", *options) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (system,) = report["systems"]
    tokenizer = AutoTokenizer.from_pretrained(run)
    set_languages(tokenizer, "eng_Latn", "deu_Latn")
    # what no word is linked with is asked before every piece of the target, its language and its end included
    steps = [len(tokenizer(text_target=text)["input_ids"]) for text in TARGETS]
    assert system["alignments"]["groups"]["REDUNDANT"]["meant"] == steps[1]
    (shown,) = system["examples"]
    for side, language in (("source", "eng_Latn"), ("target", "deu_Latn")):
        assert [shown[f"{side}_tokens"].count(code) for code in CODES["nllb"]].count(1) == 1
        assert shown[f"{side}_words"][0] == [language, 1]


def test_a_report_without_guided_systems_has_no_section(report):
    report["systems"][0]["alignments"] = None
    assert alignment_section(report) is None
    report["systems"][1]["alignments"] = {"not_probed": "<b>reason</b>", "left_out": 3}
    page = render(report, {})
    assert "Not probed: &lt;b&gt;reason&lt;/b&gt;. 3 sentences could not be probed." in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alignment_base", 0], "--alignment_base says how to read alignments: give their file, --alignments FILE"),
        (
            ["--alignments", "GOLD", "--alignment_base", 0],
            "gold, line 1: 4-4 links word 4 of the source, counted",
        ),
        (["--alignments", "GOLD", "--alignment_words", "letters"], "invalid choice: 'letters'"),
        (["--alignments", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line_before_any_work(guided, files_and_gold, tmp_path, capsys, options, message):
    *files, gold = files_and_gold
    given = [gold if option == "GOLD" else option for option in options]
    try:
        assert command([guided], files, tmp_path / "out", *given) == 2
    except SystemExit as left:
        assert left.code == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not (tmp_path / "out").exists()


def test_the_probe_needs_scikit_learn(guided, files_and_gold, tmp_path, capsys, monkeypatch):
    *files, gold = files_and_gold
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert command([guided], files, tmp_path / "out", "--alignments", gold) == 2
    assert 'needs scikit-learn: pip install "hf_capsule_mt[analysis]"' in capsys.readouterr().err
