import io
import struct
import sys
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from besnn.data import ImageSpec
from besnn.data.images import Pixels
from besnn.serve import decoding
from besnn.serve.decoding import Decoders, Limits, decode_uploads
from besnn.serve.problems import Problem

SPEC = ImageSpec(8, channels=1)


def read(data: bytes, max_pixels: int, name: str = "image 0") -> Pixels:
    return decode_uploads({name: data}, SPEC, Limits(side=max_pixels, image=max_pixels, request=10**9))[0]


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
    with pytest.raises(Problem, match="more than 3,999,999 pixels: send fewer") as refused:
        decode_uploads(files, SPEC, Limits(1000, 1_000_000, request=3_999_999))
    assert (refused.value.status, refused.value.code) == (413, "images-too-large")


def test_images_at_the_limits_are_taken():
    files = {f"image {place}": saved(Image.new("L", (50, 40)), "PNG") for place in range(3)}
    assert decode_uploads(files, SPEC, Limits(side=50, image=2000, request=6000)).shape == (3, 1, 8, 8)


def test_an_image_with_a_long_side_is_refused_before_it_is_unpacked():
    with pytest.raises(Problem, match="a side of more than 1,000: scale it down") as refused:
        decode_uploads({"image 0": bomb(1, 1001)}, SPEC, Limits(1000, 1_000_000, 1_000_000))
    assert refused.value.code == "image-too-large"


def slow_jpeg(scans: int) -> bytes:
    """A progressive JPEG file whose last scan is repeated; each makes the decoder go through the image once more."""
    file = io.BytesIO()
    Image.effect_noise((2000, 2000), 100).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + b"".join([last[:16]] * scans) + b"\xff\xd9"


def test_a_jpeg_with_many_scans_is_refused_before_it_is_decoded():
    with pytest.raises(Problem, match="more than 100 scans: save it again") as refused:
        read(slow_jpeg(2000), max_pixels=4_000_000)
    assert refused.value.code == "image-too-slow"


WIDE = Limits(side=100_000, image=10**8, request=10**9)


def soon() -> float:
    return time.monotonic() + 60


@pytest.fixture(scope="module")
def decoders():
    pool = Decoders(1)
    yield pool
    pool.close()


def test_a_process_decodes_the_same(decoders: Decoders):
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for _ in range(3)]
    files = {f"image {place}": saved(Image.fromarray(each), "PNG") for place, each in enumerate(pixels)}
    spec = ImageSpec((6, 8), 3, short_side=10)
    np.testing.assert_array_equal(decoders.decode(files, spec, WIDE, soon()), decode_uploads(files, spec, WIDE))
    with pytest.raises(Problem, match="image 1 is not a complete PNG"):
        decoders.decode(files | {"image 1": b"rubbish"}, spec, WIDE, soon())


def test_nothing_is_decoded_after_the_deadline(decoders: Decoders):
    small = saved(Image.new("L", (8, 8)), "PNG")
    with pytest.raises(TimeoutError):
        decoders.decode({"image 0": small}, SPEC, WIDE, time.monotonic())
    assert decoders.decode({"image 0": small}, SPEC, WIDE, soon()).shape == (1, 1, 8, 8)


def test_decoding_is_killed_at_its_deadline(decoders: Decoders):
    with pytest.raises(TimeoutError):  # and not the refusal of the next test
        decoders.decode({"image 0": endless_jpeg()}, SPEC, WIDE, time.monotonic() + 0.3)


def endless_jpeg() -> bytes:
    """A JPEG file with five million markers, which takes long to read."""
    whole = saved(Image.new("L", (8, 8)), "JPEG")
    return whole[:2] + b"\xff\xfe\x00\x02" * 5_000_000 + whole[2:]


def test_decoding_that_takes_too_long_is_killed(decoders: Decoders):
    with pytest.raises(Problem) as refused:
        decoders.decode({"image 0": endless_jpeg()}, SPEC, replace(WIDE, seconds=1), soon())
    assert (refused.value.status, refused.value.code) == (422, "image-too-slow")
    small = saved(Image.new("L", (8, 8)), "PNG")
    assert decoders.decode({"image 0": small}, SPEC, WIDE, soon()).shape == (1, 1, 8, 8)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_decoding_that_takes_too_much_memory_is_refused(decoders: Decoders):
    file = io.BytesIO()
    Image.new("1", (9400, 9400)).save(file, "PNG", transparency=0)  # three copies of 353 MB
    with pytest.raises(Problem, match="needs too much memory"):
        decoders.decode({"image 0": file.getvalue()}, SPEC, WIDE, soon())


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


def test_a_system_without_limits_decodes_in_the_service(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoding, "HAS_LIMITS", False)
    monkeypatch.setattr(decoding.subprocess, "Popen", None)  # which takes no such arguments on Windows
    pool, file = Decoders(1), {"image 0": saved(Image.new("L", (8, 8)), "PNG")}
    pool.start()
    np.testing.assert_array_equal(pool.decode(file, SPEC, WIDE, soon()), decode_uploads(file, SPEC, WIDE))
