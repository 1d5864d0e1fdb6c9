"""Headless Chromium and a live `fovea serve` for the tests of the page. Run by `make test-page`.

FOVEA_BINARY names the binary (default build/release/fovea). Screenshots go to build/page.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("FOVEA_BINARY", str(ROOT / "build/release/fovea"))
PICTURES = ROOT / "build/page"


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([BINARY, "serve", "--port", "0", "--quiet", *arguments], stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server did not start: {line!r}"
        self.url = found.group()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="session")
def server():
    one = Server()
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="session")
def chromium():
    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_script_timeout(30)
    PICTURES.mkdir(parents=True, exist_ok=True)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """A window of 1280 x 900, light; what the browser logs is an error of the test, such as what the policy blocks."""
    look(chromium, 1280, 900)
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield chromium
    logged = [entry["message"] for entry in chromium.get_log("browser")]
    assert [line for line in logged if " 401 " not in line] == []


def look(chromium, width, height, scheme="light"):
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                             {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia",
                             {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
