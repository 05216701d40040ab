"""Corpus BLEU, chrF and TER as a metric module of the `evaluate` library.

`evaluate` copies this file into its module cache, and finds its imports by a regular expression: it stands alone, and
every import is one line. The figures are those of `hf_capsule_mt.evaluation.scores` with the convention "cased".
"""

from importlib.util import find_spec
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF, TER

METRICS = ("bleu", "chrf", "ter")
DEFAULT = "default"
# sacreBLEU's tokenizer for languages without spaces; all others have its own default
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab" if find_spec("MeCab") else "char"}
DESCRIPTION = "Corpus BLEU, chrF and TER of detokenised, cased text with sacreBLEU, each with its signature."
INPUTS = """
Args:
    predictions: translations, detokenised, one text each.
    references: one text each, or one list each that holds a single text.
    target_lang: language of both ("de", "zh", "pt-BR"); chooses the tokenizer of Chinese and Japanese, and may be left
        out for other languages.

Returns:
    With the name "bleu", "chrf" or "ter": "score" (0 to 100; 0 is perfect for TER, which may exceed 100), "signature",
    "sentences", and for BLEU "precisions", "counts", "totals", "brevity_penalty", "prediction_length" and
    "reference_length", for TER "edits" and "reference_length" (in words).
    Without a name: the scores "bleu", "chrf" and "ter", and "signatures", a dict with these keys.

Raises:
    ValueError: no sentences, several references for one prediction, or an unknown metric name.
"""


class TranslationScores(evaluate.Metric):
    """One of the three metrics by `config_name`, or all of them without one."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in (DEFAULT, *METRICS):
            raise ValueError(
                f"there is no metric {self.config_name!r}; choose one of {', '.join(METRICS)}, or give no name for all"
            )
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="",
            inputs_description=INPUTS,
            features=[
                datasets.Features({"predictions": text, "references": text}),
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
            ],
            reference_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add sentences and their references."""
        if predictions is not None and len(predictions) == 0:
            raise ValueError("nothing to score: there are no predictions")
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def _compute(self, predictions: list[str], references: list[Any], target_lang: str = "") -> dict[str, Any]:
        hypotheses, flat_references = list(predictions), [_only(reference) for reference in references]
        language = target_lang.lower().replace("_", "-").split("-")[0]
        if self.config_name != DEFAULT:
            return _score(self.config_name, hypotheses, flat_references, language)
        found = {name: _score(name, hypotheses, flat_references, language) for name in METRICS}
        scores: dict[str, Any] = {name: result["score"] for name, result in found.items()}
        return {**scores, "signatures": {name: result["signature"] for name, result in found.items()}}


def _only(reference: str | list[str]) -> str:
    if isinstance(reference, str):
        return reference
    if len(reference) != 1:
        raise ValueError(f"every prediction needs exactly one reference, got {len(reference)}: {reference}")
    return reference[0]


def _score(name: str, hypotheses: list[str], references: list[str], language: str) -> dict[str, Any]:
    metric = _metric(name, language)
    result = metric.corpus_score(hypotheses, [references])
    details: dict[str, Any] = {}
    if name == "bleu":
        details = {
            "precisions": list(result.precisions),
            "counts": list(result.counts),
            "totals": list(result.totals),
            "brevity_penalty": result.bp,
            "prediction_length": result.sys_len,
            "reference_length": result.ref_len,
        }
    elif name == "ter":
        details = {"edits": result.num_edits, "reference_length": result.ref_length}
    signature = str(metric.get_signature())
    return {"score": result.score, "signature": signature, "sentences": len(hypotheses), **details}


def _metric(name: str, language: str) -> Any:
    if name == "bleu":
        return BLEU(tokenize=TOKENIZERS.get(language, "13a"))
    if name == "chrf":
        return CHRF()
    # TER counts words between spaces, which these languages do not have until sacreBLEU splits them
    return TER(normalized=True, asian_support=True) if language in TOKENIZERS else TER()
