import functools
import logging
from collections.abc import Sequence
import torch
from torch import Tensor, nn
from .graphs import AttentionSource, AttentionStep, RecurrentSource, RecurrentStep, Source, State, Step
from .onnx_files import Part, export_part, search_loop, quantize, whole
from .search import BeamTurn, GreedyTurn, Turn

# sizes of the examples that graphs are traced with, which say nothing but must differ
B, K, S, T, P, R, TURNS = 2, 3, 7, 4, 5, 6, 11

def build(model, ends, pad, int8=False):
    recurrent = model.config.model_type == "capsule-rnn"
    source_module = (RecurrentSource if recurrent else AttentionSource)(model)
    step = (RecurrentStep if recurrent else AttentionStep)(model)
    names = source_module.names()
    tokens = torch.full((B, S), 3)
    encoder = export_part(source_module, source_module, {"input_ids": (tokens, (0, 1)), "attention_mask": (torch.ones_like(tokens), (0, 1))}, names, "encoder_")
    fields = example_source(model, source_module)
    states = {s.name: example_state(s) for s in step.states()}
    inputs = {"tokens": (torch.full((B, K), 3), (0, 1)), "position": (torch.tensor([4]), ()), **fields, **states}
    def step_function(*tensors):
        by = dict(zip(inputs, tensors, strict=True))
        logits, after = step(by["tokens"], by["position"], {n: by[n] for n in names}, [by[n] for n in states])
        return (logits, *after)
    step_part = export_part(step, step_function, inputs, ["logits", *(f"next_{n}" for n in states)], "step_")
    if int8:
        print(quantize(encoder), quantize(step_part))
    out = {"encoder.onnx": whole("encoder", encoder), "decoder_step.onnx": whole("decoder_step", step_part)}
    for search, finals in (("greedy", ("lengths", "scores")), ("beam", ("best_scores", "best_codes", "best_found"))):
        begin, turn = search_parts(search, tuple(ends), pad, model.lm_head.weight.shape[0])
        state = (GreedyTurn if search == "greedy" else BeamTurn).state
        out[f"{search}_search.onnx"] = search_loop(f"{search}_search", encoder, step_part, step.states(), begin, turn, state, finals)
    return out

def example_state(state: State):
    shape = [T if size == 0 else size for size in state.shape]
    return torch.randn(B * K, *shape), (0, *(axis + 1 for axis, size in enumerate(state.shape) if size == 0))

@functools.cache
def search_parts(search: str, ends: tuple[int, ...], pad: int, V: int) -> tuple[Part, Part]:
    turn = (GreedyTurn if search == "greedy" else BeamTurn)(ends, pad)
    beams = 1 if search == "greedy" else K
    shared = {
        "prompts": (torch.full((B, P), 3), (0, 1)), "limits": (torch.full((B,), 9), (0,)),
        "penalties": (torch.ones(TURNS + 1), (0,)), "token_scores": (torch.zeros(R, V), (0,)),
        "token_rules": (torch.zeros(TURNS, dtype=torch.long), (0,)), "token_weights": (torch.ones(TURNS), (0,)),
        "stops_when_full": (torch.tensor(False), ()), "longest_gain": (torch.tensor([0]), ()),
    }
    shared = {n: shared[n] for n in turn.shared}
    arange = torch.arange(beams)
    begin = export_part(turn, lambda prompts, beams: tuple(turn.first(prompts, beams)), {"prompts": shared["prompts"], "beams": (arange, (0,) if beams > 1 else ())}, [f"first_{n}" for n in turn.state], f"{search}_start_")
    first = dict(zip(turn.state, turn.first(shared["prompts"][0], arange)))
    own = {n: (v, (0,) if v.dim() == 1 or v.shape[1] == 1 else (0, 1)) for n, v in first.items() if n != "rows"}
    inputs = {"turn": (torch.tensor([2]), ()), "logits": (torch.randn(B * beams, V), (0,)), **own, **shared}
    def function(*tensors):
        by = dict(zip(inputs, tensors, strict=True))
        go_on, state, result = turn(by["turn"], by["logits"], [by.get(n) for n in turn.state], {n: by[n] for n in shared})
        return (go_on, *state, result)
    return begin, export_part(turn, function, inputs, ["go_on", *(f"next_{n}" for n in turn.state), "turns"], f"{search}_")

def example_source(model, module):
    names = module.names()
    out = {}
    ids = torch.full((B, S), 3)
    d = model.config.d_model
    real = torch.ones(B, S, dtype=torch.bool)
    # attention operators compute nothing here: what matters is the shape
    with torch.no_grad():
        tensors = module.forward(ids, torch.ones_like(ids))
    for n, v in zip(names, tensors, strict=True):
        out[n] = (v.clone(), (0, *(axis for axis in range(1, v.dim()) if v.shape[axis] == S)))
    return out
