"""A tiny corpus and the arguments of a run that takes a second."""

import random
from pathlib import Path

import pytest

# arguments of the tiny run that recurrent models do not have, or not as it has them
TRANSFORMER_ONLY = (
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_position_embeddings",
    "aggregation",
)
WORDS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
LETTERS = list("abcdefghij")


def write_corpus(folder: Path, split: str, size: int, seed: int) -> None:
    """Sentences of letters, translated word by word."""
    generator = random.Random(seed)
    rows = [[generator.randrange(10) for _ in range(generator.randint(2, 9))] for _ in range(size)]
    for language, words in (("en", LETTERS), ("de", WORDS)):
        text = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder with train, val and test in en and de."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed, (split, size) in enumerate((("train", 211), ("val", 23), ("test", 17))):
        write_corpus(folder, split, size, seed)
    return folder


@pytest.fixture
def command(corpus, tmp_path):
    """The command line of a tiny run in tmp_path/run; keyword arguments override it."""

    def build(**overrides) -> list[str]:
        values = {
            "output_dir": tmp_path / "run",
            "data_dir": corpus,
            "source_lang": "en",
            "target_lang": "de",
            "train_file": "train",
            "validation_file": "val",
            "test_file": "test",
            "vocab_size": 400,
            "aggregation": "em_routing",
            "d_model": 12,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 14,
            "decoder_ffn_dim": 14,
            "max_position_embeddings": 40,
            "label_smoothing": 0.1,
            "max_tokens_per_batch": 300,
            "learning_rate": 0.01,
            "warmup_steps": 2,
            "max_steps": 12,
            "logging_steps": 2,
            "eval_steps": 4,
            "save_steps": 4,
            "test_num_beams": 1,
            "report_to": "none",
            "disable_tqdm": "true",
            "use_cpu": "true",
        }
        values.update(overrides)
        tokens = [
            token for key, value in values.items() if value is not None for token in (f"--{key}", *_tokens(value))
        ]
        return ["--recipe", "none", *tokens]

    return build


@pytest.fixture
def recurrent(command):
    """The command line of a tiny run of a recurrent model."""

    def build(**overrides) -> list[str]:
        return command(**{**dict.fromkeys(TRANSFORMER_ONLY), "model_type": "capsule-rnn", **overrides})

    return build


def _tokens(value) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
