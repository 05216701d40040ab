"""
A trained model becomes a folder that translates without PyTorch.

    hf-capsule-mt export runs/grammar OUT --format onnx            the translations of the model, in float32
    hf-capsule-mt export runs/grammar OUT --format onnx --int8     linear maps of 8-bit integers: smaller and faster
    hf-capsule-mt export runs/grammar OUT --format transformers    what `publish` uploads, without a card

With --format onnx the folder has an encoder and a step of the decoder as ONNX graphs, and the whole of greedy and of
beam search, each as one graph with the encoder and a loop of steps in it. All share one file of weights. Beside them
lie the tokenizers, the settings of generation, and translator.py, a program that needs onnxruntime, tokenizers and
numpy; the README says how it is used. Before anything is written, the graphs have given the logits of the model.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .._version import __version__
from ..command import run_command
from ..evaluation.encoding import MOST_TOKENS, source_vocabulary, start_token_id, target_vocabulary
from ..files import empty_folder, whole_folder, write_whole
from ..hub.export import export
from ..loading import from_checkpoint
from ..models.capsule_configuration import CapsuleConfigMixin, refuse_experts
from ..models.modeling_capsule_bart import CapsuleBartForConditionalGeneration
from ..models.modeling_capsule_m2m100 import CapsuleM2M100ForConditionalGeneration
from ..models.modeling_capsule_marian import CapsuleMarianMTModel
from ..models.modeling_capsule_mbart import CapsuleMBartForConditionalGeneration
from ..models.pipeline_translation import end_token_ids, max_positions, max_source_length
from ..trust_arguments import add_trust_argument
from . import onnx_translator
from .graphs import AttentionSource, AttentionStep, RecurrentSource, RecurrentStep, Source, State, Step
from .tokenizer_files import language_settings, source_and_target

try:
    import onnxruntime
    import onnxscript  # noqa: F401  (torch.onnx imports it when it exports)
    from onnx import GraphProto, ModelProto

    from .onnx_files import Part, export_part, quantize, search_loop, whole, with_places, write_models
    from .search import beam_search, greedy_search
except ImportError as error:
    MISSING: ImportError | None = error
else:
    MISSING = None

PROGRAM = "hf-capsule-mt export"
FORMATS = ("onnx", "transformers")
ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"
TRANSLATOR = "translator.py"
README = "README.md"
# generation parameters that the searches have, and what they are if nobody says
PARAMETERS: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "max_new_tokens": None,
    "max_length": None,
    "min_length": None,
    "min_new_tokens": None,
    "forced_bos_token_id": None,  # nosec B105
    "forced_eos_token_id": None,  # nosec B105
}
# and those that would change a translation and are not there, with the values that change nothing
ABSENT: dict[str, tuple[Any, ...]] = {
    "do_sample": (None, False),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "begin_suppress_tokens": (None, []),
    "guidance_scale": (None, 1.0),
    "renormalize_logits": (None, False),
    "num_beam_groups": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "stop_strings": (None,),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "max_time": (None,),
    "watermarking_config": (None,),
}
# the capsule models of plain ones
PARENTS_OF: tuple[Any, ...] = (
    CapsuleMarianMTModel,
    CapsuleBartForConditionalGeneration,
    CapsuleM2M100ForConditionalGeneration,
    CapsuleMBartForConditionalGeneration,
)
ADAPTERS = "{} has adapters: merge them into the model first (merge_and_unload), and save that"
# largest difference of logits, in units of their spread, between the model and what is written
TOLERANCE = 1e-3
# sizes of the examples that graphs are traced with: they say nothing, but have to differ
BATCH, BEAMS, SOURCE, PAST = 2, 3, 7, 4


def export_onnx(
    source: str | Path, output: str | Path, *, int8: bool = False, trust_remote_code: bool = False
) -> Path:
    """Writes a checkpoint as ONNX graphs with all that is needed to translate with them.

    Args:
        source: directory or name on the Hub; a capsule checkpoint, or a plain one of a family that has capsules.
        output: directory that does not exist yet, or is empty.
        int8: linear maps by integers of 8 bits; routing, attention and normalisation stay float32.
        trust_remote_code: run the code that the source brings, if it needs any.

    Returns:
        The directory.

    Raises:
        ImportError: if onnx, onnxscript or onnxruntime is not installed.
        ValueError: what cannot be exported, or does not translate as the model does.
    """
    if MISSING is not None:
        raise ImportError(f"the export needs the extra onnx: pip install 'hf_capsule_mt[onnx]' ({MISSING})")
    output = empty_folder(output)
    model = _load(source, trust_remote_code)
    tokenizer = from_checkpoint(AutoTokenizer, source, trust_remote_code=trust_remote_code)
    settings = translator_settings(model, tokenizer)
    languages = language_settings(tokenizer)
    if languages is not None:
        settings["languages"] = languages
    sides = dict(zip(onnx_translator.TOKENIZERS, source_and_target(tokenizer), strict=True))
    settings["aliases"] = {
        side: {"first": made.aliases[0], "ids": made.aliases[1]} for side, made in sides.items() if made.aliases[1]
    }
    with whole_folder(output.resolve()) as folder:
        empty_folder(output)
        for side, name in onnx_translator.TOKENIZERS.items():
            sides[side].tokenizer.save(str(folder / name))
        write_whole(folder / onnx_translator.SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        shutil.copyfile(onnx_translator.__file__, folder / TRANSLATOR)
        parts = trace(model)
        write_models(folder, graphs(parts, settings))
        check(model, folder)
        if int8:
            quantize(parts.encoder, parts.source)
            quantize(parts.decoder, parts.step)
            write_models(folder, graphs(parts, settings))
        write_whole(folder / README, _readme(source, model, int8, languages))
    return output


def _load(source: str | Path, trust_remote_code: bool) -> Any:
    """The model in float32; a plain one as the capsule model that it is without any system."""
    if (Path(source) / "adapter_config.json").is_file():
        raise ValueError(ADAPTERS.format(source))
    config = from_checkpoint(AutoConfig, source, trust_remote_code=trust_remote_code)
    refuse_experts(config.model_type, source)
    plain = {kind.config_class.parent_model_type: kind for kind in PARENTS_OF}
    kind: Any = plain.get(config.model_type, AutoModelForSeq2SeqLM)
    if config.model_type not in plain and not isinstance(config, CapsuleConfigMixin):
        raise ValueError(
            f"{source} is of type '{config.model_type}'; capsule models and plain Marian, BART, M2M100 (NLLB) and "
            "mBART models can be exported"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{source} is quantised: export the model that it was made of, with --int8 if you like")
    fields: dict[str, Any] = {"aggregation": "none"} if config.model_type in plain else {}
    model = from_checkpoint(kind, source, dtype=torch.float32, trust_remote_code=trust_remote_code, **fields).eval()
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(ADAPTERS.format(source))
    return model


def translator_settings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What a translator has to know beside the graphs; see `onnx_translator`.

    Raises:
        ValueError: if the model's generation config has a rule that the graphs do not have.
    """
    config: GenerationConfig = model.generation_config
    for name, neutral in ABSENT.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise ValueError(
                f"the model's generation config has {name}={value!r}, which an exported model does not have: "
                f"remove it from generation_config.json, or keep translating with PyTorch"
            )
    ends = end_token_ids(model, {})
    if not ends:
        raise ValueError("the model's generation config has no eos_token_id: a translation would have no end")
    suppressed = list(config.suppress_tokens or [])
    for words in config.bad_words_ids or []:
        # as in generate(), which forbids no end in this way
        if words in [[end] for end in ends]:
            continue
        if len(words) != 1:
            raise ValueError(
                f"the model's generation config forbids the sequence of tokens {words} (bad_words_ids), and an "
                "exported model can forbid single tokens only"
            )
        suppressed += words
    generation = {name: getattr(config, name, None) for name in PARAMETERS}
    generation = {name: PARAMETERS[name] if value is None else value for name, value in generation.items()}
    limit = max_source_length(tokenizer, model.config)
    positions = max_positions(model.config, "decoder")
    pad = model.config.pad_token_id
    return {
        "format": onnx_translator.FORMAT,
        "made_by": f"hf_capsule_mt {__version__}",
        "decoder_start_token_id": start_token_id(model, {}),
        "pad_token_id": ends[0] if pad is None else pad,
        "eos_token_ids": ends,
        "suppressed_token_ids": sorted(set(suppressed)),
        "source_vocab_size": source_vocabulary(model),
        "vocab_size": target_vocabulary(model),
        "max_source_length": limit if limit < 10**9 else None,
        "max_positions": positions,
        "longest_output": min(tokenizer.model_max_length, MOST_TOKENS) if positions is None else positions,
        "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
        "generation": generation,
    }


