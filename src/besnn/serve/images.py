"""Uploaded images, as nobody should trust them."""

import io
import math
from collections.abc import Mapping
from threading import Event

from PIL import Image

from besnn.data import ImageSpec, decode_image
from besnn.data.images import Pixels
from besnn.errors import DataError
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings

FORMATS = ("PNG", "JPEG", "WEBP")


def read_uploads(files: Mapping[str, bytes], spec: ImageSpec, settings: Settings, over: Event) -> dict[str, Pixels]:
    """Decodes a request's image files as `uint8 [c, h, w]`; all sizes are looked at before any pixels are unpacked.

    Args:
        files: by what to call them.
        spec: the form to bring them to.
        settings: for the limits.
        over: set when nobody waits for the images any more; a TimeoutError then ends the work before the next file.

    >>> file = io.BytesIO()
    >>> Image.new("L", (40, 20)).save(file, "PNG")
    >>> read_uploads({"image 0": file.getvalue()}, ImageSpec(8, 1), Settings(), over=Event())["image 0"].shape
    (1, 8, 8)
    """
    total = 0.0
    for name, data in files.items():
        _require_wanted(over)
        pixels = _pixels(data, name)
        if pixels > (most := settings.max_image_pixels):
            raise Problem(422, "image-too-large", f"{name} unpacks to more than {most:,} pixels: scale it down first")
        total += pixels
    if total > (most := settings.max_request_pixels):
        raise Problem(413, "images-too-large", f"the images unpack to more than {most:,} pixels: send fewer, or smaller ones")
    return {name: _decode(data, spec, name, over) for name, data in files.items()}


def _pixels(data: bytes, name: str) -> float:
    """How many pixels the file says it has."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return math.inf
    except Exception:  # decoders raise nearly anything on a malformed file
        raise _unreadable(name) from None


def _decode(data: bytes, spec: ImageSpec, name: str, over: Event) -> Pixels:
    _require_wanted(over)
    try:
        return decode_image(data, spec, name)
    except DataError:
        raise _unreadable(name) from None


def _require_wanted(over: Event) -> None:
    if over.is_set():
        raise TimeoutError("nobody waits for these images any more")


def _unreadable(name: str) -> Problem:
    return Problem(422, "image-unreadable", f"{name} is not a whole PNG, JPEG or WebP image: save it again")
