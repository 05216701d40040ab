"""Configuration of recurrent capsule models."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .capsule_configuration import CapsuleConfigMixin, check_choice, check_minimum

SOURCE_MEMORIES = ("simple", "capsule", "attention", "hybrid")
CAPSULE_MEMORIES = ("capsule", "hybrid")
MESSAGE_ACTIVATIONS = ("relu", "linear")
ROUTING_POSITIONS = ("states", "scores")
CAPSULE_OUTPUTS = ("squash", "mean")
# what "calibrated" CapsNMT differs in from the printed one; each is an option of its own
CALIBRATED = {
    "capsule_output": "mean",
    "message_activation": "linear",
    "routing_positions": "scores",
    "balanced_routing": True,
}


@strict
class CapsuleRNNConfig(CapsuleConfigMixin, PreTrainedConfig):
    """Recurrent translation models: CapsNMT (Wang et al. 2019), its baselines, and attention RNMT.

    The defaults are CapsNMT base with its three additions, as printed; `CapsuleRNNConfig.calibrated()` is our form of
    it. `CapsuleConfigMixin` documents the fields that all families share; of those, layer aggregation is "none" here,
    and routing_iterations also is the R of the capsule memory.

    Args:
        vocab_size, decoder_vocab_size (`int`): number of tokens; the decoder has its own number only without
            share_encoder_decoder_embeddings, and defaults to vocab_size.
        d_model (`int`): width of every layer, an even number: each direction of the encoder has half of it.
        encoder_layers, decoder_layers (`int`): bidirectional LSTM layers, and LSTM layers.
        source_memory (`str`): what the decoder reads of the source: "simple", the maximum, mean, first and last state
            (Wang et al. Eq. 2-4); "capsule", the states routed to output capsules (CapsNMT); "attention", additive
            attention over the states (RNMT); "hybrid", capsules and attention together.
        num_source_capsules (`int`): M, the number of output capsules of the memory.
        share_routing_weights (`bool`): one W_j for all iterations, instead of one for each ("non-sharing weight").
        position_aware_routing (`bool`): positions are added to input and output capsules ("position-aware").
        separable_scoring (`bool`): agreement is scored by g(c_j) . g(h_i) (Eq. 14), not c_j . f(h_i) (Eq. 12).
        balanced_routing (`bool`): bounded scores, centred over the words of a sentence, which keep all capsules in
            use; not in the paper, see `sequence_routing`.
        capsule_output (`str`): what the decoder reads: "squash", as printed, or "mean", the share-weighted mean of the
            messages, which keeps what squashing takes away, how much was received; capsules are then squashed where
            they are scored only. "mean" is not in the paper, nor are "linear", "scores" and end states below.
        message_activation (`str`): f(h_i, W_j) is ReLU(h_i W_j), "relu" (Eq. 8), or h_i W_j, "linear".
        routing_positions (`str`): with position_aware_routing, the positions of the words enter "states", as printed,
            that is messages and scores, or "scores" alone, which needs separable_scoring.
        include_end_states (`bool`): the first and last state follow the capsules, as in "simple".
        scale_embedding (`bool`): multiply embeddings by sqrt(d_model).
        share_encoder_decoder_embeddings (`bool`): one embedding for both languages. The output projection always
            shares the decoder's.
        dropout (`float`): of embeddings and of the output of every sub-layer; the default, as that of
            label_smoothing, is the paper's for English-German.
    """

    model_type = "capsule-rnn"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "d_model", "num_hidden_layers": "decoder_layers"}

    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 4
    decoder_layers: int = 3
    source_memory: str = "capsule"
    num_source_capsules: int = 6
    share_routing_weights: bool = False
    position_aware_routing: bool = True
    separable_scoring: bool = True
    balanced_routing: bool = False
    capsule_output: str = "squash"
    message_activation: str = "relu"
    routing_positions: str = "states"
    include_end_states: bool = False
    dropout: float | int = 0.3
    activation_function: str = "relu"
    init_std: float = 0.02
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 58100
    eos_token_id: int | list[int] | None = 0
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = 58100
    forced_eos_token_id: int | list[int] | None = None

    aggregation: str = "none"
    label_smoothing: float | int = 0.1

    @classmethod
    def calibrated(cls, **fields: Any) -> "CapsuleRNNConfig":
        """CapsNMT with linear messages, their mean as output, positions in the scores alone and balanced routing.

        In the printed form squashed capsules hardly say what was received, and soon one of them receives everything
        (docs/paper_index.md).

        Args:
            fields: of the configuration.
        """
        return cls(**CALIBRATED | fields)

    def __post_init__(self, **kwargs) -> None:
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def attends(self) -> bool:
        """Whether the decoder reads every source position; otherwise a step's cost does not depend on S."""
        return self.source_memory in ("attention", "hybrid")

    def validate_recurrent(self) -> None:
        """Checks the fields of the recurrent family, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        check_choice("source_memory", self.source_memory, SOURCE_MEMORIES)
        check_minimum("num_source_capsules", self.num_source_capsules, 1)
        check_choice("capsule_output", self.capsule_output, CAPSULE_OUTPUTS)
        check_choice("message_activation", self.message_activation, MESSAGE_ACTIVATIONS)
        check_choice("routing_positions", self.routing_positions, ROUTING_POSITIONS)
        if self.routing_positions == "scores" and self.position_aware_routing and not self.separable_scoring:
            raise ValueError(
                "routing_positions='scores' needs separable_scoring=True: without it, scores are made of the messages"
            )
        if self.d_model < 2 or self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} must be even: each direction of the encoder has half of it")
        if not self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings=False is not supported: the output shares the decoder's embedding")
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: set "
                "share_encoder_decoder_embeddings=False, or leave it out"
            )


__all__ = ["CapsuleRNNConfig"]
