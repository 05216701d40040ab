"""
What someone does without this package: load a directory and translate, with transformers or with ONNX Runtime, or run
the Space of a model.

Run as a script, in a process of its own: a JSON object with "way" ("transformers", "onnx" or "space"), "folder",
"sentences" and "num_beams" comes in on standard input, and one with the translations by the way they were made goes
out on standard output. A Space has "model" too, a directory in the place of its own model. For models that have to be
told their languages, "languages" has the codes "source" and "target", and the "parameter" of `generate` that says the
target language by the id of a "token".
"""

import json
import sys
from typing import Any


def translate(
    folder: str,
    sentences: list[str],
    num_beams: int,
    languages: dict[str, str] | None = None,
) -> dict[str, list[str]]:
    """Loads the directory in each way that a user has, and translates with every one of them."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    # The folder that this package has just written: nothing is downloaded, and the code is this package's own.
    AutoConfig.from_pretrained(folder, trust_remote_code=True)  # nosec B615
    source = {} if languages is None else {"src_lang": languages["source"]}
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, **source)  # nosec B615
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)  # nosec B615
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    told, to_write = {}, {}
    if languages is not None:
        told = {**source, "tgt_lang": languages["target"]}
        to_write = {languages["parameter"]: tokenizer.convert_tokens_to_ids(languages["token"])}
    model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, num_beams=num_beams, **to_write)
    pipelines = {}
    task: Any
    for task in ("translation", None):
        translator = pipeline(task, model=folder, trust_remote_code=True)
        pipelines[f"pipeline({task})"] = [
            result["translation_text"]
            for result in translator(sentences, num_beams=num_beams, batch_size=len(sentences), **told)
        ]
    return pipelines


def translate_onnx(
    folder: str, sentences: list[str], num_beams: int, languages: dict[str, str] | None = None
) -> dict[str, list[str]]:
    """Translates with the program that lies in an exported folder."""
    sys.path.insert(0, folder)
    # nothing is added to what will be published
    sys.dont_write_bytecode = True
    from translator import OnnxTranslator  # type: ignore[import-not-found]

    told = {} if languages is None else {f"{side}_lang": languages[side] for side in ("source", "target")}
    return {"OnnxTranslator": OnnxTranslator(folder).translate(sentences, num_beams=num_beams, **told)}


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
