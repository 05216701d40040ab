"""The library tokenizers alone gives the tokens and texts that transformers gives, for every kind of tokenizer."""

# ruff: noqa: RUF001

import io
import json
import random

import pytest
import sentencepiece
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import BartTokenizerFast, MarianMTModel, MarianTokenizer, PreTrainedTokenizerFast

from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.evaluation.translate import translate_nbest
from hf_capsule_mt.serving.export import export_onnx
from hf_capsule_mt.serving.onnx_translator import OnnxTranslator
from hf_capsule_mt.serving.tokenizer_files import Side, source_and_target
from tiny_models import plain_config
from tiny_translation import tiny_tokenizer

# sacremoses normalises punctuation in MarianTokenizer; without it the tokenizer only warns
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

PAIRS = generate_corpus(300)
LANGUAGES = [">>de<<", ">>nl<<"]
TEXTS = [
    "The dog sleeps.",
    "  two  spaces ,\tand a tab  ",
    "1984 costs 3,50 € or ½ of № 7…",
    "Grüße aus Köln – „Zitat“ ‘quoted’ “text”",
    "ﬁne ＡＢＣ ™ ① ﷺ",
    "北京 東京 서울 Москва Αθήνα",
    "हिन्दी العربية עברית ไทย ำ",
    "👨‍👩‍👧 🙂🙂 ❤️ 1️⃣",
    "\u00a0no\u00a0break\u2028line \ufeffmark soft\u00adhyphen zero\u200bwidth",
    "a\r\nb",
    "</s> in the text <unk> and <pad>",
    "a</s>b",
    ">>de<< The dog sleeps.",
    ">>nl<<The dog",
    ">>xx<<  unknown code",
    ">>de<<",
    " >>de<< not at the beginning >>nl<<",
    "dog >>de<< sleeps",
    ">>de no code",
    ">><< empty",
    "\ufdd0de<< \ufdd1 \ufdd2dog \ufffd",
    "▁ is its own sign ▁▁dog",
    "<s> <0x41>",
    "ΩЖ",
    "x",
]
TEXTS += [pair.source for pair in PAIRS[:40]] + [pair.target for pair in PAIRS[:40]]


def sentencepiece_model(path, texts, **options) -> list[str]:
    """A model, written to a file; its pieces but <unk>, <s> and </s>."""
    model = io.BytesIO()
    options = {"vocab_size": 150, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **options)
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(index) for index in range(3, len(processor))]


def marian_tokenizer(folder, *, separate: bool = False, **options) -> MarianTokenizer:
    """As OPUS-MT's: some pieces are not in the vocabulary, language codes are."""
    source = sentencepiece_model(folder / "source.spm", [pair.source for pair in PAIRS], **options)
    target = sentencepiece_model(folder / "target.spm", [pair.target for pair in PAIRS], **options)
    vocabularies = {"vocab": source[:-5] if separate else [*source[:-5], *sorted({*target[5:]} - {*source})]}
    vocabularies["vocab"] = [*vocabularies["vocab"], *LANGUAGES]
    if separate:
        # so that another piece has the number of <pad>
        vocabularies["target_vocab"] = [*target[:-5], *(f"{piece}x" for piece in target)]
    for name, pieces in vocabularies.items():
        entries = {piece: index for index, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
        (folder / f"{name}.json").write_text(json.dumps(entries))
    return MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if separate else None,
        source_lang="en",
        target_lang="de",
        separate_vocabs=separate,
    )


