"""What every page has: traffic and its alarm, tokens, keyboard use, a content policy, and a readable layout."""

import os
import re
from pathlib import Path

import httpx
import pytest

from besnn import Detector

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
expect = playwright.expect

TOKEN = "correct-horse-battery-staple"


def test_traffic_raises_the_alarm(opened, moons_detector: Detector, start):
    with start(moons_detector) as client, opened(client) as page:
        expect(page.locator("#alarm")).to_contain_text("No drift alarm")
        client.post("/v1/predict", json={"inputs": [[9.0, 9.0]] * 60})
        expect(page.locator("#alarm")).to_contain_text("Drift alarm at input", timeout=10_000)
        expect(page.locator("#traffic")).to_contain_text("60 inputs; 100.0 % unknown")
        assert page.locator("#traffic svg .unknown-fill").count() == 60


def test_inputs_can_be_left_out_of_traffic(opened, moons_detector: Detector, start):
    with start(moons_detector) as client, opened(client) as page:
        page.get_by_label("Count my inputs as traffic").uncheck()
        page.get_by_role("button", name="Predict").click()
        expect(page.locator("#opinions")).to_be_visible()
        assert client.get("/v1/drift").json()["steps"] == 0


def test_everything_can_be_reached_by_keyboard(opened, digits_page: httpx.Client):
    describe = """() => {
        const node = document.activeElement;
        const seen = node.id === "files" ? node.parentElement : node;
        const marked = getComputedStyle(seen).outlineStyle !== "none" && seen.getBoundingClientRect().width > 10;
        return [node.id || node.getAttribute("aria-label") || node.textContent, marked];
    }"""
    with opened(digits_page) as page:
        expect(page.locator("#main")).to_be_visible()
        expect(page.locator("#gallery button")).to_have_count(18)
        stops = []
        for _ in range(page.locator("a, main button, main input, canvas[tabindex]").count()):
            page.keyboard.press("Tab")
            stops.append(page.evaluate(describe))
        names = [name for name, _ in stops]
        assert all(marked for _, marked in stops), stops
        assert len(set(names)) == len(names)
        assert names[:2] == ["Skip to the answer", "files"]
        assert {"observe", "Clear the board", "Known example 1", "Unknown example 6"} <= set(names)
        page.get_by_role("button", name="Known example 2", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#verdict")).to_have_class("known")


def test_the_content_policy_stops_foreign_code(opened, moons_page: httpx.Client):
    with opened(moons_page, excused="Content Security Policy") as page:
        page.evaluate("""() => {
            window.violations = [];
            document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.foreign = true";
            document.body.append(script);
            document.body.setAttribute("style", "color: red");
            fetch("http://example.invalid/").catch(() => {});
        }""")
        page.wait_for_function("window.violations.length >= 3")
        assert set(page.evaluate("window.violations")) == {"script-src-elem", "style-src-attr", "connect-src"}
        assert page.evaluate("window.foreign") is None


def test_a_token_is_asked_for(opened, moons_detector: Detector, start):
    with start(moons_detector, token=TOKEN) as client, opened(client, excused="status of 401") as page:
        expect(page.locator("#main")).to_be_hidden()
        for token in ("wrong", TOKEN):
            page.get_by_label("This service requires a token").fill(token)
            page.get_by_role("button", name="Use token").click()
            if token == "wrong":
                expect(page.get_by_role("alert")).to_contain_text("does not accept")
        expect(page.locator("#main")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_hidden()
        page.get_by_role("button", name="Predict").click()
        expect(page.locator("#opinions")).to_be_visible()


# The least contrast (WCAG) of any visible text with what lies under it.
CONTRAST = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const light = (rgb) => {
        const [r, g, b] = rgb.slice(0, 3).map(linear);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const under = (node) => {
        for (; node; node = node.parentElement) {
            const colour = parse(getComputedStyle(node).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    let least = 21;
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility()) continue;
        const style = getComputedStyle(node);
        const pair = [light(parse(node instanceof SVGElement ? style.fill : style.color)), light(under(node))];
        least = Math.min(least, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05));
    }
    return least;
}"""

# Controls that a screen reader has no name for.
UNNAMED = """() => [...document.querySelectorAll("button, input, canvas, svg, img")]
    .filter((node) => node.checkVisibility() && !node.closest("[aria-hidden=true]"))
    .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length || node.alt === ""))
    .map((node) => node.outerHTML)"""


def screenshot(page: "playwright.Page", name: str) -> None:
    """Keeps a picture of the page in $BESNN_SCREENSHOTS, if that is set."""
    if folder := os.environ.get("BESNN_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("data", ["digits", "moons"])
def test_it_fits_and_reads_well(
    opened, digits_page: httpx.Client, moons_page: httpx.Client, data: str, width: int, scheme: str
):
    with opened({"digits": digits_page, "moons": moons_page}[data], width=width, scheme=scheme) as page:
        for place in (0, 7, 13):  # one of each kind
            page.locator("#gallery button").nth(place).click()
            expect(page.locator("#gauge figure")).to_be_visible()
        expect(page.locator("#verdict")).to_have_class("unknown")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) >= 4.5
        assert page.evaluate(UNNAMED) == []
        paper = sum(map(float, re.findall(r"[\d.]+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))
        assert (paper > 600) == (scheme == "light")
        screenshot(page, f"{data}-{width}-{scheme}")
        page.set_viewport_size({"width": 320, "height": 600})  # the narrowest that WCAG asks for
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
