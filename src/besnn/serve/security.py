"""Who may ask, from where, and what browsers may do with the answers."""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from besnn.errors import InputError
from besnn.serve.problems import Problem

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MIN_TOKEN_LENGTH = 16
_MAKE_TOKEN = "make one with python -c 'import secrets; print(secrets.token_urlsafe())'"

HEADERS = {
    # Scripts, styles and requests of the page go to this service alone; nothing inline, no frames, no forms.
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
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def token_required(token: SecretStr) -> Callable[..., Awaitable[None]]:
    """A dependency that lets only requests with the token pass."""
    expected = token.get_secret_value().encode()
    bearer = HTTPBearer(auto_error=False)

    async def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        given = b"" if credentials is None else credentials.credentials.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):
            raise Problem(401, "token-invalid", "send the token as Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    return check


async def same_origin(request: Request) -> None:
    """A dependency that refuses what another site's page sends; browsers say so themselves.

    To a service without TLS on another machine they say no more than which site it is.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if elsewhere if site is None else site in ("cross-site", "same-site"):
        raise Problem(403, "cross-site", "pages of other sites may not use this service")


class SecurityHeaders:
    """ASGI middleware: adds `HEADERS` to every answer, and answers no request for a host that it does not know.

    The latter keeps other sites' pages from reaching a service on this machine under a name of theirs (DNS rebinding).

    Args:
        app: what answers the requests.
        allowed_hosts: names that may stand in the Host header; empty for any.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...] = ()) -> None:
        self.app, self._allowed_hosts = app, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in _RAW_HEADERS if header[0] not in own)]
            await send(message)

        if scope["type"] == "http" and self._allowed_hosts and host_of(Headers(scope=scope)) not in self._allowed_hosts:
            problem = Problem(421, "host-unknown", "this service does not go by that name: start it with --allow-host NAME")
            await problem.response()(scope, receive, add_headers)
        else:
            await self.app(scope, receive, add_headers)


def host_of(headers: Headers) -> str:
    """The name in the Host header, without its port.

    >>> host_of(Headers({"host": "[::1]:8000"})), host_of(Headers({"host": "localhost:8000"}))
    ('::1', 'localhost')
    """
    host = headers.get("host", "").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def access_settings(host: str, token_file: Path | None, insecure: bool, more_hosts: Iterable[str]) -> dict[str, object]:
    """The settings of who may ask, for a service that listens on `host`.

    Without a token, a service is for this machine alone and answers only to names of it, unless told otherwise.
    """
    if token_file is not None:
        return {"token": read_token(token_file)}
    if is_loopback(host):
        return {"allowed_hosts": (*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more_hosts))}
    if insecure:
        return {}
    raise InputError(f"--host {host} can be reached from other machines: give a --token-file, or --insecure to do without")


def is_loopback(host: str) -> bool:
    """Whether an address to bind to can be reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """The token in a file, without the blanks around it; one that could be guessed is refused."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InputError(f"token file {path} cannot be read ({error.strerror}): give a file that holds the token") from None
    except UnicodeDecodeError:
        raise InputError(f"token file {path} is not ASCII text: {_MAKE_TOKEN}") from None
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        raise InputError(f"the token in {path} is shorter than {MIN_TOKEN_LENGTH} characters or holds blanks: {_MAKE_TOKEN}")
    return token
