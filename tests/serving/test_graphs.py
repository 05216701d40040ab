"""The graphs by themselves: their steps, shapes and weights."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported import System

from hf_capsule_mt.serving.export import ENCODER, STEP
from hf_capsule_mt.serving.graphs import AttentionStep, RecurrentStep, embed, lengthen_positions
from hf_capsule_mt.serving.onnx_files import EXTERNAL_BYTES, WEIGHTS
from hf_capsule_mt.serving.onnx_translator import BEAM, GREEDY
from tiny_models import EOS, STACKS, TARGET_VOCAB, VOCAB

GRAPHS = (ENCODER, STEP, GREEDY, BEAM)


def run(system: System, name: str, feeds: dict) -> dict:
    session = onnxruntime.InferenceSession(system.folder / name, providers=["CPUExecutionProvider"])
    read = {value.name for value in session.get_inputs()}
    values = session.run(None, {key: value for key, value in feeds.items() if key in read})
    return dict(zip([value.name for value in session.get_outputs()], values, strict=True))


@pytest.mark.parametrize("fields", [{}, {"scale_embedding": False}, {"pad_token_id": 17}], ids=str)
@pytest.mark.parametrize("family", STACKS)
def test_words_and_positions_are_those_of_the_model(family, fields):
    """All positions that a model has, for the source at once and for a step of the decoder."""
    model, fresh = (STACKS[family].model(**fields) for _ in range(2))
    tokens = torch.randint(18, VOCAB, (2, 41))
    tokens[0, 0] = EOS
    memory = {"encoder_hidden_states": torch.zeros(2, 3, 12)}
    # one that has not seen a long sentence yet
    stacks = (model.get_encoder(), fresh.get_encoder(), {}), (model.get_decoder(), fresh.get_decoder(), memory)
    for stack, other, more in stacks:
        expected = stack(input_ids=tokens, output_hidden_states=True, **more).hidden_states[0]
        lengthen_positions(other)
        torch.testing.assert_close(embed(other, tokens, torch.arange(41)), expected)
        torch.testing.assert_close(embed(other, tokens[:, 40:], torch.tensor([40])), expected[:, 40:])


def states_of(system: System) -> list:
    recurrent = system.model.config.model_type == "capsule-rnn"
    return (RecurrentStep if recurrent else AttentionStep)(system.model).states()


@pytest.mark.parametrize("batch, beams, length", [(3, 2, 5), (1, 1, 1), (1, 4, 9), (4, 1, 3)])
def test_steps_with_a_cache_give_the_logits_of_the_model(system, batch, beams, length):
    """The beams change places at every step; the source has one row for each sentence all the time."""
    rng = np.random.default_rng(batch + length)
    ids = rng.integers(3, TARGET_VOCAB, (batch, length))
    mask = (np.arange(length) < rng.integers(1, length + 1, batch)[:, None]).astype(np.int64)
    mask[0] = 1
    source = run(system, ENCODER, {"input_ids": ids, "attention_mask": mask})
    assert {len(tensor) for tensor in source.values()} == {batch}
    states = {}
    for state in states_of(system):
        zeros = np.zeros((batch * beams, *state.shape), np.float32)
        states[state.name] = zeros if state.first is None else np.repeat(source[state.first], beams, axis=0)
    sequences = np.zeros((batch * beams, 0), np.int64)
    for position in range(4):
        tokens = rng.integers(3, TARGET_VOCAB, (batch * beams, 1))
        sequences = np.concatenate([sequences, tokens], axis=1)
        feeds = {"tokens": tokens.reshape(batch, beams), "position": np.array([position]), **source, **states}
        step = run(system, STEP, feeds)
        with torch.no_grad():
            expected = system.model(
                input_ids=torch.tensor(ids).repeat_interleave(beams, dim=0),
                attention_mask=torch.tensor(mask).repeat_interleave(beams, dim=0),
                decoder_input_ids=torch.tensor(sequences),
                use_cache=False,
            ).logits[:, -1]
        np.testing.assert_allclose(step["logits"], expected.numpy(), rtol=1e-4, atol=1e-4)
        rows = (np.arange(batch)[:, None] * beams + rng.integers(0, beams, (batch, beams))).flatten()
        states = {name: step[f"next_{name}"][rows] for name in states}
        sequences = sequences[rows]


def test_a_beam_search_moves_the_states_of_the_decoder_alone(system):
    encoder, graph = (onnx.load(system.folder / name, load_external_data=False).graph for name in (ENCODER, BEAM))
    (loop,) = [node for node in graph.node if node.op_type == "Loop"]
    source = {value.name for value in encoder.output}
    assert source and not source & set(loop.input)
    body = loop.attribute[0].g
    moved = {node.input[0] for node in body.node if node.op_type == "Gather" and node.input[1] == "rows"}
    assert moved == {f"held_{state.name}" for state in states_of(system)}
    # and before the loop, nothing of the source becomes one row for each beam but where the states of a head begin
    begins = {state.first for state in states_of(system)} - {None}
    repeated = {
        name
        for node in graph.node
        if node.op_type in ("Gather", "Expand", "Tile")
        for name in source & {node.input[0]}
        if node.name == ""
    }
    assert repeated == begins


def stored(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                tensors += stored(attribute.g)
    return tensors


def test_weights_are_written_once(system):
    places = set()
    for name in GRAPHS:
        for tensor in stored(onnx.load(system.folder / name, load_external_data=False).graph):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entry = {item.key: item.value for item in tensor.external_data}
                assert entry["location"] == WEIGHTS
                places.add((int(entry["offset"]), int(entry["length"])))
            else:
                assert tensor.ByteSize() < EXTERNAL_BYTES + 200, tensor.name
    ends = [offset + length for offset, length in sorted(places)]
    assert all(end <= offset for end, (offset, _) in zip(ends, sorted(places)[1:], strict=False))
    assert ends[-1] == (system.folder / WEIGHTS).stat().st_size
    model = system.model
    parameters = {value.data_ptr(): value.nbytes for value in [*model.parameters(), *model.buffers()]}
    assert sum(length for _, length in places) <= 1.05 * sum(parameters.values())


def test_the_parts_are_valid(system):
    for name in (ENCODER, STEP):
        onnx.checker.check_model(system.folder / name, full_check=False)
