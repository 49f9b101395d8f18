"""What an operator can set: limits with safe defaults, and who may use the service."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from besnn.errors import InputError
from besnn.settings import advice

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MIN_TOKEN_LENGTH = 16
_MAKE_TOKEN = "make one with python -c 'import secrets; print(secrets.token_urlsafe())'"

Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """The settings of the service. Unknown names are errors.

    >>> settings = Settings(model_name="digits", deadline_seconds=2)
    >>> settings.max_rows
    4096
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model_name: str = Field(default="model", pattern=r"^[\w.-]{1,100}$", description="The model's name in paths under /v2.")
    token: SecretStr | None = Field(default=None, description="The bearer token that clients must send; None requires none.")
    allowed_hosts: tuple[str, ...] = Field(default=(), description="Host names, against DNS rebinding; empty accepts all.")
    max_connections: Count = Field(default=512, description="Open connections per worker; beyond it idle ones are closed.")
    max_body_bytes: Count = Field(default=16 * 2**20, description="Longest request body.")
    max_bytes_in_flight: Count = Field(default=256 * 2**20, description="Bytes of all request bodies held at the same time.")
    max_rows: Count = Field(default=4096, description="Most inputs in one request.")
    max_image_side: Count = Field(default=16_384, description="Most pixels of an uploaded image's longer side.")
    max_image_pixels: Count = Field(default=32_000_000, description="Most pixels of one uploaded image.")
    max_request_pixels: Count = Field(default=64_000_000, description="Most pixels of all images uploaded in one request.")
    max_decoded_bytes: Count = Field(default=2**30, description="Bytes of all decoded images held at the same time.")
    max_batch_rows: Count = Field(default=512, description="Most inputs scored together.")
    max_waiting_rows: Count = Field(default=16_384, description="Most inputs in the queue; beyond it clients get a 429.")
    deadline_seconds: float = Field(default=10.0, gt=0, description="Longest wait for an answer, and for a body to arrive.")
    drift_state: Path | None = Field(default=None, description="The file that keeps the drift monitor; in memory if None.")
    drift_alarm_level: float = Field(
        default=100.0, gt=1, description="L: a false drift alarm has a probability of at most 1/L."
    )
    drift_window: Count = Field(default=1000, description="How many recent inputs the rate of unknown ones is measured over.")


def served_name(model: Path) -> str:
    """Return the name of a model file in URL paths.

    >>> served_name(Path("models/my digits.safetensors"))
    'my-digits'
    """
    return re.sub(r"[^\w.-]", "-", model.stem)[:100] or "model"


def parse_settings(values: Mapping[str, object], overrides: Iterable[str] = ()) -> Settings:
    """Make settings from values and from overrides such as `deadline_seconds=5`."""
    given = dict(values)
    for override in overrides:
        field, equals, value = override.partition("=")
        if not equals:
            raise InputError(f"--set {override!r}: write it as FIELD=VALUE, for instance deadline_seconds=5")
        if field == "token":
            raise InputError("--set token: other users of this machine can read the command line; use --token-file")
        given[field] = value
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        fields = ", ".join(Settings.model_fields)
        raise InputError(f"setting {name!r} is {first['input']!r}: {advice(first)}; the settings are {fields}") from None


def access_settings(host: str, token_file: Path | None, insecure: bool, more_hosts: Iterable[str]) -> dict[str, object]:
    """Return the settings of who may use a service that listens on `host`.

    Without a token, a service listens on this machine only and answers to this machine's names only, unless `insecure`.
    """
    if token_file is not None:
        return {"token": read_token(token_file)}
    if is_loopback(host):
        return {"allowed_hosts": (*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more_hosts))}
    if insecure:
        return {}
    raise InputError(f"--host {host} is reachable from other machines: give a --token-file, or --insecure to allow anyone")


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """Read a token from a file, without surrounding blanks; refuse one that is easy to guess."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InputError(f"cannot read token file {path} ({error.strerror}): give a file that holds the token") from None
    except UnicodeDecodeError:
        raise InputError(f"token file {path} is not ASCII text: {_MAKE_TOKEN}") from None
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        raise InputError(f"the token in {path} is shorter than {MIN_TOKEN_LENGTH} characters or contains blanks: {_MAKE_TOKEN}")
    return token
