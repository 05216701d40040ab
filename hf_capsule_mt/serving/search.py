"""One turn of greedy and of beam search, as generate() takes it, to become the body of a loop in an exported model.

Shapes: B sentences, K beams, P tokens of the prompt (the start token, and a forced prefix), V vocabulary. At turn t
the decoder reads the tokens at position t and says those at t + 1; while t + 1 < P, the prompt says them.

What a caller may decide comes as tensors (`SHARED`), so that one graph serves every choice:

    prompts         [B, P]   what translations begin with
    limits          [B]      longest decoder sequence of each sentence, prompt and end included
    penalties       [T + 1]  n ** length_penalty for n = 0..T new tokens
    token_scores    [R, V]   rules on tokens: what a rule adds to their log-probabilities, minus infinity for never
    token_rules     [T]      the rule of each turn
    token_weights   [T]      what log-probabilities are multiplied by before: 1, or 0 where a token is forced

and for beam search (`BEAM_SHARED`)

    stops_when_full []       early_stopping=True: a sentence ends with as many finished translations as beams
    longest_gain    []       new tokens that a running beam may have when its best score is estimated; 0 for as many as
                             it has (early_stopping="never" with a positive length penalty: all that there may be)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SHARED = ("prompts", "limits", "penalties", "token_scores", "token_rules", "token_weights")
BEAM_SHARED = ("stops_when_full", "longest_gain")
# added to scores that must not win, as in generate()
WORST = -1.0e9

GREEDY_STATE = ("tokens", "finished", "lengths", "scores")
BEAM_STATE = ("tokens", "rows", "scores", "best_scores", "best_codes", "best_found", "improvable")


class Turn(nn.Module):
    """What both searches share: the rules on tokens, and where a translation ends.

    Args:
        ends: ids of the tokens that end a translation.
        pad: the token that follows the end.
    """

    shared: tuple[str, ...] = SHARED
    state: tuple[str, ...]

    def __init__(self, ends: Sequence[int], pad: int) -> None:
        super().__init__()
        self.register_buffer("ends", torch.tensor(list(ends)))
        self.pad = pad

    def log_probs(self, turn: Tensor, logits: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Log-probabilities of the next tokens after the rules, [B * K, V]."""
        rule = shared["token_scores"].index_select(0, shared["token_rules"].index_select(0, turn))
        return logits.log_softmax(dim=-1) * shared["token_weights"].index_select(0, turn) + rule

    def is_end(self, tokens: Tensor) -> Tensor:
        """Whether each token ends a translation."""
        return (tokens.unsqueeze(-1) == self.ends).any(dim=-1) if len(self.ends) > 1 else tokens == self.ends


