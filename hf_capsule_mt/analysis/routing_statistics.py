"""Statistics of the routing over a whole test set, in memory that does not grow with it.

Functions and accumulators take the agreements of a model's output as they are, on any device and in any dtype, and
compute in float64. Shapes: B sentences, S source tokens, T target tokens, P positions of one stack (S or T), R routing
iterations, L layers, N capsules of an aggregation, M capsules of the source memory, G groups of guided routing, V
words. A mask is True (or 1) at real positions; padding has no influence and may hold anything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

from ..data.batching import IGNORE_INDEX, TranslationCollator
from ..evaluation.encoding import check_ids, source_vocabulary, target_vocabulary
from ..models.pipeline_translation import encode_truncated, evaluation_mode, max_positions, max_source_length
from .agreement_figure import has_routing
from .gold import overlap_rates
from .sentence_routing import GROUPS

logger = logging.getLogger(__name__)

RoutingSummary = dict[str, Any]

PROGRESS_BINS = 10
# float64 numbers of an agreement that are worked on at a time
CHUNK = 2**20
# Sentence pairs that are encoded and sorted by length at a time
WINDOW = 1024
# Logits of a batch, which for a large vocabulary are far more numbers than its agreements
MAX_LOGITS = 2**26


def entropy(agreement: Tensor, mask: Tensor | None = None) -> float:
    """
    How undecided the layers are: entropy of the assignment probabilities C of a vote over the capsules, in nats, mean
    over layers and positions; log N if they are uniform, as in the first iteration, and 0 if each vote goes to one
    capsule (Dou et al. 2019, Eq. 17).

    Deviation: the equation prints 1/(N L) and no minus sign. The reported 6.24 of the first iteration is log 512, so
    that it is -1/L sum_l sum_n C_ln log C_ln here.

    Args:
        agreement: C of one iteration, [..., L, N].
        mask: [...], or None if all positions are real.

    Raises:
        ValueError: no real position, or a mask that does not fit.
    """
    layers = agreement.shape[-2]
    real = _real(agreement, mask, trailing=2)
    return sum(_entropies(part) for part in _chunks(real)) / (layers * len(real))


def diversity(agreement: Tensor, mask: Tensor | None = None) -> float:
    """
    How differently the capsules attend to the layers: 1 - cosine of C_i and C_j, the probabilities with which the L
    layers vote for capsules i and j, mean over the pairs i < j and over the positions; 0 if all capsules attend to the
    layers alike, as in the first iteration, and 1 if no layer votes for two of them (Dou et al. 2019, Eq. 18).

    Deviations: the equation prints the mean cosine, but reports 0.0 for the uniform first iteration. The cosine with a
    capsule that no layer votes for is undefined, and such pairs are left out; a position without any pair counts as 0.

    Args:
        agreement: C of one iteration, [..., L, N].
        mask: [...], or None if all positions are real.

    Raises:
        ValueError: no real position, or a mask that does not fit.
    """
    real = _real(agreement, mask, trailing=2)
    return sum(_diversities(part) for part in _chunks(real)) / len(real)


def _real(agreement: Tensor, mask: Tensor | None, trailing: int) -> Tensor:
    """The agreements at real positions, one behind the other: [positions, ...] with the last `trailing` dimensions."""
    leading = agreement.shape[: agreement.ndim - trailing]
    if mask is not None and mask.shape != leading:
        raise ValueError(
            f"the mask must have the shape of the agreement's positions, {tuple(leading)}, got {tuple(mask.shape)}"
        )
    real = agreement.flatten(0, len(leading) - 1) if leading else agreement.unsqueeze(0)
    if mask is not None:
        real = real[mask.flatten().bool().to(agreement.device)]
    if not len(real):
        raise ValueError("there are no real positions to compute statistics of")
    return real


def _double(tensor: Tensor) -> Tensor:
    # Without its graph, which would be kept as long as the sums. Apple's GPUs have no float64.
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def _chunks(real: Tensor) -> Iterator[Tensor]:
    """[positions, L, N] in float64, some positions at a time: the copies stay small."""
    for part in real.split(max(1, CHUNK // real[0].numel())):
        yield _double(part)


def _entropies(part: Tensor) -> float:
    """Sum over positions and layers of the entropies over N, from [positions, L, N]."""
    return float(torch.special.entr(part).sum())


def _diversities(part: Tensor) -> float:
    """Sum over the positions of their diversity, from [positions, L, N]."""
    # norm() is many times slower over a dimension that is not the last
    lengths = part.square().sum(dim=-2, keepdim=True).sqrt()
    directions = part / lengths.where(lengths > 0, 1.0)
    chosen = (lengths > 0).sum(dim=(-2, -1))
    pairs = chosen * (chosen - 1)
    # |sum_i u_i|^2 is the sum of all cosines u_i . u_j, those of a capsule with itself included
    cosines = directions.sum(dim=-1).square().sum(dim=-1) - chosen
    values = (1 - cosines / pairs.clamp_min(1)).clamp_min(0)
    return float(values.where(pairs > 0, 0.0).sum())


class AgreementStatistics:
    """
    Entropy, diversity and mean agreement of one stack's layer aggregation, batch by batch.

    Attributes:
        count: real positions so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._entropies: list[float] = []
        self._diversities: list[float] = []
        self._totals: list[Tensor] = []

    def update(self, agreements: Sequence[Tensor], mask: Tensor) -> None:
        """
        Add a batch.

        Args:
            agreements: those of each iteration, R tensors [B, P, L, N].
            mask: [B, P].

        Raises:
            ValueError: no real position, or shapes or a number of iterations that differ from the batches before.
        """
        if not self._totals:
            self._totals = [
                torch.zeros(agreement.shape[-2:], dtype=torch.float64, device="cpu") for agreement in agreements
            ]
            self._entropies, self._diversities = [0.0] * len(agreements), [0.0] * len(agreements)
        _check_same(self._totals, agreements, trailing=2)
        for iteration, agreement in enumerate(agreements):
            real = _real(agreement, mask, trailing=2)
            for part in _chunks(real):
                self._entropies[iteration] += _entropies(part)
                self._diversities[iteration] += _diversities(part)
                self._totals[iteration] += part.sum(dim=0).cpu()
        self.count += len(real)

    def result(self) -> dict[str, Any]:
        """
        What has been added so far, for JSON.

        Returns:
            "capsules" N, "layers" L, "uniform_entropy" log N, "positions" their number, and "iterations", for each
            "entropy" (see `entropy`), "diversity" (see `diversity`) and "mean", the mean agreement as a list [L][N].

        Raises:
            ValueError: nothing has been added.
        """
        _check_added(self.count)
        layers, capsules = self._totals[0].shape
        return {
            "capsules": capsules,
            "layers": layers,
            "uniform_entropy": math.log(capsules),
            "iterations": [
                {
                    "entropy": entropies / (layers * self.count),
                    "diversity": diversities / self.count,
                    "mean": (total / self.count).tolist(),
                }
                for entropies, diversities, total in zip(self._entropies, self._diversities, self._totals, strict=True)
            ],
            "positions": self.count,
        }


