"""Every request leaves a line in the log and a mark in the metrics."""

import logging
import time
import uuid
from http import HTTPMethod

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from besnn.serve.telemetry import Metrics

_LOG = logging.getLogger(__name__)
_METHODS = frozenset(HTTPMethod)


class Observation:
    """ASGI middleware that times and counts requests. Of the path it keeps the route only, for clients choose the rest.

    Args:
        app: what answers the requests.
        metrics: where they are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        identity = uuid.uuid4().hex
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = identity
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # what the page is made of has none
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = time.monotonic() - began
            self._metrics.request(route, method, status, seconds)
            fields = {"id": identity, "method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
            _LOG.info("request", extra={"fields": fields})
