"""Lists of translations with scores, forced prefixes and agreements, for every family."""

import math

import pytest
import torch
from transformers import GenerationConfig

from hf_capsule_mt.evaluation import forced_scores
from hf_capsule_mt.evaluation.forced_scores import ForcedPair, length_penalty_of, score_tokens
from hf_capsule_mt.evaluation.score_pairs import score_pairs
from hf_capsule_mt.evaluation.translate import translate, translate_nbest
from tiny_models import bart_model, capsule_model, rnn_model, sentence_batch
from tiny_translation import EOS, MAX_POSITIONS, PAD, SOURCES, TARGETS, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
FAMILIES = {
    "marian": lambda **sizes: capsule_model(aggregation="none", **sizes),
    "marian_em_guided": lambda **sizes: capsule_model(aggregation="em_routing", guided_routing="routing", **sizes),
    "bart": lambda **sizes: bart_model(aggregation="em_routing", **sizes),
    "rnn_capsule_guided": lambda **sizes: rnn_model(source_memory="capsule", guided_routing="routing", **sizes),
}
# of generation, all of which change scores or ends
RULES = {
    "plain": {},
    "length_penalty": {"length_penalty": 0.6},
    "no_penalty": {"length_penalty": 0.0},
    "forced_end": {"max_length": 8, "forced_eos_token_id": EOS},
    "cut_off": {"max_new_tokens": 4},
    "forbidden": {"bad_words_ids": [[PAD], [7], [9, 4]]},
    "renormalised": {"bad_words_ids": [[PAD], [7]], "renormalize_logits": True},
    "minimum": {"min_new_tokens": 6},
    "ngrams": {"no_repeat_ngram_size": 2},
    "forced_start": {"forced_bos_token_id": 11},
    "generation_config": {
        "generation_config": GenerationConfig(num_beams=3, num_return_sequences=2, length_penalty=2.0, max_length=15)
    },
}
TEXT_SIZES = {"vocab_size": len(TOKENIZER)}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def generated(model, prompt=None, **arguments):
    """What generate returns for five sentences, as pairs; and its output."""
    batch = sentence_batch(rows=5)
    if prompt is not None:
        arguments["decoder_input_ids"] = torch.tensor([prompt] * 5)
    prompt = prompt or [model.generation_config.decoder_start_token_id]
    sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
    output = model.generate(**sources, output_scores=True, return_dict_in_generate=True, **arguments)
    copies = len(output.sequences) // 5
    if "beam_indices" in output:
        lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
    else:
        lengths = [
            row.index(EOS) + 1 if EOS in row else len(row) for row in output.sequences[:, len(prompt) :].tolist()
        ]
    pairs = [
        ForcedPair(
            batch["input_ids"][row // copies][batch["attention_mask"][row // copies].bool()].tolist(),
            prompt,
            sequence[len(prompt) : len(prompt) + lengths[row]],
        )
        for row, sequence in enumerate(output.sequences.tolist())
    ]
    return pairs, output


def scores_of(model, pairs, **arguments):
    """In the order of the pairs."""
    length_penalty = length_penalty_of(model, arguments)
    results = {}
    for rows, scores in score_tokens(model, pairs, **arguments):
        results |= dict(zip(rows, scores, strict=True))
    return torch.tensor([results[row].score(length_penalty) for row in range(len(pairs))])


class TestScoresAreThoseOfGeneration:
    @pytest.mark.parametrize("rules", RULES)
    @pytest.mark.parametrize("prompted", [False, True], ids=["free", "prefix"])
    def test_beams(self, family, rules, prompted):
        model, arguments = family(), {"num_beams": 3, "num_return_sequences": 2, "max_length": 15} | RULES[rules]
        if rules == "generation_config":
            arguments = RULES[rules]
        if rules == "cut_off":
            del arguments["max_length"]
        prompt = [model.generation_config.decoder_start_token_id, 13, 5, 21] if prompted else None
        pairs, output = generated(model, prompt, **arguments)
        scores = scores_of(model, pairs, **arguments)
        torch.testing.assert_close(scores, output.sequences_scores, rtol=1e-5, atol=1e-5)

    def test_rules_of_the_models_own_config(self, family):
        model = family()
        model.generation_config.update(
            num_beams=3, num_return_sequences=2, max_length=9, bad_words_ids=[[PAD]], forced_eos_token_id=EOS
        )
        pairs, output = generated(model)
        torch.testing.assert_close(scores_of(model, pairs), output.sequences_scores, rtol=1e-5, atol=1e-5)
        assert any(len(pair.target) == 8 for pair in pairs)

    def test_greedy_search(self, family):
        model = family()
        arguments = {"max_length": 12, "forced_eos_token_id": EOS}
        pairs, output = generated(model, **arguments)
        steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        expected = [row[: len(pair.target)].mean() for row, pair in zip(steps, pairs, strict=True)]
        scores = scores_of(model, pairs, **arguments)
        torch.testing.assert_close(scores, torch.stack(expected), rtol=1e-5, atol=1e-5)

    def test_step_by_step(self, family):
        """Against a loop without cache, batch and generate."""
        model = family()
        pairs, _ = generated(model, max_length=9)
        for pair, score in zip(pairs, scores_of(model, pairs).tolist(), strict=True):
            written, total = list(pair.prompt), 0.0
            for token in pair.target:
                with torch.no_grad():
                    logits = model(
                        input_ids=torch.tensor([pair.source]), decoder_input_ids=torch.tensor([written])
                    ).logits
                total += float(logits[0, -1].log_softmax(dim=-1)[token])
                written.append(token)
            assert score == pytest.approx(total / len(pair.target), abs=1e-5)

    def test_batches(self, family, monkeypatch):
        model = family()
        pairs, _ = generated(model, num_beams=3, num_return_sequences=3, max_length=12)
        prompt = [*pairs[0].prompt, 5, 8]
        pairs += [ForcedPair(pair.source, prompt, pair.target) for pair in pairs[::2]]
        expected = scores_of(model, pairs)
        batches = [rows for rows, _ in score_tokens(model, pairs)]
        assert sorted(len({len(pairs[row].prompt) for row in rows}) for rows in batches) == [1, 1]
        for max_tokens in (1, 40):
            torch.testing.assert_close(scores_of(model, pairs, max_tokens=max_tokens), expected)
        monkeypatch.setattr(forced_scores, "MAX_LOGITS", 30 * 53)
        torch.testing.assert_close(scores_of(model, pairs), expected)
        assert max(
            len(rows) * max(len(pairs[row].prompt + pairs[row].target) for row in rows)
            for rows, _ in score_tokens(model, pairs)
        ) in range(20, 31)

    def test_what_cannot_be_generated(self):
        model = tiny_model()
        pair = ForcedPair(TOKENIZER(SOURCES[0]).input_ids, [PAD], [5, 7, EOS])
        ((_, (scores,)),) = score_tokens(model, [pair], bad_words_ids=[[7]])
        assert [math.isinf(value) for value in scores.log_probs] == [False, True, False]

    def test_mode_is_restored_and_without_effect(self):
        model = capsule_model()
        pairs, _ = generated(model, max_length=9)
        expected = scores_of(model, pairs)
        model.train()
        assert scores_of(model, pairs).equal(expected)
        assert model.training and model.model.decoder.training


@pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])
def test_does_not_depend_on_the_batches(family, num_beams):
    model = family(**TEXT_SIZES)
    prefixes = ["", "ein", "ein hund", "", "die", ""]
    arguments = {"prefixes": prefixes, "num_beams": num_beams, "num_return_sequences": num_beams}
    alone = [
        translate_nbest(model, TOKENIZER, [sentence], **(arguments | {"prefixes": [prefix]}))[0]
        for sentence, prefix in zip(SOURCES, prefixes, strict=True)
    ]
    for max_tokens in (1, 60, 4096):
        together = translate_nbest(model, TOKENIZER, SOURCES, max_tokens=max_tokens, **arguments)
        assert [[h.tokens for h in nbest] for nbest in together] == [[h.tokens for h in nbest] for nbest in alone]
        for nbest, expected in zip(together, alone, strict=True):
            assert [h.score for h in nbest] == pytest.approx([h.score for h in expected], abs=1e-5)
    # whole lists, best first
    assert all(len(nbest) == num_beams for nbest in alone)
    assert all(nbest[i].score >= nbest[i + 1].score - 1e-5 for nbest in alone for i in range(num_beams - 1))


@pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])
def test_a_forced_end_does_not_depend_on_the_batches(num_beams):
    """A model without positions has no longest translation at which generate could force the end."""
    model = rnn_model(**TEXT_SIZES)
    # endless
    model.generation_config.update(forced_eos_token_id=EOS, bad_words_ids=[[EOS]])
    alone = [translate_nbest(model, TOKENIZER, [sentence], num_beams=num_beams)[0][0] for sentence in SOURCES]
    together = [nbest[0] for nbest in translate_nbest(model, TOKENIZER, SOURCES, num_beams=num_beams)]
    assert [hypothesis.tokens for hypothesis in together] == [hypothesis.tokens for hypothesis in alone]
    assert not any(hypothesis.ended for hypothesis in together)


class TestNbest:
    def test_first_is_the_translation(self, family):
        model = family(**TEXT_SIZES)
        nbest = translate_nbest(model, TOKENIZER, SOURCES, num_beams=3, num_return_sequences=2)
        assert [first.text for first, _ in nbest] == translate(model, TOKENIZER, SOURCES, num_beams=3)

    def test_scores_are_those_of_one_sentence_alone(self, family):
        model = family(**TEXT_SIZES)
        nbest = translate_nbest(model, TOKENIZER, SOURCES, num_beams=3, num_return_sequences=3, length_penalty=0.7)
        ends = set()
        for sentence, hypotheses in zip(SOURCES, nbest, strict=True):
            source = TOKENIZER(sentence, return_tensors="pt", return_token_type_ids=False)
            output = model.generate(
                **source,
                num_beams=3,
                num_return_sequences=3,
                length_penalty=0.7,
                max_length=min(2 * source.input_ids.shape[1] + 10, 41),
                output_scores=True,
                return_dict_in_generate=True,
            )
            assert [h.score for h in hypotheses] == pytest.approx(output.sequences_scores.tolist(), abs=1e-5)
            lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
            assert [len(h.tokens) for h in hypotheses] == lengths
            ends |= {(h.ended, h.tokens[-1] == EOS) for h in hypotheses}
        assert ends <= {(True, True), (False, False)}

    @pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])
    @pytest.mark.parametrize("forced", [None, EOS], ids=["cut", "forced_end"])
    def test_endless_translations(self, num_beams, forced):
        model = tiny_model(endless=True)
        model.generation_config.forced_eos_token_id = forced
        for sentence, (hypothesis,) in zip(
            SOURCES, translate_nbest(model, TOKENIZER, SOURCES, num_beams=num_beams), strict=True
        ):
            limit = min(2 * len(TOKENIZER(sentence).input_ids) + 10, MAX_POSITIONS)
            assert len(hypothesis.tokens) == limit - 1
            # only the last position ends a sentence by force
            assert hypothesis.ended == (forced is not None and limit == MAX_POSITIONS)
            # a given text has its end, which was not generated: the same tokens have the same score
            (scored,) = score_pairs(model, TOKENIZER, [sentence], [hypothesis.text], tokens=[hypothesis.tokens])
            assert scored.score == pytest.approx(hypothesis.score, abs=1e-5)

    def test_blank_sentences(self):
        nbest = translate_nbest(tiny_model(), TOKENIZER, ["", SOURCES[0]], num_beams=2, num_return_sequences=2)
        assert [(h.text, h.tokens, h.score, h.ended) for h in nbest[0]] == [("", [], 0.0, True)] * 2
        assert nbest[1][0].text == TARGETS[0]

    def test_progress(self):
        calls = []
        translate_nbest(
            tiny_model(), TOKENIZER, ["", *SOURCES], max_tokens=24, progress=lambda *numbers: calls.append(numbers)
        )
        assert calls == [(3, 7), (6, 7), (7, 7)]


