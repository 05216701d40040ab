"""Recurrent states under generate(): those of LSTM layers, and those of a guided head with recurrences.

Shapes: B batch (or beams).
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache


class RecurrentCacheLayer(CacheLayerMixin):
    """A state of two tensors, [B, ...] each, in the places of keys and values; of an LSTM layer h and c, [B, d]."""

    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, steps: int = 1, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Replaces the state by that after `steps` more steps."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        self.cumulative_length += steps
        return self.keys, self.values

    def state(self) -> tuple[Tensor, Tensor] | None:
        """Both tensors, or None before the first step."""
        return (self.keys, self.values) if self.cumulative_length > 0 else None

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return -1

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row of the batch `repeats` times."""
        if self.cumulative_length > 0:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows of the batch."""
        if self.cumulative_length > 0:
            self.keys, self.values = self.keys[indices], self.values[indices]


class RecurrentCache(Cache):
    """States of all LSTM layers of a decoder; its size does not depend on the number of steps."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[RecurrentCacheLayer() for _ in range(num_layers)])


class GuidedCacheLayer(RecurrentCacheLayer):
    """PAST and FUTURE states, [B, 2 K], and how much of each source word was read, [B, S], after the last step."""


def guided_cache_layer(cache: Cache | None, steps: int) -> GuidedCacheLayer | None:
    """The layer of a guided head in the cache of a decoder that has just taken `steps` steps.

    It is the last one of the decoder's own layers, and added when it is missing: so all that moves the decoder's
    states (beams, selected rows) moves it too.

    Raises:
        ValueError: if the cache holds steps that the head has not seen, or no longer holds some that it has.
    """
    if cache is None:
        return None
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if not isinstance(own.layers[-1], GuidedCacheLayer):
        own.layers.append(GuidedCacheLayer())
    layer = own.layers[-1]
    if not torch.compiler.is_compiling() and int(own.get_seq_length()) - steps != layer.cumulative_length:
        raise ValueError(
            f"past_key_values holds {int(own.get_seq_length()) - steps} steps of the decoder, of which the PAST and "
            f"FUTURE states have seen {layer.cumulative_length}: give every step to the whole model, and begin anew "
            "instead of cropping the cache"
        )
    return layer
