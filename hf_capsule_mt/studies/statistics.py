"""
Is one system better than another, over seeds and sentences together? A test on the counts of sentences.

A study's numbers are crossed: n seeds have translated the same N sentences. What two systems differ by, D, the mean
over the seeds of the difference of corpus scores, would be another number with other seeds and with other sentences:

    Var(D) = S/n + E + I/n

with S the variance between the seeds of both systems, E that of the sentences (shared by all seeds) and I that of both
together. The two-level bootstrap, which draws seeds and sentences with replacement independently of each other (Owen
2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1:386), estimates it, but with few seeds it is wrong on
three counts, each with a remedy that is used here:

- Drawing n of n seeds makes S too small by (n - 1)/n, a third for 3 seeds. The expectation over all draws of seeds is
  known, the variance between seeds over n; with n - 1 in its denominator it is unbiased, and nothing has to be drawn.
- I is counted three times (McCullagh 2000, "Resampling and exchangeable arrays", Bernoulli 6:285; Owen 2007). It is
  estimated from drawing sentences for each seed alone and for all together, and counted once.
- The quantiles of draws of 3 seeds are far too narrow. The interval is D +- t * sqrt(Var(D)), t the mean of Student's
  quantiles for the degrees of freedom of the seeds and for N - 1, weighted by the shares of seeds and of sentences in
  the variance (Cochran and Cox, Experimental Designs, 1950), and p is the level at which the interval reaches 0. One t
  with degrees of freedom in between, Satterthwaite's or the mean of 1/df, would do near 5 %, but not far out, where
  Holm's correction looks: of normal differences with 3 seeds, p < 0.005 would be wrong in up to 1.4 % of cases.

Three seeds say little of a variance: with their 2 degrees of freedom a difference has to be 4.3 standard errors wide,
and after Holm's correction over nine systems 13. But all systems of a study are trained on the same data with the
same budget, so that each one's variance says something of the others'. `seed_variances` estimates it from all of
them, as is usual where many things are measured few times (Smyth 2004, "Linear models and empirical Bayes methods for
assessing differential expression in microarray experiments", Statistical Applications in Genetics and Molecular
Biology 3:3): each system's own variance is drawn to a common one, the more the less the systems differ in it. It is
never less than the system's own, or a system that varies far more than the others would seem better or worse by luck
in one study of six. Variances of two systems add up. Were they taken from the differences of seeds of one number,
that would help systems whose seeds have good and bad days together; in the recorded studies, they have not.

In simulated studies of 2 to 10 systems that do not differ, p after Holm's correction is below 0.05 anywhere in 1 to
6.5 % of studies with 2, 3 and 5 seeds, whether the systems vary alike, by factors of 2 in either direction, or one of
them 4 times as much as the others; if that one is what the others are compared with, in up to 8 % with 3 seeds and 10
% with 2. Of differences of 4 standard errors between 10 systems that vary alike it finds 46, 73 and 84 % with 2, 3
and 5 seeds.

With one seed only the sentences are drawn, and what is found holds for that one model, not for the system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF, TER
from scipy import optimize, special

from ..evaluation.scores import as_prepared, base_language, metrics_of

Floats = NDArray[np.float64]
Scorer = Callable[[Floats], Floats]
# a system's name, and positions of its runs
Runs = tuple[str, Sequence[int]]
LEVEL = 0.05
# p-values end here: quantiles of smaller tails are out of reach.
SMALLEST = 1e-100
# Quantiles so close to 0 are proportional to what the tail lacks of 1.
NEAR = 0.01
# of a common variance: with more it is the same for all systems, with fewer nothing is common
FEWEST_DEGREES, MOST_DEGREES = 1e-6, 1e6
# Draws that are made at a time: their counts of sentences fill the memory.
PIECE = 200


class Comparison(NamedTuple):
    """
    A system against another one.

    Attributes:
        difference: of the mean scores, system - baseline.
        interval: of 95 %.
        p: two-sided, of no difference.
        standard_error: of the difference.
        share: of the seeds in its variance.
        seeds: how many went in.
        degrees: of freedom, of the variance between seeds; 0 with one seed.
    """

    difference: float
    interval: tuple[float, float]
    p: float
    standard_error: float
    share: float
    seeds: int
    degrees: float


class SeedVariance(NamedTuple):
    """
    How much the score of a system varies from seed to seed.

    Attributes:
        variance: of the score of one seed.
        degrees: of freedom, of this estimate.
    """

    variance: float
    degrees: float


def sentence_counts(hypotheses: Sequence[str], references: Sequence[str], metric: BLEU | CHRF | TER) -> Floats:
    """
    What sacreBLEU adds up over the sentences before it computes a score.

    Returns:
        [N, K] with K = 10 (BLEU: both lengths, matches and n-grams by order), 18 (chrF) or 2 (TER: edits, length).
    """
    # sacreBLEU's own significance tests start from it, too; there is no public way to the counts of chrF and TER
    counts = metric._extract_corpus_statistics(list(hypotheses), [list(references)])
    return np.array(counts, dtype=np.float64)


def prepared_texts(texts: Sequence[str], convention: str, target_lang: str) -> list[str]:
    """The texts as a convention of `evaluation.scores` scores them."""
    return as_prepared(texts, base_language(target_lang)) if convention == "lc_norm_tok" else list(texts)


def study_metrics(convention: str, target_lang: str) -> dict[str, BLEU | CHRF | TER]:
    """sacreBLEU's metrics by name, see `evaluation.scores`."""
    return metrics_of(convention, base_language(target_lang))


