"""The page of a report: what it holds, and that nothing in a report can break out of its place."""

import base64
import copy
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from hf_capsule_mt.analysis.report_page import PAGE, example_data, number, p_value, render
from hf_capsule_mt.analysis.tables import mark_of

SVG = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" width="300pt" height="60pt"><metadata>https://matplotlib.org/</metadata>
<path d="M0 0"/></svg>
"""
FIGURES = [
    {
        "id": "source_length",
        "title": "Source length",
        "caption": "By length.",
        "system": None,
        "file": "figures/a.svg",
    },
    {"id": "heat", "title": "Heat", "caption": 'Of "layers".', "system": "routed"},
    {"id": "missing", "title": "Missing", "caption": "", "system": "routed"},
]
DRAWN = {"source_length": SVG, "heat": SVG.replace("300pt", "600pt")}
EVIL = """</script><script>alert(1)</script><img src=x onerror="alert(2)">'&amp;<!--"""
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Parsed(HTMLParser):
    """Elements in order with their attributes, and text by the element around it."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *without):
        return " ".join("".join(text for tag, text in self.texts if tag not in without).split())

    def inside(self, tag):
        return [text for name, text in self.texts if name == tag and text.strip()]


@pytest.fixture
def page(report):
    report["figures"] = FIGURES
    return render(report, DRAWN)


class TestPage:
    def test_is_well_formed(self, page):
        parsed = Parsed(page)
        assert page.startswith('<!doctype html>\n<html lang="en">')
        assert parsed.open == []
        ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in parsed.elements:
            for name in ("aria-labelledby", "for"):
                assert attributes.get(name) in (None, *ids)

    def test_loads_nothing(self, page):
        parsed = Parsed(page)
        for tag, attributes in parsed.elements:
            assert tag not in ("iframe", "object", "embed", "base", "form")
            for name, value in attributes.items():
                assert not name.startswith("on")
                assert name != "style"
                if name in ("src", "href", "srcset", "action", "data", "poster"):
                    assert value.startswith(("#", "data:"))
        for name in ("view.js", "report.js"):
            assert "//" not in re.sub(r"//.*", "", (PAGE / name).read_text(encoding="utf-8"))
        for name in ("style.css", "view.css"):
            assert not re.search(r"url\(|@import", (PAGE / name).read_text(encoding="utf-8"))
        assert not re.search(r"\w+://", page)

    def test_links_lead_somewhere(self, page):
        parsed = Parsed(page)
        ids = {attributes.get("id") for _, attributes in parsed.elements}
        targets = [attributes["href"][1:] for attributes in parsed.all("a")]
        assert {"summary", "routing", "examples", "efficiency", "details"} == set(targets) <= ids

    def test_only_its_own_script_and_style_may_run(self, page):
        parsed = Parsed(page)
        policy = next(a["content"] for a in parsed.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none';")
        for name, text in (("style-src", parsed.inside("style")[0]), ("script-src", parsed.inside("script")[1])):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{name} 'sha256-{digest}'" in policy

    def test_figures_are_images_with_a_description(self, page):
        first, second = Parsed(page).all("img")
        assert (first["width"], second["width"]) == ("400", "800")
        assert (first.get("class"), second.get("class")) == (None, "wide")
        assert second["alt"] == 'Heat. Of "layers".'
        svg = base64.b64decode(first["src"].removeprefix("data:image/svg+xml;base64,")).decode()
        assert svg.startswith("<svg") and "<path" in svg
        assert not re.search("DOCTYPE|metadata|matplotlib", svg)

    def test_shows_the_numbers(self, page):
        text = Parsed(page).text("script", "style")
        for shown in (
            "test.en and test.de, en → de · 1,234 sentences · beam size 5 · length penalty 1",
            "plain baseline 30.0 53.0 30.0 2.35 M",
            # difference and mark against the baseline: Holm's p = 0.0008, 0.06, 0.8
            "routed 31.5**+1.5 53.1+0.1 28.5\N{MINUS SIGN}1.5 2.35 M",
            "routed BLEU +1.50 29.0 to 33.0, of the score approximate randomisation < 0.001 < 0.001 0.200",
            "routed chrF +0.15 29.0 to 33.0, of the score approximate randomisation 0.030 0.060 0.200",
            "By chrF of each sentence: better in 3, worse in 2, equal in 1,229.",
            "\N{MINUS SIGN}12.5 chrF sentence 7 Source A dog sleeps. Reference Ein Hund schläft. plain, 50.0 Der Hund"
            " schlief. routed, 37.5 (empty)",
            "Source length, words Sentences",
            "Decoding, ms per sentence 12.25 (12.00\N{EN DASH}13.00)",
            "Sign test, routed, by what each sentence does to the corpus BLEU: 5 sentences better, 1 worse, 1 equal;"
            " p = 0.062.",
            "1\N{EN DASH}10 4 30.0 0.91 31.5 0.91",
            "over 10 3 15.0 1.00 15.8 1.00",
            "Coverage difference ratio (CDR) 0.875",
            "Loss of the references, nats per token 1.250",
            "Without the decoder's aggregate 1.750",
            "Entropy, encoder (nats) uniform over 7 capsules: 1.946 1.946 1.746 1.546",
            "Capsules in use, memory of 5 4.250 4.250 4.250",
            "Overlap rate rOL of PAST: 0.625",
            "Decoding time, times the parent's 1.500",
            "BLEU nrefs:1|tok:13a",
        ):
            assert shown.replace(" ", "") in text.replace(" ", ""), shown
        assert "rOL of FUTURE" not in text

    def test_less_is_better_for_ter(self, page):
        best = re.findall(r'class="best">([\d.]+)', page)
        assert best == ["31.5", "53.1", "28.5"]


class TestParts:
    def test_only_those_that_there_are(self, report):
        report = {"title": "t", "systems": [{**report["systems"][0], "examples": []}]}
        for name in ("buckets", "routing"):
            del report["systems"][0][name]
        parsed = Parsed(render(report, {}))
        sections = [attributes["id"] for attributes in parsed.all("section")]
        assert sections == ["summary", "details"]
        assert [a["href"] for a in parsed.all("a")] == ["#summary", "#summary", "#details"]
        assert not parsed.all("script")
        assert not parsed.all("img")
        assert "baseline" not in parsed.text("style")

    def test_each_kind_of_routing_alone(self, report):
        routing = report["systems"][1]["routing"]
        expected = {
            "encoder": "Entropy, encoder",
            "decoder": "Entropy, decoder",
            "memory": "Capsules in use",
            "guided": "rOL of PAST",
        }
        for name in routing:
            alone = copy.deepcopy(report)
            alone["systems"][1]["routing"] = {name: routing[name]}
            text = Parsed(render(alone, {})).text("script", "style")
            assert [kind for kind, shown in expected.items() if shown in text] == [name]

    def test_a_report_without_systems(self):
        with pytest.raises(ValueError, match="no systems"):
            render({"title": "t", "systems": []}, {})


class TestEscaping:
    def test_nothing_breaks_out_of_its_place(self, report):
        clean = Parsed(render(report, {}))
        report["title"] = report["systems"][1]["name"] = EVIL
        report["systems"][1]["description"] = report["test_set"]["source"] = EVIL
        report["systems"][1]["adequacy"] = {EVIL: 1, "kind": EVIL}
        report["comparison"]["systems"] = {EVIL: report["comparison"]["systems"]["routed"]}
        report["table"] = {"markdown": EVIL, "latex": EVIL}
        for example in report["systems"][1]["examples"]:
            example["source"] += EVIL
            example["source_tokens"][0] = EVIL
        figure = {"id": EVIL, "title": EVIL, "caption": EVIL, "system": EVIL, "file": EVIL}
        report["figures"] = [figure]
        parsed = Parsed(render(report, {EVIL: SVG}))
        assert parsed.open == []
        assert len(parsed.all("script")) == len(clean.all("script")) == 2
        assert [a["src"][:5] for a in parsed.all("img")] == ["data:"]
        assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
        assert parsed.inside("title") == [EVIL]
        data = json.loads(parsed.inside("script")[0])
        assert data["systems"][1] == EVIL
        assert data["sentences"][1]["systems"][EVIL]["source_tokens"][0] == EVIL


class TestExampleData:
    def test_sentences_of_several_systems_meet(self, report):
        data = example_data(report)
        assert [(s["source"], list(s["systems"])) for s in data["sentences"]] == [
            ("A dog sleeps.", ["plain", "routed"]),
            ("A second sentence.", ["routed"]),
        ]
        assert data["systems"] == ["plain", "routed"]
        assert "guided" not in data["sentences"][0]["systems"]["plain"]

    def test_is_rounded_and_json(self, report):
        example = report["systems"][1]["examples"][0]
        example["guided"]["assignment"][0][0] = [0.123456, 1.23456e-7, math.nan]
        example["decoder"]["order"] = [3, 1, 2]
        kept = example_data(report)["sentences"][0]["systems"]["routed"]
        assert kept["guided"]["assignment"][0][0] == [0.123, 1.23e-7, None]
        assert set(kept["decoder"]) == {"agreement", "capsules"}
        json.dumps(kept, allow_nan=False)
        Parsed(render(report, {}))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\N{EN DASH}"),
        (math.nan, "\N{EN DASH}"),
        (True, "yes"),
        ("cpu", "cpu"),
        (7, "7"),
        (12345, "12,345"),
        (2_345_678, "2.35 M"),
        (5.4e9, "5.40 G"),
        (0.03142, "0.031"),
        (3.14159, "3.142"),
        (31.4159, "31.42"),
        (314.159, "314.2"),
        (3141.59, "3,142"),
        (-0.5, "-0.500"),
    ],
)
def test_numbers(value, shown):
    assert number(value) == shown


def test_p_values_and_marks():
    assert [p_value(p) for p in (0.0009, 0.001, 0.5, None)] == ["< 0.001", "0.001", "0.500", "\N{EN DASH}"]
    assert [mark_of(p) for p in (0.0099, 0.01, 0.0499, 0.05, math.nan, None)] == ["**", "*", "*", "", "", ""]
