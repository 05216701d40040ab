"""The view of routing that reports and demonstrations share, on a page of its own, in a real browser."""

import json
import re

import pytest

from hf_capsule_mt.analysis.report_page import PAGE

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import prefer, resize


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page with one view for each of the data; gives their elements. Nothing may go wrong meanwhile."""

    def open_page(*data):
        texts = {name: (PAGE / f"view.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
        page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">
            <meta name="viewport" content="width=device-width, initial-scale=1">
            <style>:root {{ color-scheme: light dark }} body {{ margin: 8px }} {texts["css"]}</style>
            <body>{texts["html"] * len(data)}<script>{texts["js"]}
            const data = {json.dumps(data)};
            window.views = [...document.querySelectorAll(".routing-view")].map((root) => routingView(root));
            window.views.forEach((view, index) => view.show(data[index]));</script></body></html>"""
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        browser.get_log("browser")
        browser.get(path.as_uri())
        return browser.find_elements(By.CSS_SELECTOR, ".routing-view")

    yield open_page
    assert browser.get_log("browser") == []


def data_of(example, **systems):
    """The data of a view about one sentence."""
    systems = {"routed": example, **systems}
    return {"systems": list(systems), "sentences": [{"source": example["source"], "systems": systems}]}


@pytest.fixture
def example(report):
    """Its source has a word of two tokens, and so has its translation."""
    example = report["systems"][1]["examples"][0]
    example["source_tokens"] = ["A", "dog", "-gy", "."]
    example["source_words"] = [["A", 1], ["doggy", 2], [".", 1]]
    example["target_tokens"] = ["Ein", "Hünd", "-chen", ".", "</s>"]
    example["target_words"] = [["Ein", 1], ["Hündchen", 2], [".", 1], ["</s>", 1]]
    return example


def part(view, name):
    return view.find_element(By.CSS_SELECTOR, f"[data-part={name}]")


def all_in(view, selector):
    return view.find_elements(By.CSS_SELECTOR, selector)


def position(view):
    return part(view, "position").text


def bars(view):
    """Source words with the widths of their groups in percent."""
    return {
        word.find_element(By.CSS_SELECTOR, "span").text: [
            round(float(re.search(r"width: ([\d.]+)%", bar.get_attribute("style"))[1]))
            for bar in word.find_elements(By.CSS_SELECTOR, ".parts span")
        ]
        for word in all_in(view, "[data-part=source] li")
    }


def test_several_views_are_independent(show, example):
    first, second = show(data_of(example), data_of(example))
    part(first, "next").click()
    assert position(first) == "Step 2 of 4" and position(second) == "Step 1 of 4"
    assert all_in(first, "[id]") == []


def test_tokens_are_joined_to_words_and_apart_again(show, example):
    """Probabilities of a word are the mean of its tokens', and its state is that before its first token."""
    assignment = example["guided"]["assignment"]
    assignment[1][1], assignment[1][2] = [0.2, 0.6, 0.2], [0.6, 0.2, 0.2]
    example["decoder"]["agreement"][1] = [[[1 / 7] * 7] * 2] * 3
    example["decoder"]["agreement"][2] = [[[3 / 7, 0, 0, 1 / 7, 1 / 7, 1 / 7, 1 / 7]] * 2] * 3
    (view,) = show(data_of(example))
    assert [word.text for word in all_in(view, "[data-part=target] button")] == ["Ein", "Hündchen", ".", "</s>"]
    part(view, "next").click()
    assert bars(view)["doggy"] == [40, 40, 20] and list(bars(view)) == ["A", "doggy", "."]
    ratios = [
        cell.get_attribute("title").split(": ")[1] for cell in all_in(view, "[data-part=decoder] .cells span")[:3]
    ]
    assert ratios == ["2.00 times uniform", "0.50 times uniform", "0.50 times uniform"]
    assert len(all_in(all_in(view, "[data-part=memory] li")[0], ".words span")) == 3
    part(view, "next").click()
    # tokens: the step stays where the word begins
    part(view, "join").click()
    assert position(view) == "Step 4 of 5"
    assert [word.text for word in all_in(view, "[data-part=target] button")] == example["target_tokens"]
    part(view, "previous").click()
    assert position(view) == "Step 3 of 5"
    part(view, "join").click()
    assert position(view) == "Step 2 of 4"


def test_there_is_nothing_to_join_where_every_token_is_a_word(show, example):
    for name in ("source_words", "target_words"):
        del example[name]
    (view,) = show(data_of(example))
    assert not part(view, "join-label").is_displayed()
    assert position(view) == "Step 1 of 5"


def test_keys_do_what_the_mouse_does(show, browser, example):
    (view,) = show(data_of(example))
    for selector in ("[data-part=target] button", "[data-part=timeline] button"):
        buttons = all_in(view, selector)
        assert [button.get_attribute("tabindex") for button in buttons] == ["0", "-1", "-1", "-1"]
        buttons[0].send_keys(Keys.ARROW_RIGHT)
        buttons[1].send_keys(Keys.ARROW_RIGHT)
        assert position(view) == "Step 3 of 4"
        # the focus goes with the step
        assert browser.switch_to.active_element == buttons[2]
        buttons[2].send_keys(Keys.HOME)
        assert position(view) == "Step 1 of 4" and browser.switch_to.active_element == buttons[0]
    part(view, "join").send_keys(Keys.SPACE)
    assert position(view) == "Step 1 of 5"


