"""Errors for clients, as problem+json (RFC 9457) with a code; internal details never reach a client."""

import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "application/problem+json"
_LONGEST_PLACE = 100  # characters
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


class Problem(Exception):  # noqa: N818 (the RFC's own word)
    """An error for the client: its code is for programs, its detail is a sentence for people that says what to do."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})

    def response(self) -> Response:
        """Return the problem as an HTTP answer."""
        body = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body |= {"code": self.code, "detail": self.detail, "error": self.detail}
        return JSONResponse(body, self.status, self.headers, media_type=MEDIA_TYPE)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe a route's problems for its OpenAPI description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def first_error(error: ValidationError | RequestValidationError) -> str:
    """Say what a validation found wrong first, and where."""
    found = error.errors()[0]
    steps = [step for step in map(str, found["loc"]) if "[" not in step]  # a step with a bracket is the name of a type
    place = ".".join(steps)[:_LONGEST_PLACE]  # a client may send a field name of any length
    message = found["msg"][:1].lower() + found["msg"][1:]
    return f"{place}: {message}" if place else message


def add_problem_handlers(app: FastAPI) -> None:
    """Make an app answer its own errors and the framework's with problems."""

    @app.exception_handler(Problem)
    def _problem(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(RequestValidationError)
    def _validation(_: Request, error: RequestValidationError) -> Response:
        return Problem(422, "parameter-invalid", first_error(error)).response()

    @app.exception_handler(HTTPException)
    def _framework(_: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        code = status.phrase.lower().replace(" ", "-")
        return Problem(status, code, f"{status.phrase}: see /openapi.json", error.headers).response()


class CatchUnexpected:
    """ASGI middleware that turns an unexpected exception into a 500 without details.

    The log gets the exception's type and stack, but not its message, which may quote the input. Starlette's own handler
    would re-raise the exception outside of the other middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, note_start)
        except Exception as error:
            if scope["type"] != "http":
                raise
            frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
            _LOG.error("unexpected", extra={"fields": {"error": type(error).__name__, "frames": frames}})
            if not started:
                problem = Problem(500, "internal", "the service failed on this request: see its log")
                await problem.response()(scope, receive, send)
