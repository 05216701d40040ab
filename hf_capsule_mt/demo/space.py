"""The demonstration of a model on the Hub, as a Space runs it: without the package that it came from.

`settings.json` beside `app.py` says which model in which revision, and what its page says. Travels with the Space, see
`hub.space`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .app import build, launch
from .translating import System

SETTINGS = "settings.json"


def read_settings() -> dict[str, Any]:
    """What the Space shows: "model", "revision", "name", "description", "languages", "title", "examples"."""
    return json.loads((Path(__file__).parents[2] / SETTINGS).read_text(encoding="utf-8"))


def load(settings: dict[str, Any]) -> System:
    """
    The model of the settings, in evaluation mode.

    The model brings code of its own; the revision says which, and nothing that is pushed later is run.
    """
    options = {"revision": settings["revision"], "trust_remote_code": True}
    tokenizer = AutoTokenizer.from_pretrained(settings["model"], **options)  # nosec B615
    model = AutoModelForSeq2SeqLM.from_pretrained(settings["model"], **options)  # nosec B615
    languages = settings["languages"]
    return System(settings["name"], model.eval(), tokenizer, settings["description"], (languages[0], languages[1]))


def make_page(settings: dict[str, Any], system: System) -> Any:
    """The page, for `launch`."""
    return build([system], settings["examples"], settings["title"])


def main() -> None:
    """Serve the page."""
    settings = read_settings()
    launch(make_page(settings, load(settings)))
