"""Do the PAST and FUTURE capsules (Zheng et al. 2019) know what is translated? Probes with gold answers.

The embedded grammar corpus comes with gold word alignments, and `aligned_text` has those of real text. The gold prefix
is fed to the decoder, and before every target piece each source word is either translated, not yet, or in between
(left out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.batching import IGNORE_INDEX, TranslationCollator
from ..models import (
    CapsuleBartForConditionalGeneration,
    CapsuleM2M100ForConditionalGeneration,
    CapsuleMarianMTModel,
    CapsuleMBartForConditionalGeneration,
    CapsuleRNNForConditionalGeneration,
)
from .gold import LEFT_OUT, WITHOUT_LINK, Pair, gold_translated, overlap_rates, words_without_link
from .group_scores import group_scores
from .probe_intervals import bootstrap_intervals, decision_scores

__all__ = ["ProbeResult", "fit_bow_predictor", "gold_translated", "overlap_rates", "past_future_probe"]

GuidedModel = (
    CapsuleMarianMTModel
    | CapsuleBartForConditionalGeneration
    | CapsuleMBartForConditionalGeneration
    | CapsuleM2M100ForConditionalGeneration
    | CapsuleRNNForConditionalGeneration
)

BOW_PROJECTION = "bow_proj"


@dataclass(frozen=True)
class ProbeResult:
    """What `past_future_probe` finds; shares and areas are between 0 and 1.

    Attributes:
        accuracy: share of the decisions that are right: PAST where past > future, else FUTURE.
        auc: area under the ROC curve of past / (past + future), over all decisions of all sentences.
        decisions: number of (step, source word) pairs that the gold alignment decides.
        sentences: number of sentence pairs.
        majority_accuracy: share of the more frequent answer, which is the accuracy of always giving it.
        diagonal_accuracy, diagonal_auc: of a translation in source order at even speed, a control without a model: a
            word is PAST as soon as a larger share of the target than of the source up to the word's middle is done.
        past_overlap, future_overlap: the top-5 overlap rates r_OL, see `overlap_rates`, averaged over the sentences;
            None if the model predicts no bags of words.
        frequent_past_overlap, frequent_future_overlap: the same of always predicting the most frequent pieces of the
            probed targets, a control without a model.
        groups: accuracy and area of each group for itself, see `group_scores.group_scores`.
        intervals: 95 % intervals of these numbers over the choice of the sentences, by name, and of how far accuracy
            and auc are above the diagonal's, see `probe_intervals.bootstrap_intervals`; None if not asked for.
    """

    accuracy: float
    auc: float
    decisions: int
    sentences: int
    majority_accuracy: float
    diagonal_accuracy: float
    diagonal_auc: float
    past_overlap: float | None
    future_overlap: float | None
    frequent_past_overlap: float | None
    frequent_future_overlap: float | None
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    intervals: dict[str, list[float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON; without intervals if there are none."""
        values = asdict(self)
        return values if self.intervals is not None else {key: values[key] for key in values if key != "intervals"}


def past_future_probe(
    model: GuidedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    batch_size: int = 32,
    progress: bool = True,
    draws: int = 0,
) -> ProbeResult:
    """
    Compare the assignment probabilities of source words with gold answers.

    A word's PAST and FUTURE probabilities are the means over its pieces, in every system: where an attention spreads
    over the source the sum would be the probability, but the decision and its score, ratios of the two, are the same.
    The result does not depend on `batch_size`. The model's mode (training or evaluation) is kept.

    Without L_BOW and L_BCA nothing tells the model which group is which: an `auc` far below 0.5 then means that the
    groups have changed places.

    Args:
        model: a model with guided routing.
        tokenizer: its tokenizer, a fast one; a multilingual one has the languages set (`set_languages`).
        pairs: sentence pairs in the model's direction, with their gold word alignment.
        batch_size: sentence pairs at a time.
        progress: show a progress bar.
        draws: test sets to draw for intervals, at least 100; by default there are no intervals.

    Raises:
        ValueError: a model without guided routing, no pairs, or pairs without any alignment.
        ImportError: scikit-learn is not installed.
    """
    _check_guided(model)
    roc_auc_score = _import_roc_auc_score()
    predicts_bags = model.config.bow_loss_weight > 0
    answers: list[np.ndarray] = []
    overlaps: list[tuple[float | None, float | None]] = []
    was_training = model.training
    model.eval()
    with tqdm(total=len(pairs), desc="probing", leave=False, disable=not progress) as bar, torch.no_grad():
        for start in range(0, len(pairs), batch_size):
            chunk = pairs[start : start + batch_size]
            batch = _encode(tokenizer, chunk, model.device)
            answers += _answers(model, tokenizer, chunk, batch)
            if predicts_bags:
                overlaps += _overlaps(model, batch)
            bar.update(len(chunk))
    model.train(was_training)
    decisions = [_decisions(table) for table in answers]
    if not sum(map(len, decisions)):
        raise ValueError("nothing to probe: there are no sentence pairs, or none of their words is aligned")
    controls = _frequent_overlaps(tokenizer, pairs)
    result = _score(np.concatenate(decisions), overlaps, controls, len(pairs), roc_auc_score)
    result = replace(result, groups=group_scores(answers, draws=draws))
    if draws:
        result = replace(result, intervals=bootstrap_intervals(decisions, overlaps, controls, draws=draws))
    return result


