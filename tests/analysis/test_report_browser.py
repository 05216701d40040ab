"""The page of a report in a real browser: stepping through a translation, at the widths of a phone and a desktop."""

import json
import re

import pytest

from chromium import prefer, resize
from hf_capsule_mt.analysis.plots import draw_figures, save
from hf_capsule_mt.analysis.report_page import render

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a report; afterwards nothing may have been loaded or gone wrong."""

    def open_page(report, with_figures=False):
        report["figures"], drawn = [], {}
        for figure in draw_figures(report) if with_figures else ():
            report["figures"].append({name: getattr(figure, name) for name in ("id", "title", "caption", "system")})
            drawn[figure.id] = save(figure.figure, tmp_path / f"{figure.id}.svg").read_text(encoding="utf-8")
        path = tmp_path / "index.html"
        path.write_text(render(report, drawn), encoding="utf-8")
        browser.get_log("browser")
        browser.get(path.as_uri())
        return Page(browser)

    yield open_page
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    # the browser's own first page is none of ours
    address = (tmp_path / "index.html").as_uri()
    urls = [request["request"]["url"] for request in requests if request["documentURL"] == address]
    assert urls[0] == address
    assert all(url.startswith("data:") for url in urls[1:])


class Page:
    """What a reader sees and does."""

    def __init__(self, browser):
        self.browser = browser

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def shown(self, *names):
        return [name for name in names if self.find(f"[data-part={name}]").is_displayed()]

    def click(self, name):
        self.find(f"[data-part={name}]").click()

    def choose(self, name, text):
        Select(self.find(f"[data-part={name}]")).select_by_visible_text(text)

    def step(self):
        """Number of the step, which every part of the page must agree on."""
        number = int(self.find("[data-part=step]").get_attribute("value"))
        assert self.find("[data-part=position]").text.startswith(f"Step {number} of ")
        classes = self.browser.execute_script(
            "return [...document.querySelectorAll('[data-part=target] button')].map((button) => button.className)"
        )
        assert classes == ["done"] * (number - 1) + ["now"] + ["later"] * (len(classes) - number)
        return number

    def words(self):
        """Source words with their PAST, FUTURE and REDUNDANT widths in percent."""
        script = """
            return [...document.querySelectorAll("[data-part=source] li")].map((word) => [word.firstChild.textContent,
                [...word.querySelectorAll(".parts span")].map((bar) => Math.round(parseFloat(bar.style.width)))])"""
        return dict(self.browser.execute_script(script))


def test_stepping_moves_source_words_from_future_to_past(show, report):
    page = show(report)
    before, after = [10, 70, 20], [80, 10, 10]
    assert page.step() == 1
    assert page.words() == {"A": before, "dog": before, "sleeps": before, ".": before}
    assert page.find("[data-part=totals]").text.split("\n") == ["PAST 10 %", "FUTURE 70 %", "REDUNDANT 20 %"]
    assert not page.find("[data-part=previous]").is_enabled()
    page.click("next")
    page.click("next")
    assert page.step() == 3
    assert page.words() == {"A": after, "dog": after, "sleeps": before, ".": before}
    assert page.find("[data-part=totals]").text.split("\n") == ["PAST 45 %", "FUTURE 40 %", "REDUNDANT 15 %"]
    assert [word.text for word in page.all("[data-part=source] .moved")] == ["dog"]
    assert page.find("[data-part=status]").text == (
        "Step 3 produces “schläft”. After “Hund” the source word “dog” moved to PAST most: 0.10 to 0.80."
    )
    page.click("previous")
    assert page.step() == 2
    page.all("[data-part=target] button")[4].click()
    assert page.step() == 5
    assert not page.find("[data-part=next]").is_enabled()
    assert len(page.all("[data-part=timeline] .cell.now")) == 4
    page.all("[data-part=timeline] .cell")[1].click()
    assert page.step() == 2


def test_the_keyboard_does_the_same(show, report):
    page = show(report)
    slider = page.find("[data-part=step]")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.step() == 3
    assert slider.get_attribute("aria-valuetext") == "3 of 5: schläft"
    page.find("[data-part=next]").send_keys(Keys.ARROW_LEFT)
    assert page.step() == 2
    page.find("[data-part=next]").send_keys(Keys.END)
    assert page.step() == 5
    page.find("[data-part=play]").send_keys(Keys.HOME)
    assert page.step() == 1
    # a field keeps its own keys
    page.find("[data-part=sentence]").send_keys(Keys.ARROW_RIGHT)
    assert page.find("[data-part=texts] dd").text == "A second sentence."
    assert page.step() == 1


def test_the_layers_of_each_step(show, report):
    page = show(report)
    agreement = report["systems"][1]["examples"][0]["decoder"]["agreement"]
    for step in (0, 1):
        titles = [cell.get_attribute("title") for cell in page.all("[data-part=decoder] .cells span")]
        # iterations, layers and capsules in the order of the page; of 7 capsules 1/7 is uniform
        values = [7 * value for iteration in agreement[step] for layer in iteration for value in layer]
        assert [float(re.search(r": ([\d.]+) times", title)[1]) for title in titles] == pytest.approx(values, abs=0.02)
        expected = []
        for layers in agreement[step]:
            for layer in layers:
                shares = [value / (layers[0][n] + layers[1][n]) for n, value in enumerate(layer)]
                expected.append(100 * sum(shares) / 7)
        shown = [int(share.text.removesuffix(" %")) for share in page.all("[data-part=decoder] .share")]
        assert shown == pytest.approx(expected, abs=0.6)
        page.click("next")
    assert len(page.all("[data-part=encoder] .cells span")) == 3 * 2 * 7


def test_the_words_of_each_memory_capsule(show, report):
    page = show(report)
    agreement = report["systems"][1]["examples"][0]["memory"]["agreement"]
    largest = max(value for iteration in agreement for word in iteration for value in word)
    for iteration in (3, 1):
        page.choose("memory-iteration", str(iteration))
        rows = page.all("[data-part=memory] li")
        assert len(rows) == 5
        for capsule, row in enumerate(rows):
            words = row.find_elements(By.CSS_SELECTOR, ".words span")
            assert [word.text for word in words] == ["A", "dog", "sleeps", "."]
            colours = [word.value_of_css_property("background-color") for word in words]
            shades = [float(re.search(r"/ ([\d.]+)\)", colour)[1]) for colour in colours]
            values = [word[capsule] for word in agreement[iteration - 1]]
            assert shades == pytest.approx([0.6 * value / largest for value in values], abs=0.01)


def test_systems_and_sentences_are_chosen(show, report):
    page = show(report)
    names = ("stepper", "guided-part", "decoder-part", "memory-part", "encoder-part", "nothing", "system-label")
    assert page.find("[data-part=system]").get_attribute("value") == "routed"
    assert page.shown(*names) == [*names[:5], "system-label"]
    page.click("next")
    page.choose("system", "plain")
    assert page.shown(*names) == ["nothing", "system-label"]
    assert [term.text for term in page.all("[data-part=texts] .chosen")] == ["plain"]
    assert [text.text for text in page.all("[data-part=texts] dd")][2:] == ["Der Hund schlief.", "Ein Hund schläft."]
    # a sentence that only the other system has
    page.choose("sentence", "2. A second sentence.")
    assert page.find("[data-part=system]").get_attribute("value") == "routed"
    assert page.shown(*names) == [*names[:5]]
    assert page.step() == 1


def test_playing_runs_to_the_end(show, report):
    page = show(report)
    page.all("[data-part=target] button")[2].click()
    page.click("play")
    assert (page.find("[data-part=play]").text, page.find("[data-part=play]").get_attribute("aria-pressed")) == (
        "Pause",
        "true",
    )
    WebDriverWait(page.browser, 6, 0.1).until(lambda _: page.find("[data-part=play]").text == "Play")
    assert page.step() == 5


def test_attentions_are_compared_where_groups_do_not_add_up(show, report):
    example = report["systems"][1]["examples"][0]
    example["guided"] = {"groups": ["PAST", "FUTURE"], "assignment": [[[0.1, 0.3], [0, 0], [0.2, 0], [0.7, 0.7]]] * 5}
    page = show(report)
    assert list(page.words().values()) == [[25, 75], [50, 50], [100, 0], [50, 50]]
    assert "attention" in page.find("[data-part=guided-note]").text


def test_nothing_is_wider_than_the_window(show, report):
    report["systems"][1]["name"] = "a_system_with_a_name_that_is_far_too_long_for_a_phone"
    report["comparison"]["systems"] = {report["systems"][1]["name"]: report["comparison"]["systems"]["routed"]}
    tokens = [f"Donaudampfschifffahrt{index}" for index in range(20)]
    example = report["systems"][1]["examples"][0]
    example["target_tokens"] = tokens
    example["guided"]["assignment"] = [example["guided"]["assignment"][0]] * 20
    example["decoder"]["agreement"] = [example["decoder"]["agreement"][0]] * 20
    example["source"] = example["translation"] = "".join(tokens)
    report["systems"][0]["examples"][0]["source"] = example["source"]
    page = show(report, with_figures=True)
    run = page.browser.execute_script
    images = "return [...document.querySelectorAll('figure img')].map((image) => [image.complete, image.naturalWidth])"
    assert len(run(images)) == 7
    assert all(complete and natural > 300 for complete, natural in run(images))
    run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    for width in (360, 1280):
        resize(page.browser, width)
        assert run("return innerWidth") == width
        assert run("return document.documentElement.scrollWidth") <= width
        outside = """
            return [...document.querySelectorAll("body *")].filter((node) =>
                node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".scroll, pre, .skip"))
                .map((node) => `${node.tagName} ${node.id} ${node.className}`)"""
        assert run(outside) == []
        # what is clicked is large enough for a finger
        for name in ("previous", "next", "play", "step"):
            assert page.find(f"[data-part={name}]").size["height"] >= 36


LUMINANCE = """
    const part = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((c) => part(c / 255))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const style = getComputedStyle(arguments[0]), paper = getComputedStyle(document.body).backgroundColor;
    return [light(style.color), light(paper)]"""


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark_mode(show, report, mode):
    page = show(report, with_figures=True)
    emulate = page.browser.execute_cdp_cmd
    emulate("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]})
    for selector in ("h1", ".note", "nav a", "figcaption", "tbody th"):
        text, paper = page.browser.execute_script(LUMINANCE, page.find(selector))
        assert (text > paper) == (mode == "dark")
        assert (max(text, paper) + 0.05) / (min(text, paper) + 0.05) > 4.5
    # the figures ask for the mode themselves: what they draw text with, and no paper of their own
    drawn = """
        const image = document.querySelector("figure img"), canvas = document.createElement("canvas");
        canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
        const context = canvas.getContext("2d", {willReadFrequently: true});
        context.drawImage(image, 0, 0);
        return [...context.getImageData(3, 3, 1, 1).data]"""
    assert page.browser.execute_script(drawn) == ([255] * 4 if mode == "light" else [0] * 4)
    emulate("Emulation.setEmulatedMedia", {"features": []})


def test_names_stay_in_sight_on_phones_while_a_table_scrolls(show, report):
    page = show(report)
    run = page.browser.execute_script
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    wide = "[...document.querySelectorAll('.scroll:has(table)')].filter((node) => node.scrollWidth > node.clientWidth)"
    assert run(f"return {wide}.length") > 0
    run(f"{wide}.forEach((node) => {{ node.scrollLeft = 1000; }})")
    lefts = run(
        f"return {wide}.map((node) => node.querySelector('tbody th').getBoundingClientRect().left"
        " - node.getBoundingClientRect().left)"
    )
    assert lefts == pytest.approx([0] * len(lefts), abs=1)
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_table_is_cut_on_paper(show, report):
    page = show(report)
    # the text of a page of A4
    size = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.browser.execute_script("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    widths = page.browser.execute_script(
        "return [...document.querySelectorAll('table')].map((node) => node.getBoundingClientRect().right)"
    )
    assert len(widths) >= 4 and max(widths) <= 718
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_readers_who_want_less_motion_get_none(show, report):
    page = show(report)
    moving = "return getComputedStyle(document.querySelector('.parts span')).transitionDuration"
    assert page.browser.execute_script(moving) == "0.3s"
    prefer(page.browser, prefers_reduced_motion="reduce")
    assert page.browser.execute_script(moving) == "0s"


def test_text_stays_text(show, report):
    evil = "</script><script>document.title = 'broken'</script><img src=x onerror=\"document.title = 'broken'\">"
    report["systems"][1]["name"] = evil
    example = report["systems"][1]["examples"][0]
    example["source"] = example["translation"] = example["source_tokens"][0] = example["target_tokens"][0] = evil
    report["systems"][0]["examples"][0]["source"] = evil
    page = show(report)
    assert page.browser.title == "Tiny test"
    assert page.find("[data-part=target] button").text == evil
    assert page.find("[data-part=texts] dd").text == evil
    assert page.all("img") == []