class Parts(NamedTuple):
    """The graphs that searches are made of, and the modules that they were traced from."""

    source: Source
    step: Step
    encoder: Part
    decoder: Part


def trace(model: Any) -> Parts:
    """The parts of a model, a capsule model in float32, in evaluation mode.

    Raises:
        ValueError: what cannot become a graph.
    """
    source: Source = (RecurrentSource if _is_recurrent(model) else AttentionSource)(model)
    step = _step_of(model)
    with _quiet(), torch.no_grad():
        try:
            return Parts(source, step, _encoder(source), _step(source, step))
        except torch.onnx.errors.OnnxExporterError as error:
            raise ValueError(_not_a_graph(model, error)) from error


def graphs(parts: Parts, settings: dict[str, Any]) -> dict[str, ModelProto]:
    """The graphs of a model by the names of their files.

    Args:
        parts: from `trace`; they stay as they are.
        settings: from `translator_settings`.
    """
    searches = (
        greedy_search(settings["eos_token_ids"]),
        beam_search(settings["eos_token_ids"], settings["vocab_size"]),
    )
    models = {ENCODER: whole("encoder", parts.encoder), STEP: whole("decoder_step", parts.decoder)}
    for search in searches:
        models[f"{search.name}.onnx"] = search_loop(parts.encoder, parts.decoder, parts.step.states(), search)
    for made in models.values():
        _forget_origin(made.graph)
    return models


