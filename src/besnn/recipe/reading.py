"""Reading recipes: YAML files, shipped or the user's own, with overrides, and errors that name the field."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml
from pydantic import BaseModel

from besnn.errors import InputError, one_line
from besnn.recipe.config import Recipe


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with besnn."""
    folder = resources.files("besnn.recipe") / "shipped"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str | Path) -> str:
    """The YAML of a recipe, by the name of a shipped one or by path."""
    if str(name) in shipped_recipes():
        return (resources.files("besnn.recipe") / "shipped" / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"recipe {str(name)!r} cannot be read ({error.__class__.__name__}): "
            f"give a YAML file or one of {', '.join(shipped_recipes())}"
        ) from None


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads a recipe by the name of a shipped one or by path, with overrides such as `training.epochs=5`."""
    text = recipe_text(name)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"recipe {str(name)!r} is not YAML: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(
            f"recipe {str(name)!r} holds no settings: a recipe is a YAML mapping with the keys {', '.join(Recipe.model_fields)}"
        )
    return parse_recipe(content, overrides)


def parse_recipe(content: dict[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from its mapping; the error for a wrong key or value names the field and what is allowed.

    >>> parse_recipe({"name": "mine", "data": {"source": "digits"}}, ["training.epochs=5"]).training.epochs
    5
    """
    for override in overrides:
        content = _override(content, override)
    try:
        return Recipe.model_validate(content)
    except pydantic.ValidationError as error:
        raise InputError(_explain(error)) from None


def _override(content: dict[str, Any], override: str) -> dict[str, Any]:
    """The mapping with one field set, as in `training.epochs=5`; sections on the way are made where they are missing."""
    field, equals, text = override.partition("=")
    if not equals or not field:
        raise InputError(f"--set {override!r}: write it as field=value, for instance training.epochs=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {override!r}: the value is not YAML") from None
    return _with(content, field.split("."), value)


def _with(section: Any, path: list[str], value: Any) -> dict[str, Any]:
    if isinstance(section, str):  # `method: softmax` is short for its name
        section = {"name": section}
    section = section if isinstance(section, dict) else {}
    head, *rest = path
    return {**section, head: _with(section.get(head), rest, value) if rest else value}


def _explain(error: pydantic.ValidationError) -> str:
    """The first mistake in one line: the field, what is wrong, what is allowed."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    method = None
    if path[:1] == ["method"] and len(path) > 1:
        method = path.pop(1)  # pydantic puts the chosen method's name between, which the user never writes
    field, value, context = ".".join(path), first["input"], first.get("ctx", {})
    match first["type"]:
        case "extra_forbidden":
            return f"recipe field {field!r} is unknown: allowed here are {', '.join(_allowed(path[:-1], method))}"
        case "missing":
            return f"recipe field {field!r} is missing: add it"
        case "union_tag_invalid":
            return f"recipe field 'method.name' is {context['tag']!r}: use one of {context['expected_tags']}"
        case "model_type" | "model_attributes_type":
            return f"recipe field {field!r} is {value!r}: it is a section with keys of its own"
        case "value_error":  # from our own checks; one that concerns several fields names them itself
            return f"recipe field {f'{field!r}: ' if field else ''}{context['error']}"
    return f"recipe field {field!r} is {value!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _allowed(path: list[str], method: str | None) -> list[str]:
    """The keys of the section at a path; `method` says which of the methods' sections is meant."""
    section: type[BaseModel] = Recipe
    for part in path:
        if part not in section.model_fields:
            continue  # a key of `ramps`, whose section was found one step before
        annotation = section.model_fields[part].annotation
        sections = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        section = next(s for s in sections if len(sections) == 1 or method in get_args(s.model_fields["name"].annotation))
    return list(section.model_fields)
