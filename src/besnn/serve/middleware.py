"""What happens around every request: its host is checked, its answer gets headers, and it is counted and logged."""

import logging
import time
import traceback
import uuid
from http import HTTPMethod

from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from besnn.serve.problems import MEDIA_TYPE, Problem
from besnn.serve.security import HEADERS, require_host
from besnn.serve.telemetry import Metrics

_METHODS = frozenset(HTTPMethod)
_LOG = logging.getLogger(__name__)


class ProblemBody(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(extra="forbid")

    type: str
    title: str
    status: int
    code: str
    detail: str
    error: str
    """The detail again, under the Open Inference Protocol's name for it."""


def answer_to(problem: Problem) -> Response:
    """Return a problem as an HTTP answer."""
    return JSONResponse(problem.body(), problem.status, problem.headers, media_type=MEDIA_TYPE)


class Frame:
    """ASGI middleware that frames every request, and turns an unexpected exception into a 500 without details.

    The log gets the exception's type and stack, but not its message, which may quote the input. Of the path, log and metrics
    keep the route, because clients choose the rest.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, allowed_hosts: tuple[str, ...]) -> None:
        self.app, self._metrics, self._allowed_hosts = app, metrics, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, identity = time.monotonic(), uuid.uuid4().hex
        status: int | None = None

        async def send_framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers["X-Request-ID"] = identity
            await send(message)

        try:
            require_host(Headers(scope=scope), self._allowed_hosts)
            await self.app(scope, receive, send_framed)
        except Exception as error:
            problem = error if isinstance(error, Problem) else _unexpected(error)
            if status is None:
                await answer_to(problem)(scope, receive, send_framed)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # static files have none
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds, status = time.monotonic() - began, status or 500
            self._metrics.request(route, method, status, seconds)
            fields = {"id": identity, "method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
            _LOG.info("request", extra={"fields": fields})


def _unexpected(error: Exception) -> Problem:
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    _LOG.error("unexpected", extra={"fields": {"error": type(error).__name__, "frames": frames}})
    return Problem(500, "internal", "the service failed on this request: see its log")
