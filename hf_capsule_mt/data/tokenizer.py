"""Joint sub-word tokenizers trained on raw text, in which no character is ever lost."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_whole
from .cache import cached

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE, Unigram
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
ALGORITHMS = ("unigram", "bpe")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Always in the vocabulary, so that no plain text (not even a literal "<0x41>") needs a byte piece for them. The last
# one marks spaces.
ALPHABET = "".join(chr(code) for code in range(33, 127)) + "▁"
# A reserved piece must never win against the characters that spell its name.
RESERVED_SCORE = -1e4
# Part of the name of a tokenizer in a cache; raise it when what train_tokenizer makes of a text changes.
TOKENIZER_VERSION = 1


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    model_max_length: int,
    algorithm: str = "unigram",
    *,
    cache_dir: Path | None = None,
) -> PreTrainedTokenizerFast:
    """
    Train a joint tokenizer on the text of both languages. The same text gives the same tokenizer.

    Pieces are Unigram (Kudo 2018) or BPE (Sennrich et al. 2016) within words that carry their preceding space. A
    character that was not seen in training, or is too rare for a place in the vocabulary, falls back to its bytes, so
    that a text survives encoding and decoding (but a leading space is lost, and U+2581, which marks spaces, becomes
    one). Ids: 0 `<pad>`, 1 `</s>`, 2 `<unk>`; the end of sentence is appended to every text.

    Args:
        texts: sentences of both languages; blank ones are skipped.
        vocab_size: pieces in all, special tokens and the 256 bytes included. Fewer come out where the text is too
            small to support them.
        model_max_length: longest sequence that the model can read, in tokens.
        algorithm: "unigram" or "bpe".
        cache_dir: folder that keeps trained tokenizers, see `cached`; a file's name is a digest of all that it depends
            on. None keeps nothing.

    Raises:
        ValueError: an unknown algorithm, a vocabulary too small for bytes and ASCII, or no text.
    """
    from transformers import PreTrainedTokenizerFast

    if algorithm not in ALGORITHMS:
        raise ValueError(f"tokenizer_algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    available = vocab_size - len(SPECIAL_TOKENS) - len(BYTE_PIECES) - len(ALPHABET)
    if available < 0:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: special tokens, bytes and ASCII characters alone are "
            f"{vocab_size - available} pieces"
        )
    sentences = [text for text in texts if text.strip()]
    if not sentences:
        raise ValueError("cannot train a tokenizer: there is no text")

    tokenizer = cached(
        None if cache_dir is None else cache_dir / f"{_digest(sentences, vocab_size, algorithm)}.json",
        _read,
        make=lambda: _train(_spell_with(available // 2, sentences), vocab_size, algorithm),
        save=lambda made, path: write_whole(path, made.to_str()),
        what="the trained tokenizer",
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=model_max_length,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        # A "</s>" in the text is text.
        split_special_tokens=True,
    )


def forget_last_call(tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Switch truncation and padding off, which a fast tokenizer keeps from its last call and would save.

    So the same tokenizer gives the same files, whatever it has encoded. Every call of transformers sets its own.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()


def _spell_with(num_characters: int, sentences: list[str]) -> list[str]:
    """The sentences without their rarest characters beyond ASCII, those that fall back to bytes, if there are more."""
    counts = Counter(character for sentence in sentences for character in sentence)
    other = sorted(set(counts) - set(ALPHABET) - {" "}, key=lambda character: (-counts[character], character))
    gaps = str.maketrans(dict.fromkeys(other[num_characters:], " "))
    return [sentence.translate(gaps) for sentence in sentences] if gaps else sentences


def _train(sentences: list[str], vocab_size: int, algorithm: str) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors

    train = _train_unigram if algorithm == "unigram" else _train_bpe
    tokenizer = Tokenizer(train(sentences, vocab_size))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    return tokenizer


def _digest(sentences: list[str], vocab_size: int, algorithm: str) -> str:
    """Of all that a tokenizer depends on, the libraries that train it included."""
    digest = hashlib.blake2b(digest_size=16)
    versions = [version(name) for name in ("sentencepiece", "tokenizers")]
    digest.update(json.dumps([TOKENIZER_VERSION, *versions, vocab_size, algorithm]).encode())
    for sentence in sentences:
        digest.update(sentence.encode() + b"\n")
    return digest.hexdigest()


def _read(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    text = path.read_text(encoding="utf-8")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(str(error)) from error


def _train_unigram(sentences: list[str], vocab_size: int) -> Unigram:
    # SentencePiece, because the scores of tokenizers' UnigramTrainer differ from run to run. One thread, because
    # they depend on the number of threads.
    import sentencepiece
    from tokenizers.models import Unigram

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        required_chars=ALPHABET,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(index), processor.get_score(index)) for index in range(len(processor))]
    reserved = {*SPECIAL_TOKENS, *BYTE_PIECES}
    vocabulary = [(piece, RESERVED_SCORE if piece in reserved else score) for piece, score in pieces]
    return Unigram(vocabulary, unk_id=2, byte_fallback=True)


def _train_bpe(sentences: list[str], vocab_size: int) -> BPE:
    from tokenizers import Tokenizer, pre_tokenizers, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE(unk_token=UNK, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *BYTE_PIECES],
        initial_alphabet=list(ALPHABET),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    # The trainer registers the byte pieces as special tokens of its tokenizer; the bare model has none.
    return tokenizer.model
