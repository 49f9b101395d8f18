"""`besnn recipes`: the recipes that come with besnn, and the reference of all their settings."""

import json as json_format
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import typer

from besnn.cli.options import Json
from besnn.cli.output import announce

Schema: TypeAlias = dict[str, Any]
"""A section as JSON Schema describes it."""

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
    from besnn.recipe import METHODS
    from besnn.recipe.config import backbone_class
    from besnn.training import Recipe

    whole, backbone = Recipe.model_json_schema(), backbone_class().model_json_schema()
    methods = [method.model_json_schema() for method in METHODS.values()]
    choices: dict[str, list[Schema]] = {}
    for schema in (whole, backbone, *methods):
        choices |= {name: [section] for name, section in schema.get("$defs", {}).items()}
    choices |= {"MethodConfig": methods, "BackboneConfig": [backbone]}  # as the registries have them
    return "\n".join([_INTRODUCTION, *_sections("", whole, choices)])


def _sections(path: str, schema: Schema, choices: Mapping[str, list[Schema]]) -> Iterator[str]:
    """Yield the table of a section's settings, then the tables of the sections within it, of which there may be several."""
    yield f"## {path or 'The recipe'}\n"
    yield f"{_first_paragraph(schema)}\n"
    yield "| setting | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    inner: list[tuple[str, Schema]] = []
    for name, field in schema["properties"].items():
        full = f"{path}.{name}" if path else name
        sections = choices[found.group(1)] if (found := re.search(r"#/\$defs/(\w+)", str(field))) else []
        for section in sections:
            term = ".TERM" if field.get("type") == "object" else ""
            which = f", where its name is {section['properties']['name']['default']}" if len(sections) > 1 else ""
            inner.append((f"{full}{term}{which}", section))
        meaning = field.get("description") or (_first_paragraph(sections[0]) if len(sections) == 1 else "")
        default = "required" if name in schema.get("required", ()) else ""
        if "default" in field and (not sections or field["default"] is None):
            value = field["default"]
            default = f"`{value if isinstance(value, str) else json_format.dumps(value)}`"
        yield f"| `{name}` | {_words(field)} | {default} | {meaning} |"
    yield ""
    for inner_path, section in inner:
        yield from _sections(inner_path, section, choices)


def _words(field: Schema) -> str:
    """Return a type in the words of a YAML user."""
    if "$ref" in str(field):
        return "by term" if field.get("type") == "object" else "section"
    if "anyOf" in field:
        return " or ".join(map(_words, field["anyOf"]))
    if choices := field.get("enum", [field["const"]] if "const" in field else []):
        return " or ".join(f"`{value}`" for value in choices)
    words = {"string": "text", "integer": "whole number", "boolean": "true or false", "array": "list"}
    kind: str = field["type"]
    kind = words.get(kind, kind)
    if "maxItems" in field and field.get("minItems") == field["maxItems"]:
        kind += f" of {field['maxItems']}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return " ".join([kind, *(f"{sign} {field[bound]:g}" for bound, sign in bounds.items() if bound in field)])


def _first_paragraph(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split("\n\n")[0].split())
