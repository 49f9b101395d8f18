"""Which requests are allowed (token, origin, host), and which headers protect the answers in browsers."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.datastructures import Headers

from besnn.serve.problems import Problem

HEADERS = {
    # Scripts, styles and requests of the page go to this service only; nothing inline, no frames, no forms.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def token_required(token: SecretStr) -> Callable[..., Awaitable[None]]:
    """Return a dependency that refuses requests without the token."""
    expected = token.get_secret_value().encode()
    bearer = HTTPBearer(auto_error=False)

    async def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        given = b"" if credentials is None else credentials.credentials.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):
            raise Problem(401, "token-invalid", "send the token as Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    return check


async def same_origin(request: Request) -> None:
    """Refuse requests that a browser sends for a page of another site (a dependency).

    Browsers send Sec-Fetch-Site only over TLS or to this machine; otherwise the Origin header must match the host.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if elsewhere if site is None else site in ("cross-site", "same-site"):
        raise Problem(403, "cross-site", "pages of other sites may not use this service")


def require_host(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Refuse requests for unknown hosts; no allowed hosts allow all.

    This stops DNS rebinding: another site's page cannot reach a local service under its own name.
    """
    if allowed and host_of(headers) not in allowed:
        raise Problem(421, "host-unknown", "this host name is not allowed: start the service with --allow-host NAME")


def host_of(headers: Headers) -> str:
    """Return the name in the Host header, without its port.

    >>> host_of(Headers({"host": "[::1]:8000"})), host_of(Headers({"host": "localhost:8000"}))
    ('::1', 'localhost')
    """
    host = headers.get("host", "").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
