"""Reading request bodies under limits, which hold while the bytes arrive and not only after."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.types import Message

from besnn.serve.problems import Problem
from besnn.serve.settings import Settings


class BodyLimits:
    """Lets request bodies in: each up to a size and within a time, all together up to a size.

    Args:
        settings: for the limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0

    @asynccontextmanager
    async def limited(self, request: Request) -> AsyncIterator[Request]:
        """The same request, whose body now keeps to the limits; its bytes count as held until the block ends."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(415, "encoding-unsupported", "bodies must not be compressed: send them without Content-Encoding")
        self._check_length(_declared_length(request))
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
                raise Problem(429, "busy", "the service is reading too much already: try again", {"Retry-After": "1"})
            return message

        try:
            yield Request(request.scope, receive)
        finally:
            self._held -= length

    def _check_length(self, length: int) -> None:
        if length > (limit := self._settings.max_body_bytes):
            raise Problem(413, "body-too-large", f"the body is longer than {limit:,} bytes: send fewer inputs at a time")


def _declared_length(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
