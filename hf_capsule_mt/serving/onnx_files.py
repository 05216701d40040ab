"""ONNX graphs of a model: exported parts, the loops around them, and one file for the weights of all.

Nothing here knows what a model computes; that is in `graphs` and `search`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.compose import add_prefix_graph
from torch import Tensor, nn

from ..files import write_whole
from .graphs import State

if TYPE_CHECKING:
    from .search import Search

OPSET = 20
# kinds of elements
BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64
WEIGHTS = "weights.onnx_data"
# smaller tensors stay in the graph, where optimisers see them
EXTERNAL_BYTES = 1024
# of quantised weights: 2 * 255 * 64 is a number of 16 bits
LARGEST_INT8 = 64
# external tensors begin at a page, so that they can be mapped into memory
ALIGNMENT = 4096


class Part(NamedTuple):
    """A graph with named inputs and outputs."""

    graph: GraphProto
    opsets: list[onnx.OperatorSetIdProto]


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
    _multiply_squares(model.graph)
    _drop_unused(model.graph)
    return Part(model.graph, list(model.opset_import))


def _multiply_squares(graph: GraphProto) -> None:
    """x ** 2 as x * x: ONNX Runtime's power is several times slower."""
    constants = {tensor.name: tensor for tensor in graph.initializer if not tensor.dims}
    for node in graph.node:
        if (
            node.op_type == "Pow"
            and node.input[1] in constants
            and numpy_helper.to_array(constants[node.input[1]]) == 2
        ):
            node.op_type = "Mul"
            node.input[1] = node.input[0]


class Nodes:
    """Nodes that are written one by one.

        add = Nodes("add")
        total = add("Add", "x", add.constant(1))

    Args:
        prefix: of the names that are not given.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}

    def __call__(self, kind: str, *inputs: str, name: str | None = None, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or of each of them."""
        name = f"{self.prefix}_{len(self.nodes)}" if name is None else name
        names = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def second(self, name: str) -> str:
        """The second output of the node whose first one has this name."""
        return f"{name}_1"

    def constant(self, value: float) -> str:
        """The name of a number."""
        kinds: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float32}
        return self._keep(np.array(value, kinds[type(value)]))

    def vector(self, *values: int) -> str:
        """The name of a vector of whole numbers; without any, that of the shape of a number."""
        return self._keep(np.array(values, np.int64))

    def _keep(self, value: np.ndarray) -> str:
        name = f"{self.prefix}_{value.dtype}_{'x'.join(map(str, value.shape))}_{value.tolist()}"
        self.constants[name] = numpy_helper.from_array(value, name)
        return name


def search_loop(encoder: Part, step: Part, states: Sequence[State], search: "Search") -> ModelProto:
    """A model that encodes the source and decodes in a loop, a whole search in one call.

    Args:
        encoder: makes the tensors of the source.
        step: from "tokens", "position" [1], the source and the states of the decoder to "logits" and "next_" + each
            state.
        states: of the decoder.
        search: around the step.
    """
    moved = "rows" in search.state
    body = Nodes("body")
    body("Reshape", "turn", body.vector(1), name="position")
    held = {state.name: f"held_{state.name}" if moved else state.name for state in states}
    if moved:
        for state, name in held.items():
            body("Gather", name, "rows", axis=0, name=state)
    carried = {**search.state, **dict.fromkeys(held.values(), FLOAT)}
    after = [f"next_{name}" for name in (*search.state, *held)]
    loop_body = helper.make_graph(
        [*body.nodes, *step.graph.node, *search.turn.nodes],
        f"{search.name}_body",
        [_value("turn", INT64, ()), _value("before", BOOL, ()), *(_value(*item) for item in carried.items())],
        [
            _value("go_on", BOOL),
            *(_value(name, kind) for name, kind in zip(after, carried.values(), strict=True)),
            *(_value(*item) for item in search.collected.items()),
        ],
        [*step.graph.initializer, *body.constants.values(), *search.turn.constants.values()],
    )
    begin = _first_states(states)
    names = [*search.state, *held]
    begin.nodes.append(
        helper.make_node(
            "Loop",
            ["max_turns", "", *(f"first_{name}" for name in names)],
            [*(f"last_{name}" for name in names), *(f"all_{name}" for name in search.collected)],
            name=search.name,
            body=loop_body,
        )
    )
    outputs = search.collected | {name: search.state[name] for name in search.outputs}
    for name in outputs:
        begin("Identity", f"all_{name}" if name in search.collected else f"last_{name}", name=name)
    return _model(
        search.name,
        [*encoder.graph.node, *search.begin.nodes, *begin.nodes],
        [*encoder.graph.input, *(_value(name, *kind) for name, kind in search.inputs.items())],
        [_value(*item) for item in outputs.items()],
        [*encoder.graph.initializer, *search.begin.constants.values(), *begin.constants.values()],
        [encoder, step],
    )


