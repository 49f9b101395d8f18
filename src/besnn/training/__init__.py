"""Training: recipes, the trainer, checkpoints, records."""

from besnn.training.build import build_backbone, build_method
from besnn.training.config import Recipe
from besnn.training.recipe import load_recipe, parse_recipe, shipped_recipes
from besnn.training.trainer import Trainer, make_fabric

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