class TestPrefixes:
    def test_is_what_generate_makes_of_them(self, family):
        model = family(**TEXT_SIZES)
        prefix = TOKENIZER("zwei katzen", add_special_tokens=False).input_ids
        prompt = torch.tensor([[model.generation_config.decoder_start_token_id, *prefix]])
        results = translate_nbest(model, TOKENIZER, SOURCES, prefixes=["zwei katzen"] * 6, num_beams=2)
        for sentence, (hypothesis,) in zip(SOURCES, results, strict=True):
            source = TOKENIZER(sentence, return_tensors="pt", return_token_type_ids=False)
            limit = min(2 * source.input_ids.shape[1] + 10, 41)
            direct = model.generate(**source, decoder_input_ids=prompt, num_beams=2, max_length=limit)
            assert hypothesis.tokens == direct[0, 1:].tolist()
            assert hypothesis.tokens[:2] == prefix and hypothesis.text.startswith("zwei katzen")

    def test_scores_leave_them_out(self):
        model = tiny_model()
        ((free,), (forced,)) = translate_nbest(model, TOKENIZER, [SOURCES[0]] * 2, prefixes=["", "ein hund"])
        assert free.text == forced.text == TARGETS[0] and free.tokens == forced.tokens
        whole, rest = score_pairs(model, TOKENIZER, [SOURCES[0]] * 2, TARGETS[:1] * 2, prefixes=["", "ein hund"])
        assert rest.tokens == whole.tokens == free.tokens
        assert rest.log_probs == pytest.approx(whole.log_probs[2:], abs=1e-6)
        assert (whole.score, rest.score) == pytest.approx((free.score, forced.score), abs=1e-6)

    def test_behind_a_forced_first_token(self):
        model = tiny_model()
        model.generation_config.forced_bos_token_id = 9
        ((hypothesis,),) = translate_nbest(model, TOKENIZER, [SOURCES[0]], prefixes=["ein"])
        assert hypothesis.tokens[:2] == [9, *TOKENIZER("ein", add_special_tokens=False).input_ids]

    def test_too_long(self):
        with pytest.raises(ValueError, match=r"a prefix of 28 tokens leaves no room .* at most 28"):
            translate_nbest(tiny_model(), TOKENIZER, SOURCES[:1], prefixes=[" ".join(["ein"] * 28)])

    def test_as_long_as_can_be(self):
        ((hypothesis,),) = translate_nbest(
            tiny_model(), TOKENIZER, SOURCES[:1], prefixes=[" ".join(["ein"] * 27)], num_beams=2
        )
        assert len(hypothesis.tokens) == 28

    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_count_for_the_positions_of_a_model_that_limits_new_tokens(self, num_beams):
        model = tiny_model(endless=True)
        model.generation_config.max_new_tokens = MAX_POSITIONS - 1
        source = " ".join(["a dog runs"] * 5)
        ((hypothesis,),) = translate_nbest(model, TOKENIZER, [source], prefixes=["ein hund"], num_beams=num_beams)
        assert len(hypothesis.tokens) == MAX_POSITIONS - 1 and not hypothesis.ended


