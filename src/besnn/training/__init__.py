"""Training: from a recipe and data to a calibrated detector."""

import importlib
from typing import TYPE_CHECKING

from besnn.recipe.build import build_backbone, build_method
from besnn.recipe.config import Recipe
from besnn.recipe.reading import load_recipe, parse_recipe, shipped_recipes

if TYPE_CHECKING:
    from besnn.training.device import make_fabric
    from besnn.training.trainer import RunOptions, Trainer

__all__ = [
    "Recipe",
    "RunOptions",
    "Trainer",
    "build_backbone",
    "build_method",
    "load_recipe",
    "make_fabric",
    "parse_recipe",
    "shipped_recipes",
]

_HOMES = {
    "RunOptions": "besnn.training.trainer",
    "Trainer": "besnn.training.trainer",
    "make_fabric": "besnn.training.device",
}


def __getattr__(name: str) -> object:
    """Import the trainer when it is first used: loading and scoring with a model need no Lightning."""
    if name not in _HOMES:
        raise AttributeError(f"module 'besnn.training' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
