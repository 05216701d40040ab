"""Attention to a source that several beams share.

Shapes: B sentences, T steps, S source length, d model width, A heads.
"""

from typing import Any

from torch import Tensor


class SharedSourceMixin:
    """Cross-attention of transformers that reads the source of a sentence once for all of its beams.

    Beams, one after another, are more steps of their sentence: attention to a source treats every step alike.
    """

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        *args: Any,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the parent's forward, also with [B * beams, T, d] of hidden states and [B, S, d] of the source.

        attention_mask: of the B sentences; that of "sdpa" or "eager", in which all steps read the same words.
        """
        rows, steps = hidden_states.shape[:2]
        if key_value_states is None or key_value_states.shape[0] == rows:
            return super().forward(hidden_states, key_value_states, *args, attention_mask=attention_mask, **kwargs)  # type: ignore[misc]
        sentences = key_value_states.shape[0]
        folded = hidden_states.reshape(sentences, -1, hidden_states.shape[-1])
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        outputs, weights = super().forward(folded, key_value_states, *args, attention_mask=mask, **kwargs)  # type: ignore[misc]
        if weights is not None:
            # [B, A, beams * T, S]
            weights = weights.unflatten(2, (-1, steps)).transpose(1, 2).flatten(0, 1)
        return outputs.reshape(rows, steps, -1), weights
