"""
What someone does without this package: load a directory and translate, with transformers or with ONNX Runtime, or run
the Space of a model.

Run as a script, in a process of its own: a JSON object with "way" ("transformers", "onnx" or "space"), "folder",
"sentences", "num_beams" and, of a Space, "model", a directory in the place of its own model, comes in on standard
input, and one with the translations by the way they were made goes out on standard output.
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
        pipelines[f"pipeline({task})"] = [
            result["translation_text"]
            for result in translator(sentences, num_beams=num_beams, batch_size=len(sentences))
        ]
    return pipelines


def translate_onnx(folder: str, sentences: list[str], num_beams: int) -> dict[str, list[str]]:
    """Translates with the program that lies in an exported folder."""
    sys.path.insert(0, folder)
    # nothing is added to what will be published
    sys.dont_write_bytecode = True
    from translator import OnnxTranslator  # type: ignore[import-not-found]

    return {"OnnxTranslator": OnnxTranslator(folder).translate(sentences, num_beams=num_beams)}


def translate_space(folder: str, sentences: list[str], num_beams: int, model: str) -> dict[str, list[str]]:
    """Makes the page of a Space, and translates as it does when somebody types."""
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    from capsule_demo.demo import space  # type: ignore[import-not-found]
    from capsule_demo.demo.app import translations  # type: ignore[import-not-found]

    settings = {**space.read_settings(), "model": model, "revision": None}
    system = space.load(settings)
    space.make_page(settings, system)
    texts = []
    for sentence in sentences:
        *_, ((kind, text), views) = translations([system], sentence, num_beams)
        if kind == "error":
            raise ValueError(text)
        texts.append(views[0]["sentences"][0]["systems"][system.name]["translation"])
    return {"the Space": texts}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    way = request.pop("way")
    # an installed package would shadow the code in the directory
    for name in ("hf_capsule_mt", *(("torch", "transformers") if way == "onnx" else ())):
        sys.modules[name] = None  # type: ignore[assignment]
    ways: dict[str, Any] = {"transformers": translate, "onnx": translate_onnx, "space": translate_space}
    json.dump(ways[way](**request), sys.stdout)
