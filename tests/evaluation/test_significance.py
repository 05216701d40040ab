"""Significance tests against enumeration, brute force and sacreBLEU called directly."""

import math
import os
from itertools import product

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from hf_capsule_mt.evaluation.scores import score
from hf_capsule_mt.evaluation.significance import compare, replacement_effects, sign_test

REFERENCES = [
    "Der Bäcker trägt einen hellblauen Hut, der ihm zu groß ist.",
    "Das Boot heißt Meine Möwe und liegt im Hafen.",
    "Drei Kinder essen Kuchen im Garten.",
    "Der Hund springt über hohes Gras vor einem alten Zaun.",
    "Zwei Frauen sitzen am Tisch und trinken Kaffee.",
    "Ein Mann repariert sein rotes Fahrrad auf der Straße.",
    "Die Katze schläft auf dem warmen Sofa.",
    "Ein Junge wirft seinem Vater den Ball zu.",
]
BASELINE = [
    "Der Bäcker trägt einen blauen Hut, der zu groß ist.",
    "Das Boot heißt Möwe und liegt in dem Hafen.",
    "Drei Kinder essen Kuchen im Garten.",
    "Ein Hund springt über Gras vor einem alten Zaun.",
    "Zwei Frauen sitzen am Tisch und trinken Tee.",
    "Ein Mann repariert sein Fahrrad auf der Straße.",
    "Eine Katze schläft auf dem warmen Bett.",
    "Ein Junge wirft den Ball.",
]
SYSTEM = [
    "Der Bäcker trägt einen hellblauen Hut, der ihm zu groß ist.",
    "Das Boot heißt Möwe und liegt im Hafen.",
    "Die Kinder essen Kuchen im Garten.",
    "Der Hund springt über hohes Gras vor dem alten Zaun.",
    "Zwei Frauen sitzen am Tisch und trinken Tee.",
    "Ein Mann repariert ein Fahrrad auf der Straße.",
    "Die Katze schläft auf dem warmen Sofa.",
    "Ein Junge wirft seinem Vater den Ball.",
]
QUICK = {"samples": 50, "trials": 50}


def repeated(sentences, times=5):
    """Longer test sets, whose sentences all differ."""
    return [f"{sentence} {index}" for index in range(times) for sentence in sentences]


class TestSignTest:
    @pytest.mark.parametrize(
        ("better", "worse", "p"),
        [
            (8, 2, 2 * (1 + 10 + 45) / 1024),
            (2, 8, 2 * (1 + 10 + 45) / 1024),
            (5, 0, 2 / 32),
            (1, 0, 1.0),
            (3, 3, 1.0),
            (4, 3, 1.0),
            (0, 0, 1.0),
        ],
    )
    def test_by_hand(self, better, worse, p):
        result = sign_test([0.5] * better + [0.0] * 4 + [-2.0] * worse)
        assert result == {"p": pytest.approx(p, abs=1e-15), "better": better, "worse": worse, "ties": 4}

    def test_thousands(self):
        better, worse = 2600, 2400
        decided = better + worse
        logs = (
            math.lgamma(decided + 1) - math.lgamma(k + 1) - math.lgamma(decided - k + 1) - decided * math.log(2)
            for k in range(worse + 1)
        )
        expected = 2 * math.fsum(math.exp(log) for log in logs)
        assert 0.001 < expected < 0.01
        assert sign_test([1.0] * better + [-1.0] * worse)["p"] == pytest.approx(expected, rel=1e-6)


class TestReplacementEffects:
    def test_is_the_score_with_one_sentence_replaced(self):
        effects = replacement_effects(BASELINE, SYSTEM, REFERENCES, target_lang="de")
        score_of_baseline = BLEU().corpus_score(BASELINE, [REFERENCES]).score
        for index, effect in enumerate(effects):
            mixed = [*BASELINE[:index], SYSTEM[index], *BASELINE[index + 1 :]]
            expected = BLEU().corpus_score(mixed, [REFERENCES]).score - score_of_baseline
            assert effect == pytest.approx(expected, abs=1e-9)
        assert effects[4] == 0
        assert {effect > 0 for effect in effects} == {True, False}

    def test_blank_translations(self):
        effects = replacement_effects(["", ""], ["Drei Kinder essen Kuchen.", ""], ["Drei Kinder essen Kuchen."] * 2)
        assert effects[0] > 0
        assert effects[1] == 0


