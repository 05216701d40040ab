"""The page of a demonstration: a sentence, its translation by one or two systems, and how it was routed.

Needs gradio, torch and transformers only, and travels with a demonstration on the Hub, see `hub.space`. Nothing is
loaded from elsewhere, not even fonts, and nothing is reported to anybody.
"""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio

from .translating import System

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parents[1] / "analysis" / "page"
MAX_BEAMS = 8
# what a view needs of the other system
COMPARED = ("source", "translation", "growing")
HINT = "Type a sentence, or choose an example."
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Noto Sans", "DejaVu Sans", "Arial", "sans-serif"]
# the view as one of Gradio's components: shows what it is given
START = """
const view = routingView(element.querySelector(".routing-view"));
const show = () => view.show(props.value || null);
watch("value", show);
show();
"""


def build(systems: Sequence[System], examples: Sequence[str] = (), title: str = "Translation, step by step") -> Any:
    """
    The page.

    Args:
        systems: one, or two that are shown side by side.
        examples: sentences to choose from.
        title: of the page.

    Returns:
        A gradio.Blocks, for `launch`.
    """

    multilingual = next((system for system in systems if system.languages is not None), None)

    def respond(sentence: str, num_beams: float, *languages: str) -> Iterator[list[Any]]:
        for notice, views in translations(systems, sentence, int(num_beams), languages):
            yield [_notice(notice), *(views or [gradio.skip() for _ in systems])]

    with gradio.Blocks(title=title, analytics_enabled=False, fill_width=False) as page:
        gradio.HTML(_header(systems, title), apply_default_css=False)
        with gradio.Row():
            sentence = gradio.Textbox(
                label="Sentence", placeholder=HINT, lines=1, max_lines=5, scale=5, min_width=280, elem_id="sentence"
            )
            num_beams = gradio.Slider(
                minimum=1, maximum=MAX_BEAMS, step=1, label="Beam size", scale=2, min_width=200, elem_id="beams"
            )
            languages = _languages(multilingual) if multilingual is not None else []
            button = gradio.Button("Translate", variant="primary", scale=1, min_width=120, elem_id="translate")
        chosen = None
        if examples:
            chosen = gradio.Dataset(
                components=[sentence],
                samples=[[text] for text in examples],
                label="Examples",
                samples_per_page=6,
                elem_id="examples",
            )
        notice = gradio.HTML("", apply_default_css=False, elem_id="notice")
        with gradio.Row(elem_classes="views"):
            views = [_view() for _ in systems]
        options: dict[str, Any] = {
            "fn": respond,
            "inputs": [sentence, num_beams, *languages],
            "outputs": [notice, *views],
            # whoever waits behind others sees it where the sentence is
            "show_progress": "minimal",
            "show_progress_on": sentence,
            # the models are used by one thread at a time
            "concurrency_limit": 1,
            "concurrency_id": "models",
            # of what a page asks for meanwhile, the last is done when its turn comes
            "trigger_mode": "always_last",
            "api_visibility": "private",
        }
        sentence.submit(**options)
        button.click(**options)
        if chosen is not None:
            # in the browser: answers of the server could come in another order than what was chosen
            fill = f"(number) => {json.dumps(list(examples))}[number]"
            chosen.click(None, chosen, sentence, js=fill, api_visibility="private").then(**options)
    return page


def launch(page: Any, **options: Any) -> Any:
    """Serve a page of `build`; the options are those of gradio's launch."""
    theme = gradio.themes.Base(
        primary_hue="sky", neutral_hue="zinc", font=FONTS, font_mono=["ui-monospace", "monospace"]
    ).set(
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        slider_color="*primary_700",
    )
    # whatever the environment says
    features = ("share", "run_history", "enable_monitoring", "ssr_mode", "pwa", "mcp_server")
    closed: dict[str, Any] = dict.fromkeys(features, False)
    shown = {"theme": theme, "css_paths": PAGE / "demo.css", "footer_links": ["gradio"]}
    return page.launch(**closed, **shown, show_error=True, quiet=True, **options)


