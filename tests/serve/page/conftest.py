"""A browser, and pages of services in it. The browser is $BESNN_CHROMIUM, or one that is installed."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from besnn import Detector, fit_detector
from besnn.data import Dataset, two_moons
from besnn.serve.examples import choose_examples
from besnn.training import load_recipe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("BESNN_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 20_000  # milliseconds


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    if CHROMIUM is None:
        pytest.skip("no browser: apt-get install chromium, or name one in BESNN_CHROMIUM")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: "Browser") -> Callable[..., AbstractContextManager["Page"]]:
    """Opens the page of a service. Fails if the page logs an error or a warning, but for excused ones, or asks another host."""

    @contextmanager
    def page_of(
        client: httpx.Client, *, width: int = 1280, scheme: str = "light", excused: str | None = None
    ) -> Iterator["Page"]:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        complaints: list[str] = []

        def note(text: str) -> None:
            if excused is None or not re.search(excused, text):
                complaints.append(text)

        def note_request(url: str) -> None:
            if not url.startswith((str(client.base_url), "data:", "blob:")):
                note(url)

        page.on("console", lambda message: note(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.on("request", lambda request: note_request(request.url))
        page.goto(str(client.base_url))
        yield page
        context.close()
        assert complaints == []

    return page_of


@pytest.fixture(scope="module")
def digits_page(digits_detector: Detector, digit_data: Dataset, start) -> Iterator[httpx.Client]:
    with start(digits_detector, examples=choose_examples(digits_detector, digit_data.inputs)) as client:
        yield client


@pytest.fixture(scope="module")
def big_digits_page(digit_data: Dataset, start) -> Iterator[httpx.Client]:
    """Of a model for images of 28×28, the size that the drawing board is made for."""
    images = np.pad(digit_data.inputs[:600].repeat(3, axis=2).repeat(3, axis=3), ((0, 0), (0, 0), (2, 2), (2, 2)))
    data = Dataset(images, digit_data.labels[:600], digit_data.class_names, "digits of 28×28")
    quick = ["training.epochs=1", "training.gradient_every=1000", "method.members=2", "backbone.hidden=[8, 16]"]
    with start(fit_detector(load_recipe("digits", quick), data).detector) as client:
        yield client


@pytest.fixture(scope="module")
def moons_page(moons_detector: Detector, start) -> Iterator[httpx.Client]:
    with start(moons_detector, examples=choose_examples(moons_detector, two_moons(300).inputs)) as client:
        yield client