def _score(
    table: np.ndarray,
    overlaps: Sequence[tuple[float | None, float | None]],
    controls: Sequence[tuple[float | None, float | None]],
    sentences: int,
    roc_auc_score: Callable[..., float],
) -> ProbeResult:
    gold, past, future, diagonal = table.T
    return ProbeResult(
        accuracy=float(np.mean((past > future) == gold)),
        auc=float(roc_auc_score(gold, decision_scores(table))),
        decisions=len(gold),
        sentences=sentences,
        majority_accuracy=float(max(gold.mean(), 1 - gold.mean())),
        diagonal_accuracy=float(np.mean((diagonal > 0) == gold)),
        diagonal_auc=float(roc_auc_score(gold, diagonal)),
        past_overlap=_mean([rate for rate, _ in overlaps]),
        future_overlap=_mean([rate for _, rate in overlaps]),
        frequent_past_overlap=_mean([rate for rate, _ in controls]),
        frequent_future_overlap=_mean([rate for _, rate in controls]),
    )


def _answers(
    model: GuidedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    batch: dict[str, Tensor],
) -> list[np.ndarray]:
    """For each pair a table as `group_scores` takes it: gold answer, diagonal, probabilities of the groups."""
    # float64, so that the means of differently padded batches round alike
    output = model(**_teacher_forced(model, batch), output_agreements=True)
    assignments = output.guided_assignment.double().cpu().numpy()
    tables = []
    for pair, assignment in zip(pairs, assignments, strict=True):
        gold, pieces = gold_translated(pair, tokenizer)
        gold[:, words_without_link(pair)] = WITHOUT_LINK
        steps, words = gold.shape
        by_word = [assignment[:steps, of_word].mean(axis=1) for of_word in pieces]
        groups = np.stack(by_word, axis=1) if pieces else np.empty((steps, 0, assignment.shape[-1]))
        done = np.arange(steps)[:, None] / max(steps - 1, 1)
        diagonal = done - (np.arange(words) + 0.5) / max(words, 1)
        table = np.concatenate([np.stack([gold, diagonal], axis=-1), groups], axis=-1)
        tables.append(table[gold != LEFT_OUT])
    return tables


def _decisions(answers: np.ndarray) -> np.ndarray:
    """A row per decision between PAST and FUTURE: gold answer, PAST and FUTURE probability, and how far the step is
    ahead of the word on the diagonal."""
    return answers[answers[:, 0] != WITHOUT_LINK][:, [0, 2, 3, 1]]


def _overlaps(model: GuidedModel, batch: dict[str, Tensor]) -> Iterator[tuple[float | None, float | None]]:
    past, future = model.bag_of_words_log_probs(**_teacher_forced(model, batch))
    for row, labels in enumerate(batch["labels"]):
        steps = int((labels != IGNORE_INDEX).sum())
        yield overlap_rates(past[row, :steps], future[row, :steps], labels[:steps])


def _frequent_overlaps(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]
) -> list[tuple[float | None, float | None]]:
    targets = [torch.tensor(ids) for ids in tokenizer(text_target=[pair.target for pair in pairs])["input_ids"]]
    counts = torch.bincount(torch.cat(targets), minlength=len(tokenizer)).float()
    rates = []
    for labels in targets:
        scores = counts.expand(len(labels), -1)
        rates.append(overlap_rates(scores, scores, labels))
    return rates