class GreedyTurn(Turn):
    """Greedy search. `tokens` of a finished sentence are padding; `scores` are sums of log-probabilities."""

    state = GREEDY_STATE

    def forward(
        self, turn: Tensor, logits: Tensor, state: list[Tensor], shared: dict[str, Tensor]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """turn: [1]; logits: of the decoder at this turn, [B, V]; state: as GREEDY_STATE says, [B, 1] each.

        Returns:
            whether to go on, the state, and the tokens of this turn [B, 1].
        """
        _, finished, lengths, scores = state
        log_probs = self.log_probs(turn, logits, shared)
        best, chosen = log_probs.max(dim=-1, keepdim=True)
        prompts = shared["prompts"]
        forced = turn + 1 < prompts.shape[1]
        prompt = prompts.index_select(1, torch.minimum(turn + 1, torch.tensor(prompts.shape[1] - 1)))
        tokens = torch.where(forced, prompt, torch.where(finished, self.pad, chosen))
        running = ~finished
        lengths = lengths + running.to(torch.int64)
        scores = scores + best * (running & ~forced).to(best.dtype)
        ended = self.is_end(tokens) | (turn + 2 >= shared["limits"].unsqueeze(-1))
        finished = finished | (ended & ~forced)
        return ~finished.all(), [tokens, finished, lengths, scores], tokens

    def first(self, prompts: Tensor, beams: Tensor) -> list[Tensor]:
        """The state before the first turn."""
        tokens = prompts[:, :1]
        return [tokens, tokens < 0, torch.ones_like(tokens), torch.zeros(tokens.shape)]


class BeamTurn(Turn):
    """Beam search.

    A hypothesis is known by its code, t * K * V + k * V + token: the turn t at which its last token was chosen, the
    beam k that it went on from, and that token. The codes of all running beams of all turns say what each of them is.
    `best_scores`, `best_codes` and `best_found` are of the finished translations, best first; `improvable` [B, 1] says
    whether a running beam may still come among them; `rows` [B * K] are the beams that the current ones go on from.
    """

    shared = SHARED + BEAM_SHARED
    state = BEAM_STATE

    def forward(
        self, turn: Tensor, logits: Tensor, state: list[Tensor], shared: dict[str, Tensor]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """As `GreedyTurn.forward`, with a state as BEAM_STATE says, [B, K] where not said otherwise.

        The last result are the codes of the running beams, [B, K].
        """
        tokens, _, scores, best_scores, best_codes, best_found, improvable = state
        batch, beams = tokens.shape
        log_probs = self.log_probs(turn, logits, shared)
        vocabulary = log_probs.shape[-1]
        prompts = shared["prompts"]
        new_tokens = (turn + 2 - prompts.shape[1]).clamp(min=1)
        forced = turn + 1 < prompts.shape[1]

        accumulated = (log_probs.unflatten(0, (batch, beams)) + scores.unsqueeze(-1)).flatten(1)
        kept = max(2, 1 + len(self.ends)) * beams
        top_scores, top = accumulated.topk(kept, dim=-1)
        stops = self.is_end(top % vocabulary) | (turn + 2 >= shared["limits"].unsqueeze(-1))
        going = top_scores + stops.to(top_scores.dtype) * WORST
        scores_after, places = going.topk(beams, dim=-1)
        chosen = top.gather(1, places)
        prompt = prompts.index_select(1, torch.minimum(turn + 1, torch.tensor(prompts.shape[1] - 1)))
        unchanged = torch.arange(beams) * vocabulary + prompt
        chosen = torch.where(forced, unchanged, chosen)
        scores_after = torch.where(forced, scores, scores_after)

        full = best_found.all(dim=1, keepdim=True) & shared["stops_when_full"]
        ended = stops[:, :beams] & ~forced
        found = top_scores[:, :beams] / shared["penalties"].index_select(0, new_tokens)
        worse = full.to(found.dtype) + (~improvable).to(found.dtype) + (~ended).to(found.dtype)
        merged = torch.cat([best_scores, found + worse * WORST], dim=1)
        best_scores, places = merged.topk(beams, dim=-1)
        offset = turn * (beams * vocabulary)
        best_codes = torch.cat([best_codes, top[:, :beams] + offset], dim=1).gather(1, places)
        best_found = torch.cat([best_found, ended], dim=1).gather(1, places)

        length = torch.where(shared["longest_gain"] > 0, shared["longest_gain"], new_tokens)
        possible = scores_after[:, :1] / shared["penalties"].index_select(0, length)
        worst = torch.where(best_found, best_scores[:, -1:], WORST)
        improvable = improvable & ((possible > worst).any(dim=-1, keepdim=True) | forced)
        none_open = best_found.all() & shared["stops_when_full"]
        go_on = forced | (improvable.any() & ~none_open & ~stops.all())

        rows_after = (chosen // vocabulary + torch.arange(batch).unsqueeze(-1) * beams).flatten()
        after = [chosen % vocabulary, rows_after, scores_after, best_scores, best_codes, best_found, improvable]
        return go_on.reshape(()), after, chosen + offset

    def first(self, prompts: Tensor, beams: Tensor) -> list[Tensor]:
        """The state before the first turn; beams: [K], whatever its values."""
        tokens = prompts[:, :1].expand(-1, beams.shape[0])
        others = (torch.arange(beams.shape[0]) > 0).to(torch.float32) * WORST
        worst = torch.full(tokens.shape, WORST)
        rows = torch.arange(prompts.shape[0] * beams.shape[0])
        scores = torch.zeros(tokens.shape) + others
        return [tokens, rows, scores, worst, torch.zeros_like(tokens), tokens < 0, tokens[:, :1] >= 0]
