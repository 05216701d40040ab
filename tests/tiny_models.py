"""Tiny models and batches; sizes are different primes wherever they may be."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
)

from hf_capsule_mt import (
    CapsuleBartConfig,
    CapsuleBartForConditionalGeneration,
    CapsuleM2M100Config,
    CapsuleM2M100ForConditionalGeneration,
    CapsuleMarianConfig,
    CapsuleMarianMTModel,
    CapsuleMBartConfig,
    CapsuleMBartForConditionalGeneration,
    CapsuleRNNConfig,
    CapsuleRNNForConditionalGeneration,
)

PAD, EOS = 0, 1
VOCAB, TARGET_VOCAB = 53, 47
SIZES = dict(
    vocab_size=VOCAB,
    d_model=12,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=3,
    encoder_ffn_dim=19,
    decoder_ffn_dim=17,
    max_position_embeddings=41,
    pad_token_id=PAD,
    eos_token_id=EOS,
    forced_eos_token_id=None,
    decoder_start_token_id=PAD,
    scale_embedding=True,
    init_std=0.4,
    guided_capsule_size=5,
    guided_hidden_size=13,
)

# pretrained BART starts the decoder with the end of the sentence
BART_SIZES = SIZES | dict(decoder_start_token_id=EOS, bos_token_id=2)
# so do M2M100 and mBART, whose positions and labels need it
M2M100_SIZES = {name: value for name, value in BART_SIZES.items() if name != "forced_eos_token_id"}
# as in the other families
M2M100_SIZES |= dict(attention_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
MBART_SIZES = BART_SIZES

RNN_SIZES = dict(
    vocab_size=VOCAB,
    d_model=14,
    encoder_layers=2,
    decoder_layers=3,
    num_source_capsules=5,
    pad_token_id=PAD,
    eos_token_id=EOS,
    decoder_start_token_id=PAD,
    init_std=0.4,
    guided_capsule_size=11,
    guided_hidden_size=13,
)

# a guided model with both losses, as fields of a config or arguments of a run
GUIDED = {
    "aggregation": "none",
    "guided_routing": "routing",
    "guided_capsule_size": 5,
    "bow_loss_weight": 1.0,
    "bca_loss_weight": 0.5,
}
# in the names of parameters that plain Marian and BART do not have
NEW_PARAMETERS = (".aggregation.", "guided_")


def plain_config(**overrides) -> MarianConfig:
    return MarianConfig(**(_plain(SIZES) | overrides))


def plain_bart_config(**overrides) -> BartConfig:
    return BartConfig(**(_plain(BART_SIZES) | overrides))


def plain_m2m100_config(**overrides) -> M2M100Config:
    return M2M100Config(**(_plain(M2M100_SIZES) | overrides))


def plain_mbart_config(**overrides) -> MBartConfig:
    return MBartConfig(**(_plain(MBART_SIZES) | overrides))


def _plain(sizes: dict) -> dict:
    return {name: value for name, value in sizes.items() if not name.startswith("guided_")}


def capsule_config(**overrides) -> CapsuleMarianConfig:
    return CapsuleMarianConfig(**(SIZES | overrides))


def open_gates(model: PreTrainedModel) -> PreTrainedModel:
    """Opens the zero-initialised gates and shakes every other new parameter, so that the aggregate matters."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in NEW_PARAMETERS):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def capsule_model(seed: int = 0, **overrides) -> CapsuleMarianMTModel:
    """A tiny capsule model in eval mode whose aggregates contribute."""
    torch.manual_seed(seed)
    return open_gates(CapsuleMarianMTModel(capsule_config(**overrides))).eval()


def bart_config(**overrides) -> CapsuleBartConfig:
    return CapsuleBartConfig(**(BART_SIZES | overrides))


def bart_model(seed: int = 0, **overrides) -> CapsuleBartForConditionalGeneration:
    """A tiny capsule BART in eval mode whose aggregates contribute."""
    torch.manual_seed(seed)
    return open_gates(CapsuleBartForConditionalGeneration(bart_config(**overrides))).eval()


def m2m100_config(**overrides) -> CapsuleM2M100Config:
    return CapsuleM2M100Config(**(M2M100_SIZES | overrides))


def m2m100_model(seed: int = 0, **overrides) -> CapsuleM2M100ForConditionalGeneration:
    """A tiny capsule M2M100 in eval mode whose aggregates contribute."""
    torch.manual_seed(seed)
    return open_gates(CapsuleM2M100ForConditionalGeneration(m2m100_config(**overrides))).eval()


def mbart_config(**overrides) -> CapsuleMBartConfig:
    return CapsuleMBartConfig(**(MBART_SIZES | overrides))


