import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from besnn.data.images import MAX_PIXELS, ImageSpec, convert_images, decode_image, image_spec_of, read_image
from besnn.errors import DataError, InputError

RGB = ImageSpec((6, 8), channels=3)
GREY = ImageSpec((6, 8), channels=1)


def encode(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(mode="RGB", size=(8, 6)):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], len(mode)), dtype=np.uint8)
    return Image.fromarray(pixels.squeeze(-1) if mode == "L" else pixels)


def test_spec():
    assert ImageSpec((2, 3), channels=1).shape == (1, 2, 3)
    assert str(ImageSpec(4, channels=3)) == "RGB 4x4"
    assert ImageSpec(4, channels=1) == ImageSpec((4, 4), channels=1)
    with pytest.raises(InputError, match="channels=2"):
        ImageSpec(4, channels=2)
    with pytest.raises(InputError, match="not positive"):
        ImageSpec((4, 0), channels=1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA", "WEBP"])
def test_lossless_formats_are_unchanged(kind):
    image = noise()
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert np.array_equal(decode_image(encode(image, kind, **options), RGB, "x"), np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_lossy_formats_are_nearly_unchanged(kind):
    image = Image.linear_gradient("L").resize((8, 6)).convert("RGB")
    decoded = decode_image(encode(image, kind), RGB, "x").astype(int)
    assert np.abs(decoded - np.asarray(image).transpose(2, 0, 1)).max() < 16


def test_grey_is_luma_and_colour_of_grey_repeats_it():
    image = noise()
    luma = np.asarray(image).astype(float) @ [0.299, 0.587, 0.114]
    assert np.abs(decode_image(encode(image), GREY, "x")[0] - luma).max() <= 1
    grey = noise("L")
    assert np.array_equal(decode_image(encode(grey), RGB, "x"), np.repeat(np.asarray(grey)[None], 3, axis=0))


def test_sixteen_bits_are_scaled_not_clipped():
    pixels = np.linspace(0, 65535, 48).astype(np.uint16).reshape(6, 8)
    decoded = decode_image(encode(Image.fromarray(pixels)), GREY, "x")[0]
    assert np.array_equal(decoded, np.rint(pixels / 257).astype(np.uint8))


def test_transparent_parts_become_white():
    image = noise("RGBA")
    pixels = np.asarray(image).astype(float)
    alpha = pixels[..., 3:] / 255
    expected = pixels[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(decode_image(encode(image), RGB, "x").transpose(1, 2, 0) - expected).max() <= 1


def test_a_palette_with_a_transparent_colour():
    image = Image.new("P", (8, 6), 1)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 0)
    decoded = decode_image(encode(image, transparency=0), RGB, "x")
    assert decoded[:, 0, 0].tolist() == [255, 255, 255]
    assert decoded[:, 3, 3].tolist() == [0, 0, 255]


def test_cmyk_one_bit_and_grey_with_alpha():
    white = decode_image(encode(Image.new("CMYK", (8, 6), (0, 0, 0, 0)), "TIFF"), RGB, "x")
    assert white.min() == 255
    assert decode_image(encode(Image.new("1", (8, 6), 1)), GREY, "x").min() == 255
    assert decode_image(encode(Image.new("LA", (8, 6), (0, 0))), GREY, "x").min() == 255


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_rotates_the_image_upright(orientation, tmp_path):
    upright = np.zeros((6, 8), np.uint8)
    upright[0, 0], upright[0, -1] = 255, 128
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.T,
        6: lambda a: np.rot90(a),
        7: lambda a: np.rot90(a, 2).T,
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    data = encode(stored, exif=exif)
    assert np.array_equal(decode_image(data, GREY, "x")[0], upright)
    (tmp_path / "x.png").write_bytes(data)
    assert image_spec_of(tmp_path / "x.png") == GREY


def test_resizing_averages_when_it_shrinks():
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    decoded = decode_image(encode(Image.fromarray(board.astype(np.uint8))), ImageSpec(8, channels=1), "x")
    assert np.abs(decoded.astype(int) - 127).max() <= 3


def test_a_large_jpeg_is_decoded_small_but_right():
    image = Image.linear_gradient("L").resize((1024, 768), Image.Resampling.BILINEAR)
    decoded = decode_image(encode(image, "JPEG", quality=95), ImageSpec(16, channels=1), "x")[0]
    assert np.abs(decoded - np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)).max() <= 4


def test_own_spec_of_a_file(tmp_path):
    for mode, channels in (("L", 1), ("RGB", 3), ("I;16", 1), ("1", 1), ("P", 3), ("RGBA", 3)):
        path = tmp_path / "x.png"
        Image.new(mode, (8, 6)).save(path)
        assert image_spec_of(path) == ImageSpec((6, 8), channels=channels)


def bomb_png(width, height):
    """A tiny file whose header announces many pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


BAD = {
    "empty": b"",
    "text": b"hello, this is not an image",
    "truncated": encode(noise(size=(64, 64)))[:2000],
    "truncated jpeg": encode(noise(size=(64, 64)), "JPEG")[:1000],
    "altered": encode(noise(size=(64, 64)))[:500] + b"\0" * 500 + encode(noise(size=(64, 64)))[1000:],
    "bomb": bomb_png(60_000, 60_000),
    "large": bomb_png(10_000, 10_000),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    "floats": encode(Image.fromarray(np.zeros((6, 8), np.float32)), "TIFF"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_files_are_named_in_one_line(name, one_line):
    with pytest.raises(DataError) as caught:
        decode_image(BAD[name], RGB, f"{name}.png")
    # Pillow fails for a bomb, and only warns for a large file
    one_line(caught, f"{name}.png", f"over {MAX_PIXELS:,} pixels" if name in ("bomb", "large") else "image")


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(DataError, match="not a file"):
        read_image(tmp_path / "x.png", RGB)


def test_convert_images():
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 6, 8), dtype=np.uint8)
    assert convert_images(images, RGB) is images
    small = convert_images(images, ImageSpec(4, channels=1))
    for image, converted in zip(images, small, strict=True):
        assert np.array_equal(decode_image(encode(Image.fromarray(image.transpose(1, 2, 0))), ImageSpec(4, 1), "x"), converted)
