"""Adequacy from word alignments: which source words does a translation cover, leave out, or repeat?

Alignments are sets of pairs (i, j), source word i with target word j, both from 0. Words come from sacreBLEU's
tokenizers, lower-cased; for Chinese and Japanese they are characters.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from sacrebleu.metrics import BLEU

from .scores import base_language, refuse_single_strings

logger = logging.getLogger(__name__)

Alignment = set[tuple[int, int]]
Sentence = str | Sequence[str]

SEPARATOR = "|||"
TOKENIZERS = {"zh": "zh", "ja": "char"}
BATCH = 1000
# Words of a side: fast_align takes time in proportion to their square, minutes from 20,000 on
MAX_WORDS = 1000
# fast_align's recommended options, and a high probability of the empty word: rare words otherwise take any word that
# is left, which hides missing translations. On the grammar corpus (1,000 pairs with gold alignments, 1 to 3 target
# words deleted from each) 0.7 finds 77 % of the source words that are no longer translated, with a precision of 95 %;
# the default of 0.08 finds 40 % with 91 %. The alignment error rate is 0.07 with both.
OPTIONS: dict[str, Any] = {
    "favor_diagonal": True,
    "optimize_tension": True,
    "variational_bayes": True,
    "prob_align_null": 0.7,
    # one sentence at a time: threads would add up probabilities in an order that differs from run to run
    "thread_buffer_size": 1,
}


class Aligner:
    """
    Word alignment by fast_align (Dyer et al. 2013) in both directions, made symmetric, from systran-align.

    Nothing is downloaded: the probabilities are estimated from the text given to `fit`, so that the test set with its
    translations is enough to begin with, and more parallel text makes it better. The same text gives the same
    alignments.

    It sees every text as it can take it: the null character, at which its strings end (it would read beyond the end of
    a line), as the replacement character; and no pair with more than MAX_WORDS words on a side.
    """

    def __init__(self, model: Any) -> None:
        """Use `fit`. model: a `systran_align.Aligner`."""
        self._model = model

    @classmethod
    def fit(cls, pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Aligner:
        """
        Estimate the probabilities on parallel text.

        Args:
            pairs: source words and target words of each sentence; read once, and kept in a temporary file. Pairs with
                an empty side teach nothing and are left out, as are those that are too long.

        Raises:
            ImportError: systran-align is not installed.
            ValueError: there are no pairs, or a word is empty, contains white space or is "|||".
        """
        systran_align = _import_systran_align()
        with TemporaryDirectory() as folder:
            text, forward, backward = (str(Path(folder, name)) for name in ("text", "forward", "backward"))
            written = 0
            with open(text, "w", encoding="utf-8", newline="\n") as file:
                for source, target in pairs:
                    if _alignable(source, target):
                        file.write(f"{_line(source)} {SEPARATOR} {_line(target)}\n")
                        written += 1
            if not written:
                raise ValueError(
                    "there is no text to learn word alignments from: every pair has an empty side, or more than "
                    f"{MAX_WORDS} words"
                )
            systran_align.generate_alignment_probabilities(text, forward, backward, **OPTIONS)
            return cls(systran_align.Aligner(forward, backward))

    def align(self, pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> list[Alignment]:
        """
        Align sentence pairs, as words; a pair with an empty side, or one that is too long, has the empty alignment.

        The two directions are joined as fast_align's grow-diag heuristics do.
        """
        alignments: list[Alignment] = []
        remaining = iter(pairs)
        while batch := list(islice(remaining, BATCH)):
            rows = [row for row, pair in enumerate(batch) if _alignable(*pair)]
            sides = ([[_word(word) for word in batch[row][side]] for row in rows] for side in (0, 1))
            found: list[Alignment] = [set() for _ in batch]
            for row, result in zip(rows, self._model.align_batch(*sides), strict=True):
                found[row] = {(int(i), int(j)) for i, j in result["alignments"]}
            alignments += found
            long = sum(max(map(len, pair)) > MAX_WORDS for pair in batch)
            if long:
                logger.warning(f"{long} sentences of more than {MAX_WORDS} words are not aligned")
        return alignments


class CoverageCounts(NamedTuple):
    """Source words of a sentence, or of a test set; `translation_errors` says what they are."""

    source_words: int
    covered_by_reference: int
    covered_by_translation: int
    under_translated: int
    over_translated: int


def coverage_difference_ratio(
    reference_alignments: Sequence[Iterable[tuple[int, int]]],
    translation_alignments: Sequence[Iterable[tuple[int, int]]],
    *,
    average: Literal["corpus", "sentence"] = "corpus",
) -> float | None:
    """
    CDR = 1 - |C_ref without C_gen| / |C_ref| (Kong et al. 2019; Zheng et al. 2019, Section 4.3): of the source words
    that the reference covers, the share that the translation covers too. C is the set of source words with a link.

    Args:
        reference_alignments, translation_alignments: of each source sentence with its reference and translation.
        average: "corpus" divides the sums over all sentences, so that every word counts the same; "sentence" is the
            mean of the sentences' ratios, without those whose reference covers nothing. The papers do not say.

    Returns:
        0 to 1; None if the references cover nothing.

    Raises:
        ValueError: unequally many alignments, or an unknown average.
    """
    if len(reference_alignments) != len(translation_alignments):
        raise ValueError(
            f"got alignments of {len(reference_alignments)} references and {len(translation_alignments)} translations"
        )
    if average not in ("corpus", "sentence"):
        raise ValueError(f'average must be "corpus" or "sentence", got {average!r}')
    kept, covered = [], []
    for reference, translation in zip(reference_alignments, translation_alignments, strict=True):
        expected = {i for i, _ in reference}
        if expected:
            kept.append(len(expected & {i for i, _ in translation}))
            covered.append(len(expected))
    if not covered:
        return None
    if average == "sentence":
        return fmean(part / whole for part, whole in zip(kept, covered, strict=True))
    return sum(kept) / sum(covered)


def translation_errors(
    source_len: int,
    reference_alignment: Iterable[tuple[int, int]],
    translation_alignment: Iterable[tuple[int, int]],
    *,
    reference_words: Sequence[str] | None = None,
    translation_words: Sequence[str] | None = None,
) -> CoverageCounts:
    """
    Count the source words of one sentence that are left out or translated too often.

    - Under-translated: the reference has a link to it, the translation has none.
    - Over-translated: the translation has links to it in at least two separate places, and in more than the reference
      has. A place is a run of neighbouring target words; where the words are given, a repeated word ("der der Hund")
      begins a new one.

    Both are as good as the alignment: a word that the aligner could not place counts as left out, and a free
    translation in several words as too much. They compare systems on one test set; they are no error rates.

    Args:
        source_len: number of source words.
        reference_alignment, translation_alignment: links of the source with the reference and with the translation.
        reference_words, translation_words: the target words, to find repetitions.

    Raises:
        ValueError: a link to a word that the source, or the words given, do not have.
    """
    reference = _places(source_len, reference_alignment, reference_words, "reference")
    translation = _places(source_len, translation_alignment, translation_words, "translation")
    return CoverageCounts(
        source_words=source_len,
        covered_by_reference=len(reference),
        covered_by_translation=len(translation),
        under_translated=len(reference.keys() - translation.keys()),
        over_translated=sum(places > max(1, reference.get(i, 0)) for i, places in translation.items()),
    )


def evaluate_adequacy(
    sources: Sequence[Sentence],
    references: Sequence[Sentence],
    translations: Mapping[str, Sequence[Sentence]],
    *,
    source_lang: str = "",
    target_lang: str = "",
    extra_pairs: Iterable[tuple[Sentence, Sentence]] | None = None,
    reference_alignments: Sequence[Iterable[tuple[int, int]]] | None = None,
) -> dict[str, dict[str, Any]]:
    """
    Coverage, under- and over-translation of several systems on one test set.

    One aligner is fitted on the sources with the references, with every translation and with the extra pairs; so a
    system's figures depend slightly on which others are evaluated with it. Time on one core: about 3 s for 1,000
    sentences of 12 words and two systems, and a minute more for 29,000 extra pairs of that length.

    Args:
        sources, references: one sentence each, as text or as a list of words, which are then taken as they are.
        translations: by system, in the order of the sources.
        source_lang, target_lang: ISO codes; needed for Chinese and Japanese.
        extra_pairs: more parallel text for the aligner, such as the training set; read once.
        reference_alignments: gold alignments of sources and references in place of the aligner's; the sentences must
            then be given as the lists of words that they index.

    Returns:
        For each system: "cdr" over the corpus and "cdr_sentence_mean", see `coverage_difference_ratio`; the counts of
        `translation_errors` summed over the sentences; "under_translated_share" of the words covered by the reference
        (1 - CDR) and "over_translated_share" of the words covered by the translation. Ratios and shares are None where
        nothing is covered.

    Raises:
        ImportError: systran-align is not installed.
        ValueError: empty or unequally long lists, or gold alignments that do not fit the words.
    """
    _import_systran_align()
    _check(sources, references, translations, reference_alignments)
    source_tokenizer, target_tokenizer = _Tokenizer(source_lang), _Tokenizer(target_lang)
    source_words = [source_tokenizer(sentence) for sentence in sources]
    words = {name: [target_tokenizer(sentence) for sentence in sentences] for name, sentences in translations.items()}
    reference_words = [target_tokenizer(sentence) for sentence in references]
    known = chain.from_iterable(
        zip(source_words, target, strict=True) for target in (reference_words, *words.values())
    )
    extra = ((source_tokenizer(source), target_tokenizer(target)) for source, target in extra_pairs or ())
    aligner = Aligner.fit(chain(known, extra))
    gold = reference_alignments
    if gold is None:
        gold = aligner.align(zip(source_words, reference_words, strict=True))
    results = {}
    for name, target_words in words.items():
        found = aligner.align(zip(source_words, target_words, strict=True))
        counts = [
            translation_errors(len(source), one, other, reference_words=reference, translation_words=target)
            for source, reference, target, one, other in zip(
                source_words, reference_words, target_words, gold, found, strict=True
            )
        ]
        results[name] = {
            "cdr": coverage_difference_ratio(gold, found),
            "cdr_sentence_mean": coverage_difference_ratio(gold, found, average="sentence"),
            **_summary(counts),
        }
    return results


def _summary(counts: Sequence[CoverageCounts]) -> dict[str, Any]:
    total = CoverageCounts(*(sum(column) for column in zip(*counts, strict=True)))
    reference, translation = total.covered_by_reference, total.covered_by_translation
    return {
        **total._asdict(),
        "under_translated_share": total.under_translated / reference if reference else None,
        "over_translated_share": total.over_translated / translation if translation else None,
    }


def _places(
    source_len: int, alignment: Iterable[tuple[int, int]], words: Sequence[str] | None, name: str
) -> dict[int, int]:
    """Number of separate places in the target, for each source word that has a link."""
    links = defaultdict(list)
    for i, j in sorted(set(alignment)):
        if not 0 <= i < source_len or j < 0 or (words is not None and j >= len(words)):
            target_len = "" if words is None else f" and {len(words)} in the target"
            raise ValueError(
                f"the alignment of the {name} links words {i} and {j}, counted from 0, but there are {source_len}"
                f" words in the source{target_len}"
            )
        links[i].append(j)
    return {i: _runs(positions, words) for i, positions in links.items()}


def _runs(positions: Sequence[int], words: Sequence[str] | None) -> int:
    """Runs of neighbouring positions, which are in ascending order; no word occurs twice in one."""
    runs, seen, previous = 0, set[str](), -2
    for position in positions:
        word = words[position] if words is not None else ""
        if position != previous + 1 or word in seen:
            runs += 1
            seen = set()
        if word:
            seen.add(word)
        previous = position
    return runs


class _Tokenizer:
    """Words of a sentence; a list of words is returned as it is."""

    def __init__(self, language: str) -> None:
        self._tokenize = BLEU(tokenize=TOKENIZERS.get(base_language(language), "13a")).tokenizer

    def __call__(self, sentence: Sentence) -> Sequence[str]:
        return str(self._tokenize(sentence)).lower().split() if isinstance(sentence, str) else sentence


def _alignable(source: Sequence[str], target: Sequence[str]) -> bool:
    return 0 < len(source) <= MAX_WORDS and 0 < len(target) <= MAX_WORDS


def _word(word: str) -> str:
    return word.replace("\0", "\ufffd")


def _line(words: Sequence[str]) -> str:
    for word in words:
        if word == SEPARATOR or word.split() != [word]:
            raise ValueError(
                f'a word to align must have no white space and be neither empty nor "{SEPARATOR}", got {word!r}'
            )
    return " ".join(map(_word, words))


def _check(
    sources: Sequence[Sentence],
    references: Sequence[Sentence],
    translations: Mapping[str, Sequence[Sentence]],
    reference_alignments: Sequence[Iterable[tuple[int, int]]] | None,
) -> None:
    lists: dict[str, Sequence[Any]] = {"references": references}
    lists |= {f"translations of {name!r}": sentences for name, sentences in translations.items()}
    if reference_alignments is not None:
        lists["reference_alignments"] = reference_alignments
        if any(isinstance(sentence, str) for sentence in chain(sources, references)):
            raise ValueError(
                "reference_alignments count the words of their own tokenisation: pass sources and references as lists"
                " of these words, not as text"
            )
    refuse_single_strings({"sources": sources, **lists})
    for name, sentences in lists.items():
        if len(sentences) != len(sources):
            raise ValueError(f"got {len(sources)} sources, but {len(sentences)} {name}")
    if not sources:
        raise ValueError("nothing to evaluate: there are no sentences")


def _import_systran_align() -> Any:
    try:
        import systran_align
    except ImportError as error:
        raise ImportError(
            'word alignments need systran-align: pip install "hf_capsule_mt[align]" (its wheels end with Python 3.11)'
        ) from error
    return systran_align