def translations(
    systems: Sequence[System], sentence: str, num_beams: int, languages: Sequence[str] = ()
) -> Iterator[tuple[tuple[str, str], list[dict[str, Any] | None] | None]]:
    """
    What the page shows after a sentence was sent, again and again while the translations grow.

    Args:
        systems: in the order of the page.
        sentence: what was typed.
        num_beams: 1 is greedy decoding, of which every word is shown when it is there.
        languages: codes of source and target for multilingual systems; what they translated last if not given.

    Yields:
        A notice, ("hint" | "wait" | "error" | "", text), and for each system the data of its view (see
        `analysis/page/view.js`), None where there is nothing to show; None for all if nothing changes.
    """
    sentence = " ".join((sentence or "").split())
    if not sentence:
        yield ("hint", HINT), None
        return
    shown: dict[str, dict[str, Any]] = {}
    notes, failed = [], []
    cut = min((system.cut(sentence) for system in systems), key=len)
    if cut != sentence:
        sentence = cut
        notes.append(f"The text is too long, and was cut after “… {' '.join(cut.split()[-4:])}”.")
    for system in systems:
        waiting = [f"{system.name} searches with beam size {num_beams} …"] if num_beams > 1 else []
        example = shown[system.name] = {"source": sentence, "translation": "", "growing": True}
        yield ("wait", " ".join([*notes, *waiting])), _views(systems, shown)
        try:
            if languages:
                system.use_languages(*languages)
            for text, token_ids in system.translate(sentence, num_beams):
                example["translation"] = text
                if token_ids is None:
                    yield ("wait", " ".join(notes)), _views(systems, shown)
                else:
                    example |= system.routing(sentence, token_ids) | {"growing": False}
        except Exception as error:
            logger.exception(f"{system.name} cannot translate {sentence!r}")
            del shown[system.name]
            failed.append(f"{system.name} failed: {type(error).__name__}: {error}")
    yield ("error" if failed else "hint" if notes else "", " ".join([*failed, *notes])), _views(systems, shown)


def _views(systems: Sequence[System], shown: dict[str, dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The data of each system's view, None where there is nothing to show; it needs no routing of the other."""
    names = [system.name for system in systems if system.name in shown]
    views: list[dict[str, Any] | None] = []
    for system in systems:
        examples = {
            name: dict(example) if name == system.name else {key: example[key] for key in COMPARED}
            for name, example in shown.items()
        }
        sentence = {"source": shown[names[0]]["source"] if names else "", "systems": examples}
        view = {"systems": names, "only": system.name, "sentences": [sentence]}
        views.append(view if system.name in shown else None)
    return views


def _view() -> Any:
    texts = {name: (PAGE / f"view.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    with gradio.Column(min_width=340):
        return gradio.HTML(
            None,
            html_template=texts["html"],
            css_template=texts["css"],
            js_on_load=texts["js"] + START,
            apply_default_css=False,
            elem_classes="demonstration",
        )


def _languages(system: System) -> list[Any]:
    """What a pair of languages is chosen with; both models of a page are asked for the codes of one."""
    return [
        gradio.Dropdown(
            choices=system.choices, value=code, label=label, scale=1, min_width=150, elem_id=f"{label.lower()}_lang"
        )
        for label, code in zip(("From", "To"), system.languages or (), strict=True)
    ]


def _header(systems: Sequence[System], title: str) -> str:
    if len(systems) == 1:
        described = html.escape(systems[0].description)
    else:
        names = [f"<b>{html.escape(system.name)}</b>: {html.escape(system.description)}" for system in systems]
        described = "<br>".join(names)
    return f'<header class="title"><h1>{html.escape(title)}</h1><p>{described}</p></header>'


def _notice(notice: tuple[str, str]) -> str:
    kind, text = notice
    role = "alert" if kind == "error" else "status"
    return f'<p class="notice {kind}" role="{role}">{html.escape(text)}</p>' if text else ""