class TestAgreements:
    @pytest.mark.parametrize(
        ("make", "names"),
        [
            (lambda: capsule_model(aggregation="em_routing", **TEXT_SIZES), {"encoder_entropy", "decoder_entropy"}),
            (lambda: bart_model(aggregation="none", guided_routing="routing", **TEXT_SIZES), {"past"}),
            (lambda: rnn_model(source_memory="capsule", guided_routing="routing", **TEXT_SIZES), {"past", "memory"}),
            (lambda: capsule_model(aggregation="none", **TEXT_SIZES), set()),
        ],
        ids=["em_routing", "guided", "memory", "none"],
    )
    def test_are_those_of_generate(self, make, names):
        model, prefix = make(), ["ein", ""] * 3
        results = translate_nbest(model, TOKENIZER, SOURCES, prefixes=prefix, agreements=True, num_beams=2)
        for sentence, forced, (hypothesis,) in zip(SOURCES, prefix, results, strict=True):
            source = TOKENIZER(sentence, return_tensors="pt", return_token_type_ids=False)
            start = [model.generation_config.decoder_start_token_id]
            prompt = torch.tensor([start + TOKENIZER(forced, add_special_tokens=False).input_ids])
            output = model.generate(
                **source,
                decoder_input_ids=prompt,
                num_beams=2,
                max_length=min(2 * source.input_ids.shape[1] + 10, 41),
                output_agreements=True,
            )
            agreements = hypothesis.agreements
            assert set(agreements) == {"source_tokens", "target_tokens"} | names
            assert agreements["source_tokens"][-1] == "</s>"
            assert len(agreements["target_tokens"]) == len(hypothesis.tokens)
            close = {"rtol": 0, "atol": 1e-4}
            if "past" in names:
                expected = output.guided_assignment[0, :, :, 0]
                torch.testing.assert_close(torch.tensor(agreements["past"]), expected, **close)
            if "memory" in names:
                expected = output.source_agreements[-1][0]
                torch.testing.assert_close(torch.tensor(agreements["memory"]), expected, **close)
            for stack in ("encoder", "decoder"):
                if f"{stack}_entropy" in names:
                    probabilities = output[f"{stack}_agreements"][-1][0]
                    expected = -torch.xlogy(probabilities, probabilities).sum(dim=-1).mean(dim=0)
                    torch.testing.assert_close(torch.tensor(agreements[f"{stack}_entropy"]), expected, **close)

    def test_plain_models_have_none(self):
        with pytest.raises(ValueError, match="capsule models, and this is a MarianMTModel"):
            translate_nbest(tiny_model(), TOKENIZER, SOURCES, agreements=True)


