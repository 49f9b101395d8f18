"""Reading recipes: YAML files, shipped or the user's own, with overrides, and errors that name the field."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import BaseModel

from besnn.errors import InputError
from besnn.training.config import Recipe


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with besnn."""
    folder = resources.files("besnn.experiments") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads a recipe by the name of a shipped one or by path, with overrides such as `training.epochs=5`."""
    if str(name) in shipped_recipes():
        text = (resources.files("besnn.experiments") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"recipe {str(name)!r} cannot be read ({error.__class__.__name__}): "
                f"give a YAML file or one of {', '.join(shipped_recipes())}"
            ) from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"recipe {str(name)!r} is not YAML: {' '.join(str(error).split())}") from None
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
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise InputError(f"--set {override!r}: write it as field=value, for instance training.epochs=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {override!r}: the value is not YAML") from None
    head, _, rest = path.partition(".")
    inner = content.get(head)
    if rest:
        value = _override(inner if isinstance(inner, dict) else {}, f"{rest}={text}")
    return {**content, head: value}


def _explain(error: pydantic.ValidationError) -> str:
    """The first mistake in one line: the field, what is wrong, what is allowed."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if path[:1] == ["method"] and len(path) > 1:
        del path[1]  # pydantic puts the chosen method's tag between, which the user never writes
    field = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"recipe field {field!r} is unknown: {_allowed(path[:-1])}"
    if first["type"].startswith("union_tag"):
        return f"recipe field 'method.name': {first['msg']}"
    return f"recipe field {field!r} is {first.get('input')!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _allowed(path: list[str]) -> str:
    section: Any = Recipe
    for part in path:
        field = section.model_fields.get(part)
        annotation = None if field is None else field.annotation
        choices = [
            a for a in (annotation, *getattr(annotation, "__args__", ())) if isinstance(a, type) and issubclass(a, BaseModel)
        ]
        if len(choices) != 1:
            return "see the recipe reference in the documentation"
        section = choices[0]
    return f"allowed here are {', '.join(section.model_fields)}"
