"""Statistics worked out by hand, and that collecting them neither depends on the batches nor keeps anything."""

import gc
import json
import logging
import math

import pytest
import torch
from transformers import MarianMTModel

from hf_capsule_mt.analysis import routing_statistics as module
from hf_capsule_mt.analysis.gold import overlap_rates
from hf_capsule_mt.analysis.routing_statistics import (
    AgreementStatistics,
    GuidedStatistics,
    MemoryStatistics,
    collect,
    diversity,
    entropy,
    forced_batch,
    forced_examples,
)
from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from tiny_models import bart_model, capsule_model, plain_config, rnn_model

BOTH_STACKS = ["encoder", "decoder"]
SYSTEMS = {
    "em_routing": (capsule_model, dict(aggregation="em_routing"), BOTH_STACKS),
    "dynamic_decoder": (capsule_model, dict(aggregation="dynamic_routing", aggregate_encoder=False), ["decoder"]),
    "bart": (bart_model, dict(aggregation="dynamic_routing", guided_routing="routing"), [*BOTH_STACKS, "guided"]),
    "attention": (capsule_model, dict(aggregation="none", guided_routing="attention"), ["guided"]),
    "classifier": (capsule_model, dict(aggregation="none", guided_routing="classifier"), ["guided"]),
    "recurrent": (capsule_model, dict(aggregation="none", guided_routing="recurrent"), ["guided"]),
    "capsnmt": (rnn_model, dict(source_memory="capsule"), ["memory"]),
    "everything": (
        rnn_model,
        dict(source_memory="hybrid", guided_routing="routing", aggregation="em_routing", bow_loss_weight=1.0),
        [*BOTH_STACKS, "memory", "guided"],
    ),
}
# Layer 1 votes for capsule 1, layer 2 for all alike: C_1 = (1, 1/4), the others (0, 1/4)
AGREEMENT = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
ENTROPY = (0 + math.log(4)) / 2
# cosine 1/sqrt(17) in 3 of the 6 pairs, 1 in the others
DIVERSITY = 1 - (3 / math.sqrt(17) + 3) / 6
UNIFORM = torch.full((2, 4), 0.25)


@pytest.fixture(scope="module")
def corpus():
    """Sources, translations and a tokenizer for them."""
    pairs = generate_corpus(23, seed=5)
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    return [pair.source for pair in pairs], [pair.target for pair in pairs], train_tokenizer(texts, 420, 97)


def model_of(name, tokenizer, **overrides):
    build, options, parts = SYSTEMS[name]
    sizes = dict(max_position_embeddings=97) if build is not rnn_model else {}
    return build(vocab_size=len(tokenizer), **(sizes | options | overrides)), parts


def assert_close(actual, expected, rel=1e-4, path=""):
    """Nested results are equal but for rounding."""
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for key in expected:
            assert_close(actual[key], expected[key], rel, f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for index, value in enumerate(expected):
            assert_close(actual[index], value, rel, f"{path}/{index}")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=rel, abs=1e-6), path
    else:
        assert actual == expected, path


