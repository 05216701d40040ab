"""What can be measured: sizes, systems with their parents, jobs and operators, and the tests that cover each.

Importing this does not import hf_capsule_mt: `revisions.py` builds the same systems from older versions of it, which
may not know all of them (`Unknown`).

A system is compared with its parent: the plain model of transformers for the Marian and BART families. transformers
has no recurrent translation model, so the parent of recurrent systems is this package's own, with the memory that does
least: "simple".
"""

import copy
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from timing import Run

PAD, EOS = 0, 1


class Unknown(Exception):
    """A system or operator that the imported version of hf_capsule_mt does not have."""


class Size(NamedTuple):
    """Sizes of models and batches. Recurrent models have 4 + 3 layers in their paper, at any of these widths."""

    d_model: int
    layers: int
    heads: int
    ffn: int
    vocab_size: int
    # per training batch, in sentences of `length` tokens
    tokens: int
    length: int
    rnn_encoder_layers: int = 4
    rnn_decoder_layers: int = 3


SIZES = {
    "tiny": Size(64, 2, 4, 96, 500, tokens=66, length=6, rnn_encoder_layers=2, rnn_decoder_layers=2),
    "yardstick": Size(192, 2, 4, 512, 4000, tokens=2048, length=24),
    "base": Size(512, 6, 8, 2048, 32000, tokens=4096, length=32),
    "big": Size(1024, 6, 16, 4096, 32000, tokens=4096, length=32),
}


class Setting(NamedTuple):
    """How everything in one record is measured.

    Attributes:
        lengths: of the 16 sentences that are decoded, in tokens.
        dtype: float32; bfloat16 trains under autocast and decodes with weights of that type.
    """

    size: Size
    lengths: tuple[int, ...]
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


class Family(NamedTuple):
    """Models that share a parent: names of the classes, and the test files."""

    parent: str
    plain: tuple[str, str] | None
    capsule: tuple[str, str]
    tests: tuple[str, ...]


FAMILIES = {
    "marian": Family(
        "marian",
        ("MarianConfig", "MarianMTModel"),
        ("CapsuleMarianConfig", "CapsuleMarianMTModel"),
        ("test_capsule_marian.py",),
    ),
    "bart": Family(
        "bart",
        ("BartConfig", "BartForConditionalGeneration"),
        ("CapsuleBartConfig", "CapsuleBartForConditionalGeneration"),
        ("test_capsule_stacks.py",),
    ),
    "rnn": Family(
        "rnn_simple",
        None,
        ("CapsuleRNNConfig", "CapsuleRNNForConditionalGeneration"),
        ("test_sequence_routing.py", "test_capsule_recurrent.py", "test_capsule_rnn.py"),
    ),
}


class System(NamedTuple):
    """A measured system: its family, and the fields of its configuration (None: plain parent).

    What tables call it is in hf_capsule_mt/evidence/systems.py.
    """

    family: str
    options: dict[str, Any] | None = None

    @property
    def guided(self) -> bool:
        """Whether it has a guided head."""
        return (self.options or {}).get("guided_routing", "none") != "none"


def _marian(**options: Any) -> System:
    return System("marian", {"aggregation": "none"} | options)


