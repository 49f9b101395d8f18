"""Training: recipes, the trainer, checkpoints, records."""

from typing import TYPE_CHECKING

from besnn.recipe.build import build_backbone, build_method
from besnn.recipe.config import Recipe
from besnn.recipe.reading import load_recipe, parse_recipe, shipped_recipes

if TYPE_CHECKING:
    from besnn.training.fabric import make_fabric
    from besnn.training.trainer import Trainer

__all__ = [
    "Recipe",
    "Trainer",
    "build_backbone",
    "build_method",
    "load_recipe",
    "make_fabric",
    "parse_recipe",
    "shipped_recipes",
]


_HOMES = {"Trainer": "besnn.training.trainer", "make_fabric": "besnn.training.fabric"}


def __getattr__(name: str) -> object:
    """Imports the trainer when it is first asked for: loading and scoring with a model need no Lightning."""
    if name not in _HOMES:
        raise AttributeError(f"module 'besnn.training' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
