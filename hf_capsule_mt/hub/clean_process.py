"""
What someone does who has transformers, but not this package: load a directory and translate.

Run as a script, in a process of its own: a JSON object with "folder", "sentences" and "num_beams" comes in on standard
input, and one with the names of the classes and the translations goes out on standard output.
"""

import json
import sys
from typing import Any


def translate(folder: str, sentences: list[str], num_beams: int) -> dict[str, Any]:
    """Loads the directory in each way that a user has, and translates with every one of them."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    generated = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, num_beams=num_beams)
    pipelines = {}
    task: Any
    for task in ("translation", None):
        translator = pipeline(task, model=folder, trust_remote_code=True)
        pipelines[str(task)] = [
            result["translation_text"]
            for result in translator(sentences, num_beams=num_beams, batch_size=len(sentences))
        ]
    return {
        "config": type(config).__name__,
        "model": type(model).__name__,
        "code": type(model).__module__.split(".")[0],
        "generate": tokenizer.batch_decode(generated, skip_special_tokens=True),
        "pipelines": pipelines,
    }


if __name__ == "__main__":
    # an installed package would shadow the code in the directory
    sys.modules["hf_capsule_mt"] = None  # type: ignore[assignment]
    json.dump(translate(**json.load(sys.stdin)), sys.stdout)
