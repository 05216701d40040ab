"""
Exported models beside CTranslate2: the plain model, and capsule systems, which CTranslate2 does not have.

    python benchmarks/serving.py --size base --source DATA/newstest2014.en --threads 1 2 --output record.json

Random weights, a fixed number of new tokens (so that every system does the same work whatever its weights), sentences
as long as the first of a text; text to text, every engine by its own batches of the given number of sentences. All
take turns; a ratio is the median over turns of (time / CTranslate2's float32 time in the same turn), its spread the
quartiles. CTranslate2 always runs the plain Marian model. `operations` are those of a system's decoding by the plain
model's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from ctranslate2_ratio import LENGTH, SPECIAL, converters, ctranslate2, random_checkpoint
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

import registry
from hf_capsule_mt.analysis.efficiency import count_operations
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.serving.export import export_onnx
from timing import environment, ratios, rotated, write_record

SIZES = {name: registry.SIZES[name] for name in ("tiny", "yardstick")}
SIZES["base"] = registry.SIZES["base"]._replace(vocab_size=8000)
SYSTEMS = ("none", "em_routing", "guided_routing", "em_routing_guided", "rnn_simple", "rnn_capsule_calibrated")
REFERENCE = "CTranslate2"
# of these, PyTorch is timed too
IN_PYTORCH = ("marian", "em_routing", "guided_routing")
ENGINES = ("onnx", "onnx int8", "pytorch")
PYTORCH_TURNS = 3
PAUSE = 0.3

Translator = Callable[[], float]


class Case(argparse.Namespace):
    """One combination of threads, beams and sentences in a batch."""

    threads: int
    beams: int
    batch: int

    def __str__(self) -> str:
        search = "greedy" if self.beams == 1 else f"beam {self.beams}"
        return f"{search}, batches of {self.batch}, threads: {self.threads}"


def checkpoint(name: str, size: registry.Size, folder: Path) -> Path:
    """A system with random weights and a tokenizer of random words."""
    random_checkpoint(size, folder)
    registry.build(name, registry.Setting(size, (LENGTH,))).save_pretrained(folder)
    return folder


def sentences_like(source: Path, count: int, vocab_size: int) -> list[str]:
    """Random words, as many in each sentence as a text has, by 1.3 sub-words a word."""
    lengths = registry.sentence_lengths(source, registry.SIZES["base"], count)
    words = np.random.default_rng(2)
    rows = [words.integers(len(SPECIAL), vocab_size, length - 1) for length in lengths]
    return [" ".join(f"w{word}" for word in row) for row in rows]


def worker(engine: str, folder: Path, tokenizer: Path) -> subprocess.Popen[str]:
    """A process with one engine, which waits for tasks."""
    program = [sys.executable, str(Path(__file__).with_name("serving_worker.py")), engine, str(folder), str(tokenizer)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def by_worker(process: subprocess.Popen[str], sentences: list[str], steps: int, case: Case) -> Translator:
    """Gives a task to a worker, and returns the seconds that it took."""
    task = json.dumps({"sentences": sentences, "steps": steps, **vars(case)}) + "\n"

    def run() -> float:
        process.stdin.write(task)
        process.stdin.flush()
        return float(process.stdout.readline())

    return run


def in_pytorch(model: Any, tokenizer: Any, sentences: list[str], steps: int, case: Case) -> Translator:
    """generate()."""

    def run() -> float:
        torch.set_num_threads(case.threads)
        begin = time.perf_counter()
        for start in range(0, len(sentences), case.batch):
            translate(
                model,
                tokenizer,
                sentences[start : start + case.batch],
                num_beams=case.beams,
                max_new_tokens=steps,
                min_new_tokens=steps,
                max_tokens=10**7,
                do_sample=False,
            )
        return time.perf_counter() - begin

    return run


def measure(translators: dict[str, Translator], rounds: int, title: str) -> dict[str, Any]:
    """Times in turns as ratios to CTranslate2's, after one turn that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in translators}
    for done in range(rounds + 1):
        for name in rotated(list(translators), done):
            if name.startswith("pytorch") and done > PYTORCH_TURNS:
                continue
            seconds = translators[name]()
            # threads that wait for more work keep a core busy for a while
            time.sleep(PAUSE)
            if done:
                times[name].append(seconds)
        print(f"\r{title}: turn {done} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    base = times[REFERENCE]
    return {
        name: {**ratios(taken, base[: len(taken)]), "seconds": float(np.median(taken))}
        for name, taken in times.items()
    }


def decoding_operations(models: dict[str, Any], setting: registry.Setting) -> dict[str, dict[str, float]]:
    """Operations of decoding by the plain model's, greedy and by beams."""
    jobs = {"greedy": "greedy, 1 sentence", "beam": "beam 5, 16 sentences"}
    counts = {
        name: {job: count_operations(registry.make_job(model, setting, label)) for job, label in jobs.items()}
        for name, model in models.items()
    }
    return {
        name: {job: count / counts["none"][job] for job, count in by_job.items()} for name, by_job in counts.items()
    }


def table(record: dict[str, Any]) -> str:
    """The ratios as Markdown: engines by cases."""
    cases = list(record["results"])
    lines = ["| engine | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for name in record["results"][cases[0]]:
        cells = []
        for case in cases:
            row = record["results"][case][name]
            low, high = row["time_ratio_quartiles"]
            cells.append(f"{row['time_ratio']:.2f} [{low:.2f}, {high:.2f}]")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--source", type=Path, required=True, help="text file whose sentences are imitated in length")
    parser.add_argument("--systems", nargs="+", choices=registry.SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="sentences of a batch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=25, help="new tokens of a sentence")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: one repetition has no spread")
    if not options.source.is_file():
        parser.error(f"no file {options.source}")
    return options


def main() -> None:
    options = parse()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    size = SIZES[options.size]
    systems: Sequence[str] = list(dict.fromkeys(["none", *options.systems]))
    sentences = sentences_like(options.source, 16, size.vocab_size)
    median = sorted(sentences, key=lambda sentence: len(sentence.split()))[len(sentences) // 2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {}
        for system in systems:
            models[system] = registry.build(system, registry.Setting(size, (LENGTH,))).eval()
            checkpoint(system, size, folder / system)
            for engine in options.engines:
                if engine.startswith("onnx"):
                    export_onnx(folder / system, folder / f"{engine} {system}", int8=engine.endswith("int8"))
            print(f"exported {system}", file=sys.stderr)
        checkpoint("marian", size, folder / "marian")
        converters.TransformersConverter(str(folder / "marian")).convert(str(folder / "converted"))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "marian")
        lengths = tuple(len(sentence.split()) + 1 for sentence in sentences)
        operations = decoding_operations(models, registry.Setting(size, lengths))
        models["marian"] = registry.build("marian", registry.Setting(size, (LENGTH,))).eval()
        kinds = {REFERENCE: "float32", f"{REFERENCE}, int8": "int8"}
        folders = {name: (kind, folder / "converted") for name, kind in kinds.items()}
        for engine in (name for name in options.engines if name.startswith("onnx")):
            folders |= {f"{engine} {system}": ("onnx", folder / f"{engine} {system}") for system in systems}
        path = folder / "marian" / "tokenizer.json"
        workers = {name: worker(kind, place, path) for name, (kind, place) in folders.items()}
        results: dict[str, Any] = {}
        record = {
            "size": {"name": options.size, **size._asdict()},
            "source": options.source.name,
            "steps": options.steps,
            "environment": {
                **environment(),
                "ctranslate2": ctranslate2.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
            "operations": operations,
            "results": results,
        }
        del record["environment"]["threads"]
        for threads in options.threads:
            for beams in options.beams:
                for batch in options.batches:
                    case = Case(threads=threads, beams=beams, batch=batch)
                    texts = [median] * 4 if batch == 1 else sentences
                    translators = {
                        name: by_worker(process, texts, options.steps, case) for name, process in workers.items()
                    }
                    if "pytorch" in options.engines:
                        for system in (name for name in IN_PYTORCH if name in models):
                            translators[f"pytorch {system}"] = in_pytorch(
                                models[system], tokenizer, texts, options.steps, case
                            )
                    results[str(case)] = measure(translators, options.rounds, str(case))
                    # after every case: a kill loses at most one
                    if options.output:
                        write_record(options.output, record)
        for process in workers.values():
            process.communicate()
    print(table(record))
    print({name: {job: round(ratio, 3) for job, ratio in row.items()} for name, row in operations.items()})


if __name__ == "__main__":
    main()
