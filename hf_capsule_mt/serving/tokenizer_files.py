"""Tokenizers as files that the library `tokenizers` reads by itself.

Those of transformers' fast classes are such files. MarianTokenizer (OPUS-MT) runs two SentencePiece models in Python
and looks their pieces up in vocab.json; here each becomes a Unigram model whose entries have the ids of vocab.json.
M2M100Tokenizer runs one, which becomes a BPE model.

transformers (5.17 to 5.23) makes a normaliser of punctuation (sacremoses) for MarianTokenizer and does not call it; so
there is none here either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import M2M100Tokenizer, MarianTokenizer, PreTrainedTokenizerBase

from ..models.tokenizer_languages import (
    ends_with_language,
    is_multilingual,
    language_codes,
    language_id,
    saved_languages,
)

SPACE = "▁"
# Characters of no text: in the place of >> and << of a language code, and of a whole code that the vocabulary lacks;
# before a piece that is decoded and never encoded; around characters that no piece has; for any of these in a text
CODE, CODE_END, UNKNOWN_CODE, DECODED_ONLY, OPEN, CLOSE = map(chr, range(0xFDD0, 0xFDD6))
STRANGER = "\ufdef"
# enums of sentencepiece_model.proto
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
MODEL_TYPES = {1: "unigram", 2: "BPE"}


class Side(NamedTuple):
    """
    The tokenizer of one side.

    Attributes:
        tokenizer: of the library.
        aliases: the first of its ids that the model does not have, and the ids that it and those after it stand for.
    """

    tokenizer: Tokenizer
    aliases: tuple[int, list[int]] = (0, [])


def source_and_target(tokenizer: PreTrainedTokenizerBase) -> tuple[Side, Side]:
    """The tokenizer of the source, and that of translations.

    Raises:
        ValueError: if it is written in Python, and is none that is known here.
    """
    if isinstance(tokenizer, MarianTokenizer):
        target = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
        return (
            _from_sentencepiece(tokenizer, tokenizer.spm_source, tokenizer.encoder, "source.spm"),
            _from_sentencepiece(tokenizer, tokenizer.spm_target, target, "target.spm"),
        )
    if isinstance(tokenizer, M2M100Tokenizer):
        both = _from_bpe(tokenizer)
        return both, both
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"a {type(tokenizer).__name__} runs in Python, where an exported model has the library tokenizers alone: "
            "use a tokenizer with a tokenizer.json"
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return Side(copy), Side(copy)


def _from_bpe(tokenizer: M2M100Tokenizer) -> Side:
    """An M2M100Tokenizer without the marks of languages and ends: pieces are joined in the order of their scores."""
    proto = _proto(tokenizer.sp_model, "the SentencePiece model", "BPE")
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    missing = [piece for piece in scores if piece not in tokenizer.encoder]
    if missing:
        raise ValueError(
            f"vocab.json of the tokenizer lacks pieces of its SentencePiece model, such as {missing[0]!r}"
        )
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=lambda name: -scores[name]):
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [split for split in splits if split[0] in scores and split[1] in scores]
        merges += sorted(known, key=lambda split: (-scores[split[0]], -scores[split[1]]))
    made = Tokenizer(models.BPE(dict(tokenizer.encoder), merges, unk_token=str(tokenizer.unk_token), fuse_unk=True))
    special = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
    special |= {index: token for token, index in tokenizer.lang_token_to_id.items()}
    made.add_special_tokens([AddedToken(token, normalized=False) for _, token in sorted(special.items())])
    for index, token in special.items():
        if made.token_to_id(token) != index:
            raise ValueError(f"the tokenizer's token {token!r} has the id {index}, which is not behind its vocabulary")
    charsmap = proto.normalizer_spec.precompiled_charsmap
    made.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    strip = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), strip])
    return Side(made)


def language_settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """
    What a translator has to know of the languages of a multilingual tokenizer; None for one of a single pair.

    Returns:
        "ids" of the languages by code; "source" and "target", the pair that was saved with the tokenizer, or None;
        the tokens "before" and "behind" source text, None among them being its language; "forced", whether the target
        language is forced behind the start token: that of mBART is the start token.
    """
    if not is_multilingual(tokenizer):
        return None
    saved = saved_languages(tokenizer)
    ids = {code: language_id(tokenizer, code) for code in language_codes(tokenizer)}
    own = ids[tokenizer.src_lang]
    marks = {
        name: [None if token == own else token for token in tokens]
        for name, tokens in (("before", tokenizer.prefix_tokens), ("behind", tokenizer.suffix_tokens))
    }
    pair = dict(zip(("source", "target"), saved or (None, None), strict=True))
    return {"ids": ids, **pair, **marks, "forced": not ends_with_language(tokenizer)}


def _from_sentencepiece(tokenizer: MarianTokenizer, processor: Any, vocabulary: Mapping[str, int], name: str) -> Side:
    """One side of a MarianTokenizer: the pieces and normaliser of a SentencePiece model, the ids of a vocabulary."""
    proto = _proto(processor, name)
    added = tokenizer.added_tokens_decoder
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    worst = min(scores.values())
    codes = sorted(token[2:] for token in vocabulary if re.fullmatch(r">>(?:(?!<<)[\s\S])*<<", token))
    known = set("".join([*scores, *codes])) | {" ", SPACE, "<"}
    entries: dict[int, tuple[str, float]] = {}
    for token, index in vocabulary.items():
        if token in scores:
            entries[index] = (token, scores[token])
        elif token[2:] in codes and token.startswith(">>"):
            # nothing else that spells it is as likely
            entries[index] = (f"{CODE}{token[2:-2]}{CODE_END}", 0.0)
        elif known.isdisjoint(token):
            # of the other side: SentencePiece gives characters that it does not know back as they are
            entries[index] = (f"{OPEN}{token}{CLOSE}", 0.0)
        else:
            entries[index] = (f"{DECODED_ONLY}{token}", worst)
    # as in transformers, these are first whatever the vocabulary says of their ids
    hidden = {index: entries[index] for index, token in added.items() if entries.get(index, ("",))[0] in scores}
    for index, token in added.items():
        entries[index] = (token.content, worst)
    first = max(entries) + 1
    unknown = vocabulary[str(tokenizer.unk_token)]
    others = {piece: unknown for piece in scores if piece not in vocabulary}
    others |= {piece: index for index, (piece, _) in hidden.items()}
    listed = [entries.get(index, (f"{DECODED_ONLY}{index}", worst)) for index in range(first)]
    listed += [(piece, scores[piece]) for piece in others]
    listed += [(UNKNOWN_CODE, 0.0)]
    made = Tokenizer(models.Unigram(listed, unk_id=unknown))
    made.add_tokens([AddedToken(**_fields(token)) for _, token in sorted(added.items())])
    made.normalizer = _normalizer(proto.normalizer_spec.precompiled_charsmap, codes, known)
    made.pre_tokenizer = pre_tokenizers.Split(
        Regex(rf"\A(?:{CODE}[^{CODE_END}]*{CODE_END}|{UNKNOWN_CODE})"), "isolated"
    )
    end = str(tokenizer.eos_token)
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(f"[{DECODED_ONLY}{OPEN}{CLOSE}]"), ""),
            decoders.Replace(CODE, ">>"),
            decoders.Replace(CODE_END, "<<"),
            decoders.Replace(SPACE, " "),
            decoders.Fuse(),
            decoders.Replace(Regex(r"\A\s+|\s+\z"), ""),
        ]
    )
    return Side(made, (first, [*others.values(), unknown]))


def _fields(token: AddedToken) -> dict[str, Any]:
    names = ("content", "single_word", "lstrip", "rstrip", "special")
    return {**{name: getattr(token, name) for name in names}, "normalized": False}


def _proto(processor: Any, name: str, model_type: str = "unigram") -> Any:
    """
    What a SentencePiece model says of itself.

    Args:
        model_type: of MODEL_TYPES, what it has to be.

    Raises:
        ValueError: if the library tokenizers has no such model.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = {piece.type for piece in proto.pieces} - {NORMAL, UNKNOWN, CONTROL, UNUSED}
    whitespace = (normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces)
    for refused, what in (
        (MODEL_TYPES.get(trainer.model_type) != model_type, f"is no {model_type} model"),
        (bool(kinds), "has user-defined symbols or bytes"),
        (not all(whitespace) or trainer.treat_whitespace_as_suffix, "treats spaces otherwise than by default"),
    ):
        if refused:
            raise ValueError(
                f"{name} of the tokenizer {what}, and SentencePiece models like this cannot be exported: keep "
                "translating with PyTorch"
            )
    return proto


