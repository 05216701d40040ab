"""Greedy and beam search as ONNX nodes: what happens once, and a turn of the loop. They choose as generate() does.

Shapes: B sentences, K beams, T turns at most, V vocabulary, W = K * max(2, 1 + number of end tokens) candidates. Rows
are the beams of all sentences, those of a sentence side by side. At turn t the decoder reads the tokens at position t
and the search says those at t + 1.

What a caller decides are inputs, so that one graph serves every choice:

    start_token    []         what the decoder begins with
    forced_tokens  [T, B, 1]  what a translation is to have at each turn (its prefix); -1 where the model chooses
    last_turns     [B, 1]     the turn at which a translation is cut off
    token_scores   [R, V]     rules on tokens: what a rule adds to their log-probabilities, minus infinity for never
    token_rules    [T]        the rule of each turn
    num_beams, max_turns []   K, and T

and for beam search

    token_weights  [T]        what log-probabilities are multiplied by before the rule: 1, or 0 where a rule decides
    penalties      [T]        the number of new tokens at each turn, to the power of the length penalty
    gains          [T]        the same for the length that a running beam is given when its best score is estimated
    open_when_full []         False for early_stopping=True: as many finished translations as beams are enough

A hypothesis of beam search is known by its code, t * K * V + k * V + token: the turn t at which its last token was
chosen, the beam k that it went on from, and that token. The codes of all running beams of all turns, which the graph
returns, say what each of them is.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .onnx_files import BOOL, FLOAT, INT64, Nodes

# added to scores that must not win, as in generate(); what is below half of it has not won
WORST = -1.0e9


class Search(NamedTuple):
    """A search as nodes around a step of the decoder, which reads "tokens" [B, K] and makes "logits" [B * K, V].

    Attributes:
        name: of the graph.
        inputs: elements and shapes.
        begin: nodes that run once; they make "first_" + each state, "beam_count" [1] and "row_count" [1].
        turn: nodes of the body, which read the names of `begin`, "turn" [] and the state, and make "go_on" and
            "next_" + each state.
        state: elements. With "rows" among them, the decoder goes on from these rows of its states.
        collected: what a turn makes that is returned of all turns, [T, ...], with elements.
        outputs: states that are returned.
    """

    name: str
    inputs: dict[str, tuple[int, tuple[str, ...]]]
    begin: Nodes
    turn: Nodes
    state: dict[str, int]
    collected: dict[str, int]
    outputs: tuple[str, ...]


SHARED: dict[str, tuple[int, tuple[str, ...]]] = {
    "num_beams": (INT64, ()),
    "max_turns": (INT64, ()),
    "start_token": (INT64, ()),
    "forced_tokens": (INT64, ("turns", "sentences", "one")),
    "last_turns": (INT64, ("sentences", "one")),
    "token_scores": (FLOAT, ("rules", "vocabulary")),
    "token_rules": (INT64, ("turns",)),
}
OF_BEAMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "token_weights": (FLOAT, ("turns",)),
    "penalties": (FLOAT, ("turns",)),
    "gains": (FLOAT, ("turns",)),
    "open_when_full": (BOOL, ()),
}


def greedy_search(ends: Sequence[int]) -> Search:
    """Greedy search; it collects "turns", the tokens of every turn, and "scores", their log-probabilities.

    Tokens behind the end of a translation mean nothing.

    Args:
        ends: the tokens that end a translation.
    """
    begin = _beginning()
    column = begin("Concat", "sentence_count", begin.vector(1), axis=0)
    begin("Expand", begin.constant(False), column, name="first_finished")

    turn = Nodes("turn")
    rule = turn("Gather", "token_scores", turn("Gather", "token_rules", "turn"))
    log_probs = turn("Add", turn("LogSoftmax", "logits", axis=-1), rule)
    chosen = turn("ArgMax", log_probs, axis=-1)
    turn("GatherElements", log_probs, chosen, axis=-1, name="scores")
    forced = turn("Gather", "forced_tokens", "turn")
    turn("Where", turn("Less", forced, turn.constant(0)), chosen, forced, name="next_tokens")
    ended = turn("Or", _is_end(turn, "next_tokens", ends), turn("GreaterOrEqual", "turn", "last_turns"))
    turn("Or", "finished", ended, name="next_finished")
    count = turn("ReduceMin", turn("Cast", "next_finished", to=INT64), keepdims=0)
    turn("Less", count, turn.constant(1), name="go_on")
    turn("Identity", "next_tokens", name="turns")
    state = {"tokens": INT64, "finished": BOOL}
    return Search("greedy_search", SHARED, begin, turn, state, {"turns": INT64, "scores": FLOAT}, ())


def beam_search(ends: Sequence[int], vocab_size: int) -> Search:
    """Beam search; it collects "turns", the codes of the running beams after every turn, [T, B, K].

    Its outputs are "best_scores" and "best_codes" [B, K] of the finished translations, best first; what has a score
    below half of WORST is none.

    Args:
        ends: as in `greedy_search`.
        vocab_size: V.
    """
    begin = _beginning()
    # once: what depends on the sizes alone
    beams = begin("Range", begin.constant(0), "num_beams", begin.constant(1))
    begin("Mul", beams, begin.constant(vocab_size), name="beam_offsets")
    kept = begin("Mul", "beam_count", begin.vector(max(2, 1 + len(ends))), name="kept")
    places = begin("Range", begin.constant(0), begin("Reshape", kept, begin.vector()), begin.constant(1))
    begin("Less", places, "num_beams", name="may_end")
    begin("Sub", "beam_count", begin.vector(1), name="last_beam")
    numbers = begin("Range", begin.constant(0), begin("Reshape", "sentence_count", begin.vector()), begin.constant(1))
    offsets = begin("Mul", numbers, "num_beams")
    begin("Unsqueeze", offsets, begin.vector(1), name="row_offsets")
    begin("Mul", "num_beams", begin.constant(vocab_size), name="turn_size")
    flat = begin("Reshape", "turn_size", begin.vector(1))
    begin("Concat", begin.vector(-1), flat, axis=0, name="sentence_shape")
    # the state
    shape = begin("Concat", "sentence_count", "beam_count", axis=0)
    behind = begin("Cast", begin("Greater", beams, begin.constant(0)), to=FLOAT)
    scores = begin("Expand", begin("Mul", behind, begin.constant(WORST)), shape)
    begin("Reshape", scores, begin.vector(-1, 1), name="first_scores")
    begin("Expand", begin.constant(WORST), shape, name="first_best_scores")
    begin("Expand", begin.constant(0), shape, name="first_best_codes")
    column = begin("Concat", "sentence_count", begin.vector(1), axis=0)
    begin("Expand", begin.constant(0.0), column, name="first_closed")
    rows = begin("Reshape", "row_count", begin.vector())
    begin("Range", begin.constant(0), rows, begin.constant(1), name="first_rows")

    turn = Nodes("turn")
    size = turn.constant(vocab_size)
    worst, half, none = turn.constant(WORST), turn.constant(WORST / 2), turn.constant(0.0)
    # the best candidates of each sentence
    rule = turn("Gather", "token_scores", turn("Gather", "token_rules", "turn"))
    weighted = turn("Mul", turn("LogSoftmax", "logits", axis=-1), turn("Gather", "token_weights", "turn"))
    total = turn("Add", turn("Add", weighted, rule), "scores")
    top_scores, top = turn("TopK", turn("Reshape", total, "sentence_shape"), "kept", axis=-1, outputs=2)
    is_end = _is_end(turn, turn("Mod", top, size), ends)
    stops = turn("Or", is_end, turn("GreaterOrEqual", "turn", "last_turns"))
    # those that go on, or what is forced
    going = turn("Add", top_scores, turn("Where", stops, worst, none))
    going_scores, places = turn("TopK", going, "beam_count", axis=-1, outputs=2)
    going_codes = turn("GatherElements", top, places, axis=1)
    forced = turn("Gather", "forced_tokens", "turn")
    free = turn("Less", forced, turn.constant(0))
    codes = turn("Where", free, going_codes, turn("Add", "beam_offsets", forced))
    before = turn("Reshape", "scores", turn("Shape", going_scores))
    after = turn("Where", free, going_scores, before)
    # those that end among the finished ones
    ended = turn("And", turn("And", stops, "may_end"), free)
    found = turn("Div", top_scores, turn("Gather", "penalties", "turn"))
    found = turn("Add", found, turn("Add", turn("Where", ended, none, worst), "closed"))
    merged = turn("Concat", "best_scores", found, axis=1)
    turn("TopK", merged, "beam_count", axis=-1, name="next_best_scores", outputs=2)
    offset = turn("Mul", "turn", "turn_size")
    found_codes = turn("Concat", "best_codes", turn("Add", top, offset), axis=1)
    turn("GatherElements", found_codes, turn.second("next_best_scores"), axis=1, name="next_best_codes")
    # whether a sentence is done: by its worst finished translation, and what its best running one may come to
    last = turn("Gather", "next_best_scores", "last_beam", axis=1)
    possible = turn("Div", turn("Gather", after, turn.vector(0), axis=1), turn("Gather", "gains", "turn"))
    unfilled = turn("Or", turn("Less", last, half), "open_when_full")
    is_open = turn("And", turn("Greater", possible, last), unfilled)
    turn("Min", "closed", turn("Where", is_open, none, worst), name="next_closed")
    turn("Greater", turn("ReduceMax", "next_closed", keepdims=0), half, name="go_on")
    # for the next turn
    turn("Mod", codes, size, name="next_tokens")
    rows = turn("Add", turn("Div", codes, size), "row_offsets")
    turn("Reshape", rows, turn.vector(-1), name="next_rows")
    turn("Reshape", after, turn.vector(-1, 1), name="next_scores")
    turn("Add", codes, offset, name="turns")
    state = {
        "tokens": INT64,
        "rows": INT64,
        "scores": FLOAT,
        "best_scores": FLOAT,
        "best_codes": INT64,
        "closed": FLOAT,
    }
    outputs = ("best_scores", "best_codes")
    return Search("beam_search", SHARED | OF_BEAMS, begin, turn, state, {"turns": INT64}, outputs)


def _beginning() -> Nodes:
    """Numbers of sentences, beams and rows, [1] each, and the first tokens."""
    begin = Nodes("begin")
    begin("Shape", "source_mask", start=0, end=1, name="sentence_count")
    begin("Reshape", "num_beams", begin.vector(1), name="beam_count")
    begin("Mul", "sentence_count", "beam_count", name="row_count")
    shape = begin("Concat", "sentence_count", "beam_count", axis=0)
    begin("Expand", "start_token", shape, name="first_tokens")
    return begin


def _is_end(turn: Nodes, tokens: str, ends: Sequence[int]) -> str:
    """Whether tokens end a translation."""
    found = [turn("Equal", tokens, turn.constant(end)) for end in ends]
    result = found[0]
    for other in found[1:]:
        result = turn("Or", result, other)
    return result
