"""A report as one HTML page that holds everything it shows and loads nothing.

Template, style and script lie in `page/`. The page shows the parts that the report has. Figures are images inside the
page, so that nothing in them runs; the examples are the only data that the script gets.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from .alignment_part import FIGURE_TITLE, alignment_section
from .tables import COMET_COLUMN, SCORE_COLUMNS, empty_notes, mark_of, test_in_words

PAGE = Path(__file__).parent / "page"
METRICS = {metric: title for metric, title, _ in (*SCORE_COLUMNS, COMET_COLUMN)}
SCORE_DIGITS = {metric: digits for metric, _, digits in (*SCORE_COLUMNS, COMET_COLUMN)}
# of metrics of which less is better
FALLING = ("ter",)
NOTHING = "\N{EN DASH}"
# of the figures that are about no single system; the others are about routing
SUMMARY_FIGURES = ("source_length",)
LABELS = {
    "cdr": "coverage difference ratio (CDR)",
    "cdr_sentence_mean": "CDR, mean over the sentences",
    "covered_by_reference": "source words that the reference covers",
    "covered_by_translation": "source words that the translation covers",
    "under_translated": "under-translated source words",
    "under_translated_share": "under-translated, share of those that the reference covers",
    "over_translated": "over-translated source words",
    "over_translated_share": "over-translated, share of those that the translation covers",
    "loss": "loss of the references, nats per token",
    "without_encoder": "without the encoder's aggregate",
    "without_decoder": "without the decoder's aggregate",
    "without_guided": "without reading PAST and FUTURE",
    "past_overlap": "Overlap rate rOL of PAST",
    "future_overlap": "Overlap rate rOL of FUTURE",
    "parent_parameters": "parameters of the parent",
    "parent_operations_per_token": "operations per token of the parent",  # nosec B105
    "milliseconds_per_sentence": "decoding, ms per sentence",
    "parent_milliseconds_per_sentence": "decoding, ms per sentence, parent",
    "training_milliseconds": "training, ms per batch",
    "parent_training_milliseconds": "training, ms per batch, parent",
    "ratio": "decoding time, times the parent's",
    "training_ratio": "training time, times the parent's",
    "sentences": "sentences measured",
    "repeats": "rounds, systems in turns",
}
# digits that the examples keep: more than can be seen
DIGITS = 3
# what the script reads of an example
EXAMPLE_PARTS = (
    *("source", "reference", "translation"),
    *("source_tokens", "target_tokens", "source_words", "target_words"),
)
ROUTING_PARTS = ("guided", "decoder", "encoder", "memory")
ROUTING_FIELDS = ("groups", "assignment", "agreement", "capsules")


def render(report: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """
    The page.

    Args:
        report: what `report.make_report` gives, with "figures": "id", "title", "caption" and "system" of each.
        figures: the text of an SVG file for each figure's id; a figure without is left out.

    Returns:
        HTML text, to be written as UTF-8.

    Raises:
        ValueError: the report has no systems.
    """
    if not report.get("systems"):
        raise ValueError("there is nothing to show: the report has no systems")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, p=p_value)
    style, script = (_joined(*names) for names in (("style.css", "view.css"), ("view.js", "report.js")))
    data, general = example_data(report), _figures(report, figures, None)
    page = environment.get_template("template.html").render(
        report=report,
        style=style,
        script=script,
        # by their hashes: no other script and no other style can run, whatever the data says
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_json(data),
        has_examples=bool(data["sentences"]),
        facts=_facts(report),
        metrics={metric: METRICS[metric] for metric in _metrics(report)},
        falling=FALLING,
        scores=_score_rows(report),
        comparison=report.get("comparison"),
        test_words=test_in_words(report["comparison"]) if report.get("comparison") else "",
        several=any(len(system.get("runs", ())) > 1 for system in report["systems"]),
        empty=empty_notes(report) if report.get("test_set") else [],
        different=_differences(report),
        origins=_origins(report),
        length_unit=(report.get("test_set") or {}).get("length_unit", "words"),
        tests=_test_rows(report),
        buckets=_bucket_table(report),
        adequacy=_quantities(report, "adequacy"),
        contributions=_quantities(report, "contributions"),
        efficiency=_quantities(report, "efficiency"),
        routing=_routing(report, figures),
        alignments=_alignments(report, figures),
        summary_figures=[figure for figure in general if figure["id"] in SUMMARY_FIGURES],
        routing_figures=[figure for figure in general if figure["id"] not in SUMMARY_FIGURES],
    )
    return page.lstrip()


def example_data(report: Mapping[str, Any]) -> dict[str, Any]:
    """
    What the interactive view needs: the examples by sentence, rounded.

    Returns:
        "sentences": "source", "reference" and "systems" (system -> example), in the order of their first appearance;
        "systems": the names.
    """
    sentences: dict[str, dict[str, Any]] = {}
    for system in report["systems"]:
        for example in system.get("examples") or ():
            source = example["source"]
            sentence = sentences.setdefault(
                source, {"source": source, "reference": example.get("reference"), "systems": {}}
            )
            kept = {name: example[name] for name in EXAMPLE_PARTS if name in example}
            for name in ROUTING_PARTS:
                if example.get(name):
                    kept[name] = {key: _rounded(example[name][key]) for key in ROUTING_FIELDS if key in example[name]}
            sentence["systems"].setdefault(system["name"], kept)
    return {
        "systems": [system["name"] for system in report["systems"]],
        "sentences": list(sentences.values()),
    }


def number(value: Any) -> str:
    """A number for readers: thousands separated, millions and billions abbreviated, three to four digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.2f} {unit}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def p_value(value: Any) -> str:
    """A p value for readers."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _joined(*names: str) -> str:
    """Files of the page, one behind the other."""
    return "".join((PAGE / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    """JSON inside a script element, which any "</script" or "<!--" would end or change."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(value: Any) -> Any:
    """Significant digits of all numbers; NaN and infinity, which JSON does not have, become null."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _facts(report: Mapping[str, Any]) -> list[str]:
    """What the numbers were measured on and how, as phrases."""
    test_set, decoding = report.get("test_set") or {}, report.get("decoding") or {}
    facts = []
    if test_set:
        languages = [test_set.get("source_lang"), test_set.get("target_lang")]
        pair = f", {languages[0]} → {languages[1]}" if all(languages) else ""
        facts.append(f"{test_set['source']} and {test_set['reference']}{pair}")
        facts.append(f"{test_set['sentences']:,} sentences")
    if "num_beams" in decoding:
        facts.append(f"beam size {decoding['num_beams']}")
    if "length_penalty" in decoding:
        facts.append(f"length penalty {decoding['length_penalty']:g}")
    if report.get("date"):
        facts.append(f"made on {report['date']}")
    return facts


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _differences(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each system: wins, losses and ties against the baseline, and the sentences that differ most."""
    shown = []
    for name, tests in (report.get("comparison") or {}).get("systems", {}).items():
        found = tests.get("sentences")
        if found:
            most = [{**entry, "shown": _signed(entry["difference"], 1)} for entry in found["most_different"]]
            shown.append({"name": name, **found, "most_different": most})
    return shown


