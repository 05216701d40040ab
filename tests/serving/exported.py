"""Tiny models with a tokenizer, exported, and what compares their translations with those of generate()."""

import copy
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from hf_capsule_mt.evaluation.forced_scores import ForcedPair, length_penalty_of, score_tokens
from hf_capsule_mt.evaluation.translate import translate_nbest
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED
from hf_capsule_mt.serving.export import export_onnx, translator_settings
from hf_capsule_mt.serving.onnx_translator import OnnxTranslator
from tiny_models import BUILDERS, EOS, PAD, TARGET_VOCAB

# source tokens, the end included; the tiny Marian and BART have 41 positions
TOKENIZER_LIMIT = 31
UNKNOWN = 2
# from here on, no test forbids words: what is forced must not be forbidden
UNFORBIDDEN = 30
# scores of one hypothesis, by generate() and by the graphs
SCORE_TOLERANCE = 1e-4
# candidates whose scores are closer than this have no order in float32
TIE = 2e-6
# float32 may err as far as this many times what one rounding of the weights does
ROUNDINGS = 3.0
# these three run all code of the graphs but for M2M100's positions; the last one ends with any of two tokens
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "em_and_gdr": ("marian", {"aggregation": "em_routing", "guided_routing": "routing"}),
    "dynamic_and_classifier": ("mbart", {"aggregation": "dynamic_routing", "guided_routing": "classifier"}),
    "hybrid_and_recurrent": (
        "rnn",
        {"source_memory": "hybrid", "guided_routing": "recurrent", "eos_token_id": [EOS, 5], **CALIBRATED},
    ),
}
SENTENCES = [3, 7, 1, 12, 40, 5, 5, 0, 9]


def word_tokenizer(limit: int = TOKENIZER_LIMIT) -> PreTrainedTokenizerFast:
    """Words w3, w4 ... are the tokens 3, 4 ..., as many as the smaller vocabulary of the tiny models has."""
    words = {"<pad>": PAD, "</s>": EOS, "<unk>": UNKNOWN} | {f"w{i}": i for i in range(3, TARGET_VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=limit,
    )


def sentences(lengths: Sequence[int] = SENTENCES, seed: int = 0) -> list[str]:
    """Random sentences of so many words; the default ones have a blank one and one that is truncated."""
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(f"w{i}" for i in torch.randint(3, TARGET_VOCAB, (length,), generator=generator).tolist())
        for length in lengths
    ]


def teach(model: PreTrainedModel, updates: int = 60) -> PreTrainedModel:
    """A model that has begun to learn some sentence pairs, so that its translations vary and end."""
    generator = torch.Generator().manual_seed(11)
    lengths = [2, 4, 5, 6, 8, 10, 12, 15]
    source = torch.full((len(lengths), max(lengths)), PAD)
    labels = torch.full_like(source, -100)
    for row, length in enumerate(lengths):
        words = torch.randint(3, TARGET_VOCAB, (length,), generator=generator)
        words[-1] = EOS
        source[row, :length] = words
        labels[row, :length] = torch.cat([words[:-1].flip(0), words[-1:]])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    # without dropout: what is learnt is the same everywhere
    model.eval()
    for _ in range(updates):
        optimizer.zero_grad()
        model(input_ids=source, attention_mask=source.ne(PAD).long(), labels=labels).loss.backward()
        optimizer.step()
    return model


@dataclass
class System:
    """A model and what has been made of it."""

    checkpoint: Path
    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    translator: OnnxTranslator


def save_model(checkpoint: Path, family: str, fields: dict[str, Any]) -> Path:
    """A taught model and its tokenizer as a checkpoint."""
    teach(BUILDERS[family](**fields)).save_pretrained(checkpoint)
    word_tokenizer().save_pretrained(checkpoint)
    return checkpoint


def load_system(checkpoint: Path, folder: Path) -> System:
    """What `save_model` and `export_onnx` wrote."""
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    return System(checkpoint, folder, model, word_tokenizer(), OnnxTranslator(folder, threads=1))


def make_system(place: Path, family: str, fields: dict[str, Any]) -> System:
    """A taught model, exported."""
    save_model(place / "model", family, fields)
    return load_system(place / "model", export_onnx(place / "model", place / "onnx"))