def mbart_model(seed: int = 0, **overrides) -> CapsuleMBartForConditionalGeneration:
    """A tiny capsule mBART in eval mode whose aggregates contribute."""
    torch.manual_seed(seed)
    return open_gates(CapsuleMBartForConditionalGeneration(mbart_config(**overrides))).eval()


class Stack(NamedTuple):
    """A family of Transformers: its class, what makes tiny configurations and models, and the same of its parent."""

    capsule_class: type
    config: Callable
    model: Callable
    plain_class: type
    plain_config: Callable


STACKS = {
    "marian": Stack(CapsuleMarianMTModel, capsule_config, capsule_model, MarianMTModel, plain_config),
    "bart": Stack(
        CapsuleBartForConditionalGeneration, bart_config, bart_model, BartForConditionalGeneration, plain_bart_config
    ),
    "m2m100": Stack(
        CapsuleM2M100ForConditionalGeneration,
        m2m100_config,
        m2m100_model,
        M2M100ForConditionalGeneration,
        plain_m2m100_config,
    ),
    "mbart": Stack(
        CapsuleMBartForConditionalGeneration,
        mbart_config,
        mbart_model,
        MBartForConditionalGeneration,
        plain_mbart_config,
    ),
}
# those that normalise before their sub-layers
PRE_NORM = ("m2m100", "mbart")


def rnn_config(**overrides) -> CapsuleRNNConfig:
    return CapsuleRNNConfig(**(RNN_SIZES | overrides))


def rnn_model(seed: int = 0, **overrides) -> CapsuleRNNForConditionalGeneration:
    """A tiny recurrent model in eval mode; no parameter is zero or constant, not even the embedding of padding."""
    torch.manual_seed(seed)
    model = CapsuleRNNForConditionalGeneration(rnn_config(**overrides))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
            if name.endswith("layer_norm.weight"):
                # of both signs, so that the residual connections do not repeat the last token forever
                parameter.normal_(std=1.5)
    return model.eval()


# what makes a tiny model of every family
BUILDERS: dict[str, Callable] = {name: stack.model for name, stack in STACKS.items()} | {"rnn": rnn_model}


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Number of elements of every tensor that autograd keeps for the backward pass, by the address of its storage."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        super().__init__(self.pack, lambda tensor: tensor)

    def __enter__(self) -> "SavedTensors":
        super().__enter__()
        return self

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor


def quick(names: Iterable[str], *chosen: str) -> list[Any]:
    """The names as parameters of a test, of which all but the chosen ones are among the longer tests."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients that there are, by parameter."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run_whole_and_in_parts(model: torch.nn.Module) -> tuple:
    """Forward and backward over five sentences at once, then over the same in three micro-batches.

    Returns the output and gradients of the first, and the three outputs of the second, whose gradients add up on the
    model.
    """
    batch = sentence_batch(rows=5)
    items = (batch["labels"] != -100).sum()
    whole = model(**batch)
    whole.loss.backward()
    expected = gradients(model)
    model.zero_grad()
    parts = []
    for rows in (slice(0, 1), slice(1, 3), slice(3, 5)):
        parts.append(model(**{name: values[rows] for name, values in batch.items()}, num_items_in_batch=items))
        parts[-1].loss.backward()
    return whole, expected, parts


def assert_padding_row_stays_finite(model: torch.nn.Module) -> dict:
    """A source of padding alone and a target without labels give finite outputs and gradients. Returns the batch."""
    batch = sentence_batch()
    batch["input_ids"][1] = PAD
    batch["attention_mask"][1] = 0
    batch["labels"][2] = -100
    out = model.train()(**batch)
    out.loss.backward()
    assert out.logits.isfinite().all() and out.loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    return batch


def assert_checkpointing_keeps_gradients(model: torch.nn.Module) -> None:
    """Gradient checkpointing changes no gradient of a model without dropout."""
    model.train()
    batch = sentence_batch()
    model(**batch).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**batch).loss.backward()
    for name, gradient in expected.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient)


def sentence_batch(rows: int = 3, seed: int = 7, vocab: int = VOCAB, target_vocab: int = VOCAB) -> dict:
    """Source, mask and labels with padding in every row but the longest."""
    generator = torch.Generator().manual_seed(seed)
    source_lengths, target_lengths = [11, 5, 7, 2, 3][:rows], [6, 9, 4, 3, 1][:rows]
    source = torch.full((rows, max(source_lengths)), PAD)
    labels = torch.full((rows, max(target_lengths)), -100)
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        source[row, :s] = torch.cat([torch.randint(3, vocab, (s - 1,), generator=generator), torch.tensor([EOS])])
        target = torch.randint(3, target_vocab, (t - 1,), generator=generator)
        labels[row, :t] = torch.cat([target, torch.tensor([EOS])])
    return {"input_ids": source, "attention_mask": source.ne(PAD).long(), "labels": labels}
