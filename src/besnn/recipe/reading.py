"""Reading recipes: shipped or your own YAML files, with overrides, another method, and errors that name the field."""

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml
from pydantic import BaseModel

from besnn.baselines import MethodConfig
from besnn.detection import DENSITIES
from besnn.detection.score_set import COMBINED
from besnn.errors import InputError, one_line
from besnn.recipe.config import AUTO, METHOD, BackboneConfig, Recipe, backbone_class
from besnn.recipe.methods import method_class
from besnn.settings import advice

_FOLDER = resources.files("besnn.recipe")


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with besnn.

    >>> {"cifar10", "digits", "fashion-mnist", "two-moons"} <= set(shipped_recipes())
    True
    """
    return sorted(Path(entry.name).stem for entry in (_FOLDER / "shipped").iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str | Path) -> str:
    """Return the YAML of a recipe, by the name of a shipped one or by path."""
    if str(name) in shipped_recipes():
        return (_FOLDER / "shipped" / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"recipe {str(name)!r} cannot be read ({error.__class__.__name__})"
        raise InputError(f"{reason}: give a YAML file or one of {', '.join(shipped_recipes())}") from None


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe by the name of a shipped one or by path, with overrides such as `training.epochs=5`.

    >>> load_recipe("digits", ["training.epochs=5"]).training.epochs
    5
    """
    text = recipe_text(name)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"recipe {str(name)!r} is not YAML: {one_line(error)}") from None
    if not isinstance(content, dict):
        keys = ", ".join(Recipe.model_fields)
        raise InputError(f"recipe {str(name)!r} holds no settings: a recipe is a YAML mapping with the keys {keys}")
    return parse_recipe(content, overrides)


def parse_recipe(content: dict[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """Check the mapping of a recipe; the error for a wrong key or value names the field and what is allowed.

    >>> parse_recipe({"name": "mine", "data": {"source": "digits"}}, ["training.epochs=5"]).training.epochs
    5
    """
    for override in overrides:
        content = _override(content, override)
    try:
        return Recipe.model_validate(content)
    except pydantic.ValidationError as error:
        raise InputError(_explain(error, content)) from None


def method_overrides(recipe: Recipe, method: str) -> list[str]:
    """Return the overrides, as `load_recipe` takes them, that replace a recipe's method by another.

    For the paper's data sets, they are the sections in `baselines.yaml`. For other recipes, the method has its defaults, and
    settings that name a term or a score of the recipe's own method are reset. `pretraining` says how a plain network trains,
    so it takes the place of `training`.

    >>> method_overrides(load_recipe("digits"), "duq")
    ['method={"name": "duq"}', 'training.gradient_every=1', 'training.ramps={}']
    """
    if method == recipe.method.name:
        return []
    tuned = {}
    if recipe.name == recipe.data.source.partition(":")[0]:  # not a user's recipe of the same name
        by_recipe = yaml.safe_load((_FOLDER / "baselines.yaml").read_text(encoding="utf-8"))
        tuned = by_recipe.get(recipe.name, {}).get(method, {})
    settings: dict[str, Any] = {"method": {"name": method}}
    if recipe.pretraining is not None and not tuned:
        settings["training"] = recipe.plain().training.model_dump(mode="json")
    settings |= {"training.gradient_every": 1, "training.ramps": {}}
    if recipe.pretraining is not None:
        settings["pretraining"] = None
    if recipe.score.name not in (AUTO, METHOD, COMBINED, *DENSITIES):
        settings["score.name"] = METHOD
    settings |= tuned
    return [f"{field}={json.dumps(value)}" for field, value in settings.items()]


def effort_overrides(recipe: Recipe, effort: float) -> list[str]:
    """Return the overrides, as `load_recipe` takes them, that multiply the length of training.

    >>> effort_overrides(load_recipe("digits"), 0.25)
    ['training.epochs=6']
    """
    sections = {"pretraining": recipe.pretraining, "training": recipe.training}
    lengths = {
        f"{name}.{field}": getattr(part, field)
        for name, part in sections.items()
        for field in ("epochs", "least_steps")
        if part is not None
    }
    return [f"{field}={max(1, round(effort * length))}" for field, length in lengths.items() if length]


def _override(content: dict[str, Any], override: str) -> dict[str, Any]:
    field, equals, text = override.partition("=")
    if not equals or not field:
        raise InputError(f"--set {override!r}: write it as field=value, for instance training.epochs=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {override!r}: the value is not YAML") from None
    if field == "training.epochs":  # whoever sets the epochs wants exactly that many
        content = _with(content, ["training", "least_steps"], 0)
    return _with(content, field.split("."), value)


def _with(section: Any, path: list[str], value: Any) -> dict[str, Any]:
    """Set the field at a path; missing sections on the way are added."""
    if isinstance(section, str):  # `method: softmax` is short for its name
        section = {"name": section}
    section = section if isinstance(section, dict) else {}
    head, *rest = path
    return {**section, head: _with(section.get(head), rest, value) if rest else value}


def _explain(error: pydantic.ValidationError, content: dict[str, Any]) -> str:
    """Describe the first mistake in one line: the field, what is wrong, what is allowed."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    field, value, context = ".".join(path), first["input"], first.get("ctx", {})
    match first["type"]:
        case "extra_forbidden":
            return f"recipe field {field!r} is unknown: allowed here are {', '.join(_allowed(path[:-1], content))}"
        case "missing":
            return f"recipe field {field!r} is missing: add it"
        case "model_type" | "model_attributes_type":
            return f"recipe field {field!r} is {value!r}: it is a section with keys of its own"
        case "value_error":  # from our own checks; a check of several fields names them itself
            return f"recipe field {f'{field!r}: ' if field else ''}{context['error']}"
    return f"recipe field {field!r} is {value!r}: {advice(first)}"


def _allowed(path: list[str], content: dict[str, Any]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in path:
        if part not in section.model_fields:
            continue  # a key of `ramps`, whose section was found one step before
        annotation = section.model_fields[part].annotation
        candidates = (annotation, *get_args(annotation))
        section = next(each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel))
        if section is MethodConfig:
            section = method_class(content["method"])
        elif section is BackboneConfig:
            section = backbone_class()
    return list(section.model_fields)
