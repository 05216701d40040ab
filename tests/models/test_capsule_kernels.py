"""The fast ways and the plain ones: the same losses, outputs and gradients."""

import logging
import math

import pytest
import torch
from torch import nn

from hf_capsule_mt.models import capsule_kernels, capsule_recurrent
from hf_capsule_mt.models.capsule_kernels import (
    LARGEST_KEY,
    additive_scores,
    in_pieces,
    key_exponentials,
    linear_cross_entropy,
    plain_kernels,
)
from hf_capsule_mt.models.capsule_routing import (
    dynamic_routing,
    dynamic_routing_capsules,
    em_routing,
    em_routing_capsules,
    inverse_temperature_schedule,
)
from tiny_models import SavedTensors, capsule_model, open_gates, rnn_model, sentence_batch

ROWS, LAYERS, CAPSULES, SIZE = 11, 3, 5, 2
TEMPERATURES = inverse_temperature_schedule(3)


def routing_inputs(system: str, rows: int = ROWS, dtype=torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(rows, LAYERS, CAPSULES, SIZE, dtype=dtype)]
    if system == "em":
        inputs += [torch.rand(rows, LAYERS, dtype=dtype)]
        inputs += [torch.randn(CAPSULES, dtype=dtype) for _ in range(2)]
    return [tensor.detach().requires_grad_() for tensor in inputs]


def plain(system: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    return (dynamic_routing(*inputs, 3) if system == "dynamic" else em_routing(*inputs, TEMPERATURES)).capsules


def fast(system: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    return dynamic_routing_capsules(*inputs, 3) if system == "dynamic" else em_routing_capsules(*inputs, TEMPERATURES)


def with_gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor], **tolerance: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


systems = pytest.mark.parametrize("system", ["dynamic", "em"])


@pytest.fixture
def compiled_pieces(monkeypatch) -> None:
    """Pieces of four rows, the last one filled up; compiled in training."""
    monkeypatch.setattr(capsule_kernels, "VOTE_ELEMENTS_CPU", 4 * LAYERS * CAPSULES * SIZE + 1)
    monkeypatch.setattr(capsule_kernels, "COMPILED_VOTES", 0)
    monkeypatch.setattr(capsule_kernels, "_compiled_cores", {})
    monkeypatch.setattr(capsule_kernels, "_compiler_works", True)


@pytest.fixture
def pieces(compiled_pieces, monkeypatch) -> None:
    """The same without a compiler."""
    monkeypatch.setattr(torch, "compile", lambda core, **options: core)


@systems
@pytest.mark.parametrize("rows", [1, 4, 5, ROWS])
def test_routing_in_pieces_is_routing(system, rows, pieces):
    inputs = routing_inputs(system, rows)
    expected = with_gradients(plain(system, inputs), inputs)
    assert_same(with_gradients(fast(system, inputs), inputs), expected, rtol=1e-12, atol=1e-13)


@systems
def test_routing_in_pieces_gradcheck(system, pieces):
    inputs = routing_inputs(system, rows=5)
    assert torch.autograd.gradcheck(lambda *tensors: fast(system, list(tensors)), inputs)


@systems
def test_leading_dimensions_of_the_capsules(system, pieces):
    inputs = routing_inputs(system, rows=6)
    by_row = 1 + (system == "em")
    shaped = [tensor.unflatten(0, (2, 3)) if index < by_row else tensor for index, tensor in enumerate(inputs)]
    assert_same([fast(system, shaped).flatten(0, 1)], [plain(system, inputs)])


@systems
def test_only_the_inputs_are_kept(system, pieces):
    inputs = routing_inputs(system)
    with SavedTensors() as saved:
        fast(system, inputs)
    kept = {tensor.data_ptr(): tensor.numel() for tensor in inputs}
    assert saved.sizes == kept


@systems
def test_gradients_that_nobody_wants_are_not_computed(system, pieces):
    inputs = routing_inputs(system)
    expected = with_gradients(plain(system, inputs), inputs[:1])
    for tensor in inputs[1:]:
        tensor.requires_grad_(False)
    assert_same(with_gradients(fast(system, inputs), inputs[:1]), expected)


def test_shared_gradients_of_low_precision_are_summed_in_float32(monkeypatch):
    monkeypatch.setattr(capsule_kernels, "VOTE_ELEMENTS_CPU", 1)
    monkeypatch.setattr(capsule_kernels, "COMPILED_VOTES", 0)
    monkeypatch.setattr(capsule_kernels, "_compiler_works", False)
    votes = torch.ones(4096, 1, dtype=torch.bfloat16)
    scale = torch.ones((), dtype=torch.bfloat16, requires_grad=True)
    in_pieces(torch.mul, [votes], [scale]).sum().backward()
    # a running sum in bfloat16 would stop at 256
    assert scale.grad == 4096


@systems
def test_compiled_routing_is_routing_and_compiles_once(system, compiled_pieces):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = []
    for rows in (ROWS, 5, 23, 8, 14, 9):
        inputs = routing_inputs(system, rows)
        expected = with_gradients(plain(system, inputs), inputs)
        assert_same(with_gradients(fast(system, inputs), inputs), expected, rtol=1e-9, atol=1e-10)
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # one graph for the forward pass, one for the backward pass, none for another size of the batch
    assert compiled == [2] * 6
    assert capsule_kernels._compiler_works


def test_small_batches_and_inference_are_not_compiled(monkeypatch):
    monkeypatch.setattr(capsule_kernels, "VOTE_ELEMENTS_CPU", 1)
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: pytest.fail("compiled"))
    inputs = routing_inputs("em")
    monkeypatch.setattr(capsule_kernels, "COMPILED_VOTES", inputs[0].numel() + 1)
    fast("em", inputs).sum().backward()
    monkeypatch.setattr(capsule_kernels, "COMPILED_VOTES", 0)
    with torch.no_grad():
        fast("em", inputs)


