"""What all parts of a recipe have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Members = Annotated[int, Field(ge=1, le=1024, description="N, how many networks the ensemble has")]


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, and a recipe does not change once it is read."""

    # Numbers may stand for strings: a class called 7 is written without quotation marks.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)
