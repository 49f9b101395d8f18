"""Errors for clients, as problem+json (RFC 9457) with a code; internal details never reach a client.

Processes that decode images import this module, so it imports nothing large.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"
_LONGEST_PLACE = 100  # characters


class Problem(Exception):  # noqa: N818 (the RFC's own word)
    """An error for the client: its code is for programs, its detail is a sentence for people that says what to do."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers

    def body(self) -> dict[str, object]:
        """Return the fields of a `ProblemBody`."""
        named = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return named | {"code": self.code, "detail": self.detail, "error": self.detail}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe a route's problems for its OpenAPI description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def busy(detail: str, seconds: int = 1) -> Problem:
    """Return the problem of a service that has no room at the moment."""
    return Problem(429, "busy", f"{detail}: try again later", {"Retry-After": str(seconds)})


def describe_error(found: Mapping[str, Any]) -> str:
    """Say in one line what a validation found wrong, and where."""
    steps = [step for step in map(str, found["loc"]) if "[" not in step]  # a step with a bracket is the name of a type
    place = ".".join(steps)[:_LONGEST_PLACE]  # a client may send a field name of any length
    message = found["msg"][:1].lower() + found["msg"][1:]
    return f"{place}: {message}" if place else message
