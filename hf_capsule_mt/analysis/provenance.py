"""Where a checkpoint of a report comes from: seed, steps, date, versions and revision, as far as they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import read_json

RESULTS = "results.json"
# of the versions that a run records: those that a reader asks for
SHOWN_VERSIONS = ("hf_capsule_mt", "torch", "transformers")
DIGEST_DIGITS = 12


def provenance(checkpoint: str, weights: str, revision: str | None = None) -> dict[str, Any]:
    """
    What is known of a checkpoint.

    Args:
        checkpoint: a folder, or a name on the Hub.
        weights: the digest of its weights.
        revision: the commit that a checkpoint of the Hub was loaded from.

    Returns:
        "checkpoint", "weights" (the first digits), "revision", and "record": whether results.json lies in the folder.
        With it "seed", "steps", "date" (when the run ended, ISO 8601), "recipe" and "versions" (by package); None for
        what an older record does not have.

    Raises:
        ValueError: results.json is no record of a run.
    """
    known: dict[str, Any] = {
        "checkpoint": checkpoint if not Path(checkpoint).is_absolute() else Path(checkpoint).name,
        "weights": weights.removeprefix("sha256:")[:DIGEST_DIGITS],
        "revision": revision,
    }
    path = Path(checkpoint) / RESULTS
    if not path.is_file():
        return {**known, "record": False}
    results = read_json(path)
    if not isinstance(results, dict) or not isinstance(results.get("versions", {}), dict):
        raise ValueError(f"{path} is no record of a run; take it away to report without it")
    versions = {name: results.get("versions", {}).get(name) for name in SHOWN_VERSIONS}
    fields = {name: results.get(name) for name in ("seed", "steps", "date", "recipe")}
    return {**known, "record": True, **fields, "versions": versions}
