"""Recipes: validated descriptions of training runs, the registry of methods, and the networks that recipes describe."""

from besnn.baselines import MethodConfig
from besnn.recipe.methods import METHODS
from besnn.recipe.reading import load_recipe, parse_recipe

__all__ = ["METHODS", "MethodConfig", "load_recipe", "parse_recipe"]
