"""Linear maps of 8-bit integers: which ones, how, and what they do to translations."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import load_system
from onnx import numpy_helper

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.serving.export import ENCODER, STEP
from hf_capsule_mt.serving.graphs import AttentionSource, AttentionStep, RecurrentSource, RecurrentStep
from hf_capsule_mt.serving.onnx_files import LARGEST_INT8, Part, quantize
from hf_capsule_mt.serving.onnx_translator import OnnxTranslator
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

INT8 = "DynamicQuantizeMatMul"
# what routes, attends, normalises or chooses
FLOAT32 = (
    "MultiHeadAttention",
    "SkipLayerNormalization",
    "LayerNormalization",
    "Softmax",
    "Exp",
    "Log",
    "LSTM",
    "Gather",
)


def part_of(folder, name):
    model = onnx.load(folder / name)
    return Part(model.graph, list(model.opset_import))


def owner_of(system, name):
    """What a graph was made of."""
    recurrent = system.model.config.model_type == "capsule-rnn"
    kinds = (RecurrentSource, RecurrentStep) if recurrent else (AttentionSource, AttentionStep)
    return kinds[name == STEP](system.model)


def kinds(part):
    return Counter(node.op_type for node in part.graph.node)


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory):
    """The model that knows six sentences by heart, by the command."""
    root = tmp_path_factory.mktemp("int8")
    tiny_model().save_pretrained(root / "plain")
    tiny_tokenizer().save_pretrained(root / "plain")
    assert main(["export", str(root / "plain"), str(root / "int8"), "--format", "onnx", "--int8"]) == 0
    return root / "int8"


@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_has_been_learnt_is_translated_as_before(int8_folder, num_beams):
    assert OnnxTranslator(int8_folder, threads=1).translate(SOURCES, num_beams=num_beams) == TARGETS
    assert "linear maps of 8-bit integers" in (int8_folder / "README.md").read_text(encoding="utf-8")


def test_all_linear_maps_of_a_plain_model(int8_folder):
    """Encoder: q, k and v; attention's output; two of the FFN; keys and values for the decoder. Step: the first four
    without keys and values, two of cross-attention, and the output projection."""
    maps = {name: kinds(part_of(int8_folder, name)) for name in (ENCODER, STEP)}
    assert {name: found[INT8] for name, found in maps.items()} == {ENCODER: 5, STEP: 7}
    assert all(found["Gemm"] + found["MatMul"] == 0 for found in maps.values())


def test_routing_and_attention_stay_float32(system):
    model = system.model
    routing = {
        name: parameter.detach().numpy()
        for name, parameter in model.named_parameters()
        if any(word in name for word in ("score", "capsule_proj", "transition"))
    }
    assert routing
    found = set()
    for name in (ENCODER, STEP):
        part = part_of(system.folder, name)
        before = kinds(part)
        count = quantize(part, owner_of(system, name))
        after = kinds(part)
        assert count == after[INT8] == before["Gemm"] + before["MatMul"] - after["Gemm"] - after["MatMul"] > 0
        assert {kind: before[kind] for kind in FLOAT32} == {kind: after[kind] for kind in FLOAT32}
        tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in part.graph.initializer}
        for node in part.graph.node:
            if node.op_type == INT8:
                integers, scales, zeros = (tensors[value] for value in node.input[1:4])
                assert integers.dtype == np.int8 and integers.ndim == 2
                assert np.abs(integers.astype(int)).max() == LARGEST_INT8 and not zeros.any()
                assert scales.dtype == np.float32 and scales.shape == (integers.shape[1],)
            elif node.op_type == "MatMul" and node.input[1] in tensors:
                left = tensors[node.input[1]]
                names = [
                    name for name, matrix in routing.items() if np.array_equal(matrix.T.flatten(), left.flatten())
                ]
                assert names, (node.input[1], left.shape)
                found |= set(names)
    # all of them, none in integers
    assert found == {name for name, matrix in routing.items() if "bias" not in name}


def test_int8_logits_are_near_those_of_float32(system):
    """And the sessions run, the whole of them."""
    rng = np.random.default_rng(2)
    ids = rng.integers(3, 40, (2, 5))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    plain = onnx.load(system.folder / ENCODER)
    small = onnx.load(system.folder / ENCODER)
    quantize(Part(small.graph, list(small.opset_import)), owner_of(system, ENCODER))
    values = []
    for model in (plain, small):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        values.append(session.run(None, feeds)[1:])
    differences = [np.abs(exact - near).mean() / exact.std() for exact, near in zip(*values, strict=True)]
    assert 0 < max(differences) < 0.1


@pytest.mark.slow
def test_a_model_with_both_routings(exported_folders, tmp_path):
    checkpoint, folder = exported_folders("em_and_gdr")
    output = tmp_path / "int8"
    assert main(["export", str(checkpoint), str(output), "--format", "onnx", "--int8"]) == 0
    exact, near = load_system(checkpoint, folder), OnnxTranslator(output, threads=1)
    assert (output / "weights.bin").stat().st_size < (folder / "weights.bin").stat().st_size * 2
    sources = [" ".join(f"w{3 + (7 * i + k) % 40}" for i in range(k)) for k in range(1, 12)]
    pairs = zip(exact.translator.translate_nbest(sources), near.translate_nbest(sources), strict=True)
    assert sum(abs(left.score - right.score) < 0.3 for (left,), (right,) in pairs) >= len(sources) // 2
