"""The two guided losses of Zheng et al. 2019 (section 3.3) as pure functions of tensors.

Shapes: B batch, T target length, d model width, V vocabulary. Step t is the decoder position whose label is y_t.
Both losses are sums over the sentences of a batch, like the cross-entropy beside them; the caller divides all of them
by the number of target tokens. What one sentence contributes depends on no other: padding, accumulation and processes
change nothing.

`normalization` says how the steps t of a sentence of T words count:

- "sentence", as printed: L_BOW = 1/T sum_t of the sums over the words of the bags, as the probability of a bag is the
  product of its words'; L_BCA = 1/T sum_t. The bags of a step have T words together, so that L_BOW weighs as much as
  T mean word losses: about as much as the cross-entropy.
- "token": L_BOW = sum_t of the means over the words of each bag, which weigh about twice as much, and a bag of one
  word as much as one of twenty; L_BCA = sum_t, T times as much. What releases before 0.8 had.
"""

import torch
from torch import Tensor

from .capsule_kernels import weighted_log_normaliser
from .capsule_routing import inner_dtype


def bag_of_words_loss(
    contents: Tensor, output_embedding: Tensor, labels: Tensor, bag: str, normalization: str = "sentence"
) -> Tensor:
    """L_BOW of one group: its capsules predict the words of a bag, all of them at once.

    The mean negative log-probability of the words of a bag is ``lse_t - E(y)_mean . c_t``: the mean of their
    embeddings, which is a cumulative sum over the target, takes the place of their logits. So only the normaliser
    ``lse_t = log sum_v exp(E_v . c_t)`` sees the vocabulary, and [B, T, V] logits never exist as a whole
    (`weighted_log_normaliser`).

    Reading: y_t is not produced yet when the capsules of step t are computed, so PAST predicts y_1..y_{t-1}, FUTURE
    y_t..y_T.

    Args:
        contents: W_BOW Omega_t, [B, T, d].
        output_embedding: E, [V, d].
        labels: y, [B, T]; -100 is ignored.
        bag: "past" or "future".
        normalization: "sentence" (as printed) or "token".

    Returns:
        Scalar, in float32 (float64 for float64 contents): the sum over sentences; an empty bag contributes nothing.

    Raises:
        ValueError: if there is no such bag or normalization.
    """
    dtype = inner_dtype(contents.dtype)
    real = labels != -100
    words = torch.nn.functional.embedding(labels.clamp_min(0), output_embedding).to(dtype) * real.unsqueeze(-1)
    count = _bag_sum(real.to(dtype), bag)
    if bag == "past":  # without y_t itself
        words, count = _bag_sum(words, bag) - words, count - real.to(dtype)
    else:
        words = _bag_sum(words, bag)
    score = (words * contents).sum(dim=-1) / count.clamp_min(1)
    weight = _bag_weight(count, real, normalization)
    normaliser = weighted_log_normaliser(contents.flatten(0, 1), output_embedding, weight.flatten())
    return normaliser - (score * weight).sum()


def bag_of_words_logits_loss(logits: Tensor, labels: Tensor, bag: str, normalization: str = "sentence") -> Tensor:
    """`bag_of_words_loss` from the logits, for output projections whose matrix cannot be read.

    Args:
        logits: E . W_BOW Omega_t, [B, T, V].
        labels: y, [B, T]; -100 is ignored.
        bag: "past" or "future".
        normalization: "sentence" (as printed) or "token".

    Returns:
        Scalar, in float32 (float64 for float64 logits).

    Raises:
        ValueError: if there is no such bag or normalization.
    """
    dtype = inner_dtype(logits.dtype)
    real, steps = labels != -100, labels.shape[1]
    # pairs [B, T, T] of a step and a word of its bag
    pairs = torch.ones(steps, steps, dtype=torch.bool, device=labels.device)
    pairs = (pairs.tril(-1) if _is_past(bag) else pairs.triu()) & real.unsqueeze(1)
    words = labels.clamp_min(0).unsqueeze(1).expand(-1, steps, -1)
    logits = logits.to(dtype)
    count = pairs.sum(dim=-1)
    score = (logits.gather(-1, words) * pairs).sum(dim=-1) / count.clamp_min(1)
    return ((logits.logsumexp(dim=-1) - score) * _bag_weight(count.to(dtype), real, normalization)).sum()


def content_agreement_loss(
    capsules: Tensor, states: Tensor, projection: Tensor, labels: Tensor, bag: str, normalization: str = "sentence"
) -> Tensor:
    """L_BCA of one group: its capsules agree with the mean of the decoder states of their side.

    As printed, state z_t belongs to both sides, and the squared norm is a sum over the dimensions.

    Args:
        capsules: the concatenated capsules Omega_t of the group, [B, T, K].
        states: decoder states z, [B, T, d].
        projection: W_BCA, [K, d].
        labels: y, [B, T]; positions of -100 are padding.
        bag: "past" (states up to t) or "future" (states from t on).
        normalization: "sentence" (as printed) or "token".

    Returns:
        Scalar, in float32 (float64 for float64 capsules): the sum over sentences.

    Raises:
        ValueError: if there is no such bag or normalization.
    """
    dtype = inner_dtype(capsules.dtype)
    real = (labels != -100).to(dtype)
    total = _bag_sum(states.to(dtype) * real.unsqueeze(-1), bag)
    mean = total / _bag_sum(real, bag).clamp_min(1).unsqueeze(-1)
    distance = capsules.to(dtype) - torch.nn.functional.linear(mean.to(projection.dtype), projection).to(dtype)
    return (distance.square().sum(dim=-1) * _step_weight(real, normalization)).sum()


def _bag_weight(count: Tensor, real: Tensor, normalization: str) -> Tensor:
    """What the mean over a step's bag counts. count: words in it, [B, T]; real: [B, T], True for a target word."""
    steps = _step_weight(real.to(count.dtype), normalization)
    return steps * (count if _is_per_sentence(normalization) else count > 0)


def _step_weight(real: Tensor, normalization: str) -> Tensor:
    """What a step counts: 1 / T or 1; 0 for padding. real: [B, T], 1 for a target word."""
    return real / real.sum(dim=1, keepdim=True).clamp_min(1) if _is_per_sentence(normalization) else real


def _bag_sum(values: Tensor, bag: str) -> Tensor:
    """Sums over positions 1..t ("past") or t..T ("future"). values: [B, T, ...]."""
    return values.cumsum(dim=1) if _is_past(bag) else values.flip(1).cumsum(dim=1).flip(1)


def _is_past(bag: str) -> bool:
    if bag not in ("past", "future"):
        raise ValueError(f"bag must be 'past' or 'future', not '{bag}'")
    return bag == "past"


def _is_per_sentence(normalization: str) -> bool:
    if normalization not in ("sentence", "token"):
        raise ValueError(f"normalization must be 'sentence' or 'token', not '{normalization}'")
    return normalization == "sentence"
