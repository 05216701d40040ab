"""Real parallel text, where the environment variable HF_CAPSULE_MT_DATA names the folder that holds it."""

import os
from pathlib import Path

import pytest

from hf_capsule_mt.data.corpus import DATA_VARIABLE, load_split
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.evaluation.scores import prepare_lc_norm_tok

# other tests change the variable, so it is read once, here
DATA = os.environ.get(DATA_VARIABLE)


def needs(*files: str):
    missing = [file for file in files if not DATA or not (Path(DATA) / file).is_file()]
    reason = f"${DATA_VARIABLE} names no folder with {', '.join(missing)}"
    return pytest.mark.skipif(bool(missing), reason=reason)


@needs("multi30k/train.en", "multi30k/train.de", "multi30k/test2016.de")
def test_multi30k_is_read_pair_by_pair():
    sizes = {"train": ("train", 29_000), "validation": ("val", 1_014), "test": ("test2016", 1_000)}
    for split, (file, size) in sizes.items():
        dataset = load_split(split, source_lang="en", target_lang="de", file=f"multi30k/{file}", data_dir=DATA)
        assert len(dataset) == size
        # translations have similar lengths; a shift by one line would break that
        ratios = [len(t) / len(s) for s, t in zip(dataset["source"], dataset["target"], strict=True)]
        assert 1.0 < sum(ratios) / size < 1.4


@needs("multi30k/test2016.de", "multi30k/test2016.lc.norm.tok.de")
@pytest.mark.parametrize("language", ["en", "de"])
def test_preparing_raw_text_gives_the_published_lc_norm_tok_files(language):
    pytest.importorskip("sacremoses")
    raw, published = (
        (Path(DATA) / "multi30k" / f"test2016.{kind}{language}").read_text(encoding="utf-8").splitlines()
        for kind in ("", "lc.norm.tok.")
    )
    assert prepare_lc_norm_tok(raw, language) == published


@needs("3am/val.zh", "3am/val.en")
def test_no_chinese_character_is_lost():
    dataset = load_split("validation", source_lang="zh", target_lang="en", file="3am/val", data_dir=DATA)
    tokenizer = train_tokenizer(dataset["target"], vocab_size=600, model_max_length=512)
    for sentence in dataset["source"][:200]:
        # the tokenizer has seen English alone, so every Chinese character goes through its bytes
        assert tokenizer.decode(tokenizer(sentence)["input_ids"], skip_special_tokens=True) == sentence.strip()
