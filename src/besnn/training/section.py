"""What all parts of a recipe have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, and a recipe does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
