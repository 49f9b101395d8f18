"""Uploaded images, as nobody should trust them."""

import io
import math

from PIL import Image

from besnn.data import ImageSpec, decode_image
from besnn.data.images import Pixels
from besnn.deployment.server.problems import Problem
from besnn.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP")


def read_upload(data: bytes, spec: ImageSpec, max_pixels: int, name: str) -> Pixels:
    """Decodes an image file as `uint8 [c, h, w]`; its size is looked at before its pixels are unpacked.

    >>> file = io.BytesIO()
    >>> Image.new("L", (40, 20)).save(file, "PNG")
    >>> read_upload(file.getvalue(), ImageSpec(8, 1), max_pixels=1000, name="image 0").shape
    (1, 8, 8)
    """
    unreadable = Problem(422, "image-unreadable", f"{name} is not a whole PNG, JPEG or WebP image: save it again")
    if _pixels(data, unreadable) > max_pixels:
        raise Problem(422, "image-too-large", f"{name} unpacks to more than {max_pixels:,} pixels: scale it down first")
    try:
        return decode_image(data, spec, name)
    except DataError:
        raise unreadable from None


def _pixels(data: bytes, unreadable: Problem) -> float:
    """How many pixels the file says it has."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return math.inf
    except Exception:  # decoders raise nearly anything on a malformed file
        raise unreadable from None
