"""The LICENSE of a published folder: what the weights are licensed under, and the text of the code's own licence."""

from __future__ import annotations

from pathlib import Path

import yaml

from ..project import NAME, URL

LICENSE = "LICENSE"
CODE_LICENSE = "apache-2.0"
_FILES = Path(__file__).parent / "card"
# name and address of each licence of the Hub, by its identifier; empty of those that are none
LICENSES: dict[str, list[str]] = yaml.safe_load((_FILES / "licenses.yaml").read_text(encoding="utf-8"))
_NOT_SAID = {
    "other": "The weights have a licence of their own; ask their publisher for it.",
    "unknown": "Under which licence the weights are was not recorded; ask their publisher before you use them.",
}


def license_text(license: str, name: str | None = None, link: str | None = None) -> str:
    """
    What the file says.

    The folder holds a copy of this project's code, which may be passed on only with the text of its licence; of the
    weights' licence the name and the address are enough.

    Args:
        license: of the weights, an identifier of the Hub.
        name, link: of a licence that the Hub has none for ("other").

    Raises:
        KeyError: there is no such licence.
    """
    apache = (_FILES / f"{CODE_LICENSE}.txt").read_text(encoding="utf-8")
    if license == CODE_LICENSE:
        return apache
    named = LICENSES[license] or ([name, link or ""] if name else [])
    weights = f"{named[0]}\n({license})\n{named[1]}" if named else _NOT_SAID[license]
    return (
        f"The weights, and everything else in this repository but its code:\n\n{weights}\n\n"
        f"The code (all files *.py), which is that of {NAME} ({URL}):\nApache License 2.0, whose text follows.\n\n"
        f"{'-' * 80}\n{apache}"
    )
