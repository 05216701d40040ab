"""The commands that are killed and starved: how each is called, what it starts from, and what it must leave behind."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
REPO = "user/tiny"
# in every workplace
CACHE = "cache"
# Fields of records that hold times, speeds, or how much of the work the last process did; all others are compared.
TIMES = frozenset(
    {
        "seconds",
        "train_seconds",
        "wall_seconds",
        "date",
        "tokens_per_second",
        "sentences_per_second",
        "decoded_sentences",
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
    }
)
TRAIN = (
    "train --recipe none --output_dir run --resume_from_checkpoint true "
    "--dataset_name grammar --source_lang en --target_lang de "
    "--max_train_samples 120 --max_eval_samples 6 --max_test_samples 5 --vocab_size 500 --aggregation em_routing "
    "--d_model 12 --encoder_layers 2 --decoder_layers 2 --encoder_attention_heads 2 --decoder_attention_heads 2 "
    "--encoder_ffn_dim 14 --decoder_ffn_dim 14 --max_position_embeddings 60 --dropout 0.1 --max_tokens_per_batch 600 "
    "--learning_rate 0.01 --warmup_steps 2 --max_steps 8 --logging_steps 1 --eval_steps 2 --save_steps 2 "
    "--save_total_limit 3 --test_num_beams 1 --report_to none --disable_tqdm true --use_cpu true"
)


@dataclass(frozen=True)
class Command:
    """
    A command that runs in a folder of its own.

    Attributes:
        line: "train" or a command of `python -m hf_capsule_mt`, and its arguments, relative to the folder.
        prepare: puts what the command needs into the folder.
        uploads: it needs the Hub, whose repository is compared too.
    """

    line: str
    prepare: Callable[[Path, Materials], None]
    uploads: bool = False
    argv: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", self.line.split())


@dataclass(frozen=True)
class Materials:
    """Folders that all commands share and none changes, made once."""

    plain: Path
    run: Path
    card: Path
    trained: Path


def _link_model(folder: Path, materials: Materials) -> None:
    (folder / "model").symlink_to(materials.plain)


def _write_text(folder: Path, materials: Materials) -> None:
    from tiny_translation import SOURCES, TARGETS

    _link_model(folder, materials)
    (folder / "made").mkdir()
    for language, lines in (("en", SOURCES), ("de", TARGETS)):
        text = "".join(f"{line}\n" for line in [*lines, *lines[:3]])
        (folder / f"text.{language}").write_text(text, encoding="utf-8")


def _link_systems(folder: Path, materials: Materials) -> None:
    _write_text(folder, materials)
    (folder / "capsules").symlink_to(materials.run)


def _copy_run(folder: Path, materials: Materials) -> None:
    shutil.copytree(materials.run, folder / "run")
    (folder / "cards").symlink_to(materials.card.parent)


def _copy_end_of_training(folder: Path, materials: Materials) -> None:
    """As a run is when its last update is made and its checkpoints are to be averaged."""
    shutil.copytree(materials.trained, folder / "run")


COMMANDS = {
    "train": Command(TRAIN, lambda folder, materials: None),
    "average": Command(
        TRAIN.replace("--save_total_limit 3", "--save_total_limit 4 --average_checkpoints 3"),
        _copy_end_of_training,
    ),
    "distill": Command(
        "distill --teacher_name_or_path model --output_prefix runs/out --data_dir . --source_lang en --target_lang de "
        "--train_file text --num_beams 2 --max_tokens_per_batch 36",
        _write_text,
    ),
    "translate": Command("translate model text.en --output made/out.de --window 2 --num_beams 2", _write_text),
    "score": Command("score model text.en text.de --output made/scores.txt --window 2 --per_token", _write_text),
    "report": Command(
        "report model capsules --names plain capsules --source text.en --reference text.de --output report "
        "--num_beams 2 --examples 2 --no_speed",
        _link_systems,
    ),
    "convert": Command("convert model converted --aggregation em_routing --num_capsules 13", _link_model),
    "publish": Command(f"publish run {REPO} --card cards/tiny.yaml --tag v1.0", _copy_run, uploads=True),
}


def files(folder: Path) -> dict[str, Any]:
    """Every file of a workplace by its path, as something to compare: bytes, records without times, unpickled states.

    The cache of encoded text, which may hold more after an interruption, and what links lead to are left out.
    """
    found = {}
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            folders[:] = [name for name in folders if name != CACHE]
        found |= {str((Path(parent) / name).relative_to(folder)): content(Path(parent) / name) for name in names}
    return found


def content(path: Path) -> Any:
    """What is compared of a file."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return without_times(json.loads(data))
    if path.suffix in (".pt", ".pth"):
        # the same state may be pickled in several ways
        return comparable(torch.load(io.BytesIO(data), weights_only=False))
    return data


def without_times(value: Any) -> Any:
    """A record without the fields that depend on the clock or on interruptions."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def comparable(state: Any) -> Any:
    """A state of an optimizer, a schedule or random numbers with bytes in the place of tensors and arrays."""
    if isinstance(state, dict):
        return {key: comparable(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [comparable(value) for value in state]
    if isinstance(state, torch.Tensor):
        return (str(state.dtype), tuple(state.shape), state.reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.tobytes() if hasattr(state, "tobytes") else state