def random_options(draw: random.Random) -> dict[str, Any]:
    """Generation parameters, as a caller gives them."""
    num_beams = draw.choice([1, 1, 2, 3, 5])
    options: dict[str, Any] = {"num_beams": num_beams, "num_return_sequences": draw.randint(1, num_beams)}
    if draw.random() < 0.1:
        return {}
    if num_beams > 1:
        options["length_penalty"] = draw.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        options["early_stopping"] = draw.choice([False, True, "never"])
    length = draw.choice([None, None, "max_new_tokens", "max_length"])
    if length is not None:
        options[length] = draw.choice([2, 3, 6, 13, 100])
    shortest = draw.choice([None, None, "min_new_tokens", "min_length"])
    if shortest is not None:
        options[shortest] = draw.choice([1, 4, 8])
    if draw.random() < 0.25:
        options["forced_bos_token_id"] = draw.randrange(UNFORBIDDEN, TARGET_VOCAB)
    if draw.random() < 0.25:
        options["forced_eos_token_id"] = EOS
    return options


def assert_alike(system: System, sources: Sequence[str], **options: Any) -> int:
    """Both ways give the same hypotheses with the same scores; returns how many are not blank.

    Hypotheses may differ where the model gives both the same score. Where generate() refuses what it is given, the
    translator does so with the same words. Where there are fewer hypotheses than asked for, generate() repeats some.
    """
    try:
        expected = translate_nbest(system.model, system.tokenizer, sources, **options)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            system.translator.translate_nbest(sources, **options)
        return 0
    found = system.translator.translate_nbest(sources, **options)
    assert len(expected) == len(found)
    prefixes = options.get("prefixes") or [""] * len(sources)
    count = 0
    for source, prefix, theirs, ours in zip(sources, prefixes, expected, found, strict=True):
        assert len(theirs) == len(ours)
        for rank, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            both = (source, options, left, right)
            if right.score == -math.inf:
                assert left.score == -math.inf or left in theirs[:rank], both
                assert right.text == prefix, both
            elif left.tokens == right.tokens:
                assert (left.text, left.ended) == (right.text, right.ended), both
                if not same_score(left.score, right.score):
                    assert not prefix, both
                    exact, rounding = exact_score(system, source, right, options)
                    close = same_score(exact, right.score) or abs(right.score - exact) <= ROUNDINGS * rounding
                    assert close, (*both, exact, rounding)
            else:
                tied = score_of(system, source, right, options, system.model)
                assert math.isclose(left.score, tied, rel_tol=TIE, abs_tol=TIE), (*both, tied)
            count += bool(right.tokens)
    return count


def exact_score(system: System, source: str, hypothesis: Any, options: dict[str, Any]) -> tuple[float, float]:
    """The score in float64, and how far it moves when every weight moves within one rounding of float32.

    Some tiny models magnify rounding a thousandfold: float32 errs as far as the second number says, here and there.
    """
    double = copy.deepcopy(system.model).double()
    exact = score_of(system, source, hypothesis, options, double)
    generator = torch.Generator().manual_seed(0)
    rounding = 0.0
    for _ in range(8):
        moved = copy.deepcopy(double)
        with torch.no_grad():
            for weight in moved.parameters():
                noise = 2 * torch.rand(weight.shape, generator=generator, dtype=weight.dtype) - 1
                weight.mul_(1 + torch.finfo(torch.float32).eps * noise)
        rounding = max(rounding, abs(score_of(system, source, hypothesis, options, moved) - exact))
    return exact, rounding


def same_score(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-5, abs_tol=SCORE_TOLERANCE)


def score_of(system: System, source: str, hypothesis: Any, options: dict[str, Any], model: PreTrainedModel) -> float:
    """What a model says to a hypothesis without a prefix."""
    start = system.translator.settings["decoder_start_token_id"]
    pair = ForcedPair(system.tokenizer(source, truncation=True).input_ids, [start], hypothesis.tokens)
    rules = {name: value for name, value in options.items() if name not in ("prefixes", "num_return_sequences")}
    ((_, (scores,)),) = score_tokens(model, [pair], **rules)
    return scores.score(length_penalty_of(system.model, options))


def random_rules(draw: random.Random) -> dict[str, Any]:
    """Fields of a model's generation config."""
    fields: dict[str, Any] = {}
    if draw.random() < 0.4:
        fields["suppress_tokens"] = draw.sample(range(2, UNFORBIDDEN), 9)
    if draw.random() < 0.4:
        fields["bad_words_ids"] = [[token] for token in draw.sample(range(TARGET_VOCAB), 9)]
    length = draw.choice([None, "max_new_tokens", "max_length"])
    if length is not None:
        fields[length] = draw.choice([3, 9, 200])
    if draw.random() < 0.3:
        fields["forced_eos_token_id"] = EOS
    if draw.random() < 0.3:
        fields["num_beams"] = 3
        fields["length_penalty"] = 0.7
        fields["early_stopping"] = True
    return fields


def set_rules(system: System, **fields: Any) -> None:
    """Gives the model's generation config these fields, none of which is in the graphs."""
    model = system.model
    model.generation_config = GenerationConfig.from_dict({**model.generation_config.to_dict(), **fields})
    system.translator.settings = translator_settings(model, system.tokenizer)
