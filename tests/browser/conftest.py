"""Chromium of the machine (Debian's package), logged in to the tests' Airflow as one of its users."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.airflow.real import RealAirflow, started

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000.0
"""Milliseconds that a test waits for what a page must show."""
PICTURES = os.environ.get("PICTURES")
"""A folder for screenshots of every test's last page, to be looked at."""


@pytest.fixture(scope="session")
def real() -> RealAirflow:
    return started()


@pytest.fixture(scope="module")  # Playwright keeps an event loop running in this thread: it must end before other tests
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "no Chromium on this machine: apt-get install chromium"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def login(real: RealAirflow, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Open a page as a user; anything the browser complains about fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def outside(url: str) -> bool:
        return not url.startswith((real.url, "data:", "blob:", "about:"))

    def open_page(user: str, path: str, *, dark: bool = False, width: int = 1440) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme="dark" if dark else "light", locale="en-GB"
        )
        contexts.append(context)
        context.add_cookies([{"name": "_token", "value": real.token(user), "url": real.url}])
        context.add_init_script(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: complaints.append(sent.url) if outside(sent.url) else None)
        page.goto(real.url + path)
        return page

    yield open_page
    for number, context in enumerate(contexts):
        if PICTURES and context.pages:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            context.pages[-1].screenshot(path=f"{PICTURES}/{request.node.name}-{number}.png")
        context.close()
    assert complaints == [], "errors of scripts, or requests to somewhere else"
