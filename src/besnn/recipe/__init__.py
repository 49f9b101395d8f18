"""Recipes: validated descriptions of training runs, the registry of methods, and the networks that recipes describe."""

from besnn.baselines import EnsembleConfig, MethodConfig, SingleNetworkConfig
from besnn.recipe.build import build_backbone, build_method
from besnn.recipe.config import Recipe
from besnn.recipe.methods import METHODS
from besnn.recipe.reading import load_recipe, parse_recipe, shipped_recipes

__all__ = [
    "METHODS",
    "EnsembleConfig",
    "MethodConfig",
    "Recipe",
    "SingleNetworkConfig",
    "build_backbone",
    "build_method",
    "load_recipe",
    "parse_recipe",
    "shipped_recipes",
]
