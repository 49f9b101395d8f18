"""What an operator can set; every limit has a safe default."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from besnn.errors import InputError

Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Settings of the service; unknown ones are errors.

    >>> Settings(deadline_seconds=2).deadline_seconds
    2.0
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model_name: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}$")] = Field(
        default="model", description="The model's name in paths of the Open Inference Protocol."
    )
    token: SecretStr | None = Field(default=None, description="What clients must send as a bearer token; None asks for none.")
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="Names in the Host header that are answered; empty answers to all. Against DNS rebinding."
    )
    max_body_bytes: Count = Field(default=16 * 2**20, description="Longest request body.")
    max_bytes_in_flight: Count = Field(default=256 * 2**20, description="Bytes of all bodies that are held at the same time.")
    max_rows: Count = Field(default=4096, description="Most inputs in one request.")
    max_image_pixels: Count = Field(default=32_000_000, description="Most pixels that an uploaded image may unpack to.")
    max_request_pixels: Count = Field(
        default=64_000_000, description="Most pixels that the uploaded images of one request may unpack to together."
    )
    max_batch_rows: Count = Field(default=512, description="Inputs that are scored together, if that many wait.")
    max_waiting_rows: Count = Field(
        default=16_384, description="Inputs that may wait to be scored; beyond it clients get a 429."
    )
    deadline_seconds: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="Longest wait for an answer, and for a body to arrive."
    )
    drift_state: Path | None = Field(default=None, description="The file that keeps the drift monitor; None forgets it.")
    drift_alarm_level: Annotated[float, Field(gt=1)] = Field(
        default=100.0, description="L: the probability of ever raising the drift alarm falsely is at most 1/L."
    )
    drift_window: Count = Field(default=1000, description="Inputs that the rate of unknown ones is taken over.")


def served_name(model: Path) -> str:
    """What a model file is called in paths.

    >>> served_name(Path("models/my digits.safetensors"))
    'my-digits'
    """
    return re.sub(r"[^\w.-]", "-", model.stem)[:100] or "model"


def parse_settings(values: Mapping[str, object], overrides: Iterable[str] = ()) -> Settings:
    """Settings from values and from overrides such as `deadline_seconds=5`; the error for a wrong one names it.

    >>> parse_settings({"model_name": "digits"}, ["max_rows=64"]).max_rows
    64
    """
    given = dict(values)
    for override in overrides:
        field, equals, value = override.partition("=")
        if not equals:
            raise InputError(f"--set {override!r}: write it as field=value, for instance deadline_seconds=5")
        if field == "token":
            raise InputError("--set token: every user of the machine can read the command line; use --token-file")
        given[field] = value
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(
            f"setting {name!r} is {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}; "
            f"there are {', '.join(Settings.model_fields)}"
        ) from None
