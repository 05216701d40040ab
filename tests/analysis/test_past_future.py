"""Probes against answers worked out by hand, on a tokenizer whose pieces are chosen by hand."""

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.marian.modeling_marian import shift_tokens_right

from hf_capsule_mt.analysis.past_future import (
    fit_bow_predictor,
    gold_translated,
    overlap_rates,
    past_future_probe,
)
from hf_capsule_mt.data.grammar import GrammarPair, generate_corpus
from hf_capsule_mt.data.tokenizer import BYTE_PIECES, SPECIAL_TOKENS, train_tokenizer
from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.models.tokenizer_languages import set_languages
from tiny_models import PAD, capsule_model, rnn_model
from tiny_multilingual import LANGUAGES
from tiny_translation import SOURCES, TARGETS

# "Do" has no counterpart, "sleep" has two, "cats" and "sleep" have several pieces, "▁" alone begins "sleep" and "ein"
PAIR = GrammarPair(
    "Do old cats sleep?", "Schlafen alte Katzen ein?", alignment=((1, 1), (2, 2), (3, 0), (3, 3), (4, 4))
)
SOURCE_PIECES = ["▁Do", "▁old", "▁cat", "s", "▁", "sle", "ep", "?", "</s>"]
TARGET_PIECES = ["▁Schlaf", "en", "▁alte", "▁Katz", "en", "▁", "ein", "?", "</s>"]
GOLD = {
    "Do": [-1, -1, -1, -1, -1, -1, -1, -1, -1],
    "old": [0, 0, 0, 1, 1, 1, 1, 1, 1],
    "cats": [0, 0, 0, 0, -1, 1, 1, 1, 1],
    "sleep": [0, -1, -1, -1, -1, -1, -1, 1, 1],
    "?": [0, 0, 0, 0, 0, 0, 0, 0, 1],
}
# Another order than the source's: gold is 0 0 - 1 for "cats" and 0 1 1 1 for "old"
SWAPPED = GrammarPair("cats old", "alte Katzen", alignment=((0, 1), (1, 0)))


