"""The metric module of `evaluate`: loads without the network, and says what scores.py says."""

import json
import subprocess
import sys
from pathlib import Path

import evaluate
import pytest
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_capsule_mt import metrics
from hf_capsule_mt.evaluation.scores import score
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parent.parent.parent
REFERENCES = ["Der Hund springt über den Zaun.", "Zwei Kinder essen Kuchen.", "Das Boot liegt im Hafen."]
HYPOTHESES = ["Der Hund springt hoch über einen Zaun.", "zwei Kinder essen einen Kuchen.", "Das Boot liegt im Hafen."]
CHINESE = (["一个男人在看书。", "两只狗在草地上跑。"], ["一个男人正在看书。", "两只狗在草地上奔跑。"])
OFFLINE = """
import json, socket, sys

def refuse(*_):
    raise AssertionError("the network was asked for")

socket.socket.connect = socket.getaddrinfo = refuse
import evaluate
from pathlib import Path

metric = evaluate.load(sys.argv[1], "chrf")
metric.add_batch(predictions=["ein Hund"], references=["ein Hund"])
print(json.dumps({"result": metric.compute(), "package": "hf_capsule_mt" in sys.modules}))
"""


@pytest.fixture(autouse=True)
def _caches(tmp_path, monkeypatch):
    """The caches are those of the test; evaluate read the environment when it was imported."""
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "metrics")
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path / "modules")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    "hypotheses, references, lang",
    [(HYPOTHESES, REFERENCES, "de"), (HYPOTHESES, REFERENCES, ""), (*CHINESE, "zh_Hans"), (*CHINESE, "ja")],
    ids=["de", "unnamed", "zh", "ja"],
)
class TestScores:
    def test_all(self, hypotheses, references, lang):
        metric = evaluate.load(metrics.path())
        result = metric.compute(predictions=hypotheses, references=references, target_lang=lang)
        assert result == score(hypotheses, references, target_lang=lang)
        assert 0 < result["bleu"] < 100 and 0 < result["ter"] < 100

    @pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
    def test_one(self, name, hypotheses, references, lang):
        metric = evaluate.load(metrics.path(), name)
        result = metric.compute(predictions=hypotheses, references=references, target_lang=lang)
        expected = score(hypotheses, references, target_lang=lang)
        assert (result["score"], result["signature"]) == (expected[name], expected["signatures"][name])
        assert result["sentences"] == len(hypotheses)


def test_details():
    def compute(name):
        return evaluate.load(metrics.path(), name).compute(predictions=["a b c d e"], references=["a b c d f g"])

    bleu, ter = compute("bleu"), compute("ter")
    assert (bleu["counts"], bleu["totals"]) == ([4, 3, 2, 1], [5, 4, 3, 2])
    assert bleu["precisions"] == pytest.approx([80, 75, 100 * 2 / 3, 50])
    assert (bleu["prediction_length"], bleu["reference_length"]) == (5, 6)
    assert 0 < bleu["brevity_penalty"] < 1
    assert (ter["edits"], ter["reference_length"]) == (2, 6) and ter["score"] == pytest.approx(100 * 2 / 6)


def test_batches_and_single_sentences():
    metric = evaluate.load(metrics.path())
    metric.add_batch(predictions=HYPOTHESES[:2], references=REFERENCES[:2])
    metric.add(prediction=HYPOTHESES[2], reference=REFERENCES[2])
    assert metric.compute() == score(HYPOTHESES, REFERENCES)
    # nothing of the first call is left
    assert metric.compute(predictions=REFERENCES, references=REFERENCES)["ter"] == 0


def test_references_in_lists_of_one():
    metric = evaluate.load(metrics.path())
    listed = [[reference] for reference in REFERENCES]
    assert metric.compute(predictions=HYPOTHESES, references=listed) == score(HYPOTHESES, REFERENCES)


def test_bad_input():
    with pytest.raises(ValueError, match="no metric 'comet'; choose one of bleu, chrf, ter"):
        evaluate.load(metrics.path(), "comet")
    metric = evaluate.load(metrics.path(), "bleu")
    with pytest.raises(ValueError, match="nothing to score"):
        metric.compute(predictions=[], references=[])
    with pytest.raises(ValueError, match="exactly one reference, got 2"):
        metric.compute(predictions=["a"], references=[["b", "c"]])
    with pytest.raises(ValueError, match="Mismatch in the number"):
        evaluate.load(metrics.path(), "bleu").compute(predictions=["a"], references=["b", "c"])


def test_in_a_trainer(tmp_path):
    tokenizer = tiny_tokenizer()
    metric = evaluate.load(metrics.path(), "bleu")

    def compute_metrics(prediction):
        labels = prediction.label_ids.copy()
        labels[labels == -100] = tokenizer.pad_token_id
        hypotheses = tokenizer.batch_decode(prediction.predictions, skip_special_tokens=True)
        references = tokenizer.batch_decode(labels, skip_special_tokens=True)
        return {"bleu": metric.compute(predictions=hypotheses, references=references)["score"]}

    data = Dataset.from_dict(dict(tokenizer(SOURCES, text_target=TARGETS, return_token_type_ids=False)))
    model = tiny_model()
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            tmp_path / "run",
            per_device_eval_batch_size=4,
            predict_with_generate=True,
            generation_max_length=20,
            report_to=[],
            use_cpu=True,
        ),
        eval_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        compute_metrics=compute_metrics,
    )
    # the model knows its sentences by heart
    assert trainer.evaluate()["eval_bleu"] == pytest.approx(100)


def test_offline_in_a_fresh_process_with_its_caches_in_hf_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "HF_HOME": str(tmp_path / "hf"), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", OFFLINE, metrics.path()], capture_output=True, text=True, env=environment, cwd=home
    )
    assert finished.returncode == 0, finished.stderr
    printed = json.loads(finished.stdout)
    assert printed["result"]["score"] == pytest.approx(100) and not printed["package"]
    assert (tmp_path / "hf" / "modules").is_dir() and not list(home.iterdir())