def corpus_bleu(sums: Floats) -> Floats:
    """sacreBLEU's BLEU with its default, exponential smoothing, of [..., 10] added-up counts; 0 to 100."""
    length, reference, correct, total = sums[..., 0], sums[..., 1], sums[..., 2:6], sums[..., 6:10]
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.where(length < reference, np.exp(1 - reference / length), 1.0)
        # orders without a match count as half a match, a quarter, ...
        halvings = np.cumsum((correct == 0) & (total > 0), axis=-1)
        precision = np.where(correct == 0, 0.5**halvings, correct) / total
        logs = np.where(total > 0, np.log(precision), -np.inf)
    scores = 100 * brevity * np.exp(logs.mean(axis=-1))
    return np.where(correct.any(axis=-1) & (length > 0), scores, 0.0)


def corpus_chrf(sums: Floats) -> Floats:
    """sacreBLEU's chrF2 of [..., 18] added-up counts; 0 to 100."""
    counts = sums.reshape(*sums.shape[:-1], -1, 3)
    hypothesis, reference, matches = counts[..., 0], counts[..., 1], counts[..., 2]
    there = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(there.sum(axis=-1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(there, matches / hypothesis, 0).sum(axis=-1) / orders
        recall = np.where(there, matches / reference, 0).sum(axis=-1) / orders
        scores = 100 * 5 * precision * recall / (4 * precision + recall)
    return np.where(precision + recall > 0, scores, 0.0)


def corpus_ter(sums: Floats) -> Floats:
    """sacreBLEU's TER of [..., 2] added-up counts; 0 is perfect."""
    edits, length = sums[..., 0], sums[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * np.where(length > 0, edits / length, (edits > 0).astype(np.float64))


SCORERS: dict[str, Scorer] = {"bleu": corpus_bleu, "chrf": corpus_chrf, "ter": corpus_ter}


def drawn_scores(counts: Floats, scorer: Scorer, draws: int, seed: int) -> Floats:
    """
    Scores of test sets that are drawn with replacement from the sentences, the same draws for all models.

    Args:
        counts: [models, N, K], see `sentence_counts`.

    Returns:
        [draws, models].
    """
    models, sentences, width = counts.shape
    columns = counts.transpose(1, 0, 2).reshape(sentences, models * width)
    pieces = [
        scorer((chosen @ columns).reshape(-1, models, width)) for chosen in _multiplicities(sentences, draws, seed)
    ]
    return np.concatenate(pieces)


def _multiplicities(sentences: int, draws: int, seed: int) -> Iterator[Floats]:
    """How often each sentence is drawn, [draws, N] in pieces."""
    generator = np.random.default_rng(seed)
    for start in range(0, draws, PIECE):
        count = min(PIECE, draws - start)
        yield generator.multinomial(sentences, np.full(sentences, 1 / sentences), size=count).astype(np.float64)


def seed_variances(scores: Mapping[str, Sequence[float]]) -> dict[str, SeedVariance]:
    """
    The variance between the seeds of each system, moderated over all systems of a study (Smyth 2004, section 6): the
    variances are drawn from a scaled inverse chi-squared distribution, whose scale s0 and degrees of freedom d0 are
    found from their logarithms; a variance s of d degrees becomes (d0 s0 + d s) / (d0 + d), of d0 + d degrees. Two
    deviations: d0 is at most what the other systems have together, and a variance is never less than the system's own.

    Args:
        scores: of the seeds of each system; one of a single seed says nothing, and gets nothing.
    """
    own = {name: (variance(values), len(values) - 1) for name, values in scores.items() if len(values) > 1}
    varying = [part for part in own.values() if part[0] > 0]
    if len(varying) < 2:
        return {name: SeedVariance(*part) for name, part in own.items()}
    logs = [math.log(square) - _mean_log(degrees) for square, degrees in varying]
    # what the logarithms vary by more than those of samples of one variance
    spread = variance(logs) - fmean(_log_variance(degrees) for _, degrees in varying)
    prior, scale = math.inf, math.exp(fmean(logs))
    if spread > _log_variance(MOST_DEGREES):
        prior = optimize.brentq(lambda degrees: _log_variance(degrees) - spread, FEWEST_DEGREES, MOST_DEGREES)
        scale *= math.exp(_mean_log(prior))
    all_degrees = sum(degrees for _, degrees in own.values())
    moderated = {}
    for name, (square, degrees) in own.items():
        added = min(prior, all_degrees - degrees)
        drawn = (added * scale + degrees * square) / (added + degrees)
        moderated[name] = SeedVariance(max(square, drawn), added + degrees)
    return moderated


def _mean_log(degrees: float) -> float:
    """The mean of the logarithm of a chi-squared variable over its degrees of freedom."""
    return float(special.psi(degrees / 2)) - math.log(degrees / 2)


def _log_variance(degrees: float) -> float:
    """The variance of the logarithm of a chi-squared variable."""
    return float(special.polygamma(1, degrees / 2))


def add_variances(parts: Sequence[SeedVariance]) -> SeedVariance:
    """
    The variance of a sum or difference. Its degrees of freedom are the fewest of its parts: more, as Satterthwaite's
    (1946), would take estimates for independent that come from the same systems.
    """
    return SeedVariance(sum(part.variance for part in parts), min(part.degrees for part in parts))


def compare_systems(
    system: Floats,
    baseline: Floats,
    drawn_system: Floats,
    drawn_baseline: Floats,
    sentences: int,
    variances: Sequence[SeedVariance],
) -> Comparison:
    """
    Compare two systems, see the beginning of this file.

    Args:
        system, baseline: scores of the same n seeds, [n]; pairs of one number belong together.
        drawn_system, drawn_baseline: their scores on drawn test sets, [draws, n], see `drawn_scores`.
        sentences: N, of the test set.
        variances: of the seeds of both systems, see `seed_variances`, or of the one that has seeds; with n = 1 none.
    """
    drawn = drawn_system - drawn_baseline
    n, mean = len(system), float(np.mean(system - baseline))
    within = float(np.var(drawn.mean(axis=1), ddof=1))
    seeds = SeedVariance(0.0, 0.0)
    if n > 1:
        alone = float(np.var(drawn, axis=0, ddof=1).mean())
        # alone = E + I and within, of all together, = E + I/n
        interaction = max(0.0, (alone - within) * n / (n - 1))
        within = max(0.0, within - interaction / n)
        seeds = add_variances(variances)
    error = math.sqrt(seeds.variance / n + within)
    if error == 0:
        return Comparison(mean, (mean, mean), float(mean == 0), error, float(n > 1), n, seeds.degrees)
    share = seeds.variance / n / error**2
    weights = [(seeds.degrees, share), (max(1, sentences - 1), 1 - share)]
    half = mean_quantile(LEVEL, weights) * error
    p = mean_probability(abs(mean) / error, weights)
    return Comparison(mean, (mean - half, mean + half), p, error, share, n, seeds.degrees)


class ScoredRuns(NamedTuple):
    """
    One score of the runs of several systems, by system.

    Attributes:
        values: [n].
        drawn: on drawn test sets, the same for all runs, [draws, n].
        sentences: N, of the test set.
        variances: between the runs, of the systems that have several.
    """

    values: dict[str, Floats]
    drawn: dict[str, Floats]
    sentences: int
    variances: dict[str, SeedVariance]

    def compare(self, system: Runs, baseline: Runs | None = None) -> Comparison:
        """
        Some runs of a system with as many of another one, or with nothing: their mean score.

        Args:
            system, baseline: name, and positions of the runs; pairs of one seed belong together.
        """
        name, runs = system
        values, drawn, names = self.values[name][runs], self.drawn[name][:, runs], [name]
        other, other_drawn = np.zeros_like(values), np.zeros_like(drawn)
        if baseline is not None:
            name, runs = baseline
            other, other_drawn = self.values[name][runs], self.drawn[name][:, runs]
            names.append(name)
        variances = [self.variances[one] for one in names if one in self.variances]
        return compare_systems(values, other, drawn, other_drawn, self.sentences, variances)


def score_runs(counts: Mapping[str, Floats], scorer: Scorer, draws: int, seed: int) -> ScoredRuns:
    """
    Score the runs of systems, on their test set and on drawn ones.

    Args:
        counts: by system, [n, N, K], see `sentence_counts`.
    """
    values = {system: scorer(counted.sum(axis=1)) for system, counted in counts.items()}
    drawn = drawn_scores(np.concatenate([*counts.values()]), scorer, draws, seed)
    ends = np.cumsum([len(scores) for scores in values.values()])[:-1]
    by_system = dict(zip(values, np.split(drawn, ends, axis=1), strict=True))
    sentences = next(iter(counts.values())).shape[1]
    return ScoredRuns(values, by_system, sentences, seed_variances({name: v.tolist() for name, v in values.items()}))


def mean_quantile(tail: float, weights: Sequence[tuple[float, float]]) -> float:
    """The mean of the quantiles of Student's t for several degrees of freedom, with weights that sum to 1."""
    return sum(weight * t_quantile(tail, degrees) for degrees, weight in weights if weight > 0)


def mean_probability(t: float, weights: Sequence[tuple[float, float]]) -> float:
    """The tail whose `mean_quantile` is t >= 0."""
    tails = {degrees: max(t_probability(t, degrees), SMALLEST) for degrees, weight in weights if weight > 0}
    if t < NEAR:
        return 1 - 1 / sum(weight / max(1 - tails[degrees], SMALLEST) for degrees, weight in weights if weight > 0)
    low, high = min(tails.values()), max(tails.values())
    if high - low <= 1e-9 * high:
        return high

    def excess(log_tail: float) -> float:
        return mean_quantile(math.exp(log_tail), weights) - t

    # it is between the two, but for rounding at the ends
    low, high = math.log(low) - 1e-6, min(0.0, math.log(high) + 1e-6)
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-12))


def t_probability(t: float, degrees: float) -> float:
    """The probability that Student's t is at least as far from 0 as `t`."""
    return float(2 * special.stdtr(degrees, -abs(t)))


def t_quantile(tail: float, degrees: float) -> float:
    """How far from 0 Student's t is with the probability `tail`, on both sides together."""
    return float(-special.stdtrit(degrees, tail / 2))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """
    Holm's correction (1979): p-values of several comparisons, such that one below 0.05 is wrong in at most 5 % of
    studies in which no system differs, whichever the comparison.
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def as_record(comparison: Comparison) -> dict[str, Any]:
    """A comparison in JSON's types."""
    return {**comparison._asdict(), "interval": list(comparison.interval)}
