"""The page in headless Chromium: chat, document, settings, keys, the live view, themes, narrow windows, names."""

import json
import threading
import urllib.request

import pytest
from conftest import PICTURES, Server, look
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

FILLER = "The road to the harbour was quiet that morning, and nobody had lit the stove yet. "
DOCUMENT = FILLER * 6 + "The code of the amber lantern is 74912. " + FILLER * 6
QUESTION = "What is the code of the amber lantern?"
ENDLESS = {"temperature": "0", "max_tokens": "20000"}


def find(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def wait(browser, condition, seconds=60):
    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(lambda _: condition())


def open_page(browser, server):
    browser.get(server.url + "/")
    wait(browser, lambda: "context" in find(browser, "#model").text)


def settings(browser, **values):
    browser.execute_script("document.getElementById('settings').open = true")
    for name, value in values.items():
        find(browser, "#system" if name == "system" else f"#settings [name={name}]").send_keys(value)


def answers(browser):
    """Texts of the answers that have ended."""
    return [item.find_element(By.CLASS_NAME, "text").text
            for item in browser.find_elements(By.CSS_SELECTOR, "#log li.assistant:has(.figures)")]


def ask(browser, text):
    before = len(answers(browser))
    find(browser, "#prompt").send_keys(text, Keys.ENTER)
    wait(browser, lambda: len(answers(browser)) > before)
    return answers(browser)[-1]


def attach(browser, tmp_path, content, name="notes.txt"):
    path = tmp_path / name
    path.write_bytes(content)
    find(browser, "#file").send_keys(str(path))


def crowd(server, stop):
    """Requests that share a document and run until `stop` is set; returns their threads."""
    def run(number):
        body = {"messages": [{"role": "user", "content": f"{DOCUMENT * 3}\n\n{number}: {QUESTION}"}], "stream": True,
                "max_tokens": 1500, "ignore_eos": True}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            while not stop.is_set() and answer.readline():
                pass
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    return threads


def test_answers_about_a_document(browser, server, tmp_path):
    open_page(browser, server)
    settings(browser, temperature="0", max_tokens="32")
    attach(browser, tmp_path, DOCUMENT.encode())
    wait(browser, lambda: find(browser, "#document").is_displayed())
    assert "notes.txt" in find(browser, "#document-name").text
    assert "74912" in ask(browser, QUESTION)
    assert not find(browser, "#document").is_displayed()
    figures = find(browser, "#log li.assistant .figures").text
    assert "first token" in figures and "prompt" in figures
    assert "74912" in find(browser, "#chat-status").get_attribute("textContent")  # what a screen reader says
    assert find(browser, "#log li.user .text").text == QUESTION  # not the document
    find(browser, "#retry").click()
    wait(browser, lambda: not find(browser, "#stop").is_enabled() and len(answers(browser)) == 1)
    assert "74912" in answers(browser)[0]
    find(browser, "#clear").click()
    assert browser.find_elements(By.CSS_SELECTOR, "#log li") == []


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stops(browser, server, how):
    open_page(browser, server)
    settings(browser, **ENDLESS)
    # Sends like the page, but for ignore_eos, which it has no field for: the answer must be long enough to be stopped.
    browser.execute_script("""
      const send = window.fetch;
      window.fetch = (path, options) => send(path, options?.body
        ? {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options);""")
    find(browser, "#prompt").send_keys("Tell me a story.", Keys.ENTER)
    wait(browser, lambda: len(find(browser, "#log li.assistant .text").text) > 20)
    assert find(browser, "#stop").is_enabled() and not find(browser, "#send").is_enabled()
    if how == "button":
        find(browser, "#stop").click()
    else:
        find(browser, "#prompt").send_keys(Keys.ESCAPE)
    wait(browser, lambda: answers(browser))
    assert "stopped" in find(browser, "#log li.assistant .figures").text
    assert find(browser, "#send").is_enabled()
    wait(browser, lambda: json.load(urllib.request.urlopen(server.url + "/engine.json"))["requests"]["running"] == 0)


def test_shows_what_the_server_refuses(browser, server):
    open_page(browser, server)
    settings(browser, max_tokens="100000000")
    find(browser, "#prompt").send_keys("Hello", Keys.ENTER)
    wait(browser, lambda: answers(browser))
    assert "the context holds" in find(browser, "#log li.assistant .error").text
    refused = browser.get_log("browser")
    assert len(refused) == 1 and " 400 " in refused[0]["message"]


def test_text_is_never_markup(browser, server):
    open_page(browser, server)
    settings(browser, temperature="0", max_tokens="4", system="<b>system</b>")
    text = "<img src=x onerror=alert(1)><script>document.title = 'taken'</script>"
    ask(browser, text)
    assert find(browser, "#log li.user .text").text == text
    assert browser.find_elements(By.CSS_SELECTOR, "#log img, #log script, #log b") == []
    assert browser.title == "Fovea"


def test_refuses_what_is_no_text(browser, server, tmp_path):
    open_page(browser, server)
    attach(browser, tmp_path, b"\x89PNG\r\n\x1a\n\xff\x00", "picture.png")
    wait(browser, lambda: "no UTF-8 text" in find(browser, "#prompt-help").text)
    assert not find(browser, "#document").is_displayed()


def test_takes_a_dropped_document(browser, server):
    open_page(browser, server)
    browser.execute_script("""
      const data = new DataTransfer();
      data.items.add(new File([arguments[0]], 'dropped.txt', {type: 'text/plain'}));
      document.getElementById('log').dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data}));
      """, DOCUMENT)
    wait(browser, lambda: "dropped.txt" in find(browser, "#document-name").text)
    find(browser, "#remove").click()
    assert not find(browser, "#document").is_displayed()


def test_the_live_view_follows_the_engine(browser, server):
    open_page(browser, server)
    stop = threading.Event()
    threads = crowd(server, stop)
    try:
        wait(browser, lambda: find(browser, "#figure-running").text == "4")
        wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#tree rect.shared"))
        wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline rect.shared"))
        wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#requests tr")) == 4)
        wait(browser, lambda: find(browser, "#figure-tokens-a-second").text not in ("–", "0.0"))
        wait(browser, lambda: find(browser, "#figure-token-gap-p99").text != "–")
        assert "workers" in find(browser, "#timeline svg").get_attribute("aria-label")
        assert "shared" in find(browser, "#pools").text
        for name, width, height, scheme in (("light", 1280, 900, "light"), ("dark", 1280, 900, "dark"),
                                            ("narrow", 360, 740, "light"), ("narrow-dark", 360, 740, "dark")):
            look(browser, width, height, scheme)
            wait(browser, lambda width=width: browser.execute_script("return document.documentElement.clientWidth") <= width)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name
            browser.save_screenshot(str(PICTURES / f"{name}.png"))
            if width == 360:
                browser.execute_script("document.getElementById('engine').scrollIntoView()")
                browser.save_screenshot(str(PICTURES / f"{name}-engine.png"))
        look(browser, 1280, 900)
        find(browser, "#pause").click()
        assert find(browser, "#pause").get_attribute("aria-pressed") == "true"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    find(browser, "#pause").click()
    wait(browser, lambda: find(browser, "#figure-running").text == "0")
    assert find(browser, "#requests-note").text == "No request now."
    assert browser.find_elements(By.CSS_SELECTOR, "#tree rect.cached")


def test_asks_for_the_key_and_forgets_it(browser):
    server = Server("--api-key", "secret")
    try:
        browser.get(server.url + "/")
        dialog = find(browser, "#key-dialog")
        wait(browser, dialog.is_displayed)
        find(browser, "#key").send_keys("wrong", Keys.ENTER)
        wait(browser, lambda: dialog.is_displayed() and find(browser, "#key").get_attribute("value") == "")
        find(browser, "#key").send_keys("secret", Keys.ENTER)
        wait(browser, lambda: "context" in find(browser, "#model").text)
        settings(browser, temperature="0", max_tokens="4")
        ask(browser, "Hello")
        assert browser.find_elements(By.CSS_SELECTOR, "#log .error") == []
        kept = browser.execute_script("return [localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        browser.refresh()
        wait(browser, lambda: find(browser, "#key-dialog").is_displayed())
        find(browser, "#key-dialog button[value=cancel]").click()
        wait(browser, lambda: "API key" in find(browser, "#engine-status").text)
    finally:
        assert server.stop() == 0


def test_says_when_the_server_is_gone(browser):
    server = Server()
    open_page(browser, server)
    assert server.stop() == 0
    wait(browser, lambda: "cannot be reached" in find(browser, "#engine-status").text)
    browser.get_log("browser")  # refused connections are what was asked for


def test_everything_has_a_name_and_is_reached_by_keyboard(browser, server):
    open_page(browser, server)
    settings(browser)
    controls = browser.find_elements(By.CSS_SELECTOR, "main button, main textarea, main input:not([hidden]), main summary")
    assert len(controls) > 10
    for control in controls:
        assert control.accessible_name != "" or not control.is_displayed(), control.get_attribute("outerHTML")
    find(browser, "#prompt").send_keys("x")
    browser.execute_script("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(browser.switch_to.active_element.get_attribute("id"))
    assert {"log", "prompt", "send", "attach", "system", "pause"} <= reached


def luminance(colour):
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1:-1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser, server, scheme):
    look(browser, 1280, 900, scheme)
    open_page(browser, server)
    settings(browser)
    colours = browser.execute_script("""
      const colours = [];
      for (const node of document.querySelectorAll('h1, h2, h3, p, label, button:not(:disabled), dt, dd, th, textarea, a')) {
        let behind = node;
        while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
        colours.push([node.id || node.tagName, getComputedStyle(node).color, getComputedStyle(behind).backgroundColor]);
      }
      return colours;""")
    assert len(colours) > 30
    for name, text, behind in colours:
        light, dark = sorted((luminance(text), luminance(behind)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, text, behind)
    grounds = {behind for _, _, behind in colours}
    assert any(luminance(ground) > 0.8 for ground in grounds) == (scheme == "light")
