"""The base class of all sections of a recipe, types that they share, and what is wrong with a setting, in plain words."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails

Fraction = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, and settings do not change once they are read."""

    # Numbers may stand for strings: a class called 7 needs no quotation marks.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


_ADVICE = {
    "greater_than": "give a number above {gt:g}",
    "greater_than_equal": "give {ge:g} or more",
    "less_than": "give a number below {lt:g}",
    "less_than_equal": "give {le:g} or less",
    "finite_number": "give a finite number",
    "literal_error": "give {expected}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "give a list, such as [64, 64]"),
    "string_type": "give text",
}


def advice(error: ErrorDetails) -> str:
    """Say what to give instead of a value that pydantic refused.

    >>> from pydantic import PositiveInt, TypeAdapter, ValidationError
    >>> try:
    ...     TypeAdapter(PositiveInt).validate_python(0)
    ... except ValidationError as error:
    ...     print(advice(error.errors()[0]))
    give a number above 0
    """
    if (words := _ADVICE.get(error["type"])) is None:
        return f"{error['msg'][:1].lower()}{error['msg'][1:]}"
    return words.format(**error.get("ctx", {}))