def test_the_middle_is_not_redundant(show, browser, example):
    """Half PAST and half FUTURE, all REDUNDANT, and the ends of the scale look different from each other."""
    kinds = {"past": [1, 0, 0], "future": [0, 1, 0], "middle": [0.5, 0.5, 0], "redundant": [0, 0, 1]}
    example["guided"]["assignment"] = [list(kinds.values())] * 5
    del example["source_words"]
    for scheme in ("light", "dark"):
        prefer(browser, prefers_color_scheme=scheme)
        (view,) = show(data_of(example))
        cells = all_in(view, "[data-part=timeline] .cell")[::4]
        script = """
            const style = getComputedStyle(arguments[0]);
            return [style.backgroundColor, style.backgroundImage, style.getPropertyValue("--share")]"""
        looks = [browser.execute_script(script, cell) for cell in cells]
        assert len({colour + image for colour, image, _ in looks}) == 4
        # hatched with all strength, and not at all
        assert [share for _, _, share in looks] == ["0%", "0%", "0%", "100%"]
        # of the middle, green to red and blue to yellow
        _, *tint = map(float, re.findall(r"-?[\d.]+(?:e-?\d+)?", looks[2][0])[:3])
        assert tint == pytest.approx([0, 0], abs=0.02)


def test_words_are_mixed_with_the_paper(show, browser, example):
    lightness = {}
    for scheme in ("light", "dark"):
        prefer(browser, prefers_color_scheme=scheme)
        (view,) = show(data_of(example))
        word = all_in(view, "[data-part=source] li")[0]
        colour = browser.execute_script(
            """
            arguments[0].style.transition = "none";
            return getComputedStyle(arguments[0]).backgroundColor""",
            word,
        )
        lightness[scheme] = float(re.search(r"oklab\(([\d.]+)", colour)[1])
    assert lightness["light"] > 0.85 and lightness["dark"] < 0.45


def test_every_map_has_its_scale(show, example):
    (view,) = show(data_of(example))
    scales = {name: part(view, f"{name}-scale").text for name in ("timeline", "decoder", "memory", "encoder")}
    assert all(text in scales["timeline"] for text in ("all FUTURE", "all PAST", "REDUNDANT"))
    for stack in ("decoder", "encoder"):
        assert "1/8 or less" in scales[stack] and "8 times uniform or more" in scales[stack]
    assert "Probability 0" in scales["memory"]


def test_captions_say_what_is_seen(show, example):
    (view,) = show(data_of(example))
    assert "PAST goes from 10 % to 80 %" in part(view, "timeline-note").text
    assert "flat" not in [span.text for span in all_in(view, "[data-part=decoder] .range")]
    # uniform layers, PAST that never moves, and a memory that takes all words alike
    example["decoder"]["agreement"] = [[[[1 / 7] * 7] * 2] * 3] * 5
    example["guided"]["assignment"] = [[[0.3, 0.4, 0.3]] * 4] * 5
    example["memory"]["agreement"] = [[[0.2] * 5] * 4] * 3
    (view,) = show(data_of(example))
    assert [span.text for span in all_in(view, "[data-part=decoder] .range")] == ["flat"] * 3
    assert "Flat: PAST of no source word changes by 0.05 or more." in part(view, "timeline-note").text
    assert "in this iteration flat" in part(view, "memory-note").text
    part(view, "next").click()
    assert "no source word moved to PAST" in part(view, "status").text


def test_an_empty_translation_is_shown_as_such(show, example):
    empty = {**example, "translation": " ", "target_tokens": ["</s>"], "target_words": [["</s>", 1]]}
    empty["guided"] = {**example["guided"], "assignment": example["guided"]["assignment"][:1]}
    empty["decoder"] = {**example["decoder"], "agreement": example["decoder"]["agreement"][:1]}
    (view,) = show(data_of(empty))
    assert part(view, "texts").text.endswith("empty: this system translates the sentence as nothing")
    assert part(view, "status").text == "Step 1 produces “</s>”, the end: the translation is empty."


def test_differences_are_marked(show, example):
    def view_of(**translations):
        systems = {name: {**example, "translation": text} for name, text in translations.items()}
        data = {"systems": list(systems), "sentences": [{"source": "A doggy.", "systems": systems}]}
        (view,) = show(data)
        rows = all_in(view, "[data-part=texts] dd")[1:]
        return [[mark.text for mark in row.find_elements(By.TAG_NAME, "mark")] for row in rows]

    assert view_of(a="ein hund rennt .", b="der hund rennt schnell .") == [["ein"], ["der", "schnell"]]
    assert view_of(a="ein hund .", b="ein hund .", c="kein hund .") == [[], [], ["kein"]]
    assert view_of(a="hund hund", b="hund") == [["hund"], []]


def test_long_translations_get_several_maps_and_no_hidden_column(show, browser, example):
    example["target_tokens"] = [f"wort{number}" for number in range(45)]
    example["guided"]["assignment"] = [example["guided"]["assignment"][0]] * 45
    example["decoder"]["agreement"] = [example["decoder"]["agreement"][0]] * 45
    del example["target_words"], example["source_words"]
    (view,) = show(data_of(example))
    maps = {}
    for width in (390, 1280, 390):
        resize(browser, width)
        browser.execute_script(
            "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        maps[width] = len(all_in(view, ".timeline"))
        columns = all_in(view, ".timeline button")
        assert [column.text for column in columns] == example["target_tokens"]
        assert min(column.size["width"] for column in columns) >= 15
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        columns[40].click()
        assert position(view) == "Step 41 of 45"
    assert maps[390] > maps[1280] == 2
