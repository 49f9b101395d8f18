"""Image files of any common format as `uint8 [c, h, w]` arrays of one size."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from besnn.errors import DataError, InputError, one_line

Pixels: TypeAlias = NDArray[np.uint8]

# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".avif", ".bmp", ".dib", ".gif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
})
# fmt: on

# Only plain pixel formats: some others that Pillow knows run programs (EPS) or are stubs.
_DECODERS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP")

MAX_PIXELS = 89_478_485
"""A file that decodes to more pixels is refused (Pillow's own limit for a decompression bomb)."""


@dataclass(frozen=True)
class ImageSpec:
    """The size and channels that images are brought to.

    Attributes:
        size: `(height, width)` in pixels, or one int for a square.
        channels: 1 for grey, 3 for RGB.
        short_side: the shorter side of an image is resized to this, and its middle is cut out, as torchvision's `Resize` and
            `CenterCrop` do; unless given, images are stretched to the size.

    >>> ImageSpec(32, channels=3).shape
    (3, 32, 32)
    """

    size: int | tuple[int, int]
    channels: int
    short_side: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.shape[1:])  # so that 4 and (4, 4) are equal
        if self.channels not in (1, 3):
            raise InputError(f"channels={self.channels} is neither 1 (grey) nor 3 (RGB)")
        if min(self.shape) < 1:
            raise InputError(f"an image size of {self.size} is not positive: give a height and a width in pixels")
        if self.short_side is not None and self.short_side < max(self.shape[1:]):
            raise InputError(f"images whose shorter side is {self.short_side} do not hold {self.size}: resize them to more")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return self.channels, height, width

    def __str__(self) -> str:
        _, height, width = self.shape
        return f"{'grey' if self.channels == 1 else 'RGB'} {height}x{width}"


def read_image(path: Path, spec: ImageSpec, name: str | None = None) -> Pixels:
    """Read one file as `uint8 [c, h, w]`; errors call it `name`, or its path unless given."""
    name = str(path) if name is None else name
    if not path.is_file():  # opening a pipe would wait forever
        raise DataError(f"{name} is not a file")
    with _opened(path, name) as image:
        return _decode(image, spec)


def decode_image(data: bytes, spec: ImageSpec, name: str) -> Pixels:
    """Decode the bytes of one image file as `uint8 [c, h, w]`.

    The image is rotated upright, its transparent parts become white, and it is brought to the size of the spec. Of an
    animation the first frame is taken.

    >>> file = io.BytesIO()
    >>> Image.new("RGBA", (40, 20), (255, 0, 0, 0)).save(file, "PNG")
    >>> decode_image(file.getvalue(), ImageSpec(2, channels=1), "clear.png").tolist()
    [[[255, 255], [255, 255]]]
    """
    with _opened(io.BytesIO(data), name) as image:
        return _decode(image, spec)


def image_spec_of(path: Path) -> ImageSpec:
    """Return an image file's own upright size and channels, from its header."""
    with _opened(path, name=str(path)) as image:
        width, height = image.size
        rotated = image.getexif().get(0x0112, 1) >= 5  # EXIF orientations 5 to 8 swap the sides
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        return ImageSpec((width, height) if rotated else (height, width), channels=1 if grey else 3)


def convert_images(images: Pixels, spec: ImageSpec) -> Pixels:
    """Bring images `uint8 [n, c, h, w]` to another size or number of channels."""
    if images.shape[1:] == spec.shape and spec.short_side is None:
        return images
    converted = np.empty((len(images), *spec.shape), np.uint8)
    for place, image in enumerate(images):
        channels_last = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        converted[place] = _conform(Image.fromarray(np.ascontiguousarray(channels_last)), spec)
    return converted


@contextmanager
def _opened(file: Path | io.BytesIO, name: str) -> Iterator[Image.Image]:
    """Open an image file with the plain decoders; whatever goes wrong within the block is a DataError."""
    Image.init()
    decoders = [decoder for decoder in _DECODERS if decoder in Image.OPEN]  # older Pillow has no AVIF
    too_large = f"{name} decodes to over {MAX_PIXELS:,} pixels: scale it down first"
    try:
        with Image.open(file, formats=decoders) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(too_large)
            yield image
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(too_large) from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image of a known format: use PNG, JPEG, WebP or TIFF") from error
    except Exception as error:  # decoders raise nearly anything on a malformed file
        raise DataError(f"{name} is not a readable image ({one_line(error)}): save it again or remove it") from error


def _decode(image: Image.Image, spec: ImageSpec) -> Pixels:
    image.draft(
        None, (2 * max(*spec.shape[1:], spec.short_side or 0),) * 2
    )  # lets a JPEG decode at 1/2, 1/4 or 1/8 of its size
    return _conform(ImageOps.exif_transpose(image), spec)


def _conform(image: Image.Image, spec: ImageSpec) -> Pixels:
    """Bring an open image to the spec, `uint8 [c, h, w]`."""
    _, height, width = spec.shape
    flat = _flatten(image).convert("L" if spec.channels == 1 else "RGB")
    if spec.short_side is not None:
        flat = _middle(flat, spec.short_side, height, width)
    elif flat.size != (width, height):
        flat = flat.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(flat)
    return np.array(pixels[None] if spec.channels == 1 else pixels.transpose(2, 0, 1), order="C")


def _middle(image: Image.Image, short_side: int, height: int, width: int) -> Image.Image:
    """Resize an image's shorter side and cut out its middle; sizes and halves are rounded as torchvision does."""
    shorter = min(image.size)
    sides = tuple(short_side if side == shorter else int(short_side * side / shorter) for side in image.size)
    if image.size != sides:
        image = image.resize((sides[0], sides[1]), Image.Resampling.BILINEAR)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _flatten(image: Image.Image) -> Image.Image:
    """Return an opaque image with 8 bits per channel: 16-bit grey is scaled, transparent parts become white."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range")
    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255 instead of scaling
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image