class TestFormulas:
    def test_by_hand(self):
        assert entropy(AGREEMENT) == pytest.approx(ENTROPY, rel=1e-12)
        assert diversity(AGREEMENT) == pytest.approx(DIVERSITY, rel=1e-12)

    @pytest.mark.parametrize("capsules", [1, 2, 192, 512])
    def test_first_iteration(self, capsules):
        uniform = torch.full((3, 5, 6, capsules), 1 / capsules)
        assert entropy(uniform) == pytest.approx(math.log(capsules), abs=1e-6)
        assert diversity(uniform) == pytest.approx(0, abs=1e-12)

    def test_paper_value(self):
        assert round(entropy(torch.full((6, 512), 1 / 512)), 2) == 6.24

    def test_each_layer_to_a_capsule_of_its_own(self):
        assert diversity(torch.eye(3)) == pytest.approx(1)
        assert entropy(torch.eye(3)) == 0

    def test_capsules_without_votes_are_in_no_pair(self):
        assert diversity(torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])) == pytest.approx(0, abs=1e-12)
        assert diversity(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])) == pytest.approx(1)
        # no pair at all
        assert diversity(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])) == 0

    def test_pairwise_definition(self):
        agreement = torch.rand(7, 5, generator=torch.Generator().manual_seed(3)).softmax(-1)
        cosines = [
            torch.cosine_similarity(agreement[:, i].double(), agreement[:, j].double(), dim=0)
            for i in range(5)
            for j in range(i + 1, 5)
        ]
        assert diversity(agreement) == pytest.approx(1 - float(torch.stack(cosines).mean()), rel=1e-9)

    def test_mean_over_real_positions(self):
        agreements = torch.stack([AGREEMENT, torch.full((2, 4), float("nan")), UNIFORM]).view(3, 1, 2, 4)
        for mask in (torch.tensor([[True], [False], [True]]), torch.tensor([[1], [0], [1]])):
            assert entropy(agreements, mask) == pytest.approx((ENTROPY + math.log(4)) / 2)
            assert diversity(agreements, mask) == pytest.approx(DIVERSITY / 2)

    def test_bfloat16(self):
        agreement = AGREEMENT.to(torch.bfloat16)
        assert entropy(agreement) == pytest.approx(ENTROPY, rel=1e-12)
        assert diversity(agreement) == pytest.approx(DIVERSITY, rel=1e-12)

    def test_in_pieces(self, monkeypatch):
        agreements = torch.rand(11, 3, 5, generator=torch.Generator().manual_seed(3)).softmax(-1)
        expected = entropy(agreements), diversity(agreements)
        monkeypatch.setattr(module, "CHUNK", 31)
        assert (entropy(agreements), diversity(agreements)) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("statistic", [entropy, diversity])
    def test_errors(self, statistic):
        with pytest.raises(ValueError, match="no real positions"):
            statistic(AGREEMENT[None], torch.tensor([False]))
        with pytest.raises(ValueError, match="mask must have the shape"):
            statistic(AGREEMENT[None], torch.tensor([True, False]))


class TestAgreementStatistics:
    def test_keeps_no_graph(self):
        statistics = AgreementStatistics()
        statistics.update((AGREEMENT[None, None].clone().requires_grad_(),), torch.ones(1, 1))
        assert not statistics._totals[0].requires_grad

    def test_by_hand_in_two_batches(self):
        statistics = AgreementStatistics()
        nan = torch.full((2, 4), float("nan"))
        first = (torch.stack([UNIFORM, nan])[None], torch.stack([AGREEMENT, nan])[None])
        statistics.update(first, torch.tensor([[1, 0]]))
        statistics.update((torch.stack([UNIFORM] * 3)[:, None],) * 2, torch.ones(3, 1))
        result = statistics.result()
        assert {key: result[key] for key in ("capsules", "layers", "positions")} == {
            "capsules": 4,
            "layers": 2,
            "positions": 4,
        }
        assert result["uniform_entropy"] == pytest.approx(math.log(4))
        uniform, routed = result["iterations"]
        assert_close(uniform, {"entropy": math.log(4), "diversity": 0.0, "mean": UNIFORM.tolist()})
        mean = ((AGREEMENT + 3 * UNIFORM) / 4).tolist()
        expected = {"entropy": (ENTROPY + 3 * math.log(4)) / 4, "diversity": DIVERSITY / 4, "mean": mean}
        assert_close(routed, expected)

    def test_other_models(self):
        statistics = AgreementStatistics()
        statistics.update((UNIFORM[None, None],), torch.ones(1, 1))
        for other in ((UNIFORM[None, None],) * 2, (UNIFORM.T[None, None],), ()):
            with pytest.raises(ValueError, match="same model"):
                statistics.update(other, torch.ones(1, 1))

    @pytest.mark.parametrize("kind", [AgreementStatistics, MemoryStatistics, GuidedStatistics])
    def test_nothing_added(self, kind):
        with pytest.raises(ValueError, match="nothing has been added"):
            kind().result()


def test_memory_by_hand():
    statistics = MemoryStatistics()
    alpha = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [9.0, 9.0]]])
    statistics.update((torch.full((1, 3, 2), 0.5), alpha), torch.tensor([[True, True, False]]))
    statistics.update((torch.full((2, 1, 2), 0.5), torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])), torch.ones(2, 1))
    even, routed = statistics.result()["iterations"]
    assert_close(even, {"shares": [0.5, 0.5], "assignment_entropy": math.log(2), "capsules_in_use": 2.0})
    assert_close(
        routed,
        {
            "shares": [7 / 8, 1 / 8],
            "assignment_entropy": math.log(2) / 4,
            "capsules_in_use": (8 / 7) ** (7 / 8) * 8 ** (1 / 8),
        },
    )
    assert (statistics.result()["capsules"], statistics.result()["words"]) == (2, 4)