def bart_tokenizer(folder) -> BartTokenizerFast:
    """Byte-level BPE, with sentences between <s> and </s>."""
    tokenizer = ByteLevelBPETokenizer()
    texts = [text for pair in PAIRS for text in (pair.source, pair.target)]
    tokenizer.train_from_iterator(texts, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.save_model(str(folder))
    return BartTokenizerFast.from_pretrained(folder)


def run_tokenizer(folder, algorithm: str) -> PreTrainedTokenizerFast:
    return train_tokenizer([pair.source for pair in PAIRS], 500, 41, algorithm)


TOKENIZERS = {
    "marian": marian_tokenizer,
    "marian, separate": lambda folder: marian_tokenizer(folder, separate=True),
    "marian, case folded": lambda folder: marian_tokenizer(folder, normalization_rule_name="nmt_nfkc_cf"),
    "marian, not normalised": lambda folder: marian_tokenizer(folder, normalization_rule_name="identity"),
    "bart": bart_tokenizer,
    "run, unigram": lambda folder: run_tokenizer(folder, "unigram"),
    "run, bpe": lambda folder: run_tokenizer(folder, "bpe"),
    "tiny": lambda folder: tiny_tokenizer(),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request, tmp_path):
    return TOKENIZERS[request.param](tmp_path)


def encode(side: Side, tokenizer, texts: list[str], special: bool) -> list[list[int]]:
    """As the translator does."""
    first, aliases = side.aliases
    side.tokenizer.encode_special_tokens = tokenizer.split_special_tokens
    encoded = side.tokenizer.encode_batch(texts, add_special_tokens=special)
    return [[aliases[i - first] if aliases and i >= first else i for i in encoding.ids] for encoding in encoded]


def test_tokens_are_those_of_transformers(tokenizer):
    source, target = source_and_target(tokenizer)
    found = encode(source, tokenizer, TEXTS, True)
    for text, ids, expected in zip(TEXTS, found, tokenizer(TEXTS)["input_ids"], strict=True):
        assert ids == expected, text
    found = encode(target, tokenizer, TEXTS, False)
    forced = tokenizer(text_target=TEXTS, add_special_tokens=False)["input_ids"]
    for text, ids, expected in zip(TEXTS, found, forced, strict=True):
        assert ids == expected, text


def test_texts_are_those_of_transformers(tokenizer):
    _, target = source_and_target(tokenizer)
    vocabulary = list(range(len(tokenizer)))
    if getattr(tokenizer, "separate_vocabs", False):
        # one <pad> is that of the source; the other is no special token, and text
        vocabulary = [index for piece, index in tokenizer.target_encoder.items() if piece != "<pad>"]
    generator = random.Random(1)
    sequences = [[index] for index in vocabulary]
    sequences += [generator.choices(vocabulary, k=9) for _ in range(300)]
    sequences += tokenizer(text_target=TEXTS)["input_ids"] + [[]]
    for ids in sequences:
        expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert target.tokenizer.decode(ids, skip_special_tokens=True) == expected, ids


def test_random_words_of_a_marian_tokenizer(tmp_path):
    """Ties and unknown pieces in all places."""
    tokenizer = marian_tokenizer(tmp_path)
    source, _ = source_and_target(tokenizer)
    generator = random.Random(2)
    texts = ["".join(generator.choices("aaeeinrst ThZßé7Ω.,", k=30)) for _ in range(500)]
    assert encode(source, tokenizer, texts, True) == tokenizer(texts)["input_ids"]


@pytest.mark.slow
def test_an_exported_opus_model_translates_as_pytorch_does(tmp_path):
    """Pieces that the vocabulary does not have, codes and separate vocabularies go through the translator."""
    tokenizer = marian_tokenizer(tmp_path, separate=True)
    source, target = len(tokenizer.encoder), len(tokenizer.target_encoder)
    torch.manual_seed(2)
    config = plain_config(
        vocab_size=source,
        decoder_vocab_size=target,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=target - 1,
        eos_token_id=0,
    )
    model = MarianMTModel(config).eval()
    # never <pad>, as in OPUS-MT's, which forbid it
    model.final_logits_bias[0, -1] = -1e4
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "opus")
    translator = OnnxTranslator(export_onnx(tmp_path / "opus", tmp_path / "exported"), threads=1)
    prefixes = ["", *(["Der Hund Ж"] * (len(TEXTS) - 1))]
    expected = translate_nbest(model, tokenizer, TEXTS, prefixes=prefixes, num_beams=2)
    found = translator.translate_nbest(TEXTS, prefixes=prefixes, num_beams=2)
    for text, (ours,), (theirs,) in zip(TEXTS, found, expected, strict=True):
        assert (ours.tokens, ours.text) == (theirs.tokens, theirs.text), text
    assert any(hypothesis.text for (hypothesis,) in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "bpe"}, "source.spm of the tokenizer is no unigram model"),
        ({"user_defined_symbols": ["<sep>"]}, "source.spm of the tokenizer has user-defined symbols or bytes"),
        ({"byte_fallback": True, "vocab_size": 400}, "has user-defined symbols or bytes"),
        ({"add_dummy_prefix": False}, "treats spaces otherwise than by default"),
    ],
    ids=["bpe", "symbols", "bytes", "spaces"],
)
def test_other_sentencepiece_models_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        source_and_target(marian_tokenizer(tmp_path, **options))
