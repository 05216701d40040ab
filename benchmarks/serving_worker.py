"""
One engine of serving.py in a process of its own, without PyTorch, whose threads would get in the way of the others'.

    python benchmarks/serving_worker.py ENGINE FOLDER TOKENIZER

ENGINE is onnx, or CTranslate2's type of numbers. A line on standard input is a task, as JSON: sentences, threads,
beams, batch and steps; a line on standard output is the seconds that it took.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

Run = Callable[[list[str]], object]


def onnx(folder: str, task: dict[str, Any]) -> Run:
    """An exported model."""
    sys.path.append(folder)
    from translator import OnnxTranslator

    translator = OnnxTranslator(folder, task["threads"])
    steps = {"max_new_tokens": task["steps"], "min_new_tokens": task["steps"]}
    return lambda texts: translator.translate(texts, num_beams=task["beams"], max_tokens=10**7, **steps)


def ctranslate2(folder: str, tokenizer: Tokenizer, task: dict[str, Any], kind: str) -> Run:
    """CTranslate2 with the plain model."""
    import ctranslate2

    translator = ctranslate2.Translator(folder, compute_type=kind, inter_threads=1, intra_threads=task["threads"])
    steps = {"max_decoding_length": task["steps"], "min_decoding_length": task["steps"]}

    def run(texts: list[str]) -> list[str]:
        tokens = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
        results = translator.translate_batch(tokens, beam_size=task["beams"], **steps)
        ids = [[tokenizer.token_to_id(token) for token in result.hypotheses[0]] for result in results]
        return tokenizer.decode_batch(ids)

    return run


def main() -> None:
    engine, folder, path = sys.argv[1:]
    tokenizer = Tokenizer.from_file(path)
    runs: dict[tuple[int, int], Run] = {}
    for line in sys.stdin:
        task = json.loads(line)
        key = (task["threads"], task["beams"])
        if key not in runs:
            runs.clear()
            runs[key] = onnx(folder, task) if engine == "onnx" else ctranslate2(folder, tokenizer, task, engine)
        start = time.perf_counter()
        for first in range(0, len(task["sentences"]), task["batch"]):
            runs[key](task["sentences"][first : first + task["batch"]])
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