class TestGuidedStatistics:
    def test_by_hand(self):
        # Two real words; three steps at 0, 1/2 and 1 of the translation. What stands at padding must not matter.
        past = torch.tensor([[0.0, 0.2, 7.0], [0.6, 0.4, 7.0], [1.0, 0.8, 7.0], [7.0, 7.0, 7.0]])
        # One word, one step: at the beginning
        single = torch.full((4, 3), 7.0)
        single[0, 0] = 0.4
        assignment = torch.stack([past, single])
        statistics = GuidedStatistics()
        statistics.update(
            torch.stack([assignment, 1 - assignment], dim=-1),
            torch.tensor([[1, 1, 0], [1, 0, 0]]),
            torch.tensor([[True, True, True, False], [True, False, False, False]]),
        )
        result = statistics.result()
        assert (result["groups"], result["steps"]) == (["PAST", "FUTURE"], 4)
        assert (result["past_overlap"], result["future_overlap"]) == (None, None)
        expected = [[None, None]] * 10
        expected[0], expected[5], expected[9] = [0.25, 0.75], [0.5, 0.5], [0.9, 0.1]
        assert_close(result["by_progress"], expected)

    def test_steps_fall_into_tenths(self):
        for steps, bins in (
            (1, [0]),
            (2, [0, 9]),
            (4, [0, 3, 6, 9]),
            (11, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
            (31, [step // 3 for step in range(30)] + [9]),
        ):
            assert module._progress_bins(torch.ones(1, steps, dtype=torch.bool))[0].tolist() == bins

    def test_attentions_are_compared_word_by_word(self):
        # Each sums to one over the words; the third word has neither
        assignment = torch.tensor([[0.9, 0.3], [0.1, 0.7], [0.0, 0.0]])[None, None]
        statistics = GuidedStatistics()
        statistics.update(assignment, torch.ones(1, 3), torch.ones(1, 1))
        assert statistics.result()["by_progress"][0][0] == pytest.approx((0.75 + 0.125 + 0.5) / 3)

    def test_overlaps_are_means_over_sentences(self):
        generator = torch.Generator().manual_seed(3)
        past, future = (torch.randn(2, 3, 37, generator=generator).log_softmax(-1) for _ in range(2))
        labels = torch.tensor([[5, 6, 1], [1, -100, -100]])
        statistics = GuidedStatistics()
        statistics.update(torch.full((2, 3, 4, 3), 1 / 3), torch.ones(2, 4), labels != -100, (past, future, labels))
        first = overlap_rates(past[0], future[0], labels[0])
        second = overlap_rates(past[1, :1], future[1, :1], labels[1, :1])
        result = statistics.result()
        assert result["past_overlap"] == pytest.approx(first[0]) and second[0] is None
        assert result["future_overlap"] == pytest.approx((first[1] + second[1]) / 2)

    def test_errors(self):
        statistics = GuidedStatistics()
        with pytest.raises(ValueError, match=r"\[B, T, S, G\]"):
            statistics.update(torch.zeros(2, 3, 5, 3), torch.ones(2, 3), torch.ones(2, 5))
        statistics.update(torch.ones(2, 3, 5, 3), torch.ones(2, 5), torch.ones(2, 3))
        with pytest.raises(ValueError, match="same model"):
            statistics.update(torch.ones(2, 3, 5, 2), torch.ones(2, 5), torch.ones(2, 3))


class TestCollect:
    @pytest.mark.parametrize("name", SYSTEMS)
    def test_batches_do_not_matter(self, name, corpus, monkeypatch):
        sources, targets, tokenizer = corpus
        model, parts = model_of(name, tokenizer)
        done = []
        whole = collect(model, tokenizer, sources, targets, progress=lambda *counts: done.append(counts))
        assert done == [(23, 23)]
        assert list(whole) == parts
        monkeypatch.setattr(module, "WINDOW", 7)
        single = collect(
            model, tokenizer, sources, targets, max_tokens=1, progress=lambda *counts: done.append(counts)
        )
        assert done[1:] == [(count, 23) for count in range(1, 24)]
        assert_close(single, whole)
        json.dumps(whole, allow_nan=False)

    def test_numbers_are_those_of_the_model(self, corpus):
        sources, targets, tokenizer = corpus
        model, _ = model_of("everything", tokenizer)
        summary = collect(model, tokenizer, sources, targets)
        batch = forced_batch(model, tokenizer, forced_examples(model, tokenizer, sources, targets)[0])
        with torch.no_grad():
            output = model(**batch, output_agreements=True)
        source, target = batch["attention_mask"].bool(), batch["labels"] != -100
        for part, agreements, mask in (
            ("encoder", output.encoder_agreements, source),
            ("decoder", output.decoder_agreements, target),
        ):
            assert summary[part]["positions"] == int(mask.sum())
            assert len(agreements) == model.config.routing_iterations
            for iteration, agreement in zip(summary[part]["iterations"], agreements, strict=True):
                assert iteration["entropy"] == pytest.approx(entropy(agreement, mask), rel=1e-5)
                assert iteration["diversity"] == pytest.approx(diversity(agreement, mask), rel=1e-3, abs=1e-7)
                expected = agreement[mask].double().mean(0)
                torch.testing.assert_close(torch.tensor(iteration["mean"]).double(), expected, atol=1e-6, rtol=1e-4)
        alpha = output.source_agreements[-1][source].double()
        assert summary["memory"]["iterations"][-1]["shares"] == pytest.approx(alpha.mean(0).tolist(), rel=1e-4)
        assert summary["memory"]["words"] == int(source.sum())
        assert summary["guided"]["steps"] == int(target.sum())
        at_end = [
            output.guided_assignment[row, step, source[row]].mean(0)
            for row, steps in enumerate(target.sum(1).tolist())
            for step in range(steps)
            if step / (steps - 1) >= 0.9
        ]
        assert len(at_end) > len(sources)
        expected = torch.stack(at_end).mean(0).tolist()
        assert summary["guided"]["by_progress"][-1] == pytest.approx(expected, rel=1e-4)
        assert 0 < summary["guided"]["past_overlap"] <= 1 and 0 < summary["guided"]["future_overlap"] <= 1

    def test_one_sentence_in_bfloat16(self, corpus):
        sources, targets, tokenizer = corpus
        model, parts = model_of("everything", tokenizer)
        summary = collect(model.to(torch.bfloat16), tokenizer, sources[:1], targets[:1])
        assert list(summary) == parts
        for part in BOTH_STACKS:
            uniform = summary[part]["uniform_entropy"]
            assert summary[part]["iterations"][0]["entropy"] == pytest.approx(uniform, rel=1e-6)
            assert summary[part]["iterations"][0]["diversity"] == pytest.approx(0, abs=1e-12)
        json.dumps(summary, allow_nan=False)

    def test_mode_is_kept_and_dropout_stays_off(self, corpus):
        sources, targets, tokenizer = corpus
        model, _ = model_of("em_routing", tokenizer, dropout=0.5)
        expected = collect(model, tokenizer, sources, targets)
        assert collect(model.train(), tokenizer, sources, targets) == expected
        assert model.training

    def test_blank_sources_are_left_out_and_blank_translations_are_not(self, corpus):
        sources, _, tokenizer = corpus
        model, _ = model_of("bart", tokenizer)
        done = []
        summary = collect(
            model, tokenizer, ["", sources[0], " \n"], ["x", "", ""], progress=lambda *counts: done.append(counts)
        )
        assert done == [(3, 3)]
        assert summary["encoder"]["positions"] == len(tokenizer(sources[0])["input_ids"])
        # the end of the sentence
        assert summary["decoder"]["positions"] == summary["guided"]["steps"] == 1

    def test_long_pairs_are_cut(self, corpus, caplog):
        sources, targets, tokenizer = corpus
        model, _ = model_of("em_routing", tokenizer, max_position_embeddings=17)
        with caplog.at_level(logging.WARNING):
            summary = collect(model, tokenizer, [sources[0], sources[1] * 9], [targets[0] * 9, targets[1]])
        assert "2 of 2 pairs were cut" in caplog.text
        assert summary["encoder"]["positions"] == len(tokenizer(sources[0])["input_ids"]) + 17
        examples, cut = forced_examples(model, tokenizer, sources[:1], [targets[0] * 9])
        assert cut == 1 and len(examples[0]["labels"]) == 17
        assert examples[0]["labels"][-1] == tokenizer.eos_token_id

    @pytest.mark.parametrize("side", [0, 1])
    def test_both_sides_bound_a_batch(self, side, corpus):
        _, _, tokenizer = corpus
        model, _ = model_of("em_routing", tokenizer)
        shapes = []
        model.register_forward_pre_hook(
            lambda _, args, inputs: shapes.append((inputs["input_ids"].shape, inputs["decoder_input_ids"].shape)),
            with_kwargs=True,
        )
        lines = ["a dog", "a dog", "a dog", "a dog in the garden in the garden in the garden"]
        pairs = [lines, ["a"] * 4] if side == 0 else [["a"] * 4, lines]
        collect(model, tokenizer, *pairs, max_tokens=30)
        assert sum(source[0] for source, _ in shapes) == 4 and len(shapes) > 1
        assert all(source.numel() <= 30 and target.numel() <= 30 for source, target in shapes)

    def test_large_vocabularies_bound_a_batch_too(self, corpus, monkeypatch):
        sources, targets, tokenizer = corpus
        model, _ = model_of("em_routing", tokenizer)
        monkeypatch.setattr(module, "MAX_LOGITS", 100 * len(tokenizer))
        sizes = []
        model.register_forward_hook(lambda _, inputs, output: sizes.append(output.logits[..., 0].numel()))
        collect(model, tokenizer, sources, targets)
        assert len(sizes) > 1 and max(sizes) <= 100

    @pytest.mark.parametrize(
        "build, options",
        [
            (lambda **sizes: MarianMTModel(plain_config(**sizes)), {}),
            (capsule_model, dict(aggregation="linear")),
            (rnn_model, dict(source_memory="simple")),
        ],
        ids=["plain", "linear", "simple"],
    )
    def test_without_routing_nothing_is_run(self, build, options, corpus, monkeypatch):
        _, _, tokenizer = corpus
        model = build(vocab_size=len(tokenizer), **options)
        monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("ran the model"))
        assert collect(model, tokenizer, ["a dog"], ["ein Hund"]) == {}

    @pytest.mark.parametrize(
        "sources, targets, options, message",
        [
            (["a"], ["a", "b"], {}, "1 sources and 2 translations"),
            (["a"], ["a"], {"max_tokens": 0}, "max_tokens"),
            ("a", "b", {}, "lists of strings"),
            ([" "], ["a"], {}, "nothing to collect"),
            ([], [], {}, "nothing to collect"),
        ],
    )
    def test_errors(self, sources, targets, options, message, corpus):
        model, _ = model_of("em_routing", corpus[2])
        with pytest.raises(ValueError, match=message):
            collect(model, corpus[2], sources, targets, **options)


@pytest.fixture(scope="module")
def wide_model(corpus):
    """512 capsules."""
    sizes = dict(d_model=512, encoder_attention_heads=4, decoder_attention_heads=4, aggregation_hidden_size=7)
    return model_of("em_routing", corpus[2], aggregate_encoder=False, **sizes)[0]


class TestMemory:
    """N = 512 capsules; what tensors are alive is counted after the last batch, when those of the batch are gone."""

    SENTENCES = 30

    def kept(self, model, corpus, sentences) -> int:
        """Bytes of live tensors at the end."""
        sources, targets, tokenizer = corpus
        calls, counts = [], []

        def progress(done, total):
            calls.append(done)
            if done == total:
                counts.append(live_bytes())

        several = sentences // len(sources) + 1
        sources, targets = (several * sources)[:sentences], (several * targets)[:sentences]
        collect(model, tokenizer, sources, targets, max_tokens=128, progress=progress)
        assert len(calls) > sentences // 15
        return counts[0]

    def test_does_not_grow_with_the_number_of_sentences(self, wide_model, corpus):
        self.kept(wide_model, corpus, 1)
        few, many = (self.kept(wide_model, corpus, n) for n in (self.SENTENCES, 5 * self.SENTENCES))
        # One agreement [L, N] of one iteration has 8 KB
        assert abs(many - few) < 100_000

    def test_would_be_seen_to_grow(self, wide_model, corpus, monkeypatch):
        history = []
        update = AgreementStatistics.update
        monkeypatch.setattr(
            AgreementStatistics, "update", lambda *arguments: (history.append(arguments), update(*arguments))
        )
        few = self.kept(wide_model, corpus, self.SENTENCES // 2)
        history.clear()
        assert self.kept(wide_model, corpus, self.SENTENCES) > few + 1_000_000


def live_bytes() -> int:
    gc.collect()  # what earlier tests left in cycles would go in between
    storages = {}
    for value in gc.get_objects():
        # by type: asking proxies of other libraries for their class would warn; what exports have left has no memory
        if type(value) in (torch.Tensor, torch.nn.Parameter) and not torch._is_functional_tensor(value):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
