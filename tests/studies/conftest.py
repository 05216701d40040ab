"""Studies of tiny systems on a tiny corpus."""

import json
import random
from pathlib import Path

import pytest

TINY = {
    "source_lang": "en",
    "target_lang": "de",
    "train_file": "train",
    "validation_file": "val",
    "test_file": "test",
    "vocab_size": 400,
    "aggregation": "none",
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 14,
    "decoder_ffn_dim": 14,
    "max_position_embeddings": 40,
    "max_tokens_per_batch": 300,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "max_steps": 6,
    "logging_steps": 2,
    "eval_strategy": "no",
    "save_steps": 3,
    "test_num_beams": [1],
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
WORDS = {
    "en": list("abcdefghij"),
    "de": ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"],
}


def write_pairs(folder: Path, split: str, size: int, seed: int) -> None:
    """Sentences of letters, translated word by word."""
    generator = random.Random(seed)
    rows = [[generator.randrange(10) for _ in range(generator.randint(2, 9))] for _ in range(size)]
    for language, words in WORDS.items():
        text = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder with train, val, test and other in en and de."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed, (split, size) in enumerate((("train", 151), ("val", 11), ("test", 17), ("other", 7))):
        write_pairs(folder, split, size, seed)
    return folder


@pytest.fixture
def write_study(corpus, tmp_path):
    """Writes tmp_path/study.yaml on two tiny systems; keyword arguments override its keys."""

    def write(**values) -> Path:
        recipe = {**TINY, "output_dir": "nowhere", "data_dir": str(corpus)}
        (tmp_path / "tiny.yaml").write_text(json.dumps(recipe))
        study = {
            "recipe": "tiny.yaml",
            "systems": {"plain": {}, "linear": {"aggregation": "linear"}},
            "seeds": [1, 2],
            "compare_with": "plain",
            "output": str(tmp_path / "runs"),
        }
        study.update(values)
        path = tmp_path / "study.yaml"
        path.write_text(json.dumps({key: value for key, value in study.items() if value is not None}))
        return path

    return write