def with_places(encoder: Part) -> Part:
    """An encoder that finds its inputs "words" and "places" in "attention_mask" itself."""
    find = Nodes("places")
    flat = find("Reshape", "attention_mask", find.vector(-1))
    find("Reshape", find("NonZero", flat), find.vector(-1), name="words")
    counted = find("Sub", find("CumSum", flat, find.constant(0)), find.constant(1))
    find("Max", counted, find.constant(0), name="places")
    graph = GraphProto()
    graph.CopyFrom(encoder.graph)
    del graph.node[:], graph.input[:]
    graph.node.extend([*find.nodes, *encoder.graph.node])
    graph.input.extend(value for value in encoder.graph.input if value.name not in ("words", "places"))
    graph.initializer.extend(find.constants.values())
    return Part(graph, encoder.opsets)


def _first_states(states: Sequence[State]) -> Nodes:
    """Nodes that make the decoder's states before the first step, "first_" + name, from "row_count" and "beam_count".

    Every state begins as zeros, or as a tensor of the source repeated for the beams of a sentence.
    """
    begin = Nodes("states")
    for state in states:
        if state.first is None:
            shape = begin("Concat", "row_count", begin.vector(*state.shape), axis=0)
            begin("ConstantOfShape", shape, name=f"first_{state.name}")
        else:
            count = begin("Reshape", "row_count", begin.vector())
            rows = begin("Range", begin.constant(0), count, begin.constant(1))
            begin("Gather", state.first, begin("Div", rows, "beam_count"), axis=0, name=f"first_{state.name}")
    return begin


def _value(name: str, kind: int, shape: Sequence[str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


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


def quantize(part: Part, owner: nn.Module) -> int:
    """Linear maps, in place, as maps of 8-bit integers.

    These are the nn.Linear modules but those that score within the iterations of a routing ("score" in their name).
    Matrices that enter a formula of routing or attention as they are stay float32, and so do LSTMs.

    Weights are symmetric with a scale for every output, from -64 to 64: the sums of two products of 16 bits that
    processors without VNNI make never overflow then, and a model translates alike on all of them. Inputs are
    quantised when they come.

    Args:
        part: a graph.
        owner: the module that the graph was made of.

    Returns:
        How many maps there were.
    """
    linear = {
        _digest(module.weight.detach().numpy().T)
        for name, module in owner.named_modules()
        if isinstance(module, nn.Linear) and "score" not in name
    }
    weights = {tensor.name: tensor for tensor in part.graph.initializer}
    done: dict[str, list[str]] = {}
    count = 0
    for node in part.graph.node:
        if node.op_type not in ("Gemm", "MatMul") or len(node.input) < 2 or node.input[1] not in weights:
            continue
        name = node.input[1]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA"):
            continue
        matrix = numpy_helper.to_array(weights[name])
        matrix = matrix.T if attributes.get("transB") else matrix
        if _digest(matrix) not in linear:
            continue
        key = f"{name}.{attributes.get('transB', 0)}"
        if key not in done:
            tensors = _as_int8(matrix, key)
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


def _digest(matrix: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    """What tells a matrix from others; the names of those that the exporter transposes say nothing."""
    return matrix.shape, hashlib.sha256(matrix.tobytes()).digest()


def _as_int8(matrix: np.ndarray, name: str) -> list[TensorProto]:
    """A matrix [in, out] as integers, with the scale and the zero of every output."""
    scale = np.abs(matrix).max(axis=0) / LARGEST_INT8
    scale[scale == 0] = 1
    integers = np.clip(np.rint(matrix / scale), -LARGEST_INT8, LARGEST_INT8).astype(np.int8)
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
