"""The page of the server in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")
import playwright.sync_api as api

from selfdraft import Session
from selfdraft.serve.details import BONUS, CORRECTED, DRAFTED, PLAIN
from selfdraft.serve.service import Limits, Service
from test_serve import new_engine, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
    pytest.mark.xdist_group("playground"),
]
ANSWER = "#turns .turn:last-child .text"
KINDS = {DRAFTED, CORRECTED, BONUS, PLAIN}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def service() -> Service:
    return Service(new_engine(), "pico", Limits(max_tokens=200))


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """Whatever goes wrong on it fails the test."""
    context = browser.new_context()
    opened, faults = context.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.set_default_timeout(20_000)
    opened.goto(url)
    api.expect(opened.locator("#model")).to_have_text("pico")
    yield opened
    context.close()
    assert not faults


def settings(page: Any, **values: Any) -> None:
    page.locator("#ask summary").click()
    for name, value in values.items():
        field = page.locator(f"#{name}")
        if isinstance(value, bool):
            field.set_checked(value)
        elif field.evaluate("one => one.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(str(value))
    page.locator("#ask summary").click()


def say(page: Any, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")


def test_an_answer_streams_in_colours_and_is_compared(page: Any, url: str) -> None:
    settings(page, strategy="uniform", max_tokens=40)
    say(page, "abcabc")
    api.expect(page.locator("#same")).to_have_text("Both texts are the same.")
    asked = {"model": "pico", "messages": [{"role": "user", "content": "abcabc"}], "max_tokens": 40, "temperature": 0}
    right = httpx.post(f"{url}/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    assert page.locator(ANSWER).inner_text().strip() == right.strip()
    kinds = set(page.locator(f"{ANSWER} span").evaluate_all("all => all.map(one => one.className)"))
    assert kinds <= KINDS
    assert {DRAFTED, CORRECTED} <= kinds
    colours = {
        kind: page.locator(f".legend .{kind}").evaluate(
            "one => getComputedStyle(one).backgroundColor + getComputedStyle(one).borderBottomStyle"
        )
        for kind in KINDS
    }
    assert len(set(colours.values())) == len(KINDS), "told apart by colour and by line"
    for figure in ("speed", "plain", "gain", "accepted"):
        assert page.locator(f"#{figure}").inner_text() != "-"
    assert "40 tokens in" in page.locator("#why").inner_text()


def test_the_strip_shows_which_sub_layers_were_skipped(page: Any) -> None:
    settings(page, strategy="uniform", beside=False, max_tokens=12)
    say(page, "abc")
    api.expect(page.locator("#why")).to_contain_text("12 tokens in")
    assert page.locator("#strip > div").count() == 2
    assert page.locator("#strip i").count() == 2 * 5
    assert page.locator("#strip i.skipped").count() > 0
    assert "attention" in page.locator("#strip").get_attribute("aria-label")
    settings(page, strategy="off")
    say(page, "abc")
    api.expect(page.locator("#round")).to_have_text("Plain round: nothing is skipped")
    api.expect(page.locator("#strip i.skipped")).to_have_count(0)
    assert page.locator(".turn").count() == 2, "earlier turns stay"
    page.locator("#new").click()
    api.expect(page.locator(".turn")).to_have_count(0)


def test_the_model_knows_what_was_said_before(page: Any, url: str) -> None:
    settings(page, beside=False, max_tokens=8)
    bodies: list[Any] = []
    page.on("request", lambda one: bodies.append(one.post_data_json) if one.method == "POST" else None)
    for text in ("abc", "cde"):
        say(page, text)
        api.expect(page.locator("#send")).to_be_enabled()
        api.expect(page.locator(".turn footer").last).to_contain_text("8 tokens")
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[1]["messages"][1]["content"].strip() == page.locator(".turn .text").first.inner_text().strip()


def test_a_race_replays_both(page: Any) -> None:
    settings(page, strategy="uniform", max_tokens=30)
    api.expect(page.locator("#race")).to_be_disabled()
    say(page, "abcabc")
    page.locator("#race").click()
    api.expect(page.locator("#course")).to_be_visible()
    text = page.locator(ANSWER).inner_text()
    for lane in ("plain", "own"):
        api.expect(page.locator(f"#lane-{lane}")).to_have_text(text)
        assert page.locator(f"#time-{lane}").inner_text().endswith(" s")
    assert not page.locator("#lane-plain .drafted").count()
    page.keyboard.press("Escape")
    api.expect(page.locator("#course")).to_be_hidden()


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_can_be_stopped(page: Any, service: Service, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    step = Session.step
    monkeypatch.setattr(Session, "step", lambda one: (time.sleep(0.05), step(one))[1])
    settings(page, strategy="off", max_tokens=150)
    say(page, "abc")
    api.expect(page.locator(f"{ANSWER} span").nth(3)).to_be_attached()
    page.locator("#stop").click() if way == "button" else page.keyboard.press("Escape")
    api.expect(page.locator("#status")).to_have_text("Stopped. What was written is kept.")
    kept = page.locator(ANSWER).inner_text()
    assert kept
    deadline = time.monotonic() + 20
    while service.scheduler.num_running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not service.scheduler.num_running, "the server stops, too"
    assert page.locator(ANSWER).inner_text() == kept


def test_what_the_server_refuses_is_said_and_the_page_goes_on(page: Any) -> None:
    settings(page, strategy="fixed")
    say(page, "abc")
    api.expect(page.locator("#status.error")).to_contain_text("fixed.skip")
    settings(page, strategy="auto", max_tokens=5, beside=False)
    say(page, "abc")
    api.expect(page.locator(".turn footer").last).to_contain_text("5 tokens")


def test_a_server_that_is_gone_is_told(browser: Any) -> None:
    opened = browser.new_page()
    with serving(Service(new_engine(), "pico", Limits())) as address:
        opened.goto(address)
        api.expect(opened.locator("#model")).to_have_text("pico")
    say(opened, "abc")
    api.expect(opened.locator("#status.error")).to_contain_text("The server does not answer")
    api.expect(opened.locator("#send")).to_be_enabled()
    opened.close()


def test_a_key_is_asked_for(browser: Any) -> None:
    opened = browser.new_page()
    with serving(Service(new_engine(), "pico", Limits()), keys=["secret"]) as address:
        opened.goto(address)
        api.expect(opened.locator("#status.error")).to_contain_text("wants an API key")
        opened.locator("#ask summary").click()
        opened.locator("#key").fill("secret")
        opened.locator("#key").press("Tab")
        api.expect(opened.locator("#model")).to_have_text("pico")
    opened.close()


@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 1200)])
def test_it_fits_phones_and_both_schemes(browser: Any, url: str, tmp_path: Path, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(url)
    settings(opened, strategy="uniform", max_tokens=30)
    say(opened, "abcabc")
    api.expect(opened.locator("#same")).to_have_text("Both texts are the same.")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert opened.screenshot(path=tmp_path / "page.png", full_page=True)
    context.close()


def test_everything_can_be_reached_by_keyboard(page: Any) -> None:
    page.locator("#prompt").focus()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"send", "new"} <= set(seen)
    assert "SUMMARY" in seen
