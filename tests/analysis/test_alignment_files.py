"""Gold alignments in the formats that they come in: what is read, what is found out, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_capsule_mt.analysis.aligned_text import AlignmentFile, read_aligned_text
from hf_capsule_mt.analysis.alignment_files import SOURCE_FIRST, TARGET_FIRST, WordAlignment, read_alignments

# the first word and the last of either side have links, so that one reading fits alone
LENGTHS = [(3, 5), (2, 1)]
LINKS = [((0, 0), (1, 3), (2, 4)), ((0, 0), (1, 0))]


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "gold.align"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def as_text(sentences, *, base=0, target_first=False, per_link=False, possible="?") -> str:
    """Links (i, j, sure) of sentences as a file."""
    lines = []
    for number, links in enumerate(sentences, 1):
        shown = [((j, i) if target_first else (i, j), sure) for i, j, sure in links]
        if per_link:
            lines += [f"{number} {a + base} {b + base} {'S' if sure else 'P'}" for (a, b), sure in shown]
        else:
            lines.append(" ".join(f"{a + base}{'-' if sure else possible}{b + base}" for (a, b), sure in shown))
    return "".join(f"{line}\n" for line in lines)


def sure(sentences):
    return [[(i, j, True) for i, j in links] for links in sentences]


@pytest.mark.parametrize("target_first", [False, True], ids=["source first", "target first"])
@pytest.mark.parametrize(
    ("per_link", "base"), [(False, 0), (False, 1), (True, 1)], ids=["from 0", "from 1", "a line for each link"]
)
def test_base_and_order_are_found_out(write, base, target_first, per_link):
    path = write(as_text(sure(LINKS), base=base, target_first=target_first, per_link=per_link))
    read = read_alignments(path, LENGTHS)
    assert (read.base, read.order) == (base, TARGET_FIRST if target_first else SOURCE_FIRST)
    assert read.alignments == [WordAlignment(links) for links in LINKS]


@pytest.mark.parametrize("possible", "?pP")
def test_possible_links(write, possible):
    # word 1 has a sure link beside the possible one, word 2 possible links alone
    text = as_text([[(0, 0, True), (1, 3, True), (1, 4, False), (2, 4, False)], []], possible=possible)
    assert read_alignments(write(text), LENGTHS).alignments == [
        WordAlignment(((0, 0), (1, 3), (1, 4)), unsure=(2,)),
        WordAlignment(()),
    ]


def test_a_line_for_each_link_may_leave_out_and_add(write):
    # no S or P is sure, a confidence is passed over, word 0 is none, sentences come in any order
    path = write("0002 0001 0001 S 0.9\n\n1 1 1\n1 3 5 P\n1 3 4\n1 0 2 S\n1 2 0 P\n")
    assert read_alignments(path, LENGTHS).alignments == [
        WordAlignment(((0, 0), (2, 3), (2, 4))),
        WordAlignment(((0, 0),)),
    ]


def test_a_line_for_each_link_may_count_from_0(write):
    path = write("1 0 0 S\n1 2 4 S\n2 1 0 S\n")
    read = read_alignments(path, LENGTHS)
    assert read.base == 0 and read.alignments == [WordAlignment(((0, 0), (2, 4))), WordAlignment(((1, 0),))]


sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


@st.composite
def aligned(draw):
    """Lengths of sentences, and links that reach every side's first and last word somewhere."""
    lengths = draw(st.lists(sizes, min_size=1, max_size=4))
    sentences = []
    for source, target in lengths:
        pairs = st.tuples(st.integers(0, source - 1), st.integers(0, target - 1))
        links = draw(st.dictionaries(pairs, st.booleans(), max_size=8))
        sentences.append(sorted((i, j, is_sure) for (i, j), is_sure in links.items()))
    source, target = lengths[0]
    sentences[0] = sorted({(0, 0, True), (source - 1, target - 1, True), *sentences[0]})
    return lengths, sentences


