"""How the page looks, wide and narrow, light and dark. Screenshots go to $BESNN_SCREENSHOTS, if that is set."""

import os
import re
from pathlib import Path

import httpx
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
expect = playwright.expect

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
