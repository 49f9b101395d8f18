"""Input panels: images that are chosen, dropped, pasted or drawn, examples, and the map of a model with two columns."""

import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector
from besnn.data import Dataset

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
expect = playwright.expect

UNKNOWN = "I don’t know this"
SEEN = "document.querySelector('.seen').toDataURL()"


def verdict(page: "playwright.Page") -> str:
    return str(page.locator("#verdict").inner_text())


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).resize((80, 80), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def test_a_chosen_image_is_answered_in_words_and_pictures(opened, digits_page: httpx.Client, digit_data: Dataset):
    file = png(digit_data.inputs[0, 0])
    expected = digits_page.post("/v1/predict?members=true&observe=false", files={"x": ("x.png", file)}).json()["predictions"][0]
    with opened(digits_page) as page:
        page.locator("#files").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": file})
        expect(page.locator("#words")).to_contain_text(f"{100 * (1 - expected['p_value']):.1f} % of known inputs")
        assert (verdict(page) == UNKNOWN) == expected["is_ood"]
        expect(page.locator("#gauge figcaption")).to_contain_text("τ = ")
        shares = page.locator("#probabilities .share").all_inner_texts()
        assert shares == [f"{100 * share:.1f} %" for share in sorted(expected["probabilities"], reverse=True)]
        members = page.locator("#members li").all_inner_texts()
        assert [re.findall(r": (\S+)", text)[0] for text in members] == [member["label"] for member in expected["members"]]


def test_dropped_and_pasted_images_are_answered(opened, digits_page: httpx.Client, digit_data: Dataset):
    files = [list(png(image[0])) for image in digit_data.inputs[:2]]
    make = """files => {
        const transfer = new DataTransfer();
        for (const bytes of files) transfer.items.add(new File([new Uint8Array(bytes)], "x.png", {type: "image/png"}));
        return transfer;
    }"""
    with opened(digits_page) as page:
        expect(page.locator("#main")).to_be_visible()
        page.locator(".drop").dispatch_event("drop", {"dataTransfer": page.evaluate_handle(make, files)})
        expect(page.locator("#history li")).to_have_count(2)
        paste = "transfer => document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))"
        page.evaluate(paste, page.evaluate_handle(make, files[:1]))
        expect(page.locator("#history li")).to_have_count(3)
        page.locator("#history button").last.click()
        assert verdict(page) == page.locator("#history button").last.inner_text()


def test_a_file_that_is_no_image_is_explained(opened, digits_page: httpx.Client):
    with opened(digits_page, excused="status of 422") as page:
        page.locator("#files").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"not an image"})
        expect(page.get_by_role("alert")).to_contain_text("not a complete PNG, JPEG or WebP image")


def test_drawing_by_mouse(opened, big_digits_page: httpx.Client):
    before = big_digits_page.get("/v1/drift").json()["steps"]
    with opened(big_digits_page) as page:
        board = page.locator(".board")
        board.scroll_into_view_if_needed()
        box = board.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 0.2 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 0.8 * box["height"], steps=6)
        with page.expect_request("**/v1/predict?members=true&observe=true") as asked:
            page.mouse.up()
        pixels = np.array(asked.value.post_data_json["inputs"])
        assert pixels.shape == (1, 1, 28, 28)
        drawn = pixels[0, 0] > 128
        assert drawn[7:21, 13:15].all()  # a line in the middle
        assert not drawn[:, :11].any()
        assert not drawn[:, 17:].any()
        expect(page.locator("#history li")).to_have_count(1)
        seen = page.evaluate("[...document.querySelector('.seen').getContext('2d').getImageData(0, 0, 28, 28).data]")
        np.testing.assert_array_equal(np.array(seen).reshape(28, 28, 4)[..., 0], pixels[0, 0])
    assert big_digits_page.get("/v1/drift").json()["steps"] == before + 1  # the strokes on the way do not count


def test_drawing_by_keyboard(opened, big_digits_page: httpx.Client):
    with opened(big_digits_page) as page:
        page.locator(".board").focus()
        blank = page.evaluate(SEEN)
        for key in [" ", *["ArrowDown"] * 8, " "]:
            page.keyboard.press(key)
        expect(page.locator("#history li")).to_have_count(1)
        drawn = page.evaluate(SEEN)
        page.keyboard.press("Delete")
        assert page.evaluate(SEEN) == blank != drawn


def test_examples_are_what_they_are_called(opened, digits_page: httpx.Client):
    with opened(digits_page) as page:
        page.get_by_role("button", name="Known example 1", exact=True).click()
        expect(page.locator("#verdict")).to_have_class("known")
        page.get_by_role("button", name="Unknown example 1").click()
        expect(page.locator("#verdict")).to_have_text(UNKNOWN)
        expect(page.locator("#words")).to_contain_text("If it had to choose")
        page.get_by_role("button", name="Ambiguous example 1").click()
        expect(page.locator("#verdict")).to_contain_text(" or ")


def test_the_page_says_why(opened, digits_page: httpx.Client):
    with opened(digits_page) as page:
        page.get_by_role("button", name="Known example 1", exact=True).click()
        expect(page.locator("#verdict")).to_have_class("known")
        expect(page.locator("#why button")).to_have_count(0)
        page.get_by_role("button", name="Unknown example 1").click()
        page.get_by_role("button", name="Why?").press("Enter")
        expect(page.locator(".neighbours li")).to_have_count(5)
        expect(page.locator(".reasons li").first).to_contain_text("of known inputs are at least as strange")
        expect(page.get_by_role("img", name="Where the image is strange")).to_be_visible()
        page.get_by_role("button", name="Known example 2", exact=True).click()
        expect(page.locator(".neighbours li")).to_have_count(0)


def test_the_page_says_why_of_a_row(opened, moons_page: httpx.Client):
    with opened(moons_page) as page:
        page.locator("#gallery-unknown + p + ul button").first.click()
        page.get_by_role("button", name="Why?").click()
        expect(page.locator(".neighbours figcaption").first).to_contain_text("x1")


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
