"""Request bodies: limits that hold while the bytes arrive, strict JSON, and multipart files."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.types import Message

from besnn.serve.problems import Problem, first_error
from besnn.serve.settings import Settings

JSON, MULTIPART, BINARY = "application/json", "multipart/form-data", "application/octet-stream"
MAX_FIELDS = 1000

Model = TypeVar("Model", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=False)]
Pixel = Annotated[float, Field(ge=0, le=255, multiple_of=1)]  # 7.0 is a whole number too, in JSON
Scalars = dict[str, bool | int | float | str]


class BodyLimits:
    """Limits the size and arrival time of each request body, and the size of all bodies held together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0

    @asynccontextmanager
    async def limited(self, request: Request) -> AsyncIterator[Request]:
        """Yield the request with its body limited; its bytes count as held until the block ends."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(415, "encoding-unsupported", "send the body uncompressed, without Content-Encoding")
        declared = request.headers.get("content-length", "")
        self._check_length(int(declared) if declared.isdecimal() and len(declared) < 20 else 0)
        until = asyncio.get_running_loop().time() + self._settings.deadline_seconds
        length = 0

        async def receive() -> Message:
            nonlocal length
            try:
                async with asyncio.timeout_at(until):
                    message = await request.receive()
            except TimeoutError:
                raise Problem(408, "body-timeout", "the request body did not arrive in time: send it again") from None
            more = len(message.get("body", b""))
            length += more
            self._held += more
            self._check_length(length)
            if self._held > self._settings.max_bytes_in_flight:
                raise Problem(429, "busy", "the service is reading too many requests: try again", {"Retry-After": "1"})
            return message

        try:
            yield Request(request.scope, receive)
        finally:
            self._held -= length

    def _check_length(self, length: int) -> None:
        if length > (limit := self._settings.max_body_bytes):
            raise Problem(413, "body-too-large", f"the body is longer than {limit:,} bytes: send fewer inputs at a time")


def media_type(request: Request) -> str:
    """Return the body's media type, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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
        if error.errors()[0]["type"] == "json_invalid":
            raise Problem(400, "json-invalid", f"the body is not JSON: {first_error(error)}") from None
        raise Problem(422, "input-invalid", f"{first_error(error)}; send {expected}") from None


def read_files(body: bytes, content_type: str, max_files: int) -> list[bytes]:
    """Return the files of a complete `multipart/form-data` body that holds nothing but files."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Problem(400, "multipart-invalid", "Content-Type has no boundary: let your HTTP library write that header")
    files: list[bytes] = []
    is_complete = False

    def take(file: File) -> None:
        if len(files) == max_files:
            raise Problem(422, "input-invalid", f"the body has more than {max_files} files: send fewer at a time")
        file.file_object.seek(0)
        files.append(file.file_object.read())

    def refuse(_: FormField) -> None:
        raise Problem(422, "input-invalid", "the body has a part that is not a file: send files only")

    def complete() -> None:
        nonlocal is_complete
        is_complete = True

    try:
        parser = FormParser(MULTIPART, refuse, take, complete, boundary, config={"MAX_MEMORY_FILE_SIZE": math.inf})
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Problem(400, "multipart-invalid", "the body is not the multipart form that Content-Type announces") from None
    if not is_complete:
        raise Problem(400, "multipart-invalid", "the body ends before its last boundary: send it again")
    if not files:
        raise Problem(422, "input-invalid", "the body has no files: send each image as a file part")
    return files
