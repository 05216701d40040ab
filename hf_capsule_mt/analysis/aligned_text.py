"""Real text with word alignments, made by hand or by an aligner, for the probes of PAST and FUTURE."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ..evaluation.adequacy import Aligner
from ..evaluation.scores import UNSPACED_LANGUAGES, base_language
from .alignment_files import Links, WordAlignment, read_alignments

# what links can count
UNITS = {"spaces": "words between spaces", "marks": "words and punctuation marks"}


@dataclass(frozen=True)
class AlignedPair:
    """
    A sentence pair and its word alignment.

    Attributes:
        source, target: the text that a model reads; every word is in it, in order.
        source_tokens, target_tokens: the words.
        alignment: sorted pairs (i, j), word i of the source with word j of the target, both from 0.
        unsure: words of the source of which the alignment does not say whether they are translated.
    """

    source: str
    target: str
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    alignment: Links
    unsure: tuple[int, ...] = ()


@dataclass(frozen=True)
class AlignmentFile:
    """
    A file of word alignments, and what is known of it; None where that is to be found out.

    Attributes:
        path: see `alignment_files.read_alignments`.
        words: what the links count: "spaces", words between spaces, or "marks", words and punctuation marks.
        base: number of a sentence's first word.
        order: "source-target" or "target-source".
    """

    path: Path
    words: str | None = None
    base: int | None = None
    order: str | None = None


@dataclass(frozen=True)
class AlignedText:
    """Sentence pairs with the alignments of a file, and how this was read (see `AlignmentFile`)."""

    pairs: list[AlignedPair]
    file: str
    words: str
    base: int
    order: str

    def describe(self) -> dict[str, str | int]:
        """Everything but the pairs."""
        return {"file": self.file, "words": self.words, "base": self.base, "order": self.order}

    def split(self, text: str, language: str) -> list[str]:
        """The words of other text as the alignments count them."""
        return split_words(text, self.words, language)


def read_aligned_text(
    sources: Sequence[str], targets: Sequence[str], given: AlignmentFile, *, source_lang: str, target_lang: str
) -> AlignedText:
    """
    Text as a model reads it, with the alignments of a file.

    Links count the words between spaces; where they go beyond these, words and punctuation marks.

    Raises:
        ValueError, OSError: see `alignment_files.read_alignments`.
    """
    languages = (source_lang, target_lang)
    try:
        return _read_as(given.words or "spaces", sources, targets, given, languages)
    except ValueError:
        if given.words is not None:
            raise
    return _read_as("marks", sources, targets, given, languages)


def _read_as(
    words: str, sources: Sequence[str], targets: Sequence[str], given: AlignmentFile, languages: tuple[str, str]
) -> AlignedText:
    ours, theirs = (
        [tuple(split_words(text, words, language)) for text in texts]
        for texts, language in zip((sources, targets), languages, strict=True)
    )
    lengths = [(len(i), len(j)) for i, j in zip(ours, theirs, strict=True)]
    read = read_alignments(given.path, lengths, base=given.base, order=given.order, unit=UNITS[words])
    pairs = [
        AlignedPair(source, target, i, j, alignment.links, alignment.unsure)
        for source, target, i, j, alignment in zip(sources, targets, ours, theirs, read.alignments, strict=True)
    ]
    return AlignedText(pairs, given.path.name, words, read.base, read.order)


def pairs_by_hand(
    sources: Sequence[str],
    targets: Sequence[str],
    alignments: Sequence[WordAlignment],
    *,
    source_lang: str,
    target_lang: str,
    cased: tuple[Iterable[str], Iterable[str]] | None = None,
) -> list[AlignedPair]:
    """
    Sentence pairs from tokenised text, whose words are between spaces, as a model is used to read them.

    The words are joined by Moses' detokenizer. Text without capitals gets those that its words mostly have in `cased`.

    Args:
        cased: text of both sides as the model was trained on it.

    Raises:
        ImportError: sacremoses is missing.
    """
    sides = []
    for sentences, language, text in zip(
        (sources, targets), (source_lang, target_lang), cased or (None, None), strict=True
    ):
        words = [tuple(sentence.split()) for sentence in sentences]
        if text is not None and not any(sentence != sentence.lower() for sentence in sentences):
            words = _with_capitals(words, text)
        sides.append([(joined(row, language), row) for row in words])
    return [
        AlignedPair(source, target, ours, theirs, alignment.links, alignment.unsure)
        for (source, ours), (target, theirs), alignment in zip(*sides, alignments, strict=True)
    ]


def pairs_by_aligner(
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    source_lang: str,
    target_lang: str,
    training: Iterable[tuple[str, str]] = (),
) -> list[AlignedPair]:
    """
    Sentence pairs of raw text with the alignment of fast_align, see `adequacy.Aligner`.

    Args:
        training: more parallel text for the aligner; read once.

    Raises:
        ImportError: systran-align is missing.
        ValueError: nothing can be aligned.
    """

    def words(pair: tuple[str, str]) -> tuple[list[str], list[str]]:
        ours, theirs = words_of(pair[0], source_lang), words_of(pair[1], target_lang)
        return [word.lower() for word in ours], [word.lower() for word in theirs]

    text = list(zip(sources, targets, strict=True))
    aligner = Aligner.fit(map(words, chain(text, training)))
    return [
        AlignedPair(
            source,
            target,
            tuple(words_of(source, source_lang)),
            tuple(words_of(target, target_lang)),
            tuple(sorted(links)),
        )
        for (source, target), links in zip(text, aligner.align(map(words, text)), strict=True)
    ]


def split_words(text: str, words: str, language: str) -> list[str]:
    """The words of raw text: "spaces", words between spaces, or "marks", see `words_of`."""
    return text.split() if words == "spaces" else words_of(text, language)


def words_of(text: str, language: str) -> list[str]:
    """Words and punctuation marks of raw text, each as it stands there; characters of Chinese and Japanese."""
    spaced = base_language(language) not in UNSPACED_LANGUAGES
    return re.findall(r"\w+|[^\w\s]" if spaced else r"\S", text)


def joined(words: Sequence[str], language: str) -> str:
    """The words as running text, or between spaces where the detokenizer would change one of them."""
    try:
        from sacremoses import MosesDetokenizer
    except ImportError as error:
        raise ImportError("tokenised text is joined by sacremoses: pip install sacremoses") from error
    text = MosesDetokenizer(lang=base_language(language)).detokenize(list(words), unescape=False)
    end = 0
    for word in words:
        start = text.find(word, end)
        if start < 0 or text[end:start].strip():
            return " ".join(words)
        end = start + len(word)
    return text


def _with_capitals(sentences: Sequence[Sequence[str]], text: Iterable[str]) -> list[tuple[str, ...]]:
    """Every word as it is mostly written in the text, where it does not begin a line; the first with a capital."""
    forms: dict[str, Counter[str]] = {}
    for line in text:
        for word in re.findall(r"[\w-]+", line)[1:]:
            forms.setdefault(word.lower(), Counter())[word] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in forms.items()}
    found = []
    for sentence in sentences:
        words = [usual.get(word, word) for word in sentence]
        if words:
            words[0] = words[0][:1].upper() + words[0][1:]
        found.append(tuple(words))
    return found
