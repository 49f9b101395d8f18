"""From a request body to the array that a detector takes: numbers, or images that nobody has checked before."""

import base64
import io
import math
from collections.abc import Mapping
from threading import Event
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, create_model

from besnn.data import ImageSpec, decode_image
from besnn.data.images import Pixels
from besnn.errors import DataError, InputError
from besnn.serve.bodies import Number, Pixel, Strict, list_of, nested_lists, parse_json, read_files
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings

Inputs = NDArray[Any]

FORMATS = ("PNG", "JPEG", "WEBP")
QUICK_BYTES = 32 * 1024
"""The longest body of numbers that is parsed faster than it is handed to another thread."""


class InputReader:
    """Reads a model's inputs, each `(columns,)` or `(channels, height, width)`: numbers, or images in files.

    Reading stops with a TimeoutError once the event `expired` is set, because the client no longer waits. `short_side` is as
    in `besnn.data.ImageSpec`.
    """

    def __init__(self, input_shape: tuple[int, ...], settings: Settings, short_side: int | None = None) -> None:
        self.input_shape, self._settings, self._short_side = input_shape, settings, short_side
        self.is_image = len(input_shape) == 3
        if len(input_shape) != 1 and (not self.is_image or input_shape[0] not in (1, 3)):
            raise InputError(f"cannot serve a model of inputs {list(input_shape)}: only tables, and grey or RGB images")
        self.array: Any = nested_lists(Pixel if self.is_image else Number, input_shape)
        self.max_lists = settings.max_rows * sum(math.prod(input_shape[:axis]) for axis in range(len(input_shape)))
        item, values = self.array, "numbers"
        if self.is_image:
            file = Annotated[str, Field(description="A PNG, JPEG or WebP file in base64.")]
            item = Annotated[self.array | file, Field(union_mode="left_to_right")]
            values = "pixels from 0 to 255, or a file in base64"
        self.request = create_model("PredictRequest", __base__=Strict, inputs=(list_of(item, 1, settings.max_rows), ...))
        self._expected = f"each input as {' × '.join(map(str, input_shape))} {values}"

    def from_json(self, body: bytes, expired: Event) -> Inputs:
        """Return inputs `[n, ...]` from the JSON body of `/v1/predict`."""
        items = parse_json(self.request, body, self._expected, self.max_lists).inputs  # type: ignore[attr-defined]  # a model made above
        if not self.is_image:
            return np.array(items)
        named = {f"input {index}": item for index, item in enumerate(items)}
        files = {name: _from_base64(item, name) for name, item in named.items() if isinstance(item, str)}
        uploads = self._decode(files, expired)
        return np.stack([uploads[name] if name in files else np.array(item, np.uint8) for name, item in named.items()])

    def is_quick(self, body: bytes) -> bool:
        """Return whether a JSON body is short and, with the field's name as its only string, holds no files."""
        return len(body) <= QUICK_BYTES and (not self.is_image or body.count(b'"') <= 2)

    def from_multipart(self, body: bytes, content_type: str, expired: Event) -> Inputs:
        """Return images `[n, c, h, w]` from the files in a multipart body."""
        files = read_files(body, content_type, self._settings.max_rows)
        named = {f"image {number} of {len(files)}": file for number, file in enumerate(files, start=1)}
        return np.stack(list(self._decode(named, expired).values()))

    def _decode(self, files: Mapping[str, bytes], expired: Event) -> dict[str, Pixels]:
        channels, height, width = self.input_shape
        return decode_uploads(files, ImageSpec((height, width), channels, self._short_side), self._settings, expired)


def decode_uploads(files: Mapping[str, bytes], spec: ImageSpec, settings: Settings, expired: Event) -> dict[str, Pixels]:
    """Decode a request's image files, by name, as `uint8 [c, h, w]`; check all sizes before decoding any pixels."""
    total = 0.0
    for name, data in files.items():
        _check_expired(expired)
        pixels = _declared_pixels(data, name)
        if pixels > (most := settings.max_image_pixels):
            raise Problem(422, "image-too-large", f"{name} has more than {most:,} pixels: scale it down first")
        total += pixels
    if total > (most := settings.max_request_pixels):
        raise Problem(413, "images-too-large", f"the images have more than {most:,} pixels: send fewer or smaller ones")
    decoded = {}
    for name, data in files.items():
        _check_expired(expired)
        try:
            decoded[name] = decode_image(data, spec, name)
        except DataError:
            raise _unreadable(name) from None
    return decoded


def _declared_pixels(data: bytes, name: str) -> float:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return math.inf
    except Exception:  # decoders raise nearly anything on a malformed file
        raise _unreadable(name) from None


def _check_expired(expired: Event) -> None:
    if expired.is_set():
        raise TimeoutError("the client no longer waits for these images")


def _unreadable(name: str) -> Problem:
    return Problem(422, "image-unreadable", f"{name} is not a complete PNG, JPEG or WebP image: save it again")


def _from_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Problem(422, "image-unreadable", f"{name} is not base64: encode the file without line breaks") from None
