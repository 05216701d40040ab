"""Word alignments from files, in the formats that those made by hand come in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..files import read_lines

Links = tuple[tuple[int, int], ...]
SOURCE_FIRST, TARGET_FIRST = ORDERS = ("source-target", "target-source")
BASES = (0, 1)
_LINK = re.compile(r"(\d+)([-?pP])(\d+)")
_FORMATS = "a line for each sentence such as '0-0 1-2 3?4' (or 3p4), or for each link such as '1 3 4 S'"


@dataclass(frozen=True)
class WordAlignment:
    """
    The alignment of one sentence pair.

    Attributes:
        links: sorted pairs (i, j), word i of the source with word j of the target, both from 0. Possible links are
            among them for words of the source that have a sure one, too: they make a word count as translated later,
            and as untranslated only earlier.
        unsure: words of the source that have possible links alone.
    """

    links: Links
    unsure: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadAlignments:
    """The alignments of a file, a `WordAlignment` for each sentence pair, and how they were read."""

    alignments: list[WordAlignment]
    base: int
    order: str


class _Link(NamedTuple):
    """A link as it stands in the file, with its line and whether it is sure."""

    first: int
    second: int
    sure: bool
    line: int

    def __str__(self) -> str:
        return f"{self.first}{'-' if self.sure else '?'}{self.second}"


class _Misfit(NamedTuple):
    line: int
    reason: str


def read_alignments(
    path: Path,
    lengths: Sequence[tuple[int, int]],
    *,
    base: int | None = None,
    order: str | None = None,
    unit: str = "words",
) -> ReadAlignments:
    """
    Read word alignments.

    Two formats are known by their looks. Pharaoh's has a line for each sentence and in it "i-j" for a sure link,
    "i?j" or "ipj" for a possible one. That of the shared tasks of 2003 and 2005 (Mihalcea and Pedersen 2003) has a
    line for each link, "sentence i j", then S or P (S if it is left out) and maybe a confidence; sentences count
    from 1, as words do, and word 0 is none (unless a link is 0 0, which can only be counted from 0).

    What is not given is found out if only one reading fits all sentences. Where links could be of either order, they
    are source-target, as both formats are defined.

    Args:
        path: the file.
        lengths: words of the source and of the target of each sentence pair.
        base: number of a sentence's first word, 0 or 1.
        order: "source-target" or "target-source".
        unit: what the lengths count, for messages.

    Raises:
        ValueError: a line that is of neither format, a link to a word or sentence that is not there, another number
            of lines than of sentences, or links that could count from 0 as well as from 1; names file and line.
        OSError: the file cannot be read.
    """
    lines = read_lines(path)
    per_link = _is_per_link(path, lines)
    sentences = _by_sentence(path, lines, len(lengths)) if per_link else _by_line(path, lines, len(lengths))
    bases = BASES if base is None else (base,)
    if per_link and base is None:
        # a link has one word that is none, at most
        bases = (0 if any(link[:2] == (0, 0) for links in sentences for link in links) else 1,)
    readings = [(b, o) for o in (ORDERS if order is None else (order,)) for b in bases]
    misfits = {reading: _misfit(sentences, lengths, *reading, per_link, unit) for reading in readings}
    fitting = [reading for reading in readings if misfits[reading] is None]
    if not fitting:
        furthest = max((misfit for misfit in misfits.values() if misfit), key=lambda misfit: misfit.line)
        raise ValueError(
            f"{path}, line {furthest.line}: {furthest.reason}; give the text whose words were aligned, and if need be "
            "--alignment_words, --alignment_base and --alignment_order"
        )
    chosen = [reading for reading in fitting if reading[1] == fitting[0][1]]
    if len(chosen) > 1 and any(sentences):
        first = next(link for links in sentences for link in links)
        raise ValueError(
            f"{path}, line {first.line}: {first} and all other links could count words from 0 as well as from 1; say "
            "which with --alignment_base 0 or --alignment_base 1"
        )
    found_base, found_order = chosen[0]
    alignments = [_alignment(links, found_base, found_order) for links in sentences]
    return ReadAlignments(alignments, found_base, found_order)


def _is_per_link(path: Path, lines: Sequence[str]) -> bool:
    """Whether the lines are links, and not sentences."""
    number, fields = next(((n, line.split()) for n, line in enumerate(lines, 1) if line.strip()), (0, []))
    if all(map(_LINK.fullmatch, fields)):
        return False
    if len(fields) >= 3 and all(map(str.isdecimal, fields[:3])):
        return True
    raise ValueError(f"{path}, line {number}: {lines[number - 1]!r} is no alignment, which has {_FORMATS}")


def _by_line(path: Path, lines: Sequence[str], count: int) -> list[list[_Link]]:
    if len(lines) != count:
        raise ValueError(f"{path} has {len(lines)} lines, but there are {count} sentences")
    sentences = []
    for number, line in enumerate(lines, 1):
        links = []
        for word in line.split():
            found = _LINK.fullmatch(word)
            if found is None:
                raise ValueError(
                    f"{path}, line {number}: {word!r} is no link such as 3-4 (sure), 3?4 or 3p4 (possible)"
                )
            links.append(_Link(int(found[1]), int(found[3]), found[2] == "-", number))
        sentences.append(links)
    return sentences


def _by_sentence(path: Path, lines: Sequence[str], count: int) -> list[list[_Link]]:
    sentences: list[list[_Link]] = [[] for _ in range(count)]
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        kind = fields[3] if len(fields) > 3 else "S"
        if not (3 <= len(fields) <= 5 and all(map(str.isdecimal, fields[:3])) and kind in ("S", "P")):
            raise ValueError(
                f"{path}, line {number}: {line!r} is no link such as '1 3 4 S': sentence, source word, target word, "
                "S (sure) or P (possible)"
            )
        sentence, first, second = map(int, fields[:3])
        if not 1 <= sentence <= count:
            raise ValueError(f"{path}, line {number}: there is no sentence {sentence}; they count from 1 to {count}")
        sentences[sentence - 1].append(_Link(first, second, kind == "S", number))
    return sentences


def _misfit(
    sentences: Sequence[Sequence[_Link]],
    lengths: Sequence[tuple[int, int]],
    base: int,
    order: str,
    zero_is_none: bool,
    unit: str,
) -> _Misfit | None:
    """The first link to a word that is not there, if links are read like this."""
    for links, words in zip(sentences, lengths, strict=True):
        sides = ("source", "reference") if order == SOURCE_FIRST else ("reference", "source")
        for link in links:
            for side, word in zip(sides, link[:2], strict=True):
                length = words[0] if side == "source" else words[1]
                if (word < base and not zero_is_none) or word >= base + length:
                    return _Misfit(
                        link.line,
                        f"{link} links word {word} of the {side}, counted from {base}, which has {length} {unit} "
                        f"(links read as {order})",
                    )
    return None


def _alignment(links: Sequence[_Link], base: int, order: str) -> WordAlignment:
    pairs = [pair for pair in _pairs(links, base, order) if min(pair[0]) >= 0]
    sure = {link[0] for link, is_sure in pairs if is_sure}
    return WordAlignment(
        tuple(sorted({link for link, _ in pairs if link[0] in sure})),
        tuple(sorted({link[0] for link, _ in pairs} - sure)),
    )


def _pairs(links: Sequence[_Link], base: int, order: str) -> Iterator[tuple[tuple[int, int], bool]]:
    for link in links:
        first, second = link.first - base, link.second - base
        yield (first, second) if order == SOURCE_FIRST else (second, first), link.sure
