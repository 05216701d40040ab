"""What the figures of a report show, in words that are computed from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# of a probability or a ratio to uniform: what differs by less is called flat
FLAT = 0.05


def change(values: Sequence[float | None], digits: int = 2, flat: float = FLAT) -> str:
    """ "rises from 0.10 to 0.80", "falls from ..", or "flat, 0.10 to 0.12" if all are within `flat` of each other."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    if not known:
        return "has no values"
    first, last = known[0], known[-1]
    if max(known) - min(known) <= flat:
        return f"is flat ({min(known):.{digits}f} to {max(known):.{digits}f})"
    if abs(last - first) <= flat:
        low, high = min(known), max(known)
        ends = f"begins at {first:.{digits}f} and ends at {last:.{digits}f}"
        return f"{ends}, between {low:.{digits}f} and {high:.{digits}f}"
    return f"{'rises' if last > first else 'falls'} from {first:.{digits}f} to {last:.{digits}f}"


def of_entropy(stacks: Mapping[str, Mapping[str, Any]]) -> str:
    """Of `plots.entropy_diversity`."""
    seen = []
    for name, statistics in stacks.items():
        steps, uniform = statistics["iterations"], statistics["uniform_entropy"]
        entropy = [step["entropy"] for step in steps]
        text = f"{name}: entropy {change(entropy)}"
        if entropy[-1] >= (1 - FLAT) * uniform:
            text += f", within {FLAT:.0%} of a uniform choice"
        seen.append(f"{text}; diversity {change([step['diversity'] for step in steps])}")
    return f"{_sentence('. '.join(_sentence(part) for part in seen))}."


def of_agreement(statistics: Mapping[str, Any]) -> str:
    """Of `plots.agreement_heatmaps`: the last iteration, in relation to 1/N."""
    last = np.array(statistics["iterations"][-1]["mean"], dtype=np.float64)
    ratios = last * last.shape[1]
    if np.abs(ratios - 1).max() <= FLAT:
        return f"Flat: after the last iteration every probability is within {FLAT:.0%} of uniform."
    text = f"After the last iteration from {ratios.min():.2f} to {ratios.max():.2f} times uniform."
    if len(last) > 1:
        shares = np.bincount(last.argmax(axis=0), minlength=len(last)) / last.shape[1]
        parts = ", ".join(f"layer {layer + 1} {share:.0%}" for layer, share in enumerate(shares))
        text += f" Capsules in which a layer is the strongest: {parts}."
    return text


def of_memory(statistics: Mapping[str, Any]) -> str:
    """Of `plots.memory_shares`: the last iteration."""
    shares = np.array(statistics["iterations"][-1]["shares"], dtype=np.float64)
    even = 1 / len(shares)
    if np.abs(shares - even).max() <= FLAT * even:
        return f"Flat: in the last iteration every capsule has its even share, {even:.0%}, within {FLAT:.0%} of it."
    return (
        f"In the last iteration the largest share is {shares.max():.0%} (capsule {shares.argmax() + 1}), the smallest "
        f"{shares.min():.0%}; an even share is {even:.0%}."
    )


def of_progress(statistics: Mapping[str, Any]) -> str:
    """Of `plots.guided_progress`."""
    columns = zip(*statistics["by_progress"], strict=True)
    seen = [f"{name} {change(values)}" for name, values in zip(statistics["groups"], columns, strict=True)]
    return f"{'; '.join(seen)}."


def of_assignment(moves: int, steps: int, least_rise: float) -> str:
    """Of `plots.guided_maps`: how many steps move a word."""
    if not moves:
        return f"No step raises the PAST probability of a source word by {least_rise} or more."
    return f"{moves} of {steps} steps raise the PAST probability of a source word by at least {least_rise} (framed)."


def of_buckets(systems: Mapping[str, Sequence[Mapping[str, Any]]], labels: Sequence[str], unit: str) -> str:
    """Of `plots.length_buckets`; `labels` of the first system's buckets."""
    seen = [f"{name} {change([bucket['bleu'] for bucket in buckets], 1, 1.0)}" for name, buckets in systems.items()]
    return f"From {labels[0]} to {labels[-1]} source {unit}, BLEU of {'; of '.join(seen)}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
