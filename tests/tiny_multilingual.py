"""Tiny multilingual tokenizers of all four kinds, and models to go with them; nothing is downloaded."""

import functools
import io
import json
from pathlib import Path

import sentencepiece
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.m2m_100 import tokenization_m2m_100
from transformers.models.mbart import tokenization_mbart
from transformers.models.mbart50 import tokenization_mbart50

from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.models.tokenizer_languages import LanguagePair, remember_languages
from tiny_translation import SOURCES, TARGETS

# English, German and French, as each of the tokenizers calls them
LANGUAGES = {
    "m2m100": ("en", "de", "fr"),
    "nllb": ("eng_Latn", "deu_Latn", "fra_Latn"),
    "mbart": ("en_XX", "de_DE", "fr_XX"),
    "mbart50": ("en_XX", "de_DE", "fr_XX"),
}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LIMIT = 40
# of the lines that a model translates: another sentence is not among them
FRENCH = [f"le {word} dort ." for word in ("chien", "chat", "vieux", "livre", "petit", "jardin")]


@functools.cache
def sentencepiece_model(model_type: str = "unigram") -> bytes:
    """Of the tiny sentences."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SOURCES, *TARGETS, *FRENCH]),
        model_writer=model,
        vocab_size=90,
        model_type=model_type,
        **({"hard_vocab_limit": False} if model_type == "unigram" else {}),
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


@functools.cache
def _pieces(model_type: str = "unigram") -> list[tuple[str, float]]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(model_type))
    # without <unk>, <s> and </s>, which come first
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, len(processor))]


def multilingual_tokenizer(kind: str, folder: Path) -> PreTrainedTokenizerBase:
    """
    A new tokenizer of a kind of LANGUAGES.

    Args:
        folder: M2M100's are made of files, which are written there.
    """
    if kind == "m2m100":
        pieces = [*SPECIAL, *(piece for piece, _ in _pieces("bpe"))]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "pieces.model").write_bytes(sentencepiece_model("bpe"))
        codes = tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        return M2M100Tokenizer(
            str(folder / "vocab.json"),
            str(folder / "pieces.model"),
            model_max_length=LIMIT,
            # as published checkpoints have them
            additional_special_tokens=[f"__{code}__" for code in codes],
        )
    if kind == "nllb":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
        tokenizer.train_from_iterator([*SOURCES, *TARGETS, *FRENCH], trainer)
        parts = json.loads(tokenizer.to_str())["model"]
        return NllbTokenizer(
            vocab=parts["vocab"], merges=[tuple(merge) for merge in parts["merges"]], model_max_length=LIMIT
        )
    kinds = {"mbart": (MBartTokenizer, tokenization_mbart), "mbart50": (MBart50Tokenizer, tokenization_mbart50)}
    tokenizer_class, module = kinds[kind]
    codes = [(code, 0.0) for code in module.FAIRSEQ_LANGUAGE_CODES]
    vocabulary = [*((token, 0.0) for token in SPECIAL), *_pieces(), *codes, ("<mask>", 0.0)]
    return tokenizer_class(vocab=vocabulary, model_max_length=LIMIT)


def multilingual_model(kind: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A new plain model of random weights for a tokenizer of that kind, in evaluation mode."""
    sizes = dict(
        vocab_size=len(tokenizer) + 3,
        d_model=12,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=3,
        encoder_ffn_dim=19,
        decoder_ffn_dim=17,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        max_position_embeddings=41,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        init_std=0.4,
    )
    torch.manual_seed(3)
    if kind.startswith("mbart"):
        return MBartForConditionalGeneration(MBartConfig(**sizes, forced_eos_token_id=None)).eval()
    return M2M100ForConditionalGeneration(M2M100Config(**sizes)).eval()


def save_multilingual(kind: str, folder: Path) -> Path:
    """A checkpoint of random weights with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = multilingual_tokenizer(kind, folder)
    multilingual_model(kind, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_pair(kind: str, checkpoint: Path, folder: Path) -> Path:
    """A checkpoint with linear aggregation that says its pair of languages, English and German."""
    convert(checkpoint, folder, aggregation="linear")
    tokenizer, config = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    remember_languages(config, tokenizer, [LanguagePair(*LANGUAGES[kind][:2])])
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    return folder