_BOTH = {"bow_loss_weight": 1.0, "bca_loss_weight": 1.0}
SYSTEMS = {
    "marian": System("marian"),
    "none": _marian(),
    "linear": _marian(aggregation="linear"),
    "dynamic": _marian(aggregation="dynamic"),
    "dynamic_routing": _marian(aggregation="dynamic_routing"),
    "em_routing": _marian(aggregation="em_routing"),
    "guided_routing": _marian(guided_routing="routing"),
    "guided_routing_bow_bca": _marian(guided_routing="routing", **_BOTH),
    "guided_classifier": _marian(guided_routing="classifier", **_BOTH),
    "guided_attention": _marian(guided_routing="attention", **_BOTH),
    "guided_recurrent": _marian(guided_routing="recurrent", **_BOTH),
    "em_routing_guided": _marian(aggregation="em_routing", guided_routing="routing"),
    "bart": System("bart"),
    "bart_none": System("bart", {"aggregation": "none"}),
    "bart_em_routing": System("bart", {"aggregation": "em_routing"}),
    "rnn_simple": System("rnn", {"source_memory": "simple"}),
    "rnn_capsule": System("rnn", {"source_memory": "capsule"}),
    "rnn_capsule_balanced": System("rnn", {"source_memory": "capsule", "balanced_routing": True}),
    "rnn_capsule_calibrated": System(
        "rnn",
        {
            "source_memory": "capsule",
            "capsule_output": "mean",
            "message_activation": "linear",
            "routing_positions": "scores",
            "balanced_routing": True,
        },
    ),
    "rnn_attention": System("rnn", {"source_memory": "attention"}),
    "rnn_hybrid": System("rnn", {"source_memory": "hybrid"}),
}
# how often a job runs in a round: the short ones more often, as their times vary more
JOBS = {"training step": 1, "greedy, 1 sentence": 8, "beam 5, 16 sentences": 2}

TESTS = "tests/models"
KERNEL_TESTS = "test_capsule_kernels.py"
AGGREGATION_TESTS = ("test_capsule_routing.py",)
GUIDED_TESTS = ("test_guided_routing.py", "test_guided_marian.py")


def parent_of(name: str) -> str:
    """The system that a system is compared with; parents are their own."""
    return FAMILIES[SYSTEMS[name].family].parent


def tests_of(systems: Sequence[str], operators: Sequence[str] = ()) -> list[str]:
    """The test files, relative to the repository, that cover these systems and operators."""
    files: set[str] = set()
    for operator in operators:
        files |= {*OPERATORS[operator].tests, KERNEL_TESTS}
    # a plain parent is transformers' own
    for system in (SYSTEMS[name] for name in systems if SYSTEMS[name].options is not None):
        files |= {*FAMILIES[system.family].tests, KERNEL_TESTS}
        if system.options.get("aggregation", "none") != "none":
            files |= set(AGGREGATION_TESTS)
        if system.guided:
            files |= set(GUIDED_TESTS)
    return sorted(f"{TESTS}/{file}" for file in files)


def sentence_lengths(source: Path | None, size: Size, sentences: int = 16) -> tuple[int, ...]:
    """Lengths in tokens of the first sentences of a text; without one, the size's length for all.

    There is no tokenizer for random weights: a word counts as 1.3 sub-words, and the end of the sentence as one.

    Raises:
        ValueError: if the text has fewer sentences.
    """
    if source is None:
        return (size.length,) * sentences
    lines = [line.split() for line in source.read_text(encoding="utf-8-sig").split("\n") if line.strip()][:sentences]
    if len(lines) < sentences:
        raise ValueError(f"{source} must have at least {sentences} sentences, but has {len(lines)}")
    return tuple(round(1.3 * len(words)) + 1 for words in lines)


def build(name: str, setting: Setting) -> PreTrainedModel:
    """One system with random weights.

    Raises:
        Unknown: if the imported version of hf_capsule_mt lacks the class or a field of the configuration.
    """
    system, size = SYSTEMS[name], setting.size
    family = FAMILIES[system.family]
    if system.options is None:
        config_class, model_class = _classes("transformers", family.plain)
    else:
        config_class, model_class = _classes("hf_capsule_mt", family.capsule)
    options = _sizes(system.family, size, max(setting.lengths)) | (system.options or {})
    # foreign fields are no error to transformers: an old version would be measured without the option
    fields = {field.name for field in dataclasses.fields(config_class)}
    missing = [option for option in system.options or () if option not in fields]
    if missing:
        raise Unknown(f"{config_class.__name__} has no field {', '.join(missing)}")
    if system.guided:
        # half the model's width, as in the paper
        options["guided_capsule_size"] = size.d_model // 2
    torch.manual_seed(1)
    model = model_class(config_class(**options))
    with torch.no_grad():
        # as in a trained model: at zero they would switch a system off
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("gate", "guided_head.output_proj.weight")):
                parameter.fill_(0.1)
    return model.to(setting.device)


