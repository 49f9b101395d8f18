"""Request bodies: limits that hold while the bytes arrive, strict JSON, and multipart files."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.requests import ClientDisconnect

from besnn.serve.problems import Problem, busy, describe_error
from besnn.serve.settings import Settings

JSON, MULTIPART, BINARY = "application/json", "multipart/form-data", "application/octet-stream"
MAX_FIELDS = 1000

Model = TypeVar("Model", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=False)]
Pixel = Annotated[float, Field(ge=0, le=255, multiple_of=1)]  # 7.0 is a whole number too, in JSON
Scalars = dict[str, bool | int | float | str]
Take: TypeAlias = Callable[[int], None]
"""Takes some bytes of what all requests share, or raises a problem if fewer are left."""


class Budget:
    """A number of bytes that all requests together may hold."""

    def __init__(self, most: int) -> None:
        self._most, self._held, self._lock = most, 0, Lock()

    @contextmanager
    def share(self) -> Iterator[Take]:
        """Yield a function that takes bytes, all of which are given back at the end of the block."""
        taken, is_over = 0, False

        def take(amount: int) -> None:
            nonlocal taken
            with self._lock:
                if is_over:  # in a thread that continues after the deadline
                    raise TimeoutError("the request has ended")
                if self._held + amount > self._most:
                    raise busy("the service has no memory left for this request")
                self._held += amount
                taken += amount

        try:
            yield take
        finally:
            with self._lock:
                self._held -= taken
                is_over = True


def media_type(content_type: str) -> str:
    """Return the media type in a Content-Type header, without parameters.

    >>> media_type("Application/JSON; charset=utf-8")
    'application/json'
    """
    return content_type.partition(";")[0].strip().lower()


async def read_body(request: Request, settings: Settings, take: Take) -> bytes:
    """Return a request's body, or raise a problem as soon as it is too long or too late."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "encoding-unsupported", "send the body uncompressed, without Content-Encoding")
    declared = request.headers.get("content-length", "")
    _check_length(int(declared) if declared.isdecimal() and len(declared) < 20 else 0, settings)
    chunks, length = [], 0
    try:
        async with asyncio.timeout(settings.deadline_seconds):
            async for chunk in request.stream():
                length += len(chunk)
                _check_length(length, settings)
                take(len(chunk))
                chunks.append(chunk)
    except (TimeoutError, ClientDisconnect):
        raise Problem(408, "body-timeout", "the request body did not arrive in time: send it again") from None
    return b"".join(chunks)


def _check_length(length: int, settings: Settings) -> None:
    if length > (limit := settings.max_body_bytes):
        raise Problem(413, "body-too-large", f"the body is longer than {limit:,} bytes: send fewer inputs at a time")


class Strict(BaseModel):
    """Base of JSON requests: unknown fields are errors, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


def list_of(kind: Any, least: int = 0, most: int | None = None) -> Any:
    """Return the type of a list with `least` to `most` items, whose validation stops at the first error."""
    return Annotated[list[kind], Field(min_length=least, max_length=most, fail_fast=True)]


def nested_lists(number: Any, shape: tuple[int, ...]) -> Any:
    """Return the type of an array of exactly this shape in JSON.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(nested_lists(Pixel, (1, 2))).validate_json("[[0, 255]]")
    [[0.0, 255.0]]
    """
    kind = number
    for size in reversed(shape):
        kind = list_of(kind, size, size)
    return kind


def parse_json(model: type[Model], body: bytes, expected: str, max_lists: int = 0) -> Model:
    """Parse a JSON body, or raise a problem that names the first error and says what is expected.

    A body with far more fields or lists than its data may hold is refused unparsed: listing millions of errors takes seconds.
    """
    if body.count(b":") > MAX_FIELDS or body.count(b"[") > max_lists + MAX_FIELDS:
        raise Problem(422, "input-invalid", "the body has too many fields or lists: send fewer inputs at a time")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise Problem(400, "json-invalid", f"the body is not JSON: {describe_error(first)}") from None
        raise Problem(422, "input-invalid", f"{describe_error(first)}; send {expected}") from None


def read_files(body: bytes, content_type: str, max_files: int) -> list[bytes]:
    """Return the files of a complete `multipart/form-data` body that holds nothing but files."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Problem(400, "multipart-invalid", "Content-Type has no boundary: let your HTTP library write that header")
    files: list[bytes] = []
    ends: list[None] = []

    def take(file: File) -> None:
        if len(files) == max_files:
            raise Problem(422, "input-invalid", f"the body has more than {max_files} files: send fewer at a time")
        file.file_object.seek(0)
        files.append(file.file_object.read())

    def refuse(_: FormField) -> None:
        raise Problem(422, "input-invalid", "the body has a part that is not a file: send files only")

    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
    try:
        parser = FormParser(MULTIPART, refuse, take, lambda: ends.append(None), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Problem(400, "multipart-invalid", "the body is not the multipart form that Content-Type announces") from None
    if not ends:
        raise Problem(400, "multipart-invalid", "the body ends before its last boundary: send it again")
    if not files:
        raise Problem(422, "input-invalid", "the body has no files: send each image as a file part")
    return files