def fit_bow_predictor(
    model: GuidedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    steps: int = 300,
    seed: int = 0,
    batch_size: int = 64,
    learning_rate: float = 2.0,
    progress: bool = True,
) -> GuidedModel:
    """
    A copy of a model with newly trained BOW predictors, so that r_OL can be read from any guided model.

    Only the two BOW projections are trained, by Adam on L_BOW alone with a linearly falling learning rate and without
    dropout; the rest is frozen. The projections are linear, so what they find is in the capsules. Predictors that the
    model has already are left behind.

    Args:
        model: a model with guided routing; it is not changed.
        tokenizer: its tokenizer.
        pairs: training pairs in the model's direction; their alignment is not used.
        steps: number of updates, at least 1.
        seed: of the projections' initial values and the order of the pairs. Global random states are left alone.
        batch_size: sentence pairs per update; the pairs are drawn without replacement until they are used up.
        learning_rate: the first one, times the number of a projection's inputs: divided by it, an update changes the
            predictions as much for large as for small capsules.
        progress: show a progress bar.

    Returns:
        The copy, in evaluation mode, with bow_loss_weight=1 in its config and only the projections trainable.

    Raises:
        ValueError: a model without guided routing, no pairs, or fewer than one step.
    """
    _check_guided(model)
    if not pairs or steps < 1:
        raise ValueError(f"fitting needs pairs and at least one step, got {len(pairs)} pairs and steps={steps}")
    fitted = _with_new_predictor(model, seed)
    projections = [parameter for parameter in fitted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam([{"params": [p], "lr": learning_rate / p.shape[-1]} for p in projections])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = np.random.default_rng(seed)
    order: list[int] = []
    for _ in tqdm(range(steps), desc="fitting BOW predictors", leave=False, disable=not progress):
        if not order:
            order = generator.permutation(len(pairs)).tolist()
        chosen, order = order[:batch_size], order[batch_size:]
        batch = _encode(tokenizer, [pairs[index] for index in chosen], fitted.device)
        optimizer.zero_grad()
        fitted(**batch).bow_loss.backward()
        optimizer.step()
        schedule.step()
    return fitted


def _with_new_predictor(model: GuidedModel, seed: int) -> GuidedModel:
    config: Any = type(model.config).from_dict({**model.config.to_dict(), "bow_loss_weight": 1.0})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fitted: Any = type(model)(config)
    weights = {name: value for name, value in model.state_dict().items() if BOW_PROJECTION not in name}
    keys = fitted.load_state_dict(weights, strict=False)
    wrong = [*keys.unexpected_keys, *(name for name in keys.missing_keys if BOW_PROJECTION not in name)]
    if wrong or not keys.missing_keys:
        raise RuntimeError(f"only the {BOW_PROJECTION} weights should be new, but these do not fit: {wrong}")
    for name, parameter in fitted.named_parameters():
        parameter.requires_grad_(BOW_PROJECTION in name)
    return fitted.to(model.device).eval()


def _check_guided(model: GuidedModel) -> None:
    if getattr(model.config, "guided_routing", "none") == "none":
        raise ValueError('the model has no PAST and FUTURE capsules: its config says guided_routing="none"')


def _import_roc_auc_score() -> Callable[..., float]:
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        raise ImportError("the probes need scikit-learn: pip install hf_capsule_mt[analysis]") from error
    return roc_auc_score


def _encode(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair], device: torch.device) -> dict[str, Tensor]:
    sources = tokenizer([pair.source for pair in pairs])["input_ids"]
    targets = tokenizer(text_target=[pair.target for pair in pairs])["input_ids"]
    examples = [{"input_ids": s, "labels": t} for s, t in zip(sources, targets, strict=True)]
    return {name: value.to(device) for name, value in TranslationCollator(tokenizer.pad_token_id)(examples).items()}


def _teacher_forced(model: GuidedModel, batch: dict[str, Tensor]) -> dict[str, Any]:
    """The batch with the shifted labels as decoder inputs: no loss is computed."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return {**inputs, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(batch["labels"])}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
