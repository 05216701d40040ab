"""
What someone does who has transformers, but not this package: load a directory and translate.

Run as a script, in a process of its own: a JSON object with "folder", "sentences" and "num_beams" comes in on standard
input, and one with the translations by the task that the pipeline was asked for goes out on standard output.
"""

import json
import sys
from typing import Any


def translate(folder: str, sentences: list[str], num_beams: int) -> dict[str, list[str]]:
    """Loads the directory in each way that a user has, and translates with every one of them."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    # The folder that this package has just written: nothing is downloaded, and the code is this package's own.
    AutoConfig.from_pretrained(folder, trust_remote_code=True)  # nosec B615
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)  # nosec B615
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)  # nosec B615
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, num_beams=num_beams)
    pipelines = {}
    task: Any
    for task in ("translation", None):
        translator = pipeline(task, model=folder, trust_remote_code=True)
        pipelines[str(task)] = [
            result["translation_text"]
            for result in translator(sentences, num_beams=num_beams, batch_size=len(sentences))
        ]
    return pipelines


if __name__ == "__main__":
    # an installed package would shadow the code in the directory
    sys.modules["hf_capsule_mt"] = None  # type: ignore[assignment]
    json.dump(translate(**json.load(sys.stdin)), sys.stdout)