class MemoryStatistics:
    """
    How the capsules of a source memory share the source words (Wang et al. 2019, Eq. 11), batch by batch.

    A word here is a token of the source, the end of the sentence included.

    Attributes:
        count: words so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: list[Tensor] = []
        self._entropies: list[float] = []

    def update(self, agreements: Sequence[Tensor], mask: Tensor) -> None:
        """
        Add a batch.

        Args:
            agreements: assignment probabilities alpha of each iteration, R tensors [B, S, M].
            mask: [B, S].

        Raises:
            ValueError: no real position, or shapes or a number of iterations that differ from the batches before.
        """
        if not self._totals:
            self._totals = [torch.zeros(alpha.shape[-1], dtype=torch.float64, device="cpu") for alpha in agreements]
            self._entropies = [0.0] * len(agreements)
        _check_same(self._totals, agreements, trailing=1)
        for iteration, agreement in enumerate(agreements):
            alpha = _double(_real(agreement, mask, trailing=1))
            self._totals[iteration] += alpha.sum(dim=0).cpu()
            self._entropies[iteration] += _entropies(alpha)
        self.count += len(alpha)

    def result(self) -> dict[str, Any]:
        """
        What has been added so far, for JSON.

        Returns:
            "capsules" M, "words" their number, and "iterations", for each "shares", the share of the words that each
            capsule receives [M] (mean of alpha over the words), "assignment_entropy", the entropy of a word's
            assignment (nats, mean; log M if it is even, 0 if it is certain), and "capsules_in_use", the exponential of
            the entropy of the shares.

        Raises:
            ValueError: nothing has been added.
        """
        _check_added(self.count)
        shares = [total / self.count for total in self._totals]
        return {
            "capsules": len(shares[0]),
            "iterations": [
                {
                    "shares": share.tolist(),
                    "assignment_entropy": entropies / self.count,
                    "capsules_in_use": math.exp(_entropies(share)),
                }
                for share, entropies in zip(shares, self._entropies, strict=True)
            ],
            "words": self.count,
        }


class GuidedStatistics:
    """
    How the source moves from FUTURE to PAST while it is translated (Zheng et al. 2019), batch by batch.

    Attributes:
        count: decoding steps so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals = torch.zeros(0)
        self._steps = torch.zeros(PROGRESS_BINS, dtype=torch.float64, device="cpu")
        self._past: list[float] = [0.0, 0]
        self._future: list[float] = [0.0, 0]

    def update(
        self,
        assignment: Tensor,
        source_mask: Tensor,
        target_mask: Tensor,
        bags: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """
        Add a batch, padded on the right.

        Args:
            assignment: probability of each source word in each group at each step, [B, T, S, G].
            source_mask: [B, S].
            target_mask: [B, T].
            bags: log p_PRE and log p_SUB, [B, T, V] each, and the labels [B, T], -100 at padding; None if the model
                predicts no bags of words.

        Raises:
            ValueError: masks that do not fit, no real target position, or another G than in the batches before.
        """
        shape = (*target_mask.shape, source_mask.shape[1])
        if assignment.shape[:3] != shape or len(source_mask) != len(target_mask):
            raise ValueError(
                f"the assignment must be [B, T, S, G] with [B, T, S] = {shape} of the masks,"
                f" got {tuple(assignment.shape)}"
            )
        if not self.count:
            self._totals = torch.zeros((PROGRESS_BINS, assignment.shape[-1]), dtype=torch.float64, device="cpu")
        _check_same([self._totals[0]], [assignment], trailing=1)
        source, target = source_mask.bool(), target_mask.bool()
        # [steps, G]
        probabilities = _real(_mean_over_words(assignment, source), target, trailing=1).cpu()
        bins = _progress_bins(target)[target].cpu()
        self._totals.index_add_(0, bins, probabilities)
        self._steps += torch.bincount(bins, minlength=PROGRESS_BINS)
        self.count += len(bins)
        if bags is not None:
            self._add_overlaps(*bags)

    def shares(self) -> list[float]:
        """The probability of each group, mean over the source words, then over the steps; as many as there are."""
        _check_added(self.count)
        return (self._totals.sum(dim=0) / self.count).tolist()

    def _add_overlaps(self, past: Tensor, future: Tensor, labels: Tensor) -> None:
        for row, ids in enumerate(labels):
            steps = int((ids != IGNORE_INDEX).sum())
            rates = overlap_rates(past[row, :steps], future[row, :steps], ids[:steps])
            for total, rate in zip((self._past, self._future), rates, strict=True):
                if rate is not None:
                    total[0] += rate
                    total[1] += 1

    def result(self) -> dict[str, Any]:
        """
        What has been added so far, for JSON.

        Returns:
            "groups", their names; "by_progress" [10][G], the probability of each group in ten equal parts of the
            translation, from nothing to all of it (step t of T, from 0, is at t / (T - 1)): mean over the source
            words, then over the steps, with None where there was no step; "past_overlap" and "future_overlap", the
            rates r_OL of `gold.overlap_rates`, mean over the sentences, or None; "steps", their number.

        Raises:
            ValueError: nothing has been added.
        """
        _check_added(self.count)
        return {
            "groups": list(GROUPS[: self._totals.shape[1]]),
            "by_progress": [
                (total / steps).tolist() if steps else [None] * len(total)
                for total, steps in zip(self._totals, self._steps.tolist(), strict=True)
            ],
            "past_overlap": self._past[0] / self._past[1] if self._past[1] else None,
            "future_overlap": self._future[0] / self._future[1] if self._future[1] else None,
            "steps": self.count,
        }


def _mean_over_words(assignment: Tensor, source: Tensor) -> Tensor:
    """[B, T, S, G] and the mask [B, S] -> [B, T, G].

    Two attentions (ATTN) each sum to one over the words; a word's shares of them are compared with the probabilities
    of the other systems, which sum to one over the groups already.
    """
    probabilities = _double(assignment)
    total = probabilities.sum(dim=-1, keepdim=True)
    shares = (probabilities / total).where(total > 0, 1 / assignment.shape[-1])
    real = source.to(shares.device)
    words = real.sum(dim=1).clamp_min(1)
    return shares.where(real[:, None, :, None], 0.0).sum(dim=2) / words[:, None, None]


def _progress_bins(target: Tensor) -> Tensor:
    """The part of the translation that each step belongs to, 0 to 9, [B, T]."""
    last = (target.sum(dim=1, keepdim=True) - 1).clamp_min(1)
    steps = torch.arange(target.shape[1], device=target.device)
    # in integers, so that no step is a rounding error away from its part
    return (PROGRESS_BINS * steps // last).clamp_max(PROGRESS_BINS - 1)


def _check_same(totals: Sequence[Tensor], agreements: Sequence[Tensor], trailing: int) -> None:
    expected = [tuple(total.shape) for total in totals]
    shapes = [tuple(agreement.shape[-trailing:]) for agreement in agreements]
    if shapes != expected:
        raise ValueError(f"every batch must be of the same model: expected agreements {expected}, got {shapes}")


def _check_added(count: int) -> None:
    if not count:
        raise ValueError("nothing has been added yet: there are no statistics")


def collect(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[str],
    *,
    max_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
) -> RoutingSummary:
    """
    Routing statistics of a model that is fed given translations (its own or the references).

    Nothing is kept of a sentence once its batch is through. But for rounding, the result does not depend on the
    batches. The model's mode (training or evaluation) is kept.

    Args:
        model: any encoder-decoder model.
        tokenizer: its tokenizer.
        sources, translations: raw text, line by line. Pairs with a blank source are left out; what exceeds the model's
            positions is cut off, with a warning.
        max_tokens: bound on sentences * longest sentence of a batch, in tokens of either side; lower where the
            vocabulary is so large that the logits would need more memory.
        progress: called after every batch with the number of pairs done and the number in all.

    Returns:
        "encoder" and "decoder" (`AgreementStatistics.result`), "memory" (`MemoryStatistics.result`) and "guided"
        (`GuidedStatistics.result`), as far as the model has them; empty for a model without routing, which is not run.

    Raises:
        ValueError: not as many translations as sources, no pair, or `max_tokens` below one.
    """
    check_pairs(sources, translations, max_tokens)
    if not has_routing(model.config):
        return {}
    parts: dict[str, Any] = {
        "encoder": AgreementStatistics(),
        "decoder": AgreementStatistics(),
        "memory": MemoryStatistics(),
        "guided": GuidedStatistics(),
    }
    with evaluation_mode(model), torch.no_grad():
        for batch in forced_batches(model, tokenizer, sources, translations, max_tokens, progress):
            _add(parts, model, batch)
    return {name: part.result() for name, part in parts.items() if part.count}


def check_pairs(sources: Sequence[str], translations: Sequence[str], max_tokens: int) -> None:
    """A ValueError says what is wrong with sentence pairs or a bound on their batches."""
    if isinstance(sources, str) or isinstance(translations, str):
        raise ValueError("sources and translations must be lists of strings; put a single string in a list")
    if len(sources) != len(translations):
        raise ValueError(f"there are {len(sources)} sources and {len(translations)} translations")
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")


def forced_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[str],
    max_tokens: int,
    progress: Callable[[int, int], None] | None = None,
    warn: bool = True,
) -> Iterator[dict[str, Tensor]]:
    """
    Batches of `forced_batch`, of pairs of similar length, with logits of bounded size; pairs with a blank source are
    left out. Some pairs are encoded at a time.

    Args:
        max_tokens, progress: as in `collect`.
        warn: say how many pairs were cut.

    Raises:
        ValueError: all sources are blank, or the tokenizer does not fit the model.
    """
    done = sum(not source.strip() for source in sources)
    if done == len(sources):
        raise ValueError("there is nothing to collect: all sources are blank")
    config: Any = model.config
    words = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    max_tokens = max(1, min(max_tokens, MAX_LOGITS // words))
    pairs = (pair for pair in zip(sources, translations, strict=True) if pair[0].strip())
    num_cut = 0
    while window := list(islice(pairs, WINDOW)):
        examples, cut = forced_examples(model, tokenizer, *zip(*window, strict=True))
        num_cut += cut
        for batch in batches_of_similar_length(examples, max_tokens):
            yield forced_batch(model, tokenizer, batch)
            done += len(batch)
            if progress is not None:
                progress(done, len(sources))
    if num_cut and warn:
        logger.warning(f"{num_cut} of {len(sources)} pairs were cut to the lengths that this model can read")


def forced_examples(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], translations: Sequence[str]
) -> tuple[list[dict[str, list[int]]], int]:
    """
    Token ids of sentence pairs, each "input_ids" and "labels", cut to what the model can read, and how many pairs were
    cut. The ends of the sentences are kept. A ValueError says that the tokenizer does not fit the model.
    """
    target_positions = max_positions(model.config, "decoder")
    target_limit = min(tokenizer.model_max_length, target_positions or tokenizer.model_max_length)
    source, source_excess = encode_truncated(tokenizer, list(sources), max_source_length(tokenizer, model.config))
    target, target_excess = encode_truncated(
        lambda texts, **options: tokenizer(text_target=texts, **options), list(translations), target_limit
    )
    check_ids(source["input_ids"], source_vocabulary(model), "sentence")
    check_ids(target["input_ids"], target_vocabulary(model), "translation")
    examples = [
        {"input_ids": ids, "labels": labels}
        for ids, labels in zip(source["input_ids"], target["input_ids"], strict=True)
    ]
    return examples, sum(max(cut) > 0 for cut in zip(source_excess, target_excess, strict=True))


def forced_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, list[int]]]
) -> dict[str, Tensor]:
    """
    Inputs of the model that feed it these translations, and the labels that they stand for.

    Returns:
        "input_ids" and "attention_mask" [B, S], "decoder_input_ids" and "labels" [B, T], on the model's device.
    """
    batch = {
        name: value.to(model.device) for name, value in TranslationCollator(tokenizer.pad_token_id)(examples).items()
    }
    shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        # M2M100 of transformers, whose forward does this alone
        config: Any = model.config
        inputs = shift_tokens_right(batch["labels"], config.pad_token_id, config.decoder_start_token_id)
    else:
        inputs = shift(batch["labels"])
    return {**batch, "decoder_input_ids": inputs}


