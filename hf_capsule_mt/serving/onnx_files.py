"""ONNX graphs of a model: exported parts, the loops around them, and one file for the weights of all.

Nothing here knows what a model computes; that is in `graphs` and `search`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.compose import add_prefix_graph
from torch import Tensor, nn

from ..files import write_whole
from .graphs import State

OPSET = 20
WEIGHTS = "weights.onnx_data"
# smaller tensors stay in the graph, where optimisers see them
EXTERNAL_BYTES = 1024
# external tensors begin at a page, so that they can be mapped into memory
ALIGNMENT = 4096


class Part(NamedTuple):
    """A graph with named inputs and outputs."""

    graph: GraphProto
    opsets: list[onnx.OperatorSetIdProto]

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [value.name for value in self.graph.input]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.graph.output]


class _Flat(nn.Module):
    """A function of tensors as a module whose parameters are those of another."""

    def __init__(self, owner: nn.Module, function) -> None:
        super().__init__()
        self.owner = owner
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.function(*tensors)


def export_part(
    owner: nn.Module,
    function,
    inputs: dict[str, tuple[Tensor, Sequence[int]]],
    outputs: Sequence[str],
    prefix: str,
) -> Part:
    """A function of tensors as a graph.

    Args:
        owner: the module whose parameters the function uses.
        function: takes the inputs in their order and returns a tuple of the outputs.
        inputs: an example of each, and its axes that may be of any length.
        outputs: names.
        prefix: of all other names in the graph.
    """
    axes = tuple({axis: torch.export.Dim.DYNAMIC for axis in dynamic} for _, dynamic in inputs.values())
    program = torch.onnx.export(
        _Flat(owner, function).eval(),
        tuple(example.contiguous() for example, _ in inputs.values()),
        dynamo=True,
        dynamic_shapes=(axes,),
        input_names=list(inputs),
        output_names=list(outputs),
        opset_version=OPSET,
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    model = program.model_proto
    add_prefix_graph(model.graph, prefix, rename_inputs=False, rename_outputs=False, inplace=True)
    return Part(model.graph, list(model.opset_import))


def search_loop(
    name: str,
    encoder: Part,
    step: Part,
    states: Sequence[State],
    begin: Part,
    turn: Part,
    search_state: Sequence[str],
    outputs: Sequence[str],
) -> ModelProto:
    """A model that encodes the source and decodes in a loop, the whole search in one call.

    Args:
        name: of the model.
        encoder: makes the tensors of the source.
        step: from "tokens", "position", the source and the states of the decoder to "logits" and "next_" + each state.
        states: of the decoder.
        begin: from "prompts" and "beams" to "first_" + each state of the search.
        turn: from "turn", "logits" and the state of the search to "go_on", "next_" + each state and "turns", which is
            collected over all turns into [T, ...].
        search_state: names; with "rows" [B * K] among them, the decoder goes on from these rows of its states.
        outputs: states of the search after the last turn that the model returns, after "turns".
    """
    held = [state.name for state in states]
    moved = "rows" in search_state
    inputs = [f"held_{state}" if moved else state for state in held]
    nodes = [helper.make_node("Reshape", ["turn_number", "one_value"], ["turn"])]
    nodes += [helper.make_node("Identity", ["turn"], ["position"])]
    if moved:
        nodes += [helper.make_node("Gather", [f"held_{state}", "rows"], [state], axis=0) for state in held]
    of_states = {value.name: value for part in (step, turn) for value in part.graph.input}
    carried = [*search_state, *held]
    body = helper.make_graph(
        [*nodes, *step.graph.node, *turn.graph.node],
        f"{name}_body",
        [
            helper.make_tensor_value_info("turn_number", TensorProto.INT64, []),
            helper.make_tensor_value_info("before", TensorProto.BOOL, []),
            *(_anonymous(_type_of(part, of_states), part) for part in search_state),
            *(_anonymous(of_states[state], part) for state, part in zip(held, inputs, strict=True)),
        ],
        [
            _anonymous(value, value.name)
            for value in _ordered(
                [*step.graph.output, *turn.graph.output], ["go_on", *(f"next_{part}" for part in carried), "turns"]
            )
        ],
        [*step.graph.initializer, *turn.graph.initializer, numpy_helper.from_array(np.array([1]), "one_value")],
    )
    firsts, constants = _first_states(states)
    loop = helper.make_node(
        "Loop",
        ["max_turns", "", *(f"first_{part}" for part in carried)],
        [*(f"last_{part}" for part in carried), "all_turns"],
        name=name,
        body=body,
    )
    named = {"turns": "all_turns", **{part: f"last_{part}" for part in outputs}}
    finals = [helper.make_node("Identity", [value], [output]) for output, value in named.items()]
    made = {*encoder.outputs, *begin.outputs, *carried, "turn", "position", "beams", "logits", *held}
    given = {value.name: value for part in (encoder, begin, step, turn) for value in part.graph.input}
    number = helper.make_tensor_value_info("num_beams", TensorProto.INT64, [])
    limit = helper.make_tensor_value_info("max_turns", TensorProto.INT64, [])
    types = {value.name: value for value in turn.graph.output}
    return _model(
        name,
        [*encoder.graph.node, *firsts[:1], *begin.graph.node, *firsts[1:], loop, *finals],
        [*(value for key, value in given.items() if key not in made), number, limit],
        [_anonymous(types["turns" if part == "turns" else f"next_{part}"], part) for part in named],
        [*encoder.graph.initializer, *begin.graph.initializer, *constants],
        [encoder, step, begin, turn],
    )


def _type_of(part: str, values: dict[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    """The type of a state of the search; "rows" are read by nothing but the loop."""
    return values.get(part) or helper.make_tensor_value_info(part, TensorProto.INT64, None)


def _first_states(states: Sequence[State]) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes that make "beams" (the first of them) and the decoder's states before the first step, and their constants.

    Every state begins as zeros, or as a tensor of the source repeated for the beams of a sentence.
    """
    constants = {"zero": np.array(0), "one": np.array(1), "zeros": np.array([0]), "ones": np.array([1])}
    nodes = [
        helper.make_node("Range", ["zero", "num_beams", "one"], ["beams"]),
        helper.make_node("Shape", ["source_mask"], ["sentences"], start=0, end=1),
        helper.make_node("Reshape", ["num_beams", "ones"], ["beam_count"]),
        helper.make_node("Mul", ["sentences", "beam_count"], ["row_count"]),
    ]
    for state in states:
        first = f"first_{state.name}"
        if state.first is None:
            constants[f"{state.name}_shape"] = np.array(state.shape)
            nodes += [
                helper.make_node("Concat", ["row_count", f"{state.name}_shape"], [f"{first}_shape"], axis=0),
                helper.make_node("ConstantOfShape", [f"{first}_shape"], [first]),
            ]
        else:
            nodes += [
                helper.make_node("Reshape", ["row_count", "scalar"], [f"{first}_count"]),
                helper.make_node("Range", ["zero", f"{first}_count", "one"], [f"{first}_rows"]),
                helper.make_node("Div", [f"{first}_rows", "beam_count"], [f"{first}_sentences"]),
                helper.make_node("Gather", [state.first, f"{first}_sentences"], [first], axis=0),
            ]
            constants["scalar"] = np.zeros(0, np.int64)
    return nodes, [numpy_helper.from_array(value, name) for name, value in constants.items()]


