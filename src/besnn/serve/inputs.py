"""From a request body to the array that a detector takes: numbers, or unchecked images."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, create_model

from besnn.data import ImageSpec
from besnn.data.images import Pixels
from besnn.errors import InputError
from besnn.serve.bodies import (
    JSON,
    MULTIPART,
    Number,
    Pixel,
    Strict,
    Take,
    list_of,
    media_type,
    nested_lists,
    parse_json,
    read_files,
)
from besnn.serve.decoding import Decoders, Limits
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings

Inputs = NDArray[Any]

DECODERS = 2
"""Few, because decoded images need memory."""


@dataclass(frozen=True)
class Allowance:
    """What a request may use: time until its client no longer waits (by `time.monotonic`), and memory for decoded images."""

    until: float
    take: Take


class InputReader:
    """Reads a model's inputs, each `(columns,)` or `(channels, height, width)`: numbers, or images in files.

    Reading images stops with a TimeoutError when the time is over. `short_side` is as in `besnn.data.ImageSpec`.
    """

    def __init__(self, input_shape: tuple[int, ...], settings: Settings, short_side: int | None = None) -> None:
        self.input_shape, self._settings, self._short_side = input_shape, settings, short_side
        self.is_image = len(input_shape) == 3
        self._decoders = Decoders(DECODERS)
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
        self.media_types = (JSON, MULTIPART) if self.is_image else (JSON,)

    def holds_files(self, body: bytes, content_type: str) -> bool:
        """Return whether a body is not JSON, or JSON with a string other than the field's name."""
        return self.is_image and (media_type(content_type) != JSON or body.count(b'"') > 2)

    def read(self, body: bytes, content_type: str, allowance: Allowance) -> Inputs:
        """Return inputs `[n, ...]` from a body of one of the `media_types`."""
        if media_type(content_type) != JSON:
            files = read_files(body, content_type, self._settings.max_rows)
            named = {f"image {number} of {len(files)}": file for number, file in enumerate(files, start=1)}
            return np.stack(list(self._decode(named, allowance).values()))
        items = parse_json(self.request, body, self._expected, self.max_lists).inputs  # type: ignore[attr-defined]  # a model made above
        if not self.is_image:
            return np.array(items)
        by_name = {f"input {index}": item for index, item in enumerate(items)}
        texts = {name: _from_base64(item, name) for name, item in by_name.items() if isinstance(item, str)}
        uploads = self._decode(texts, allowance)
        return np.stack([uploads[name] if name in texts else np.array(item, np.uint8) for name, item in by_name.items()])

    def start(self) -> None:
        """Start the processes that decode images; without this, they are started when they are first needed."""
        if self.is_image:
            self._decoders.start()

    def close(self) -> None:
        """End the processes that decode images."""
        self._decoders.close()

    def _decode(self, files: Mapping[str, bytes], allowance: Allowance) -> dict[str, Pixels]:
        if not files:
            return {}
        given, (channels, height, width) = self._settings, self.input_shape
        size = len(files) * math.prod(self.input_shape)
        if size > given.max_decoded_bytes:
            detail = f"the images take more than {given.max_decoded_bytes:,} bytes when decoded: send fewer at a time"
            raise Problem(413, "images-too-large", detail)
        allowance.take(size)
        spec = ImageSpec((height, width), channels, self._short_side)
        limits = Limits(given.max_image_side, given.max_image_pixels, given.max_request_pixels)
        return dict(zip(files, self._decoders.decode(files, spec, limits, allowance.until), strict=True))


def _from_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Problem(422, "image-unreadable", f"{name} is not base64: encode the file without line breaks") from None
