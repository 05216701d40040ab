"""A tiny tokenizer and a tiny Marian that has learnt six sentences by heart, for the tests that translate text."""

import copy
import functools
import json
import logging
import warnings
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

from hf_capsule_mt.evaluation.encoding import saved_generation_config
from hf_capsule_mt.evidence.recorded import RECORDS
from hf_capsule_mt.hub.conversion import convert
from tiny_models import open_gates

PAIRS = {
    "a dog runs .": "ein hund rennt .",
    "the small cat sleeps under the old tree .": "die kleine katze schläft unter dem alten baum .",
    "two men walk .": "zwei männer gehen .",
    "a woman reads a book about ships in the garden .": "eine frau liest ein buch über schiffe im garten .",
    "the dog sleeps .": "der hund schläft .",
    "two cats run in the garden .": "zwei katzen rennen im garten .",
}
SOURCES, TARGETS = list(PAIRS), list(PAIRS.values())
# results of a run, and the values of a card
RESULTS = RECORDS / "grammar" / "em_routing.json"
CARD = """
title: A tiny model
description: It knows six sentences by heart.
papers: [dou2019]
license: apache-2.0
dataset: {name: Six sentences, terms: Written for a test.}
samples: %s
limitations: [It knows nothing else.]
"""
PAD, EOS = 0, 1
MAX_POSITIONS = 29
# Above the positions, so that tests see which of the two limits
TOKENIZER_LIMIT = 31


def tiny_tokenizer(tokenizer_class: type = PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """BPE over words that carry their space; every word of the pairs is one piece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator(SOURCES + TARGETS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return tokenizer_class(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=TOKENIZER_LIMIT,
    )


@functools.cache
def _trained_model() -> MarianMTModel:
    tokenizer = tiny_tokenizer()
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=26,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=37,
        decoder_ffn_dim=41,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        init_std=0.2,
    )
    torch.manual_seed(3)
    model = MarianMTModel(config)
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = tokenizer(TARGETS, padding=True, return_tensors="pt").input_ids
    labels[labels == PAD] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    # Dropout stays off: the point is to be certain of six sentences
    model.eval()
    for _ in range(120):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    return model


def tiny_model(*, endless: bool = False) -> MarianMTModel:
    """
    A fresh copy in evaluation mode; it translates SOURCES to TARGETS.

    Args:
        endless: never end a sentence, so that every translation runs into its length limit.
    """
    model = copy.deepcopy(_trained_model())
    if endless:
        model.final_logits_bias[0, EOS] = -1e4
    return model


def assert_quiet_limits(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A saved model generates past transformers' default of 20 tokens, and its limit and the caller's do not clash."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    inputs = tokenizer(["a dog", "two"], padding=True, return_tensors="pt", return_token_type_ids=False)
    endless = {"suppress_tokens": [EOS], "forced_eos_token_id": None}
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert model.generate(**inputs, **endless).shape[1] > 21
            assert model.generate(**inputs, **endless, max_new_tokens=5).shape[1] == 6
    finally:
        logger.removeHandler(caplog.handler)
    assert "max_length" not in caplog.text and "max_new_tokens" not in caplog.text


def finished_run(root: Path) -> Path:
    """An output folder as a run leaves it, of a model whose aggregates contribute; the plain model is beside it."""
    tiny_model().save_pretrained(root / "plain")
    tiny_tokenizer().save_pretrained(root / "plain")
    run = convert(root / "plain", root / "run", aggregation="em_routing", num_capsules=13)
    open_gates(AutoModelForSeq2SeqLM.from_pretrained(run)).save_pretrained(run)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (run / "translations").mkdir()
    for score in results["scores"]:
        (run / score["file"]).write_text("Ein Hund rennt.\n", encoding="utf-8")
    return run


def card_values(folder: Path) -> Path:
    """The values of its card."""
    (folder / "tiny.yaml").write_text(CARD % json.dumps(SOURCES[:2]), encoding="utf-8")
    return folder / "tiny.yaml"


def taught_run(folder: Path) -> Path:
    """A checkpoint of EM routing and guided routing whose new parts contribute, which confuses it."""
    # as those of runs: the end of a sentence in a text is text
    tokenizer = tiny_tokenizer(functools.partial(PreTrainedTokenizerFast, split_special_tokens=True))
    tiny_model().save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    run = convert(
        folder / "plain", folder / "run", aggregation="em_routing", num_capsules=13, guided_routing="routing"
    )
    model = open_gates(AutoModelForSeq2SeqLM.from_pretrained(run))
    model.generation_config = saved_generation_config(model, tokenizer)
    model.save_pretrained(run)
    return run