def tokenizer_of(*words: str) -> PreTrainedTokenizerFast:
    """Unigram with these pieces, and bytes for everything else."""
    vocabulary = [(piece, 0.0) for piece in (*SPECIAL_TOKENS, *BYTE_PIECES)]
    vocabulary += [(piece, -1.0) for piece in dict.fromkeys(words)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def pieces_tokenizer():
    return tokenizer_of(*SOURCE_PIECES[:-1], *TARGET_PIECES[:-1])


@pytest.fixture(scope="module")
def corpus():
    """Sentence pairs of several lengths and a tokenizer for them."""
    pairs = generate_corpus(12, seed=5)
    return pairs, train_tokenizer([text for pair in pairs for text in (pair.source, pair.target)], 420, 64)


def guided_model(tokenizer, system="routing", **overrides):
    if system == "rnmt":
        return rnn_model(vocab_size=len(tokenizer), source_memory="attention", guided_routing="routing", **overrides)
    options = dict(guided_routing=system, guided_capsule_size=7, aggregation="none", max_position_embeddings=97)
    return capsule_model(vocab_size=len(tokenizer), **(options | overrides))


class FakeModel:
    """A model with given assignment probabilities: pairs and, for each, the array [T, S, G]."""

    device = torch.device("cpu")

    def __init__(self, tokenizer, assignments):
        self.config = SimpleNamespace(guided_routing="routing", bow_loss_weight=0.0)
        self.assignments = {tuple(tokenizer(pair.source)["input_ids"]): value for pair, value in assignments}
        self.training = True

    def train(self, mode=True):
        self.training = mode

    def eval(self):
        self.train(False)

    def prepare_decoder_input_ids_from_labels(self, labels):
        return shift_tokens_right(labels, PAD, PAD)

    def __call__(self, input_ids, attention_mask, decoder_input_ids, output_agreements):
        assert output_agreements and not self.training
        # what stands at padding must not matter
        result = torch.full((*decoder_input_ids.shape, input_ids.shape[1], 3), 0.37)
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            assignment = torch.as_tensor(self.assignments[tuple(ids[mask.bool()].tolist())])
            result[row, : assignment.shape[0], : assignment.shape[1]] = assignment
        return SimpleNamespace(guided_assignment=result)


def right_answers(pair, tokenizer):
    """[T, S, 3] that is right in the mean over a word's pieces, though all pieces but the first say the opposite."""
    gold, pieces = gold_translated(pair, tokenizer)
    assignment = np.full((len(gold), 1 + sum(map(len, pieces)), 3), 0.1)
    for word, (first, *others) in enumerate(pieces):
        translated = gold[:, word] == 1
        assignment[:, first, 0], assignment[:, first, 1] = 0.9 * translated, 0.9 * ~translated
        assignment[:, others, 0], assignment[:, others, 1] = 0.2 * ~translated[:, None], 0.2 * translated[:, None]
    return assignment


class TestGold:
    def test_by_hand(self, pieces_tokenizer):
        for text, pieces in ((PAIR.source, SOURCE_PIECES), (PAIR.target, TARGET_PIECES)):
            assert pieces_tokenizer.convert_ids_to_tokens(pieces_tokenizer(text)["input_ids"]) == pieces
        gold, pieces = gold_translated(PAIR, pieces_tokenizer)
        assert gold.dtype == np.int8
        assert gold.T.tolist() == list(GOLD.values())
        assert pieces == [[0], [1], [2, 3], [4, 5, 6], [7]]

    def test_bytes_belong_to_their_word(self, pieces_tokenizer):
        pair = GrammarPair("Öl sleep", "ein", alignment=((0, 0),))
        # ▁ and the two bytes of Ö, the byte of l, ▁sle and ep as ▁ sle ep
        assert gold_translated(pair, pieces_tokenizer)[1] == [[0, 1, 2, 3], [4, 5, 6]]

    def test_piece_across_two_words_belongs_to_both(self):
        tokenizer = tokenizer_of("▁cat", "s?", "▁Katzen", "?", "s")
        gold, pieces = gold_translated(GrammarPair("cats?", "Katzen?", ((0, 0), (1, 1))), tokenizer)
        assert pieces == [[0, 1], [1]]
        assert gold.T.tolist() == [[0, 1, 1], [0, 0, 1]]

    def test_slow_tokenizer(self):
        with pytest.raises(ValueError, match="fast"):
            gold_translated(PAIR, SimpleNamespace(is_fast=False))

    @pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
    def test_every_aligned_word_goes_from_untranslated_to_translated(self, corpus, algorithm):
        pairs, _ = corpus
        texts = [text for pair in pairs for text in (pair.source, pair.target)]
        tokenizer = train_tokenizer(texts, 420, 64, algorithm)
        for pair in pairs:
            gold, pieces = gold_translated(pair, tokenizer)
            covered = {piece for word in pieces for piece in word}
            assert covered == set(range(len(tokenizer(pair.source).input_ids) - 1))
            aligned = {i for i, _ in pair.alignment}
            for word, column in enumerate(gold.T):
                assert (column[0], column[-1]) == ((0, 1) if word in aligned else (-1, -1))


class TestProbe:
    def test_right_wrong_and_no_answers(self, pieces_tokenizer):
        right = right_answers(PAIR, pieces_tokenizer)
        for assignment, accuracy, auc in (
            (right, 1, 1),
            (right[..., [1, 0, 2]], 0, 0),
            # FUTURE where they are equal; 16 of 29 decisions
            (np.full_like(right, 0.25), 16 / 29, 0.5),
            # neither PAST nor FUTURE
            (np.zeros_like(right), 16 / 29, 0.5),
        ):
            model = FakeModel(pieces_tokenizer, [(PAIR, assignment)])
            result = past_future_probe(model, pieces_tokenizer, [PAIR], progress=False)
            assert (result.accuracy, result.auc) == pytest.approx((accuracy, auc))
            assert (result.decisions, result.sentences) == (29, 1)
            assert (result.past_overlap, result.future_overlap) == (None, None)
            assert model.training

    def test_controls_by_hand(self, pieces_tokenizer):
        # done is 0, 1/3, 2/3, 1; "cats" has its middle at 1/4 and "old" at 3/4:
        # cats  -0.25 (gold 0)   0.08 (0)    -         0.75 (1)
        # old   -0.75 (0)       -0.42 (1)  -0.08 (1)   0.25 (1)
        model = FakeModel(pieces_tokenizer, [(SWAPPED, right_answers(SWAPPED, pieces_tokenizer))])
        result = past_future_probe(model, pieces_tokenizer, [SWAPPED], progress=False)
        assert result.decisions == 7
        assert result.majority_accuracy == pytest.approx(4 / 7)
        assert result.diagonal_accuracy == pytest.approx(4 / 7)
        assert result.diagonal_auc == pytest.approx(9 / 12)

    @pytest.mark.parametrize("batch_size", [1, 2])
    def test_padding_does_not_matter(self, pieces_tokenizer, batch_size):
        pairs = [SWAPPED, PAIR]
        model = FakeModel(pieces_tokenizer, [(pair, right_answers(pair, pieces_tokenizer)) for pair in pairs])
        result = past_future_probe(model, pieces_tokenizer, pairs, batch_size, progress=False)
        assert (result.accuracy, result.auc) == (1, 1)
        assert (result.decisions, result.sentences) == (36, 2)
        assert result.majority_accuracy == pytest.approx(19 / 36)

    @pytest.mark.parametrize("system", ["routing", "classifier", "attention", "recurrent", "rnmt"])
    def test_real_model_in_any_batches(self, corpus, system):
        pairs, tokenizer = corpus
        model = guided_model(tokenizer, system, bow_loss_weight=1.0)
        whole, single = (past_future_probe(model, tokenizer, pairs, size, progress=False) for size in (12, 1))
        ours, theirs = whole.to_dict(), single.to_dict()
        groups, others = ours.pop("groups"), theirs.pop("groups")
        assert ours == pytest.approx(theirs, rel=1e-3) and groups.keys() == others.keys() and len(groups) in (2, 3)
        for group, scores in groups.items():
            assert scores == pytest.approx(others[group], rel=1e-3)
        assert 0 < whole.past_overlap < 1 and 0 < whole.future_overlap < 1

    @pytest.mark.parametrize("kind", ["nllb", "mbart"])
    def test_language_tokens_are_no_words(self, multilingual, tmp_path, kind):
        # NLLB's target begins with its language, mBART's ends with it, and the source has one as well
        convert(multilingual(kind), tmp_path / "guided", guided_routing="routing", bow_loss_weight=1.0)
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "guided")
        tokenizer = AutoTokenizer.from_pretrained(multilingual(kind))
        set_languages(tokenizer, *LANGUAGES[kind][:2])
        pairs = [GrammarPair(*texts, ((0, 0),)) for texts in zip(SOURCES, TARGETS, strict=True)]
        for pair in pairs:
            gold, pieces = gold_translated(pair, tokenizer)
            ids = tokenizer(pair.source)["input_ids"]
            words = [tokenizer.decode([ids[piece] for piece in of_word]) for of_word in pieces]
            assert "".join(words).replace(" ", "") == pair.source.replace(" ", "")
            assert len(gold) == len(tokenizer(text_target=pair.target)["input_ids"])
            assert (gold[0, 0], gold[-1, 0]) == (0, 1)
        whole, single = (past_future_probe(model, tokenizer, pairs, size, progress=False) for size in (12, 1))
        assert whole.auc == pytest.approx(single.auc) and 0 < whole.auc < 1
        assert (
            whole.decisions
            == single.decisions
            == sum(int((gold_translated(pair, tokenizer)[0] >= 0).sum()) for pair in pairs)
        )

    def test_most_frequent_pieces_are_a_control(self, corpus):
        pairs, tokenizer = corpus
        result = past_future_probe(guided_model(tokenizer), tokenizer, pairs, progress=False)
        assert result.past_overlap is None
        ids = [tokenizer(text_target=pair.target)["input_ids"] for pair in pairs]
        counts = Counter(token for row in ids for token in row)
        ranked = sorted(range(len(tokenizer)), key=lambda token: (-counts[token], token))
        rates = []
        for row in ids:
            shares = [len(set(row[:t]) & set(ranked[: 5 * t])) / len(set(row[:t])) for t in range(1, len(row))]
            rates.append(sum(shares) / len(shares))
        assert result.frequent_past_overlap == pytest.approx(sum(rates) / len(rates))
        assert 0 < result.frequent_future_overlap < 1

    def test_errors(self, corpus, monkeypatch):
        pairs, tokenizer = corpus
        with pytest.raises(ValueError, match='guided_routing="none"'):
            past_future_probe(guided_model(tokenizer, "none"), tokenizer, pairs)
        model = guided_model(tokenizer)
        for nothing in ([], [GrammarPair("a dog", "ein Hund", ())]):
            with pytest.raises(ValueError, match="nothing to probe"):
                past_future_probe(model, tokenizer, nothing, progress=False)
        monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
        with pytest.raises(ImportError, match=r"pip install hf_capsule_mt\[analysis\]"):
            past_future_probe(model, tokenizer, pairs)


