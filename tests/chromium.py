"""A real browser for the tests that click through pages."""

import shutil
from pathlib import Path

import pytest

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1280,800",
)


def start(profile: Path):
    """A headless Chromium with a fresh profile, whose logs say what it loaded; the test is skipped without one."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("needs chromium and chromedriver")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))


def resize(browser, width: int, height: int = 900) -> None:
    """The window of a phone or a desktop, in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser, **features: str) -> None:
    """What the reader prefers, such as prefers_color_scheme="dark"; nothing takes it back."""
    media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