def _not_a_graph(model: Any, error: BaseException) -> str:
    """One line for what the exporter says on pages; an operator from outside is the usual reason."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    return (
        f"aggregation '{model.config.aggregation}' cannot become an ONNX graph, or else the rest of this"
        f" {type(model).__name__}: {str(root).strip().splitlines()[0]}"
    )


def _forget_origin(graph: GraphProto) -> None:
    """Takes out where the exporter was called from: lines of code, with paths of this machine."""
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_origin(attribute.g)


def _encoder(source: Source) -> Part:
    part = export_part(source, source, _source_example(source), source.names(), "encoder_")
    return with_places(part) if source.packs else part


def _source_example(source: Source) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Examples of the source's inputs, and their dynamic axes."""
    ids = torch.full((BATCH, SOURCE), 3)
    example = {"input_ids": (ids, (0, 1)), "attention_mask": (torch.ones_like(ids), (0, 1))}
    if source.packs:
        # as if one word were padding
        words = torch.arange(BATCH * SOURCE)
        example |= {"words": (words[:-1], (0,)), "places": (words.clamp(max=BATCH * SOURCE - 2), (0,))}
    return example


def _step(source: Source, step: Step) -> Part:
    example = [tensor for tensor, _ in _source_example(source).values()]
    # attention computes nothing here, and the shapes are all that counts
    fields = {
        name: (tensor.clone(), (0, *(axis for axis in range(1, tensor.dim()) if tensor.shape[axis] == SOURCE)))
        for name, tensor in zip(source.names(), source(*example), strict=True)
    }
    states = {state.name: _example(state) for state in step.states()}
    inputs = {"tokens": (torch.full((BATCH, BEAMS), 3), (0, 1)), "position": (torch.tensor([PAST]), ()), **fields}
    inputs |= states

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(inputs, tensors, strict=True))
        of_source = {name: named[name] for name in fields}
        logits, after = step(named["tokens"], named["position"], of_source, [named[name] for name in states])
        return (logits, *after)

    return export_part(step, function, inputs, ["logits", *(f"next_{name}" for name in states)], "step_")


