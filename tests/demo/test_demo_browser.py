"""The demonstration in a real browser: one server as the command starts it, for all tests."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("selenium", reason="needs selenium")
pytest.importorskip("gradio", reason="needs gradio")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from chromium import prefer, resize
from hf_capsule_mt.evaluation.checkpoints import load_checkpoint
from hf_capsule_mt.hub.conversion import convert
from tiny_translation import PAIRS, SOURCES

SENTENCE = SOURCES[1]


@pytest.fixture(scope="module")
def address(runs):
    """Of the command's server for the plain and the guided model."""
    command = [sys.executable, "-m", "hf_capsule_mt", "demo", str(runs.plain), f"GDR={runs.guided}"]
    # a proxy would be asked for this machine's own address
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    line = server.stdout.readline()
    yield re.fullmatch(r"plain and GDR: (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)[1]
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=60) == 130


@pytest.fixture
def page(browser, address):
    """The page as it is opened; afterwards nothing may have gone wrong or come from elsewhere."""
    resize(browser, 1280)
    browser.get_log("browser")
    browser.get(address)
    shown = Page(browser)
    shown.wait("#sentence textarea")
    yield shown
    messages = [entry["message"] for entry in browser.get_log("browser")]
    # the page that is left closes its connections
    assert [
        message for message in messages if "AbortError" not in message and "Connection errored" not in message
    ] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((address, "data:", "blob:", "chrome:")) for url in urls)


class Page:
    """What a reader sees and does; `left` and `right` are the views of the two systems."""

    left, right = 0, 1

    def __init__(self, browser):
        self.browser = browser

    def wait(self, selector):
        return WebDriverWait(self.browser, 20, 0.05).until(
            lambda _: self.browser.find_element(By.CSS_SELECTOR, selector)
        )

    def view(self, side):
        return self.browser.find_elements(By.CSS_SELECTOR, ".routing-view")[side]

    def part(self, side, name):
        return self.view(side).find_element(By.CSS_SELECTOR, f"[data-part={name}]")

    def send(self, text):
        box = self.wait("#sentence textarea")
        self.browser.execute_script("arguments[0].value = ''", box)
        box.send_keys(text, Keys.ENTER)

    def finished(self):
        """Waits until both views are there and do not grow any more."""
        script = """
            return [...document.querySelectorAll(".routing-view")].every((view) => !view.hidden
                && !view.querySelector(".growing"))
                && [...document.querySelectorAll("[data-part=source] li")].length > 0"""
        WebDriverWait(self.browser, 20, 0.05).until(lambda _: self.browser.execute_script(script))

    def translations(self):
        return [self.view(side).find_element(By.CSS_SELECTOR, ".texts dd").text for side in (self.left, self.right)]

    def growing(self):
        return self.browser.execute_script("return document.querySelector('.routing-view .growing') !== null")

    def left_translation(self):
        return self.browser.execute_script("return document.querySelector('.routing-view .texts dd').textContent")

    def notice(self):
        # in one go: it is replaced meanwhile
        text = "return (document.querySelector('#notice .notice') || { textContent: '' }).textContent"
        return self.browser.execute_script(text)

    def overflow(self):
        return self.browser.execute_script("return document.documentElement.scrollWidth - innerWidth")


def test_type_step_and_compare(page):
    page.send(SENTENCE)
    page.finished()
    left, right = page.translations()
    assert left == PAIRS[SENTENCE] and right != left
    marked = [mark.text for mark in page.view(page.left).find_elements(By.TAG_NAME, "mark")]
    assert marked and set(marked) <= set(left.split()) and not set(marked) & set(right.split())
    assert page.part(page.left, "nothing").is_displayed() and not page.part(page.left, "stepper").is_displayed()
    # the slider, the buttons and the words go to the same steps
    assert page.part(page.right, "position").text.startswith("Step 1 of ")
    page.part(page.right, "step").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.part(page.right, "position").text.startswith("Step 3 of ")
    page.part(page.right, "previous").click()
    assert page.part(page.right, "position").text.startswith("Step 2 of ")
    groups = page.part(page.right, "totals").text
    assert [group.split()[0] for group in groups.split("\n")] == ["PAST", "FUTURE", "REDUNDANT"]
    for name in ("guided-part", "decoder-part", "encoder-part"):
        assert page.part(page.right, name).is_displayed()
    assert not page.part(page.right, "memory-part").is_displayed()


def test_a_greedy_translation_is_seen_growing(page):
    page.browser.execute_script("""
        const left = document.querySelector(".routing-view");
        window.seen = [];
        new MutationObserver(() => {
            const text = left.querySelector("dd.growing");
            if (text) window.seen.push(text.textContent);
        }).observe(left, { subtree: true, childList: true });
    """)
    page.send(SENTENCE)
    page.finished()
    seen = page.browser.execute_script("return window.seen")
    assert len(set(seen)) > 3
    assert all(PAIRS[SENTENCE].startswith(text) for text in seen)