def _add(parts: dict[str, Any], model: PreTrainedModel, batch: dict[str, Tensor]) -> None:
    """Run the model on a batch and add its agreements."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    source_mask, target_mask = batch["attention_mask"], batch["labels"] != IGNORE_INDEX
    output = model(**inputs, output_agreements=True, use_cache=False)
    if output.encoder_agreements is not None:
        parts["encoder"].update(output.encoder_agreements, source_mask)
    if output.decoder_agreements is not None:
        parts["decoder"].update(output.decoder_agreements, target_mask)
    if output.source_agreements is not None:
        parts["memory"].update(output.source_agreements, source_mask)
    assignment = output.guided_assignment
    if assignment is None:
        return
    # the logits make room for those of the bags
    del output
    bags = None
    if model.config.bow_loss_weight > 0:
        predict: Any = model.bag_of_words_log_probs
        bags = (*predict(**inputs), batch["labels"])
    parts["guided"].update(assignment, source_mask, target_mask, bags)


def batches_of_similar_length(
    examples: Sequence[dict[str, list[int]]], max_tokens: int
) -> Iterable[list[dict[str, list[int]]]]:
    """Pairs of similar length, longest first; each batch padded holds at most `max_tokens` tokens on either side."""
    ordered = sorted(examples, key=lambda example: -_length(example))
    start = 0
    while start < len(ordered):
        size = max(1, max_tokens // _length(ordered[start]))
        yield ordered[start : start + size]
        start += size


def _length(example: dict[str, list[int]]) -> int:
    return max(len(example["input_ids"]), len(example["labels"]))