def _example(state: State) -> tuple[Tensor, tuple[int, ...]]:
    growing = tuple(axis for axis, size in enumerate(state.shape, start=1) if size == 0)
    return torch.randn(BATCH * BEAMS, *(size or PAST for size in state.shape)), (0, *growing)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of its own libraries."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def check(model: Any, folder: Path) -> None:
    """Compares the encoder and the steps of a folder with the model, on random sentences of several lengths.

    Raises:
        ValueError: if they differ by more than float32 explains.
    """
    generator = torch.Generator().manual_seed(1)
    config, settings = model.config, json.loads((folder / onnx_translator.SETTINGS).read_text(encoding="utf-8"))
    steps = min(6, settings["longest_output"])
    size = min(settings["vocab_size"], config.vocab_size)
    # other sizes than those of the examples that the graphs were traced with
    length = min(SOURCE + 2, settings["max_source_length"] or SOURCE + 2)
    ids = torch.randint(0, size, (BATCH + 1, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    mask[2, 1:] = 0
    tokens = torch.randint(0, size, (len(ids) * BEAMS, steps), generator=generator)
    if config.pad_token_id is not None:
        # M2M100 counts the words behind padding within a sentence otherwise at once than step by step, as here
        for values in (ids, tokens):
            values[values == config.pad_token_id] = (config.pad_token_id + 1) % size
    with torch.no_grad():
        expected = model(
            input_ids=ids.repeat_interleave(BEAMS, dim=0),
            attention_mask=mask.repeat_interleave(BEAMS, dim=0),
            decoder_input_ids=tokens,
            use_cache=False,
        ).logits.numpy()
    found = _steps(folder, ids.numpy(), mask.numpy(), tokens.numpy(), model)
    difference = float(np.abs(found - expected).max() / expected.std())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the exported graphs give other logits than the model, by {difference:.1e} of their spread: this model "
            "cannot be exported; please report it with its config.json"
        )


def _is_recurrent(model: Any) -> bool:
    return bool(model.config.model_type == "capsule-rnn")


def _step_of(model: Any) -> Step:
    """The decoder's step as its graph has it."""
    step: Step = (RecurrentStep if _is_recurrent(model) else AttentionStep)(model)
    return step


def _steps(folder: Path, ids: np.ndarray, mask: np.ndarray, tokens: np.ndarray, model: Any) -> np.ndarray:
    """Logits [B * K, T, V] of the graphs, step by step."""
    encoder, step = (
        onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"]) for name in (ENCODER, STEP)
    )
    names = [output.name for output in encoder.get_outputs()]
    source = dict(zip(names, encoder.run(None, {"input_ids": ids, "attention_mask": mask}), strict=True))
    states = {}
    for state in _step_of(model).states():
        first = np.zeros((len(tokens), *state.shape), np.float32)
        states[state.name] = first if state.first is None else np.repeat(source[state.first], BEAMS, axis=0)
    read = {value.name for value in step.get_inputs()}
    results = []
    for position, column in enumerate(tokens.T):
        feeds = {"tokens": column.reshape(-1, BEAMS), "position": np.array([position]), **source, **states}
        logits, *after = step.run(None, {name: value for name, value in feeds.items() if name in read})
        states = dict(zip(states, after, strict=True))
        results.append(logits)
    return np.stack(results, axis=1)


def _readme(source: str | Path, model: Any, int8: bool, languages: dict[str, Any] | None) -> str:
    """What the folder is, in Markdown."""
    # where none are saved, any two stand for them
    pair = list(languages["ids"])[:2] if languages is not None and languages["target"] is None else []
    names = dict(zip(("source_lang", "target_lang"), pair, strict=False))
    options = "".join(f" --{name} {code}" for name, code in names.items())
    keywords = "".join(f', {name}="{code}"' for name, code in names.items())
    name = Path(str(source)).name
    weights = "linear maps of 8-bit integers, all else float32" if int8 else "float32"
    systems = [
        getattr(model.config, field)
        for field in ("aggregation", "guided_routing", "source_memory")
        if getattr(model.config, field, "none") != "none"
    ]
    system = f" ({', '.join(systems)})" if systems else ""
    return f"""# {name} for ONNX Runtime

{type(model).__name__}{system}, {weights}; made by hf_capsule_mt {__version__}.

```bash
pip install onnxruntime tokenizers numpy
echo "A dog runs." | python translator.py{options}
```

```python
from translator import OnnxTranslator

translator = OnnxTranslator(".")
print(translator.translate(["A dog runs."], num_beams=5{keywords}))
```

`encoder.onnx` and `decoder_step.onnx` are the model; `greedy_search.onnx` and `beam_search.onnx` are whole searches
with it, which `translator.py` runs. All read `weights.onnx_data`.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="directory or name on the Hub")
    parser.add_argument("output", type=Path, help="new directory")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what is written")
    parser.add_argument("--int8", action="store_true", help="with onnx: linear maps of 8-bit integers")
    add_trust_argument(parser)
    return parser


def _command(arguments: argparse.Namespace) -> None:
    trust = arguments.trust_remote_code
    if arguments.format == "onnx":
        export_onnx(arguments.checkpoint, arguments.output, int8=arguments.int8, trust_remote_code=trust)
    elif arguments.int8:
        raise ValueError("--int8 needs --format onnx; transformers quantises a model when it loads it")
    else:
        with whole_folder(empty_folder(arguments.output).resolve()) as folder:
            export(arguments.checkpoint, folder, trust_remote_code=trust)
    print(f"{arguments.checkpoint} -> {arguments.output}", file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments), after_interruption="; nothing was written")
