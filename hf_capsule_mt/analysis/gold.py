"""Gold answers about one sentence pair, without a model. Shapes: T target pieces with the end of sentence, W source
words, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.grammar import GrammarPair
from .aligned_text import AlignedPair

Pair = GrammarPair | AlignedPair
TRANSLATED, UNTRANSLATED, LEFT_OUT, WITHOUT_LINK = 1, 0, -1, 2


def gold_translated(pair: Pair, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, list[list[int]]]:
    """
    Which source words are translated before each target piece.

    A source word is translated before step t if every target word aligned with it is complete (its last piece comes
    before t), and untranslated if none has begun. The target ends with the end of sentence, as the tokenizer has it.

    Args:
        pair: sentences with their gold word alignment.
        tokenizer: a fast one.

    Returns:
        The answers, int8 [T, W], 1 translated, 0 untranslated, -1 left out: in between, or a word without alignment;
        and for each of the W source words the positions of its pieces, ascending. A piece that crosses a word boundary
        belongs to both words.

    Raises:
        ValueError: the tokenizer is not a fast one, or no piece covers a word.
    """
    if not tokenizer.is_fast:
        raise ValueError("words are found through character offsets, which only fast tokenizers give")
    source = tokenizer(pair.source, return_offsets_mapping=True)
    target = tokenizer(text_target=pair.target, return_offsets_mapping=True)
    source_pieces = _pieces_of_words(pair.source, pair.source_tokens, source["offset_mapping"])
    target_pieces = _pieces_of_words(pair.target, pair.target_tokens, target["offset_mapping"])
    steps = np.arange(len(target["input_ids"]))
    gold = np.full((len(steps), len(source_pieces)), LEFT_OUT, dtype=np.int8)
    for word in range(len(source_pieces)):
        aligned = [piece for i, j in pair.alignment if i == word for piece in target_pieces[j]]
        if aligned:
            gold[steps > max(aligned), word] = TRANSLATED
            gold[steps <= min(aligned), word] = UNTRANSLATED
    return gold, source_pieces


def piece_links(pair: Pair, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """
    The links of a pair as positions of pieces: all pieces of the source word with the last of the target word, which
    completes it.

    Raises:
        ValueError: as `gold_translated`.
    """
    source = tokenizer(pair.source, return_offsets_mapping=True)["offset_mapping"]
    target = tokenizer(text_target=pair.target, return_offsets_mapping=True)["offset_mapping"]
    ours = _pieces_of_words(pair.source, pair.source_tokens, source)
    theirs = _pieces_of_words(pair.target, pair.target_tokens, target)
    return [(piece, max(theirs[j])) for i, j in pair.alignment for piece in ours[i]]


def words_without_link(pair: Pair) -> list[int]:
    """Source words that nothing in the target is aligned with, for certain: what REDUNDANT is meant for."""
    linked = {i for i, _ in pair.alignment} | set(getattr(pair, "unsure", ()))
    return [word for word in range(len(pair.source_tokens)) if word not in linked]


def _pieces_of_words(text: str, words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """
    Positions of the pieces of each word. Only spaces stand between words; they belong to the word that follows, whose
    first piece begins with them or is nothing else. Bytes of a character all have that character's span, and special
    tokens the span (0, 0), which is in no word.
    """
    pieces, end = [], 0
    for word in words:
        start = end
        end = text.index(word, start) + len(word)
        pieces.append([k for k, (first, last) in enumerate(offsets) if first < end and last > start])
        if not pieces[-1]:
            raise ValueError(f"no piece of the tokenizer covers the word {word!r} of {text!r}")
    return pieces


def overlap_rates(
    past_log_probs: Tensor, future_log_probs: Tensor, labels: Tensor
) -> tuple[float | None, float | None]:
    """
    How much of the bags y_<t and y_>=t the likeliest words contain (the top-5 overlap rates r_OL of Zheng et al. 2019,
    Section 4.3, for one sentence).

    Both bags count as sets of tokens. A bag of n positions is compared with the 5 n likeliest tokens, all V if these
    are fewer; the share of the set that is among them is averaged over the steps. Deviation: the paper's PAST bag is
    y_<=t and its FUTURE list has 5 (T - t) tokens; here the bags are those of L_BOW and each list fits its bag. The
    first step has no PAST bag and does not count.

    Args:
        past_log_probs, future_log_probs: [T, V].
        labels: token ids y, [T], end of sentence included.

    Returns:
        The rates of PAST and FUTURE, 0 to 1; None for the PAST of a single step.
    """
    ids = labels.tolist()
    past_ranks, future_ranks = (
        _likeliest(log_probs, 5 * len(ids)) for log_probs in (past_log_probs, future_log_probs)
    )
    past = [_overlap(ranks, ids[:step]) for step, ranks in enumerate(past_ranks) if step > 0]
    future = [_overlap(ranks, ids[step:]) for step, ranks in enumerate(future_ranks)]
    return (float(np.mean(past)) if past else None), float(np.mean(future))


def _likeliest(log_probs: Tensor, count: int) -> list[list[int]]:
    """At least the `count` likeliest tokens in each row of [T, V], likeliest first, equal ones by their number."""
    # a stable sort of the whole vocabulary would take most of the time of a report
    bounds = log_probs.topk(min(count, log_probs.shape[-1]), dim=-1, sorted=False).values.amin(dim=-1)
    ranks = []
    for row, bound in zip(log_probs, bounds, strict=True):
        tokens = (row >= bound).nonzero()[:, 0]
        ranks.append(tokens[row[tokens].argsort(descending=True, stable=True)].tolist())
    return ranks


def _overlap(ranks: list[int], bag: list[int]) -> float:
    types = set(bag)
    return len(types.intersection(ranks[: 5 * len(bag)])) / len(types)
