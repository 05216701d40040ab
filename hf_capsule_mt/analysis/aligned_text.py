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
from ..files import read_lines

Links = tuple[tuple[int, int], ...]
_LINK = re.compile(r"(\d+)([-?])(\d+)")


@dataclass(frozen=True)
class AlignedPair:
    """
    A sentence pair and its word alignment.

    Attributes:
        source, target: the text that a model reads; every word is in it, in order.
        source_tokens, target_tokens: the words.
        alignment: sorted pairs (i, j), word i of the source with word j of the target, both from 0.
    """

    source: str
    target: str
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    alignment: Links


def read_alignments(path: Path, *, target_first: bool = False) -> list[Links]:
    """
    Alignments that were made by hand: a line for each sentence, "i-j" for a sure link and "i?j" for a possible one.

    Possible links are kept for words of the source that have a sure one, too: they make a word count as translated
    later and as untranslated only earlier. Words with possible links alone are left without.

    Args:
        target_first: i is of the target and j of the source.

    Raises:
        ValueError: a link is none; names the line.
        OSError: the file cannot be read.
    """
    alignments = []
    for number, line in enumerate(read_lines(path), start=1):
        links = []
        for word in line.split():
            found = _LINK.fullmatch(word)
            if found is None:
                raise ValueError(f"{path}, line {number}: {word!r} is no link such as 3-4 (sure) or 3?4 (possible)")
            i, j = int(found[1]), int(found[3])
            links.append(((j, i) if target_first else (i, j), found[2] == "-"))
        sure = {link[0] for link, is_sure in links if is_sure}
        alignments.append(tuple(sorted({link for link, _ in links if link[0] in sure})))
    return alignments


def pairs_by_hand(
    sources: Sequence[str],
    targets: Sequence[str],
    alignments: Sequence[Links],
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
        ValueError: unequally many sentences, or a link to a word that is not there; names the line.
        ImportError: sacremoses is missing.
    """
    if not len(sources) == len(targets) == len(alignments):
        raise ValueError(
            f"text and alignment must have as many lines, got {len(sources)} and {len(targets)} sentences and "
            f"{len(alignments)} alignments"
        )
    sides = []
    for sentences, language, text in zip(
        (sources, targets), (source_lang, target_lang), cased or (None, None), strict=True
    ):
        words = [tuple(sentence.split()) for sentence in sentences]
        if text is not None and not any(sentence != sentence.lower() for sentence in sentences):
            words = _with_capitals(words, text)
        sides.append([(joined(row, language), row) for row in words])
    pairs = []
    for number, ((source, ours), (target, theirs), links) in enumerate(zip(*sides, alignments, strict=True), start=1):
        for i, j in links:
            if i >= len(ours) or j >= len(theirs):
                raise ValueError(
                    f"line {number}: the alignment links words {i} and {j}, counted from 0, but the sentences have "
                    f"{len(ours)} and {len(theirs)} words"
                )
        pairs.append(AlignedPair(source, target, ours, theirs, links))
    return pairs


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
