import io
import struct
import zlib
from threading import Event

import numpy as np
import pytest
from PIL import Image

from besnn.data import ImageSpec
from besnn.data.images import Pixels
from besnn.errors import InputError
from besnn.serve import Settings
from besnn.serve.inputs import QUICK_BYTES, InputReader, decode_uploads
from besnn.serve.problems import Problem

SPEC = ImageSpec(8, channels=1)


def read(data: bytes, max_pixels: int, name: str = "image 0") -> Pixels:
    return decode_uploads({name: data}, SPEC, Settings(max_image_pixels=max_pixels), Event())[name]


def saved(image: Image.Image, format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A small PNG that declares a huge size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(1001, 1000), (10_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_unpacked(width: int, height: int):
    with pytest.raises(Problem) as refused:
        read(bomb(width, height), max_pixels=1_000_000)
    assert refused.value.code == "image-too-large"


def test_bombs_that_are_too_much_together_are_refused_before_any_is_unpacked():
    files = {f"image {place}": bomb(1000, 1000) for place in range(4)}  # unpacking one would show that it is not whole
    limits = {"max_image_pixels": 1_000_000, "max_request_pixels": 3_999_999}
    with pytest.raises(Problem, match="more than 3,999,999 pixels: send fewer") as refused:
        decode_uploads(files, SPEC, Settings.model_validate(limits), Event())
    assert (refused.value.status, refused.value.code) == (413, "images-too-large")


def test_images_at_the_limits_are_taken():
    files = {f"image {place}": saved(Image.new("L", (50, 40)), "PNG") for place in range(3)}
    images = decode_uploads(files, SPEC, Settings(max_image_pixels=2000, max_request_pixels=6000), Event())
    assert {name: image.shape for name, image in images.items()} == dict.fromkeys(files, (1, 8, 8))


def test_nothing_is_decoded_after_the_deadline():
    expired = Event()
    expired.set()
    with pytest.raises(TimeoutError):
        decode_uploads({"image 0": saved(Image.new("L", (8, 8)), "PNG")}, SPEC, Settings(), expired)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "PPM", "PDF", "EPS"])
def test_other_formats_are_refused(format: str):
    with pytest.raises(Problem) as refused:
        read(saved(Image.new("RGB", (9, 9)), format), max_pixels=1000, name="image 3")
    assert refused.value.code == "image-unreadable"
    assert refused.value.detail.startswith("image 3 ")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_every_truncation_is_a_problem_or_an_image(format: str):
    rng = np.random.default_rng(0)
    whole = saved(Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)), format)
    refused, codes = 0, set()
    for length in range(0, len(whole), 7):
        try:
            shape = read(whole[:length], max_pixels=1000).shape
        except Problem as problem:
            codes.add(problem.code)
            refused += 1
        else:
            assert shape == (1, 8, 8)
    assert codes == {"image-unreadable"}
    assert refused >= (len(whole) - 20) // 7  # all but those that lack the end marker only


def test_only_short_bodies_without_files_are_read_at_once():
    table, images = InputReader((2,), Settings()), InputReader((1, 2, 2), Settings())
    assert table.is_quick(b'{"inputs": [[1, 2]]}')
    assert images.is_quick(b'{"inputs": [[[[1, 2], [3, 4]]]]}')
    assert not images.is_quick(b'{"inputs": ["aGVsbG8="]}')
    for reader in (table, images):
        assert not reader.is_quick(b" " * (QUICK_BYTES + 1))


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 4), (1, 2, 3, 4)])
def test_models_of_other_inputs_are_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="cannot serve"):
        InputReader(shape, Settings())