class TestCompare:
    def test_scores(self):
        result = compare(BASELINE, SYSTEM, REFERENCES, target_lang="de", **QUICK)
        before, after = (score(system, REFERENCES, target_lang="de") for system in (BASELINE, SYSTEM))
        for name in ("bleu", "chrf", "ter"):
            assert result[name]["baseline"] == pytest.approx(before[name])
            assert result[name]["system"] == pytest.approx(after[name])
            assert result[name]["difference"] == pytest.approx(after[name] - before[name])
            low, high = result[name]["interval"]
            assert low < result[name]["system"] < high
        assert result["bleu"]["difference"] > 0 > result["ter"]["difference"]
        # sentences 1, 2, 4, 7 and 8 improve, 3 and 6 get worse, 5 is the same: 2 (1 + 7 + 21) / 2^7
        assert result["sign_test"] == {"p": pytest.approx(58 / 128), "better": 5, "worse": 2, "ties": 1}

    def test_randomization_is_the_share_of_all_exchanges(self):
        """All 2^8 ways to exchange the translations, against a sample of them."""
        differences = []
        for exchange in product((False, True), repeat=len(REFERENCES)):
            one = [s if e else b for b, s, e in zip(BASELINE, SYSTEM, exchange, strict=True)]
            other = [b if e else s for b, s, e in zip(BASELINE, SYSTEM, exchange, strict=True)]
            scores = [BLEU().corpus_score(hypotheses, [REFERENCES]).score for hypotheses in (one, other)]
            differences.append(abs(scores[0] - scores[1]))
        # the observed one is the first; sacreBLEU counts those that are strictly larger
        exact = sum(difference > differences[0] + 1e-9 for difference in differences) / len(differences)
        found = compare(BASELINE, SYSTEM, REFERENCES, samples=1, trials=4000)["bleu"]["randomization_p"]
        lowest = 2.0 ** (1 - 7)
        assert found == pytest.approx(max(exact, lowest), abs=0.02)

    def test_is_sacrebleus_paired_test(self, monkeypatch):
        monkeypatch.setenv("SACREBLEU_SEED", "7")
        baseline, system, references = repeated(BASELINE), repeated(SYSTEM[::-1]), repeated(REFERENCES)
        named = [("one", baseline), ("other", system)]
        found = compare(baseline, system, references, seed=7, samples=100, trials=200)["bleu"]
        for test_type, draws, key in (("bs", 100, "bootstrap_p"), ("ar", 200, "randomization_p")):
            _, table = PairedTest(named, {"bleu": BLEU()}, [references], test_type=test_type, n_samples=draws)()
            assert found[key] == table["BLEU"][1].p_value
            if test_type == "bs":
                middle, half_width = table["BLEU"][1].mean, table["BLEU"][1].ci
                assert found["interval"] == pytest.approx([middle - half_width, middle + half_width])

    def test_clear_difference(self):
        baseline = [sentence.replace("e", "a") for sentence in repeated(REFERENCES)]
        result = compare(baseline, repeated(SYSTEM), repeated(REFERENCES), samples=200, trials=200)
        for name in ("bleu", "chrf", "ter"):
            assert result[name]["randomization_p"] < 0.01
            assert result[name]["bootstrap_p"] < 0.01
        assert result["sign_test"]["p"] < 0.01

    def test_identical_systems_do_not_differ(self):
        result = compare(BASELINE, list(BASELINE), REFERENCES, **QUICK)
        for name in ("bleu", "chrf", "ter"):
            assert result[name]["difference"] == 0
            assert (result[name]["bootstrap_p"], result[name]["randomization_p"]) == (1, 1)
        assert result["sign_test"] == {"p": 1.0, "better": 0, "worse": 0, "ties": 8}

    @pytest.mark.parametrize(("changed", "lowest"), [(1, 1.0), (3, 0.25)])
    def test_few_changes_cannot_be_significant(self, changed, lowest):
        """sacreBLEU's own values are 1/51 here: no exchange makes a larger difference than all of them."""
        references = repeated(REFERENCES)
        system = references[:changed] + repeated(BASELINE)[changed:]
        result = compare(repeated(BASELINE), system, references, **QUICK)
        assert result["bleu"]["difference"] > 0
        assert result["bleu"]["randomization_p"] >= lowest
        assert result["bleu"]["bootstrap_p"] >= lowest

    @pytest.mark.parametrize("environment", [None, "99"])
    def test_seed(self, monkeypatch, environment):
        monkeypatch.delenv("SACREBLEU_SEED", raising=False)
        if environment is not None:
            monkeypatch.setenv("SACREBLEU_SEED", environment)
        first, again, other = (compare(BASELINE, SYSTEM, REFERENCES, seed=seed, **QUICK) for seed in (1, 1, 2))
        assert first == again
        assert first["bleu"]["interval"] != other["bleu"]["interval"]
        assert "seed:1|" in first["signatures"]["bleu"]["bootstrap"]
        assert "bs:50" in first["signatures"]["ter"]["bootstrap"]
        assert "ar:50" in first["signatures"]["chrf"]["randomization"]
        assert os.environ.get("SACREBLEU_SEED") == environment

    def test_chinese(self):
        baseline, system = ["一个男人在看书。", "两只狗在草地跑。"], ["一个男人正在看书。", "两只狗在草地上跑。"]
        references = ["一个男人正在看书。", "两只狗在草地上奔跑。"]
        result = compare(baseline, system, references, target_lang="zh-CN", **QUICK)
        assert result["bleu"]["system"] == score(system, references, target_lang="zh")["bleu"]
        assert "tok:zh" in result["signatures"]["bleu"]["bootstrap"]
        assert result["sign_test"]["better"] == 2

    def test_convention(self):
        lowered = [[sentence.lower() for sentence in sentences] for sentences in (BASELINE, SYSTEM, REFERENCES)]
        prepared = [[s.replace(",", " ,").replace(".", " .") for s in sentences] for sentences in lowered]
        result = compare(*prepared, convention="lc_norm_tok", target_lang="de", **QUICK)
        assert result["bleu"]["system"] == score(prepared[1], prepared[2], convention="lc_norm_tok")["bleu"]
        assert "tok:none" in result["signatures"]["bleu"]["bootstrap"]

    @pytest.mark.parametrize("name", ["seed", "samples", "trials"])
    def test_numbers_below_one(self, name):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            compare(BASELINE, SYSTEM, REFERENCES, **{name: 0})

    def test_lists(self):
        with pytest.raises(ValueError, match="8 in baseline, 7 in system, 8 in references"):
            compare(BASELINE, SYSTEM[1:], REFERENCES)
        with pytest.raises(ValueError, match="system must be a list"):
            compare(BASELINE, SYSTEM[0], REFERENCES)
        with pytest.raises(ValueError, match="no sentences"):
            compare([], [], [])
