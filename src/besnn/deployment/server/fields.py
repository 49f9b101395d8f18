"""Strict shapes of JSON: what is not described is refused, and the first fault ends the search for more."""

from typing import Annotated, Any, TypeVar

from annotated_types import Len
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, model_validator
from pydantic_core import from_json

from besnn.deployment.server.problems import Problem, first_error

MAX_FIELDS = 32

Model = TypeVar("Model", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=False)]
Pixel = Annotated[int, Field(ge=0, le=255)]


def few(value: Any) -> Any:
    """Refuses an object of so many fields that listing what is wrong with each would take long."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"an object of more than {MAX_FIELDS} fields is not expected here")
    return value


class Strict(BaseModel):
    """A part of a request: unknown fields are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        return few(value)


Scalars = Annotated[dict[str, bool | int | float | str], BeforeValidator(few)]


def nested_lists(number: Any, shape: tuple[int, ...]) -> Any:
    """The type of an array of exactly this shape, as JSON has it.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(nested_lists(Pixel, (1, 2))).validate_python([[0, 255]])
    [[0, 255]]
    """
    kind = number
    for size in reversed(shape):
        kind = list_of(kind, size, size)
    return kind


def list_of(kind: Any, least: int = 0, most: int | None = None) -> Any:
    """The type of a list of so many items of a kind."""
    return Annotated[list[kind], Len(least, most), _FirstFault()]


class _FirstFault(FailFast):
    """Ends validation at the first fault; hashable, as unions of annotated types want it on Python 3.11."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


def parse(model: type[Model], body: bytes) -> Model:
    """The body as a request, or a problem that says what is wrong with it first.

    >>> class Point(Strict):
    ...     x: Number
    >>> parse(Point, b'{"x": 1}')
    Point(x=1.0)
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "json-invalid", f"the body is not JSON ({error}): check its syntax") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise Problem(422, "input-invalid", first_error(error)) from None
