"""From the body of a request to the array that a detector takes."""

import base64
import math
from collections.abc import Mapping
from threading import Event
from typing import Annotated, Any

import numpy as np
from fastapi import Request
from pydantic import BaseModel, Field, create_model

from besnn.data import ImageSpec
from besnn.data.images import Pixels
from besnn.errors import InputError
from besnn.serve.batching import Inputs
from besnn.serve.fields import Number, Pixel, Strict, list_of, nested_lists, parse
from besnn.serve.images import read_uploads
from besnn.serve.multipart import read_files
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings

JSON, MULTIPART = "application/json", "multipart/form-data"
QUICK_BYTES = 32 * 1024
"""The longest body of numbers that is sooner read than handed to another thread."""


class InputReader:
    """Reads inputs for a model: table rows, or images as pixels or as files.

    Args:
        input_shape: of one input, `(columns,)` or `(channels, h, w)`.
        settings: for the limits.

    Attributes:
        array: the type of one input as nested lists.
        most_lists: how many lists there are in as many inputs as a request may hold.
        request: the JSON body of `/v1/predict`.

    >>> reader = InputReader((2,), Settings())
    >>> reader.from_json(b'{"inputs": [[1, 2.5]]}', over=Event()).tolist()
    [[1.0, 2.5]]
    """

    def __init__(self, input_shape: tuple[int, ...], settings: Settings) -> None:
        self.input_shape, self._settings = input_shape, settings
        self.is_image = len(input_shape) == 3
        if len(input_shape) != 1 and (not self.is_image or input_shape[0] not in (1, 3)):
            raise InputError(f"a model of inputs {list(input_shape)} cannot be served: only tables, and grey or RGB images")
        self.array: Any = nested_lists(Pixel if self.is_image else Number, input_shape)
        self.most_lists = settings.max_rows * sum(math.prod(input_shape[:axis]) for axis in range(len(input_shape)))
        self.request = self._request_model()
        values = "pixels from 0 to 255, or a file in base64" if self.is_image else "numbers"
        self._wanted = f"each input as {' × '.join(map(str, input_shape))} {values}"

    def _request_model(self) -> type[BaseModel]:
        item = self.array
        if self.is_image:
            file = Annotated[str, Field(description="A PNG, JPEG or WebP file in base64.")]
            item = Annotated[self.array | file, Field(union_mode="left_to_right")]
        return create_model("PredictRequest", __base__=Strict, inputs=(list_of(item, 1, self._settings.max_rows), ...))

    def from_json(self, body: bytes, over: Event) -> Inputs:
        """Inputs `[n, ...]` from the JSON body of `/v1/predict`; see `read_uploads` for `over`."""
        items = parse(self.request, body, self._wanted, self.most_lists).inputs  # type: ignore[attr-defined]  # a model made above
        if not self.is_image:
            return np.array(items)
        named = {f"input {place}": item for place, item in enumerate(items)}
        files = {name: _from_base64(item, name) for name, item in named.items() if isinstance(item, str)}
        uploads = self._uploads(files, over)
        return np.stack([uploads[name] if name in files else np.array(item, np.uint8) for name, item in named.items()])

    def is_quick(self, body: bytes) -> bool:
        """Whether a JSON body is soon read: it is short, and the field's name is its only string, so it holds no files."""
        return len(body) <= QUICK_BYTES and (not self.is_image or body.count(b'"') <= 2)

    def from_multipart(self, body: bytes, content_type: str, over: Event) -> Inputs:
        """Inputs `[n, c, h, w]` from image files in a multipart body; see `read_uploads` for `over`."""
        files = read_files(body, content_type, self._settings.max_rows)
        named = {f"image {place} of {len(files)}": file for place, file in enumerate(files, start=1)}
        return np.stack(list(self._uploads(named, over).values()))

    def _uploads(self, files: Mapping[str, bytes], over: Event) -> dict[str, Pixels]:
        channels, height, width = self.input_shape
        return read_uploads(files, ImageSpec((height, width), channels), self._settings, over)


def media_type(request: Request) -> str:
    """The body's media type, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _from_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Problem(422, "image-unreadable", f"{name} is not base64: encode the file without line breaks") from None
