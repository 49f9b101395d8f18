"""The record of a run: one JSON file, under field names that runs, timings and evaluations share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from besnn.errors import DataError, one_line
from besnn.model import OODClassifier
from besnn.recipe.config import Recipe
from besnn.storage.files import atomic_path


def model_fields(model: OODClassifier, recipe: Recipe) -> dict[str, object]:
    """What a record says of the model: method, members, seed, parameters, and the recipe whole.

    >>> from besnn.training import build_method, load_recipe
    >>> recipe = load_recipe("two-moons", ["training.seed=3"])
    >>> fields = model_fields(build_method(recipe, (2,), 2)[0], recipe)
    >>> fields["method"], fields["members"], fields["seed"]
    ('be-snn', 4, 3)
    """
    return {
        "method": model.method,
        "members": model.members,
        "seed": recipe.training.seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "recipe": recipe.model_dump(mode="json"),
    }


def write_record(path: Path, fields: Mapping[str, object]) -> None:
    """Writes a record, whole or not at all; NaN and infinity, which JSON does not know, are errors."""
    text = json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_path(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_record(path: Path) -> dict[str, Any]:
    """The fields of a record."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a record ({one_line(error)}): remove it to run it again") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} is not a record (it holds no fields): remove it to run it again")
    return fields