def _origins(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each run of each system: where it comes from; "not recorded" where nothing says it."""
    rows = []
    for system in report["systems"]:
        for run in system.get("runs", ()):
            versions = run.get("versions") or {}
            cells = {
                "Seed": run.get("seed"),
                "Updates": None if run.get("steps") is None else f"{run['steps']:,}",
                "Trained until": run.get("date"),
                **{package: versions.get(package) for package in ("hf_capsule_mt", "torch", "transformers")},
                "Revision": run.get("revision"),
                "Weights": run.get("weights"),
            }
            rows.append(
                {
                    "name": system["name"],
                    "checkpoint": run.get("checkpoint"),
                    "record": run.get("record", False),
                    "cells": {title: NOTHING if value is None else str(value) for title, value in cells.items()},
                }
            )
    return rows


def _metrics(report: Mapping[str, Any]) -> list[str]:
    """The metrics that every system has."""
    return [metric for metric in METRICS if all(metric in system["scores"] for system in report["systems"])]


def _score_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each system: for each metric the score, its difference to the baseline and the mark of this."""
    compared = (report.get("comparison") or {}).get("systems", {})
    best = {}
    for metric in _metrics(report):
        values = [system["scores"][metric] for system in report["systems"]]
        best[metric] = min(values) if metric in FALLING else max(values)
    rows = []
    for system in report["systems"]:
        tests = compared.get(system["name"], {})
        cells = []
        for metric in _metrics(report):
            value, test = system["scores"][metric], tests.get(metric)
            cells.append(
                {
                    "value": f"{value:.{SCORE_DIGITS[metric]}f}",
                    "best": len(report["systems"]) > 1 and value == best[metric],
                    "spread": _spread(system, metric),
                    "difference": _signed(test["difference"], 1) if test else None,
                    "mark": mark_of(test["p_holm"]) if test else "",
                }
            )
        rows.append({"system": system, "cells": cells})
    return rows


def _spread(system: Mapping[str, Any], metric: str) -> str | None:
    """Standard deviation and number of runs, of several."""
    found = (system.get("spread") or {}).get(metric)
    if found is None or found["sd"] is None:
        return None
    return f"± {found['sd']:.{SCORE_DIGITS[metric]}f}, n = {found['n']}"


def _test_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each system and metric with the tests against the baseline."""
    rows = []
    for name, tests in (report.get("comparison") or {}).get("systems", {}).items():
        for metric, title in METRICS.items():
            if metric in tests:
                test = tests[metric]
                rows.append(
                    {
                        "name": name,
                        "metric": title,
                        "difference": _signed(test["difference"], 2),
                        "interval": _interval(test),
                        "test": test["test"],
                        "pairs": test["pairs"],
                        "bootstrap_p": test.get("bootstrap_p"),
                        "p": test["p"],
                        "p_holm": test["p_holm"],
                    }
                )
    return rows


def _interval(test: Mapping[str, Any]) -> str:
    if test.get("difference_interval"):
        low, high = test["difference_interval"]
        return f"{_signed(low, 2)} to {_signed(high, 2)}, of the difference"
    if test.get("interval"):
        return "{:.1f} to {:.1f}, of the score".format(*test["interval"])
    return NOTHING


def _bucket_table(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """BLEU and length ratio by source length, systems as columns."""
    systems = [system for system in report["systems"] if system.get("buckets")]
    if not systems:
        return None
    spans: dict[tuple[float, float], dict[str, Any]] = {}
    for system in systems:
        for bucket in system["buckets"]:
            low, high = bucket["low"], bucket["high"]
            high = math.inf if high is None else high
            row = spans.setdefault((low, high), {"sentences": bucket["sentences"], "systems": {}})
            row["systems"][system["name"]] = bucket
    rows = [{"label": span_label(*span), **row} for span, row in sorted(spans.items())]
    return {"names": [system["name"] for system in systems], "rows": rows}


def span_label(low: float, high: float | None) -> str:
    """A bucket (low, high] of lengths for readers: "1-10", "11-20", "over 20", with en dashes."""
    if high is None or not math.isfinite(high):
        return f"over {low:g}"
    return f"{low + 1:g}\N{EN DASH}{high:g}"


def _quantities(report: Mapping[str, Any], part: str) -> dict[str, Any] | None:
    """The numbers of a part that systems may have, quantities as rows and systems as columns."""
    names: list[str] = []
    rows: dict[str, dict[str, Any]] = {}
    for system in report["systems"]:
        if system.get(part):
            names.append(system["name"])
            for label, value in _flat(_with_quartiles(system[part])):
                label = label[0].upper() + label[1:]
                rows.setdefault(label, {})[system["name"]] = value
    return {"names": names, "rows": rows} if names else None


def _with_quartiles(values: Mapping[str, Any]) -> dict[str, Any]:
    """Medians with their quartiles behind them, as text."""
    quartiles = values.get("quartiles") or {}
    shown = {key: value for key, value in values.items() if key != "quartiles"}
    for key, (first, third) in quartiles.items():
        shown[key] = f"{number(values[key])} ({number(first)}{NOTHING}{number(third)})"
    return shown


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        label = prefix + LABELS.get(key, key.replace("_", " "))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{label}: ")
        elif not isinstance(value, (list, tuple)):
            yield label, value


def _routing(report: Mapping[str, Any], figures: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is shown of the routing of each system that has any."""
    parts = []
    for system in report["systems"]:
        routing = system.get("routing") or {}
        shown = [figure for figure in _figures(report, figures, system["name"]) if figure["title"] != FIGURE_TITLE]
        if routing or shown:
            guided = routing.get("guided") or {}
            overlaps = [
                (LABELS[key], guided[key]) for key in ("past_overlap", "future_overlap") if guided.get(key) is not None
            ]
            parts.append(
                {"system": system, "rows": list(_iteration_rows(routing)), "overlaps": overlaps, "figures": shown}
            )
    return parts


def _alignments(report: Mapping[str, Any], figures: Mapping[str, str]) -> dict[str, Any] | None:
    """The section on gold alignments, with its figures."""
    section = alignment_section(report)
    for system in section["systems"] if section else ():
        shown = _figures(report, figures, system["name"])
        system["figures"] = [figure for figure in shown if figure["title"] == FIGURE_TITLE]
    return section


def _iteration_rows(routing: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Quantities that change from iteration to iteration."""
    for stack in ("encoder", "decoder"):
        if stack in routing:
            statistics = routing[stack]
            iterations = statistics["iterations"]
            uniform = f"uniform over {statistics['capsules']} capsules: {number(statistics['uniform_entropy'])}"
            entropy = [step["entropy"] for step in iterations]
            yield {"label": f"Entropy, {stack} (nats)", "hint": uniform, "cells": entropy}
            yield {"label": f"Diversity, {stack}", "hint": "", "cells": [step["diversity"] for step in iterations]}
    if "memory" in routing:
        iterations = routing["memory"]["iterations"]
        used = [step["capsules_in_use"] for step in iterations]
        yield {"label": "Capsules in use, memory", "hint": f"of {routing['memory']['capsules']}", "cells": used}
        entropy = [step["assignment_entropy"] for step in iterations]
        yield {"label": "Entropy of a source word's choice (nats)", "hint": "", "cells": entropy}


def _figures(report: Mapping[str, Any], figures: Mapping[str, str], system: str | None) -> list[dict[str, Any]]:
    """The figures of a system, or those of none, with their addresses."""
    entries: Sequence[Mapping[str, Any]] = report.get("figures") or ()
    return [
        {**entry, "address": _address(figures[entry["id"]]), "width": _width(figures[entry["id"]])}
        for entry in entries
        if entry.get("system") == system and entry["id"] in figures
    ]


# Figures in dark mode: the file asks for the reader's preference itself, in a style sheet of its own, so that each is
# in the page once. The papers' white goes, black and greys turn light; maps are pictures, and stay.
DARK_COLOURS = {
    "#000000": "#e4e4e4",
    "#0072b2": "#58b4e8",
    "#777777": "#a8a8a8",
    "#666666": "#a0a0a0",
    "#b3b3b3": "#6a6a6a",
}
DARK_FIGURE = (
    "<style>@media (prefers-color-scheme: dark) {svg {fill: #e4e4e4}"
    '[style*="fill: #ffffff"] {fill: none !important}'
    + "".join(
        f'[style*="{kind}: {light}"] {{{kind}: {dark} !important}}'
        for light, dark in DARK_COLOURS.items()
        for kind in ("fill", "stroke")
    )
    + "}</style>"
)


def _address(svg: str) -> str:
    """A data URL. What points outside, the document type and the metadata, is left out: no reader shows it."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(<svg\b[^>]*>)", rf"\1{DARK_FIGURE}", svg, count=1)
    return "data:image/svg+xml;base64," + base64.b64encode(svg.strip().encode()).decode()


def _width(svg: str) -> int:
    """In CSS pixels, as the file says; a common width if it does not."""
    found = re.search(r'<svg\b[^>]*?\bwidth="([\d.]+)(pt|px)?"', svg)
    if not found:
        return 600
    return round(float(found[1]) * (4 / 3 if found[2] == "pt" else 1))