def _normalizer(charsmap: bytes, codes: list[str], known: set[str]) -> normalizers.Normalizer:
    """As SentencePiece normalises; a language code at the beginning is taken out of its way."""
    listed = "|".join(map(re.escape, codes))
    inside = f"[^{''.join(map(re.escape, sorted(known)))}{CODE}-{CLOSE}]"
    replaced = normalizers.Replace
    # of text that has these characters all the same
    steps: list[Any] = [replaced(Regex(f"[{CODE}-{CLOSE}]"), STRANGER)]
    if listed:
        steps.append(replaced(Regex(rf"\A>>(?={listed})"), CODE))
    steps.append(replaced(Regex(r"\A>>[\s\S]*?<<"), UNKNOWN_CODE))
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    steps += [replaced(Regex(" {2,}"), " "), replaced(Regex(r"\A +| +\z"), "")]
    steps += [
        replaced(Regex(f"(?<!{inside})(?={inside})"), OPEN),
        replaced(Regex(f"(?<={inside})(?!{inside})"), CLOSE),
        # a space before the first word, which behind a code is not the first
        replaced(Regex(rf"\A{CODE}(?:(?!<<)[\s\S])*\K<< *(?=[\s\S])"), f"{CODE_END} "),
        replaced(Regex(rf"\A{CODE}(?:(?!<<)[\s\S])*\K<<\z"), CODE_END),
        replaced(Regex(rf"\A{UNKNOWN_CODE} *(?=[\s\S])"), f"{UNKNOWN_CODE} "),
        replaced(Regex(rf"\A(?=[^{CODE}{UNKNOWN_CODE}])"), " "),
        replaced(" ", SPACE),
    ]
    return normalizers.Sequence(steps)
