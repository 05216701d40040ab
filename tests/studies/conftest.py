"""Studies of tiny systems on a tiny corpus."""

import json
import random
import sys
from pathlib import Path

import pytest

import hf_capsule_mt.studies.runner as runner

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

# Stands for `train`: five steps, each of which is kept; it goes on from what is kept.
STAND_IN = """
import json, os, sys, time
from pathlib import Path
values = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
folder, root = Path(values["output_dir"]), Path(os.environ["STAND_IN"])
folder.mkdir(parents=True, exist_ok=True)
name = f"{folder.parent.name}-{values['seed']}"
with (root / "order").open("a") as order:
    order.write(f"{name} {os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
if (root / f"fail-{folder.parent.name}").exists():
    sys.exit("the weights are not finite")
steps = folder / "steps"
done = len(steps.read_text()) if steps.exists() else 0
print(f"from step {done}", flush=True)
for step in range(done, 5):
    steps.write_text("." * (step + 1))
    while step == 2 and (root / "hold").exists():
        time.sleep(0.01)
(root / f"started-{name}").touch()
while (root / "meet").exists() and len(list(root.glob("started-*"))) < 2:
    time.sleep(0.01)
(folder / "translations").mkdir(exist_ok=True)
(folder / "translations" / "test.greedy.de").write_text("eins\\n")
row = {"bleu": 12.5, "file": "translations/test.greedy.de"}
(folder / "results.part").write_text(json.dumps({"scores": [row], "wall_seconds": 60}))
(folder / "results.part").rename(folder / "results.json")
"""


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


# Stands for `distill`: says whose translations they are.
TEACHING = """
import json, os, sys
from pathlib import Path
values = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
folder, prefix = Path(values["teacher_name_or_path"]), Path(values["output_prefix"])
name = f"{folder.parent.name}-{folder.name.removeprefix('seed-')}"
with (Path(os.environ["STAND_IN"]) / "order").open("a") as order:
    order.write(f"teach-{name}\\n")
prefix.parent.mkdir()
Path(f"{prefix}.json").write_text(json.dumps(values))
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """The runs are of STAND_IN; what they leave is in this folder."""
    folder = tmp_path / "stand_in"
    folder.mkdir()
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setattr(runner, "train_command", lambda arguments: [sys.executable, "-S", "-c", STAND_IN, *arguments])
    monkeypatch.setattr(runner, "available_devices", lambda: ())
    command, program = runner.distill_command, [sys.executable, "-S", "-c", TEACHING]
    monkeypatch.setattr(runner, "distill_command", lambda *given: [*program, *command(*given)[4:]])
    return folder
