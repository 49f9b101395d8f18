"""Strict shapes of JSON: what is not described is refused, and the first fault in a list ends the search for more."""

from typing import Annotated, Any, TypeVar

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from besnn.serve.problems import Problem, first_error

MOST_FIELDS = 1000

Model = TypeVar("Model", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=False)]
Pixel = Annotated[float, Field(ge=0, le=255, multiple_of=1)]  # 7.0 is a whole number too, in JSON
Scalars = dict[str, bool | int | float | str]


class Strict(BaseModel):
    """A part of a request: unknown fields are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


def nested_lists(number: Any, shape: tuple[int, ...]) -> Any:
    """The type of an array of exactly this shape, as JSON has it.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(nested_lists(Pixel, (1, 2))).validate_json("[[0, 255]]")
    [[0.0, 255.0]]
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


def parse(model: type[Model], body: bytes, wanted: str, most_lists: int = 0) -> Model:
    """The body as a request, or a problem that says what is wrong with it first.

    A body that no request could be is refused by counting its colons and brackets, for to list all that is wrong with
    millions of fields or lists would take seconds.

    Args:
        model: the request.
        body: in JSON.
        wanted: what the request should be, in words.
        most_lists: how many lists the data of a request may hold.

    >>> class Point(Strict):
    ...     x: Number
    >>> parse(Point, b'{"x": 1}', "a point")
    Point(x=1.0)
    """
    if body.count(b":") > MOST_FIELDS or body.count(b"[") > most_lists + MOST_FIELDS:
        raise Problem(422, "input-invalid", "the body has too many fields or lists: send fewer inputs at a time")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise Problem(400, "json-invalid", f"the body is not JSON: {first_error(error)}") from None
        raise Problem(422, "input-invalid", f"{first_error(error)}; send {wanted}") from None
