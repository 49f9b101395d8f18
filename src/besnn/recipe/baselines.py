"""The other methods in the place of a recipe's own."""

import json
from functools import cache
from importlib import resources
from typing import Any

import yaml

from besnn.detection.density import DENSITIES
from besnn.detection.scoring import COMBINED
from besnn.recipe.config import AUTO, METHOD, Recipe

_SCORES_OF_ANY_METHOD = (AUTO, METHOD, COMBINED, *DENSITIES)


def method_overrides(recipe: Recipe, method: str) -> list[str]:
    """Overrides, as `load_recipe` takes them, that put another method in the place of a recipe's own.

    In the shipped recipes of the paper's data sets they are the sections of `baselines.yaml`. Elsewhere the method comes with
    its own defaults; what names a part of the other method's objective or scores is reset, and there is no `pretraining`, whose
    settings were chosen for the recipe's own method.

    >>> from besnn.recipe.reading import load_recipe
    >>> overrides = method_overrides(load_recipe("fashion-mnist"), "softmax")
    >>> load_recipe("fashion-mnist", overrides).backbone.widths
    (128, 256, 256)
    >>> method_overrides(load_recipe("digits"), "duq")
    ['method={"name": "duq"}', 'training.gradient_every=1', 'training.ramps={}']
    """
    if method == recipe.method.name:
        return []
    settings: dict[str, Any] = {"method": {"name": method}, "training.gradient_every": 1, "training.ramps": {}}
    if recipe.pretraining is not None:
        settings["pretraining"] = None
    if recipe.score.name not in _SCORES_OF_ANY_METHOD:
        settings["score.name"] = METHOD
    if recipe.name == recipe.data.source.partition(":")[0]:  # no namesake of the user's own
        settings |= _baselines().get(recipe.name, {}).get(method, {})
    return [f"{field}={json.dumps(value)}" for field, value in settings.items()]


@cache
def _baselines() -> dict[str, dict[str, dict[str, Any]]]:
    """Sections by recipe and method."""
    text = (resources.files("besnn.recipe") / "baselines.yaml").read_text(encoding="utf-8")
    baselines: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return baselines
