"""
How long it takes from the start of a process to its first translation, with PyTorch and with an exported model.

    python benchmarks/cold_start.py runs/multi30k/none --output hf_capsule_mt/evidence/records/speed/cold_start.json

The run is exported, once in float32 and once with --int8. Then every way translates one sentence in a process of its
own, with a beam of 5; they take turns, and the first turn, which fills the cache of files, does not count. Seconds are
medians over turns with quartiles, of the whole process: interpreter, imports, loading, one translation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from hf_capsule_mt.serving.export import export_onnx
from timing import environment, rotated, seconds, write_record

PYTORCH = """
import hf_capsule_mt
from transformers import pipeline
hf_capsule_mt.register()
print(pipeline("translation", model={folder!r})({sentence!r}, num_beams=5)[0]["translation_text"])
"""
ONNX = """
import sys
sys.path.append({folder!r})
from translator import OnnxTranslator
print(OnnxTranslator({folder!r}, {threads}).translate([{sentence!r}], num_beams=5)[0])
"""
WAYS = {"pipeline, PyTorch": PYTORCH, "OnnxTranslator": ONNX, "OnnxTranslator, int8": ONNX}


def translation(code: str, threads: int) -> str:
    """What a fresh process prints."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def measure(run: str, sentence: str, turns: int, threads: int) -> dict[str, dict[str, float]]:
    """Seconds of every way."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {"pipeline, PyTorch": run}
        for name, int8 in (("OnnxTranslator", False), ("OnnxTranslator, int8", True)):
            folders[name] = str(export_onnx(run, Path(folder) / str(int8), int8=int8))
        codes = {
            name: code.format(folder=folders[name], sentence=sentence, threads=threads) for name, code in WAYS.items()
        }
        outputs = {name: translation(code, threads) for name, code in codes.items()}
        if outputs["OnnxTranslator"] != outputs["pipeline, PyTorch"]:
            raise RuntimeError(f"the translations differ: {outputs}")
        times: dict[str, list[float]] = {name: [] for name in codes}
        for turn in range(turns):
            for name in rotated(list(codes), turn):
                times[name].append(seconds(lambda name=name: translation(codes[name], threads)))
    return {name: _summary(series) for name, series in times.items()}


def _summary(series: Sequence[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(series, n=4, method="inclusive")
    return {"seconds": median, "seconds_quartiles": [low, high]}


def main(argv: Sequence[str]) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained model")
    parser.add_argument("--sentence", default="A man in a blue shirt is standing on a ladder cleaning a window.")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    results = measure(arguments.run, arguments.sentence, arguments.turns, arguments.threads)
    record = {
        "run": "/".join(Path(arguments.run).parts[-3:]),
        "sentence": arguments.sentence,
        "turns": arguments.turns,
        "environment": {
            **environment(),
            "threads": arguments.threads,
            "onnxruntime": onnxruntime.__version__,
            "python": sys.version.split()[0],
        },
        "results": results,
    }
    write_record(arguments.output, record)
    for name, row in results.items():
        print(f"{name:24}{row['seconds']:6.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
