"""Buckets of source length counted by hand."""

import pytest
from sacrebleu.metrics import BLEU

from hf_capsule_mt.evaluation.buckets import by_source_length

SOURCES = ["a b c", "a b c d", "a b c d e", "", "a b c d e f g"]
HYPOTHESES = ["x y", "x y z", "v w x y z", "", "v w x y z u"]
REFERENCES = ["x y z", "x y z z", "v w x y", "x", "v w x y z"]


class TestBySourceLength:
    def test_by_hand(self):
        first, second, last = by_source_length(SOURCES, HYPOTHESES, REFERENCES, edges=[4, 6])
        assert {key: first[key] for key in ("low", "high", "sentences")} == {"low": 0, "high": 4, "sentences": 3}
        assert first["hypothesis_length"] == pytest.approx((2 + 3 + 0) / 3)
        assert first["reference_length"] == pytest.approx((3 + 4 + 1) / 3)
        assert first["ratio"] == pytest.approx(5 / 8)
        expected = BLEU().corpus_score(["x y", "x y z", ""], [["x y z", "x y z z", "x"]]).score
        assert first["bleu"] == pytest.approx(expected)
        assert (second["low"], second["high"], second["sentences"]) == (4, 6, 1)
        assert second["ratio"] == pytest.approx(5 / 4)
        assert (last["low"], last["high"], last["sentences"]) == (6, None, 1)

    def test_default_edges_and_empty_buckets(self):
        lengths = [1, 10, 11, 35, 50, 51, 200]
        sources = [" ".join("w" * length) for length in lengths]
        texts = ["x y z v"] * len(lengths)
        buckets = by_source_length(sources, texts, texts)
        assert [(bucket["low"], bucket["high"], bucket["sentences"]) for bucket in buckets] == [
            (0, 10, 2),
            (10, 20, 1),
            (30, 40, 1),
            (40, 50, 1),
            (50, None, 2),
        ]
        assert [bucket["bleu"] for bucket in buckets] == pytest.approx([100] * 5)

    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            ([5, 4, 1, 2], [(0, 10, 5), (10, 40, 7)]),
            ([5, 4, 3, 2], [(0, 10, 5), (10, 20, 4), (20, 40, 5)]),
            # also over empty ones
            ([5, 3, 0, 0, 0, 1], [(0, 10, 5), (10, None, 4)]),
            ([1, 2, 4], [(0, 20, 3), (20, 30, 4)]),
            ([2, 4], [(0, 20, 6)]),
            ([1], [(0, 10, 1)]),
        ],
    )
    def test_small_buckets_are_joined(self, counts, expected):
        sources = [" ".join("w" * (10 * number + 5)) for number, count in enumerate(counts) for _ in range(count)]
        texts = ["x y z v"] * len(sources)
        buckets = by_source_length(sources, texts, texts, min_sentences=3)
        assert [(bucket["low"], bucket["high"], bucket["sentences"]) for bucket in buckets] == expected

    def test_characters_of_chinese_and_japanese(self):
        sources, hypotheses, references = ["一个 男人在看书。"], ["男の人が本を読む。"], ["男が本を 読む。"]
        (bucket,) = by_source_length(
            sources, hypotheses, references, edges=[7, 8], source_lang="zh_Hans", target_lang="ja"
        )
        assert (bucket["low"], bucket["high"]) == (7, 8)
        assert (bucket["hypothesis_length"], bucket["reference_length"]) == (9, 7)
        (bucket,) = by_source_length(sources, ["a man"], ["a man reads"], edges=[7, 8])
        assert (bucket["low"], bucket["hypothesis_length"]) == (0, 2)

    def test_blank_references(self):
        (bucket,) = by_source_length(["a"], ["x"], [" "])
        assert bucket["ratio"] is None

    def test_convention(self):
        hypotheses, references = ["ein hund, der läuft ."], ["ein hund , der läuft ."]
        cased, prepared = (
            by_source_length(["a"], hypotheses, references, convention=convention)[0]["bleu"]
            for convention in ("cased", "lc_norm_tok")
        )
        expected = BLEU(lowercase=True, tokenize="none", force=True).corpus_score(hypotheses, [references]).score
        assert prepared == pytest.approx(expected)
        assert prepared != pytest.approx(cased)

    def test_rejects(self):
        with pytest.raises(ValueError, match="5 sources, 5 hypotheses, 4 references"):
            by_source_length(SOURCES, HYPOTHESES, REFERENCES[1:])
        with pytest.raises(ValueError, match="hypotheses must be a list"):
            by_source_length(SOURCES, "x y", REFERENCES)
        with pytest.raises(ValueError, match="no sentences"):
            by_source_length([], [], [])

    @pytest.mark.parametrize("edges", [[10, 10], [20, 10], [0, 10], [-5]])
    def test_edges(self, edges):
        with pytest.raises(ValueError, match="edges must be positive and rising"):
            by_source_length(SOURCES, HYPOTHESES, REFERENCES, edges=edges)
