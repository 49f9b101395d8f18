"""The base class of all sections of a recipe, and types that they share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, and settings do not change once they are read."""

    # Numbers may stand for strings: a class called 7 needs no quotation marks.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)
