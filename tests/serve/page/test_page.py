"""What every page has: traffic and its alarm, tokens, keyboard use, a content policy."""

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


def test_what_should_not_count_does_not(opened, moons_detector: Detector, start):
    with start(moons_detector) as client, opened(client) as page:
        page.get_by_label("Count my inputs as traffic").uncheck()
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("#opinions")).to_be_visible()
        assert client.get("/v1/drift").json()["steps"] == 0


def test_all_of_it_can_be_reached_by_keyboard(opened, digits_page: httpx.Client):
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
            page.get_by_label("This service asks for a token").fill(token)
            page.get_by_role("button", name="Use it").click()
            if token == "wrong":
                expect(page.get_by_role("alert")).to_contain_text("not the token")
        expect(page.locator("#main")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_hidden()
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("#opinions")).to_be_visible()