@settings(max_examples=60, deadline=None)
@given(aligned(), st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_what_is_written_is_read(tmp_path_factory, text, base, target_first, per_link):
    lengths, sentences = text
    path = tmp_path_factory.mktemp("gold") / "gold.align"
    content = as_text(sentences, base=base if not per_link else 1, target_first=target_first, per_link=per_link)
    path.write_text(content)
    given_order = TARGET_FIRST if target_first else SOURCE_FIRST
    read = read_alignments(path, lengths, order=given_order)
    assert read.base == (1 if per_link else base)
    for found, links in zip(read.alignments, sentences, strict=True):
        with_sure = {i for i, _, is_sure in links if is_sure}
        assert found.links == tuple(sorted({(i, j) for i, j, _ in links if i in with_sure}))
        assert found.unsure == tuple(sorted({i for i, _, _ in links} - with_sure))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0-0\n", {}, "gold.align has 1 lines, but there are 2 sentences"),
        ("0-0\n1:1\n", {}, r"gold.align, line 2: '1:1' is no link such as 3-4 \(sure\), 3\?4 or 3p4"),
        ("hello world\n0-0\n", {}, "gold.align, line 1: 'hello world' is no alignment, which has a line for each"),
        ("0-0\n0-0 2-0\n", {}, "line 2: 2-0 links word 2 of the source, counted from 0, which has 2 words"),
        ("0-0 3-5\n1-1\n", {"base": 1}, "line 1: 0-0 links word 0 of the source, counted from 1, which has 3 words"),
        ("0-4\n0-0\n", {"order": TARGET_FIRST}, "line 1: 0-4 links word 4 of the source, .*read as target-source"),
        ("0-0 3?5\n0-0\n", {}, r"line 1: 3\?5 links word 3 of the source.*--alignment_words, --alignment_base and"),
        ("1-1 2-4\n1-1\n", {"order": SOURCE_FIRST}, None),
        ("1-1 2-2\n\n", {}, "line 1: 1-1 and all other links could count words from 0 as well as from 1; say which "),
        ("1 1 1 S\n1 2 x S\n", {}, "line 2: '1 2 x S' is no link such as '1 3 4 S': sentence, source word"),
        ("1 1 1 S\n1 2 2 Q\n", {}, "line 2: '1 2 2 Q' is no link"),
        ("1 1 1 S\n3 1 1 S\n", {}, "line 2: there is no sentence 3; they count from 1 to 2"),
        ("1 1 1 S\n1 4 6 S\n", {}, "line 2: 4-6 links word"),
    ],
)
def test_what_does_not_fit_is_named(write, text, options, message):
    if message is None:
        # a 1 in the second sentence, whose target has one word: it cannot count from 0
        assert read_alignments(write(text), LENGTHS, **options).base == 1
        return
    with pytest.raises(ValueError, match=message):
        read_alignments(write(text), LENGTHS, **options)


def test_what_only_an_option_can_say(write):
    path = write("1-1 2-2\n\n")
    for base in (0, 1):
        read = read_alignments(path, LENGTHS, base=base)
        assert read.alignments[0].links == ((1 - base, 1 - base), (2 - base, 2 - base))
        assert read.order == SOURCE_FIRST
    assert read_alignments(write("\n\n"), LENGTHS).alignments == [WordAlignment(())] * 2


class TestWords:
    """What the links count."""

    SIDES = ("He sleeps.", "Er schläft."), ("Wow!", "Oh!")

    def read(self, path, **said):
        sources, targets = zip(*self.SIDES, strict=True)
        return read_aligned_text(sources, targets, AlignmentFile(path, **said), source_lang="en", target_lang="de")

    def test_words_between_spaces_if_they_can_be_meant(self, write):
        read = self.read(write("0-0 1-1\n0-0\n"))
        assert read.words == "spaces" and read.pairs[0].source_tokens == ("He", "sleeps.")
        assert read.describe() == {"file": "gold.align", "words": "spaces", "base": 0, "order": SOURCE_FIRST}

    def test_marks_where_links_go_beyond(self, write):
        read = self.read(write("0-0 1-1 2-2\n1-1\n"))
        assert read.words == "marks" and read.pairs[0].source_tokens == ("He", "sleeps", ".")
        assert read.pairs[0].alignment == ((0, 0), (1, 1), (2, 2))
        assert read.split("Er schläft!", "de") == ["Er", "schläft", "!"]

    def test_said(self, write):
        path = write("0-0 1-1 2-2\n1-1\n")
        with pytest.raises(ValueError, match="word 2 of the source, counted from 0, which has 2 words between spaces"):
            self.read(path, words="spaces")
        with pytest.raises(ValueError, match="which has 3 words and punctuation marks"):
            self.read(write("0-0 3-1\n0-0\n"))
        assert self.read(write("0-0\n\n"), words="marks").words == "marks"
