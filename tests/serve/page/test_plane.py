"""The page of a model of two columns: a map with a point that is dragged over it."""

import io

import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
expect = playwright.expect

UNKNOWN = "I don’t know this"


def test_the_point_on_the_map_can_be_dragged(opened, moons_page: httpx.Client, moons_detector: Detector):
    with opened(moons_page) as page:
        canvas = page.locator(".plane canvas")
        box = canvas.bounding_box()
        assert box is not None
        expect(page.locator("#main")).to_be_visible()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + 5, box["y"] + 5, steps=5)
        page.mouse.up()
        expect(page.locator("#verdict")).to_have_text(UNKNOWN)
        place = [float(page.get_by_label(name).input_value()) for name in ("x1", "x2")]
        mean, std = moons_detector.preprocessing.mean.numpy(), moons_detector.preprocessing.std.numpy()
        np.testing.assert_allclose((np.array(place) - mean) / std, [-4, 4], atol=0.2)


def test_the_map_is_moved_over_by_keys_and_numbers(opened, moons_page: httpx.Client):
    with opened(moons_page) as page:
        first = float(page.get_by_label("x1").input_value())
        page.locator(".plane canvas").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#opinions")).to_be_visible()
        assert float(page.get_by_label("x1").input_value()) > first
        page.get_by_label("x1").fill("50")
        page.keyboard.press("Enter")
        expect(page.locator("#verdict")).to_have_text(UNKNOWN)


def test_the_map_shows_where_the_model_knows(opened, moons_page: httpx.Client, moons_detector: Detector):
    across, down = np.meshgrid((np.arange(48) + 0.25) / 48, (np.arange(36) + 0.25) / 36)  # in the middle of cells
    with opened(moons_page) as page:
        canvas = page.locator(".plane canvas")
        expect(canvas).not_to_have_attribute("aria-busy", "true")
        with Image.open(io.BytesIO(canvas.screenshot())) as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    colourful = np.ptp(pixels[(down * height).astype(int), (across * width).astype(int)], axis=-1) > 40
    mean, std = moons_detector.preprocessing.mean.numpy(), moons_detector.preprocessing.std.numpy()
    points = mean + 4 * std * np.stack([2 * across - 1, 1 - 2 * down], axis=-1)  # four deviations to each side
    known = ~moons_detector.predict(points.reshape(-1, 2)).is_ood.reshape(across.shape)
    assert 0.02 < known.mean() < 0.6
    assert (colourful == known).mean() > 0.97  # but for the dot, and edges that scaling blurs