def test_beams_and_examples(page):
    beams = page.wait("#beams input[type=number]")
    beams.send_keys(Keys.CONTROL, "a")
    beams.send_keys("3", Keys.TAB)
    examples = page.browser.find_elements(By.CSS_SELECTOR, "#examples .gallery-item")
    assert [example.text for example in examples] == SOURCES[:3]

    def choose(*numbers):
        # wherever they are: the page is being laid out; several in one go, no answer comes between them
        chosen = [examples[number] for number in numbers]
        page.browser.execute_script("arguments[0].forEach((example) => example.click())", chosen)

    choose(1)
    page.finished()
    assert page.wait("#sentence textarea").get_attribute("value") == SOURCES[1]
    assert page.translations()[0] == PAIRS[SOURCES[1]]
    # what is chosen while the page is busy has its turn
    choose(0, 1, 2)
    WebDriverWait(page.browser, 20, 0.05).until(
        lambda _: not page.growing() and page.left_translation() == PAIRS[SOURCES[2]]
    )
    assert page.wait("#sentence textarea").get_attribute("value") == SOURCES[2]


def test_errors_hints_and_long_texts(page, runs):
    page.send("")
    WebDriverWait(page.browser, 20, 0.05).until(lambda _: page.notice())
    assert page.notice() == "Type a sentence, or choose an example."
    assert not page.view(page.left).is_displayed()
    page.send(f"a dog {runs.broken} .")
    WebDriverWait(page.browser, 20, 0.05).until(lambda _: "failed" in page.notice())
    assert page.notice() == "GDR failed: IndexError: index out of range in self"
    assert page.view(page.left).is_displayed() and not page.view(page.right).is_displayed()
    page.send(" ".join(SOURCES * 9))
    page.finished()
    assert page.notice().startswith("The text is too long, and was cut after “…")
    assert page.overflow() <= 0


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    resize(page.browser, width)
    page.send(" ".join(SOURCES[:2]))
    page.finished()
    assert page.overflow() <= 0
    outside = """
        return [...document.querySelectorAll(".routing-view *")].filter((node) => node.getClientRects().length
            && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.className)"""
    assert page.browser.execute_script(outside) == []
    left, right = (page.view(side).rect for side in (page.left, page.right))
    # side by side, or below each other
    assert (left["y"] == right["y"]) == (width == 1280)
    # every step has its column
    columns = page.part(page.right, "timeline").find_elements(By.TAG_NAME, "button")
    assert len(columns) == int(page.part(page.right, "position").text.split()[-1])
    assert all(column.is_displayed() and column.size["width"] >= 10 for column in columns)


def test_dark_pages_have_dark_views(page):
    prefer(page.browser, prefers_color_scheme="dark")
    page.browser.refresh()
    page.send(SENTENCE)
    page.finished()
    colours = page.browser.execute_script("""
        const view = document.querySelectorAll(".routing-view")[1];
        const style = (selector) => getComputedStyle(view.querySelector(selector));
        return [style("[data-part=status]").color, style("[data-part=stepper]").backgroundColor]""")
    text, paper = (sum(map(float, re.findall(r"[\d.]+", colour)[:3])) for colour in colours)
    assert text > 2 * 255 and paper < 255


@pytest.fixture(scope="module")
def multilingual_address(multilingual, tmp_path_factory):
    """Of a page of an NLLB with routing, served by this process."""
    from hf_capsule_mt.demo.app import build, launch
    from hf_capsule_mt.demo.translating import System

    run = tmp_path_factory.mktemp("nllb") / "run"
    convert(multilingual("nllb"), run, aggregation="em_routing", num_capsules=4, guided_routing="routing")
    system = System("nllb", *load_checkpoint(str(run)), languages=("eng_Latn", "deu_Latn"))
    page = build([system], SOURCES[:2])
    _, address, _ = launch(page, server_name="127.0.0.1", prevent_thread_lock=True)
    yield address
    page.close()


def test_languages_are_chosen(browser, multilingual_address):
    resize(browser, 1280)
    browser.get(multilingual_address)
    page = Page(browser)

    def translate(language):
        page.send(SENTENCE)
        # in one go: they are replaced meanwhile, and those of the last sentence are there until then
        words = "return [...document.querySelectorAll('[data-part=target] li')].map((word) => word.textContent)"
        WebDriverWait(browser, 20, 0.05).until(lambda _: browser.execute_script(words)[:1] == [language])
        page.finished()

    def target(language):
        # the page sets it a moment later
        value = "return document.querySelector('#to_lang input').value"
        WebDriverWait(browser, 20, 0.05).until(lambda _: browser.execute_script(value) == language)

    field = page.wait("#to_lang input")
    target("deu_Latn")
    translate("deu_Latn")
    field.click()
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("fra_L", Keys.ENTER)
    target("fra_Latn")
    translate("fra_Latn")
    page.part(page.left, "step").send_keys(Keys.ARROW_RIGHT)
    assert page.part(page.left, "position").text.startswith("Step 2 of ")
    for width in (390, 1280):
        resize(browser, width)
        assert page.overflow() <= 0