@systems
def test_without_a_compiler_routing_runs_anyway_and_says_so_once(system, compiled_pieces, monkeypatch, caplog):
    def broken(core, **options):
        def run(*inputs):
            raise RuntimeError("No working C++ compiler found\nand much more")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    inputs = routing_inputs(system)
    expected = with_gradients(plain(system, inputs), inputs)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_same(with_gradients(fast(system, inputs), inputs), expected)
    assert [record.getMessage() for record in caplog.records] == [
        "routing runs uncompiled, with the same results but slower: No working C++ compiler found"
    ]


# --- output projection and cross-entropy

WIDTH, WORDS = 7, 13


def projection_inputs(dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    states = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    embedding = torch.randn(WORDS, WIDTH, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, WORDS, (ROWS,))
    labels[3] = labels[8] = -100
    return states, embedding, torch.randn(WORDS, dtype=dtype), labels


smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1])
biases = pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
logit_pieces = pytest.mark.parametrize("rows", [1, 4, 99])


@smoothings
@biases
@logit_pieces
@pytest.mark.parametrize("through", ["loss", "logits", "both"])
def test_linear_cross_entropy_is_the_definition(smoothing, with_bias, rows, through, monkeypatch):
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", rows * WORDS)
    states, embedding, bias, labels = projection_inputs()

    def run() -> list[torch.Tensor]:
        loss, logits = linear_cross_entropy(states, embedding, bias if with_bias else None, labels, smoothing)
        total = (loss * 0.7 if through != "logits" else 0) + (logits.square().sum() if through != "loss" else 0)
        return [loss, logits, *torch.autograd.grad(total, [states, embedding])]

    with plain_kernels():
        expected = run()
    assert_same(run(), expected, rtol=1e-12, atol=1e-13)


@smoothings
def test_linear_cross_entropy_gradcheck(smoothing):
    states, embedding, bias, labels = projection_inputs()
    assert torch.autograd.gradcheck(
        lambda *inputs: linear_cross_entropy(*inputs, bias, labels, smoothing), [states, embedding]
    )


def test_extreme_logits_stay_finite():
    states, embedding, _, labels = projection_inputs(torch.float32)
    loss, _ = linear_cross_entropy(1e4 * states, 1e4 * embedding, None, labels, 0.1)
    loss.backward()
    assert loss.isfinite() and states.grad.isfinite().all() and embedding.grad.isfinite().all()


def test_all_labels_ignored_is_zero():
    states, embedding, bias, labels = projection_inputs()
    loss, _ = linear_cross_entropy(states, embedding, bias, torch.full_like(labels, -100), 0.1)
    loss.backward()
    assert loss == 0 and (states.grad == 0).all() and (embedding.grad == 0).all()


@pytest.mark.parametrize("frozen", ["states", "embedding", "both"])
def test_frozen_sides_get_no_gradient(frozen):
    states, embedding, bias, labels = projection_inputs()
    with plain_kernels():
        loss = linear_cross_entropy(states, embedding, bias, labels, 0.1)[0]
        expected = dict(zip(("states", "embedding"), torch.autograd.grad(loss, [states, embedding]), strict=True))
    states.requires_grad_(frozen == "embedding")
    embedding.requires_grad_(frozen == "states")
    loss, logits = linear_cross_entropy(states, embedding, bias, labels, 0.1)
    assert loss.requires_grad == logits.requires_grad == (frozen != "both")
    if frozen != "both":
        loss.backward()
        kept, tensor = ("states", states) if frozen == "embedding" else ("embedding", embedding)
        torch.testing.assert_close(tensor.grad, expected[kept])


def test_one_tensor_of_the_size_of_the_logits(monkeypatch):
    monkeypatch.setattr(capsule_kernels, "LOGIT_ELEMENTS", WORDS)
    states, embedding, bias, labels = projection_inputs()
    with SavedTensors() as saved:
        linear_cross_entropy(states, embedding, bias, labels, 0.1)
    assert max(saved.sizes.values()) < ROWS * WORDS
    with plain_kernels(), SavedTensors() as saved:
        linear_cross_entropy(states, embedding, bias, labels, 0.1)
    assert max(saved.sizes.values()) == ROWS * WORDS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_projects_in_low_precision_and_sums_in_float32(dtype):
    states, embedding, bias, labels = projection_inputs(torch.float32)

    def run() -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=dtype):
            loss, logits = linear_cross_entropy(states, embedding, bias, labels, 0.1)
        return [loss, logits.float(), *torch.autograd.grad(loss, [states, embedding])]

    found = run()
    with plain_kernels():
        expected = run()
    assert found[0].dtype == torch.float32
    assert_same(found, expected, rtol=2e-2, atol=2e-2)


