import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from besnn.data import ImageSpec
from besnn.deployment.server.images import read_upload
from besnn.deployment.server.problems import Problem

SPEC = ImageSpec(8, channels=1)


def saved(image: Image.Image, format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is huge."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(1001, 1000), (10_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_unpacked(width: int, height: int):
    with pytest.raises(Problem) as refused:
        read_upload(bomb(width, height), SPEC, max_pixels=1_000_000, name="image 0")
    assert refused.value.code == "image-too-large"


def test_an_image_at_the_limit_is_taken():
    image = Image.fromarray(np.zeros((50, 40), np.uint8))
    assert read_upload(saved(image, "PNG"), SPEC, max_pixels=2000, name="image 0").shape == (1, 8, 8)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "PPM", "PDF", "EPS"])
def test_other_formats_are_not_even_opened(format: str):
    with pytest.raises(Problem) as refused:
        read_upload(saved(Image.new("RGB", (9, 9)), format), SPEC, max_pixels=1000, name="image 3")
    assert refused.value.code == "image-unreadable"
    assert refused.value.detail.startswith("image 3 ")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_every_truncation_is_a_problem_or_an_image(format: str):
    rng = np.random.default_rng(0)
    whole = saved(Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)), format)
    refused, codes = 0, set()
    for length in range(0, len(whole), 7):
        try:
            shape = read_upload(whole[:length], SPEC, max_pixels=1000, name="image 0").shape
        except Problem as problem:
            codes.add(problem.code)
            refused += 1
        else:
            assert shape == (1, 8, 8)
    assert codes == {"image-unreadable"}
    assert refused >= (len(whole) - 20) // 7  # all but those that lack the end marker only