def whole(name: str, part: Part) -> ModelProto:
    """A part as a model of its own."""
    graph = part.graph
    return _model(name, graph.node, graph.input, graph.output, graph.initializer, [part])


def _model(name, nodes, inputs, outputs, initializers, parts: Sequence[Part]) -> ModelProto:
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    versions: dict[str, int] = {}
    for part in parts:
        for opset in part.opsets:
            versions[opset.domain] = max(opset.version, versions.get(opset.domain, 0))
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, producer_name="hf_capsule_mt", ir_version=10)


def _ordered(values, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    by_name = {value.name: value for value in values}
    return [by_name[name] for name in names]


def _anonymous(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """A value's name and type without its shape."""
    return helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None)


def quantize(part: Part, keep: Sequence[str] = ()) -> int:
    """Linear maps with constant weights, in place, as maps of 8-bit integers.

    Weights are symmetric with a scale for every output, within 7 bits: the sums of two products of 16 bits that
    processors without VNNI make then never overflow, and a model translates alike on all of them. Inputs are
    quantised when they come.

    Args:
        part: a graph.
        keep: parts of names of weights that stay as they are.

    Returns:
        How many maps there were.
    """
    weights = {tensor.name: tensor for tensor in part.graph.initializer}
    done: dict[str, list[str]] = {}
    count = 0
    for node in part.graph.node:
        if node.op_type not in ("Gemm", "MatMul") or len(node.input) < 2 or node.input[1] not in weights:
            continue
        name = node.input[1]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if any(word in name for word in keep) or attributes.get("transA") or len(weights[name].dims) != 2:
            continue
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            continue
        key = f"{name}.{attributes.get('transB', 0)}"
        if key not in done:
            matrix = numpy_helper.to_array(weights[name])
            tensors = _as_int8(matrix.T if attributes.get("transB") else matrix, key)
            part.graph.initializer.extend(tensors)
            done[key] = [tensor.name for tensor in tensors]
        bias = list(node.input[2:3])
        node.CopyFrom(
            helper.make_node(
                "DynamicQuantizeMatMul",
                [node.input[0], *done[key], *bias],
                list(node.output),
                name=node.name,
                domain="com.microsoft",
            )
        )
        count += 1
    _drop_unused(part.graph)
    if count and not any(opset.domain == "com.microsoft" for opset in part.opsets):
        part.opsets.append(helper.make_opsetid("com.microsoft", 1))
    return count


def _as_int8(matrix: np.ndarray, name: str) -> list[TensorProto]:
    """A matrix [in, out] as integers, with the scale and the zero of every output."""
    scale = np.abs(matrix).max(axis=0) / 63
    scale[scale == 0] = 1
    integers = np.clip(np.rint(matrix / scale), -63, 63).astype(np.int8)
    zeros = np.zeros(matrix.shape[1], np.int8)
    parts = {"int8": integers, "scale": scale.astype(np.float32), "zero": zeros}
    return [numpy_helper.from_array(np.ascontiguousarray(part), f"{name}.{kind}") for kind, part in parts.items()]


def _drop_unused(graph: GraphProto) -> None:
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def write_models(folder: Path, models: dict[str, ModelProto]) -> None:
    """Writes models that share their weights, each of which is written once.

    Args:
        folder: which exists.
        models: by the name of their files.
    """
    places: dict[str, tuple[int, int]] = {}
    with (folder / WEIGHTS).open("wb") as weights:
        for model in models.values():
            for tensor in _tensors(model.graph):
                content = numpy_helper.to_array(tensor).tobytes()
                if len(content) < EXTERNAL_BYTES:
                    continue
                key = hashlib.sha256(content).hexdigest()
                if key not in places:
                    weights.write(b"\0" * (-weights.tell() % ALIGNMENT))
                    places[key] = (weights.tell(), len(content))
                    weights.write(content)
                _refer(tensor, *places[key])
    for name, model in models.items():
        write_whole(folder / name, model.SerializeToString())


def _tensors(graph: GraphProto):
    """The initialisers of a graph and of those in it."""
    yield from graph.initializer
    for node in graph.node:
        for inner in _graphs(node):
            yield from _tensors(inner)


def _graphs(node: NodeProto) -> list[GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]


def _refer(tensor: TensorProto, offset: int, length: int) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    del tensor.external_data[:]
    for key, value in {"location": WEIGHTS, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))
    tensor.data_location = TensorProto.EXTERNAL