def _classes(module: str, names: tuple[str, str] | None) -> list[Any]:
    try:
        return [getattr(importlib.import_module(module), name) for name in names or ()]
    except (ImportError, AttributeError) as error:
        raise Unknown(str(error)) from error


def _sizes(family: str, size: Size, longest: int) -> dict[str, Any]:
    """Fields of the configuration that all systems of a family share."""
    shared = dict(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        activation_function="relu",
        dropout=0.1,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,
    )
    if family == "rnn":
        return shared | dict(encoder_layers=size.rnn_encoder_layers, decoder_layers=size.rnn_decoder_layers)
    return shared | dict(
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.ffn,
        decoder_ffn_dim=size.ffn,
        max_position_embeddings=max(256, longest + 2),
    )


def make_job(model: PreTrainedModel, setting: Setting, job: str) -> Run:
    """One of JOBS as a function without arguments.

    Training: forward, backward and AdamW's update on `tokens` random tokens. Decoding: a fixed number of steps, as
    many as the longest source has tokens, so that every system does the same work whatever its weights; the one
    sentence of greedy decoding is the median of the 16 in length.

    Raises:
        KeyError: if there is no such job.
    """
    if job == "training step":
        return _training(model, setting)
    lengths = sorted(setting.lengths)
    median = lengths[len(lengths) // 2]
    sources, beams = {"greedy, 1 sentence": ([median], 1), "beam 5, 16 sentences": (lengths, 5)}[job]
    decoder = (model if setting.dtype == torch.float32 else copy.deepcopy(model).to(setting.dtype)).eval()
    input_ids, attention_mask = _batch(setting, sources)
    steps = max(sources)

    def decode() -> object:
        decoder.eval()
        return decoder.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            num_beams=beams,
            do_sample=False,
            min_new_tokens=steps,
            max_new_tokens=steps,
        )

    return decode