def log_probs_of(*rankings):
    """[T, 12]: the given tokens at the given ranks, the others in between."""
    rows = []
    for ranks in rankings:
        others = iter(token for token in range(12) if token not in ranks.values())
        order = [ranks[rank] if rank in ranks else next(others) for rank in range(12)]
        rows.append(-torch.tensor(order).argsort().float())
    return torch.stack(rows).log_softmax(dim=-1)


class TestOverlap:
    def test_by_hand(self):
        # Step 1: {7} in 5 tokens, and it is the last of them. Step 2: of {7, 3} in 10 tokens, 3 just misses them.
        past = log_probs_of({}, {4: 7}, {0: 7, 10: 3})
        # Step 0: {7, 3} in all 12. Step 1: {3}, twice, in 10 tokens. Step 2: {3} just misses 5 tokens.
        future = log_probs_of({10: 7, 11: 3}, {9: 3}, {5: 3})
        rates = overlap_rates(past, future, torch.tensor([7, 3, 3]))
        assert rates == pytest.approx(((1 + 1 / 2) / 2, (1 + 1 + 0) / 3))

    def test_first_step_has_no_past(self):
        assert overlap_rates(log_probs_of({}), log_probs_of({4: 1}), torch.tensor([1])) == (None, 1.0)


class TestFittedPredictor:
    @pytest.mark.parametrize("system", ["routing", "classifier", "attention", "recurrent", "rnmt"])
    def test_trains_the_projections_alone(self, corpus, system):
        pairs, tokenizer = corpus
        model = guided_model(tokenizer, system).train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.random.get_rng_state()
        early, again, late = (
            fit_bow_predictor(model, tokenizer, pairs, steps, 3, 5, progress=False) for steps in (1, 1, 40)
        )
        assert torch.equal(torch.random.get_rng_state(), state)
        assert model.training and not late.training
        assert model.config.bow_loss_weight == 0 and late.config.bow_loss_weight == 1

        weights = late.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in before.items())
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        new = set(weights) - set(before)
        assert len(new) == 2 and all("bow_proj" in name for name in new)
        assert {name for name, p in late.named_parameters() if p.requires_grad} == new
        assert all(torch.equal(early.state_dict()[name], again.state_dict()[name]) for name in new)
        assert past_future_probe(late, tokenizer, pairs, progress=False).past_overlap is not None
        loss = bow_loss(late, tokenizer, pairs)
        for name in new:
            late.get_parameter(name).data.zero_()
        uniform = bow_loss(late, tokenizer, pairs)
        assert loss < min(bow_loss(early, tokenizer, pairs), uniform)

    def test_leaves_a_trained_predictor_behind(self, corpus):
        pairs, tokenizer = corpus
        options = dict(steps=2, seed=1, progress=False)
        plain = fit_bow_predictor(guided_model(tokenizer), tokenizer, pairs, **options)
        trained = guided_model(tokenizer, bow_loss_weight=1.0)
        trained.load_state_dict({**trained.state_dict(), **guided_model(tokenizer).state_dict()})
        again = fit_bow_predictor(trained, tokenizer, pairs, **options)
        assert all(torch.equal(again.state_dict()[name], value) for name, value in plain.state_dict().items())

    def test_errors(self, corpus):
        pairs, tokenizer = corpus
        with pytest.raises(ValueError, match='guided_routing="none"'):
            fit_bow_predictor(guided_model(tokenizer, "none"), tokenizer, pairs)
        for chosen, steps in ((pairs, 0), ([], 1)):
            with pytest.raises(ValueError, match="at least one step"):
                fit_bow_predictor(guided_model(tokenizer), tokenizer, chosen, steps)


@torch.no_grad()
def bow_loss(model, tokenizer, pairs):
    batch = tokenizer([pair.source for pair in pairs], padding=True, return_tensors="pt")
    labels = tokenizer([pair.target for pair in pairs], padding=True, return_tensors="pt").input_ids
    return float(model(**batch, labels=labels.masked_fill(labels == PAD, -100)).bow_loss)
