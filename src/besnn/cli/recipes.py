"""`besnn recipes`: the recipes that come with besnn, and the reference of all their settings."""

import json as json_format
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from besnn.cli.options import Json
from besnn.cli.output import announce

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_INTRODUCTION = """\
# Recipe reference

A recipe is a YAML file that describes one training run. `besnn recipes` lists those that come with besnn, and
`besnn recipes NAME` prints one to start your own from. Only `name` and `data.source` are required; everything else has the
defaults below. Any setting can be changed on the command line:

    besnn train RECIPE -o model.safetensors --set training.epochs=5

A wrong key or value is refused with the name of the field and the values allowed there.

This page is the output of `besnn recipes --reference`; a test keeps it up to date.
"""


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this recipe, to start your own from.")] = None,
    reference: Annotated[bool, typer.Option("--reference", help="Print every setting of a recipe, as Markdown.")] = False,
    json: Json = False,
) -> None:
    """List the recipes that come with besnn, or print one.

    With --json a recipe is printed with all its defaults.
    """
    from besnn.recipe.reading import recipe_text
    from besnn.training import load_recipe, shipped_recipes

    if reference:
        typer.echo(recipe_reference(), nl=False)
    elif name is not None:
        announce(load_recipe(name).model_dump(mode="json"), recipe_text(name).rstrip().splitlines(), as_json=json, quiet=False)
    else:
        purposes = {each: recipe_text(each).split("\n", 1)[0].removeprefix("#").strip() for each in shipped_recipes()}
        announce(purposes, [f"{each:<14} {purpose}" for each, purpose in purposes.items()], as_json=json, quiet=False)


def recipe_reference() -> str:
    """Return every setting of a recipe with its type, default and meaning, as Markdown."""
    from besnn.training import Recipe

    return "\n".join([_INTRODUCTION, *_sections("", Recipe)])


def _sections(path: str, model: "type[BaseModel]") -> Iterator[str]:
    """Yield the table of a section's settings, then the tables of the sections within it."""
    yield f"## {path or 'The recipe'}\n"
    yield f"{_first_paragraph(model)}\n"
    yield "| setting | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    inner: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        full = f"{path}.{name}" if path else name
        sections = _models_in(field.annotation)
        inner += [(_inner_path(full, field, section, len(sections) > 1), section) for section in sections]
        kind = " ".join([_words(field.annotation), *_bounds(field.metadata)])
        meaning = field.description or (_first_paragraph(sections[0]) if len(sections) == 1 else "")
        yield f"| `{name}` | {kind} | {_default(field, bool(sections))} | {meaning} |"
    yield ""
    for inner_path, section in inner:
        yield from _sections(inner_path, section)


def _inner_path(full: str, field: "FieldInfo", section: "type[BaseModel]", is_choice: bool) -> str:
    if is_choice:
        return f"{full}, where its name is {section.model_fields['name'].default}"
    return f"{full}.TERM" if get_origin(field.annotation) is dict else full


def _models_in(annotation: Any) -> "list[type[BaseModel]]":
    """Return the sections that a type allows, as the registries of methods and backbones have them."""
    from besnn.recipe import METHODS, MethodConfig
    from besnn.recipe.config import BackboneConfig, backbone_class

    if annotation is MethodConfig:
        return list(METHODS.values())
    if annotation is BackboneConfig:
        return [backbone_class()]
    return [each for each in (annotation, *get_args(annotation)) if hasattr(each, "model_fields")]


def _bounds(marks: Iterable[object]) -> Iterator[str]:
    """Yield the bounds in a type's metadata, such as `≥ 0`."""
    for mark in marks:
        yield from _bounds(getattr(mark, "metadata", ()))
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt")):
            if (value := getattr(mark, attribute, None)) is not None:
                yield f"{sign} {value}"


def _words(annotation: Any) -> str:
    """Return a type in the words of a YAML user."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _models_in(annotation):
        return "by term" if origin is dict else "section"
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(each) for each in arguments)
    if origin is tuple:
        return "list" if arguments[-1] is Ellipsis else f"list of {len(arguments)}"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return " ".join([_words(annotation.__origin__), *_bounds(annotation.__metadata__)])
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}
    return names[annotation]


def _default(field: "FieldInfo", is_section: bool) -> str:
    if field.is_required():
        return "required"
    if is_section and field.default is not None:
        return ""
    value = field.default
    return f"`{value if isinstance(value, str) else json_format.dumps(value)}`"


def _first_paragraph(model: "type[BaseModel]") -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())