def _training(model: PreTrainedModel, setting: Setting) -> Run:
    size = setting.size
    input_ids, attention_mask = _batch(setting, [size.length] * max(1, size.tokens // size.length))
    labels = input_ids.roll(1, dims=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    low_precision = setting.dtype != torch.float32

    def train() -> None:
        model.train()
        with torch.autocast(setting.device, setting.dtype, enabled=low_precision):
            loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _batch(setting: Setting, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Random words, padded: input_ids and attention_mask [B, S]."""
    generator = torch.Generator().manual_seed(2)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.randint(EOS + 1, setting.size.vocab_size, shape, generator=generator).masked_fill(~mask, PAD)
    return ids.to(setting.device), mask.long().to(setting.device)


class Operator(NamedTuple):
    """A function of the package: how its inputs are made, how it is called, and its tests.

    Attributes:
        module: of hf_capsule_mt.models; the function has the operator's name.
        shapes: of a size, the shapes of the random inputs, which all get gradients.
        call: calls the function with these inputs, and gives the tensor that is differentiated.
    """

    module: str
    shapes: Callable[[Size], list[tuple[int, ...]]]
    call: Callable[..., Tensor]
    tests: tuple[str, ...]


def _rows(size: Size) -> int:
    return max(1, size.tokens // size.length)


def _separable(function: Callable, *inputs: Tensor) -> Tensor:
    """sequence_routing with weights of their own in each of 3 iterations and with separable scores."""
    *messages, child_scores, weight = inputs
    return function(
        messages, len(messages), child_scores=child_scores, parent_scores=lambda capsules: capsules @ weight
    ).capsules


# R = 3; 2 PAST, 2 FUTURE and 2 REDUNDANT capsules of half the width; 6 source capsules
OPERATORS = {
    "dynamic_routing_capsules": Operator(
        "capsule_routing",
        lambda z: [(z.tokens, z.layers, z.d_model, 1)],
        lambda function, votes: function(votes, 3),
        AGGREGATION_TESTS,
    ),
    "em_routing_capsules": Operator(
        "capsule_routing",
        lambda z: [(z.tokens, z.layers, z.d_model, 1), (z.tokens, z.layers), (z.d_model,), (z.d_model,)],
        lambda function, votes, activations, beta_a, beta_mu: function(
            votes, activations.sigmoid(), beta_a, beta_mu, (0.05, 0.0975, 0.142625)
        ),
        AGGREGATION_TESTS,
    ),
    "guided_dynamic_routing": Operator(
        "capsule_routing",
        lambda z: [
            (_rows(z), z.length, 6, z.d_model // 2),
            (_rows(z), z.length, 6, z.d_model // 2),
            (_rows(z), z.length, z.d_model // 2),
            (z.d_model // 2, z.d_model // 2),
            (z.d_model // 2,),
        ],
        lambda function, *inputs: function(*inputs, 3).capsules,
        GUIDED_TESTS[:1],
    ),
    "guided_classifier": Operator(
        "capsule_routing",
        lambda z: [
            (_rows(z), z.length, 4, z.d_model // 2),
            (_rows(z), z.length, z.d_model // 2),
            (_rows(z), z.length, z.d_model // 2),
            (3, z.d_model // 2),
        ],
        lambda function, *inputs: function(*inputs, (2, 2)).capsules,
        GUIDED_TESTS[:1],
    ),
    "guided_attention": Operator(
        "capsule_routing",
        lambda z: [
            (_rows(z), z.length, 4, z.d_model // 2),
            (_rows(z), z.length, 2, z.d_model // 2),
            (_rows(z), z.length, 2, z.d_model // 2),
            (2, z.d_model // 2),
        ],
        lambda function, *inputs: function(*inputs, (2, 2)).capsules,
        GUIDED_TESTS[:1],
    ),
    "sequence_routing": Operator(
        "capsule_routing",
        lambda z: [
            *[(_rows(z), z.length, 6, z.d_model)] * 3,
            (_rows(z), z.length, z.d_model),
            (z.d_model, z.d_model),
        ],
        _separable,
        FAMILIES["rnn"].tests[:1],
    ),
    "additive_scores": Operator(
        "capsule_kernels",
        lambda z: [(_rows(z), z.length, z.d_model), (_rows(z), z.length, z.d_model), (1, z.d_model)],
        lambda function, queries, keys, weight: function(queries, keys, weight),
        (),
    ),
    "weighted_log_normaliser": Operator(
        "capsule_kernels",
        lambda z: [(z.tokens, z.d_model), (z.vocab_size, z.d_model)],
        lambda function, contents, embedding: function(
            contents, embedding, torch.ones(len(contents), device=contents.device)
        ),
        (),
    ),
    "linear_cross_entropy": Operator(
        "capsule_kernels",
        lambda z: [(z.tokens, z.d_model), (z.vocab_size, z.d_model)],
        lambda function, states, embedding: function(
            states, embedding, None, torch.arange(len(states), device=states.device) % len(embedding), 0.1
        )[0],
        (),
    ),
}


def make_operator(name: str, setting: Setting, context: Callable[[], Any] = nullcontext) -> Run:
    """Forward and backward of an operator on a training batch's inputs, inside a context.

    Raises:
        Unknown: if the imported version of hf_capsule_mt lacks the function.
    """
    operator = OPERATORS[name]
    try:
        module = importlib.import_module(f"hf_capsule_mt.models.{operator.module}")
        function = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise Unknown(str(error)) from error
    generator = torch.Generator().manual_seed(2)
    inputs = [
        (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(setting.device, setting.dtype).requires_grad_()
        for shape in operator.shapes(setting.size)
    ]
    with torch.no_grad():
        upstream = torch.randn_like(operator.call(function, *inputs))

    def run() -> None:
        with context():
            torch.autograd.grad(operator.call(function, *inputs), inputs, upstream)

    return run