class TestPairs:
    def test_a_text_is_scored_as_it_was_generated(self):
        model = tiny_model()
        nbest = translate_nbest(model, TOKENIZER, SOURCES, num_beams=3, length_penalty=1.3)
        scored = score_pairs(model, TOKENIZER, SOURCES, TARGETS, length_penalty=1.3)
        assert [pair.tokens for pair in scored] == [hypothesis.tokens for (hypothesis,) in nbest]
        assert [pair.score for pair in scored] == pytest.approx([h.score for (h,) in nbest], abs=1e-6)

    @pytest.mark.parametrize("max_tokens", [1, 30, 4096])
    def test_order_and_blanks(self, max_tokens):
        model = tiny_model()
        sources, targets = ["", *SOURCES, SOURCES[0], " "], [" ", *TARGETS, "", "ein"]
        scored = score_pairs(model, TOKENIZER, sources, targets, max_tokens=max_tokens)
        alone = [
            score_pairs(model, TOKENIZER, *([text] for text in pair))[0] for pair in zip(sources, targets, strict=True)
        ]
        assert [pair.score for pair in scored] == pytest.approx([pair.score for pair in alone], abs=1e-5)
        assert (scored[0].score, scored[0].tokens) == (0.0, [])
        # the end of the sentence
        assert len(scored[-2].log_probs) == 1 and len(scored[-1].log_probs) == 2

    def test_truncation_is_counted(self, caplog):
        score_pairs(tiny_model(), TOKENIZER, SOURCES[:2], [" ".join(["ein"] * 40), TARGETS[1]])
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith(
            "1 of 2 translations were truncated to 28 tokens, the most that this model can write"
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"translations": TARGETS[:2]}, "there are 6 sentences, but 2 translations"),
            ({"translations": TARGETS[0]}, "translations must be a list of strings"),
            ({"prefixes": ["ein"]}, "but 1 prefixes"),
            ({"prefixes": ["", "die", "zwei", "der", "", ""]}, "translation 4 does not begin .* 'eine frau"),
            ({"prefixes": [*TARGETS[:1], *[""] * 5], "tokens": [[3]] * 6}, "translation 1 does not begin"),
            ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ],
        ids=["fewer", "string", "prefixes", "other_prefix", "prefix_of_tokens", "max_tokens"],
    )
    def test_errors(self, arguments, message):
        arguments = {"translations": TARGETS} | arguments
        with pytest.raises(ValueError, match=message):
            score_pairs(tiny_model(), TOKENIZER, SOURCES, **arguments)


@pytest.mark.parametrize("limit", [{"max_new_tokens": 1000}, {"max_length": 1000}])
def test_an_end_forced_at_the_last_position_counts_as_zero(limit):
    """Also where a longer translation has been asked for than the model can write."""
    (longest,) = translate_nbest(tiny_model(endless=True), TOKENIZER, SOURCES[:1], forced_eos_token_id=EOS, **limit)[0]
    (shorter,) = translate_nbest(tiny_model(endless=True), TOKENIZER, SOURCES[:1], max_new_tokens=MAX_POSITIONS - 2)[0]
    assert longest.tokens == [*shorter.tokens, EOS]
    assert longest.score * len(longest.tokens) == pytest.approx(shorter.score * len(shorter.tokens), abs=1e-4)