# --- scores


@pytest.mark.parametrize("elements", [1, 10**6], ids=["pieces", "one piece"])
def test_scores_without_gradient_are_those_with_gradient(elements, monkeypatch):
    monkeypatch.setattr(capsule_kernels, "SCORE_ELEMENTS_CPU", elements)
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 3, 4, SIZE), torch.randn(2, 3, 5, SIZE)
    weight = torch.randn(2, SIZE, requires_grad=True)
    found = additive_scores(queries, keys, weight)
    assert found.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(additive_scores(queries, keys, weight), found, rtol=0, atol=0)
    with plain_kernels():
        torch.testing.assert_close(additive_scores(queries, keys, weight), found)


@pytest.mark.parametrize("elements", [1, 10**6], ids=["pieces", "one piece"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_of_exponentials_are_those_of_keys(dtype, elements, monkeypatch):
    monkeypatch.setattr(capsule_kernels, "SCORE_ELEMENTS_CPU", elements)
    torch.manual_seed(0)
    keys = (torch.rand(2, 3, 5, SIZE, dtype=dtype) - 0.5) * 2 * LARGEST_KEY
    # near a key, where tanh is not 1, and far beyond every key
    queries = torch.cat([-keys[..., :4, :] + 0.3, torch.full_like(keys, 1e8), torch.full_like(keys, -1e8)], dim=-2)
    weight = torch.randn(2, SIZE, dtype=dtype)
    with torch.no_grad():
        exponentials = key_exponentials(keys)
        found = additive_scores(queries, torch.full_like(keys, math.nan), weight, exponentials)
        assert key_exponentials(keys * 1.1) is None
    assert key_exponentials(keys) is None
    with plain_kernels(), torch.no_grad():
        torch.testing.assert_close(found, additive_scores(queries, keys, weight))
        assert key_exponentials(keys) is None


# --- whole models

MODELS = {
    "dynamic_routing": {"aggregation": "dynamic_routing"},
    "em_routing": {"aggregation": "em_routing"},
    "everything": dict(
        aggregation="em_routing",
        guided_routing="routing",
        bow_loss_weight=1.0,
        bca_loss_weight=0.5,
        label_smoothing=0.1,
    ),
    "classifier": {"guided_routing": "classifier", "bow_loss_weight": 1.0},
    "attention": {"guided_routing": "attention", "bow_loss_weight": 1.0},
    "recurrent": {"guided_routing": "recurrent", "bow_loss_weight": 1.0},
    "hybrid memory": {"source_memory": "hybrid"},
}


@pytest.mark.parametrize(
    ("fields", "compiled"),
    [(fields, False) for fields in MODELS.values()] + [(MODELS["everything"], True)],
    ids=[*MODELS, "everything-compiled"],
)
def test_a_model_trains_alike_either_way(fields, compiled, monkeypatch):
    for name in ("VOTE_ELEMENTS_CPU", "SCORE_ELEMENTS_CPU", "LOGIT_ELEMENTS"):
        monkeypatch.setattr(capsule_kernels, name, 100)
    # one sentence at a time
    monkeypatch.setattr(capsule_recurrent, "MESSAGE_ELEMENTS_CPU", 1)
    monkeypatch.setattr(capsule_kernels, "COMPILED_VOTES", 0)
    monkeypatch.setattr(capsule_kernels, "_compiler_works", compiled)
    build = rnn_model if "source_memory" in fields else capsule_model
    model = open_gates(build(**fields)).double().train()

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        out = model(**sentence_batch())
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return [out.loss, out.logits, *torch.autograd.grad(out.loss, parameters)]

    with plain_kernels():
        expected = run()
    assert_same(run(), expected, rtol=1e-7, atol=1e-9)
    assert capsule_kernels._compiler_works == compiled


class Scaled(nn.Linear):
    """Stands for an adapter or a quantised layer in place of the projection."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize("way", ["layer", "hook", "patched"])
def test_what_stands_in_place_of_the_projection_is_used(way):
    model, batch = capsule_model(), sentence_batch()
    expected = 2 * model(**batch).logits
    head = model.lm_head
    if way == "layer":
        model.lm_head = Scaled(head.in_features, head.out_features, bias=False)
        model.lm_head.weight = head.weight
    elif way == "hook":
        head.register_forward_hook(lambda module, inputs, output: 2 * output)
    else:
        forward = head.forward
        head.forward = lambda inputs: 2 * forward(inputs)
    out = model(**batch)
    torch.testing.assert_close(out.logits, expected)
    definition = nn.functional.cross_entropy(expected.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(out.loss, definition)
