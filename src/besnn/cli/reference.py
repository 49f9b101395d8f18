"""The reference of recipes, made from the very models that check them."""

import json
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from besnn.training import Recipe

_INTRODUCTION = """\
# Recipe reference

A recipe is a YAML file that describes one training run. `besnn recipes` lists those that come with besnn, and
`besnn recipes NAME` prints one to start your own from. Only `name` and `data.source` are required; all the rest has the
defaults below. Any setting can be changed on the command line:

    besnn train RECIPE -o model.safetensors --set training.epochs=5

A wrong key or value is refused with the field's name and what is allowed there.

This page is printed by `besnn recipes --reference`; a test keeps it in step with the code.
"""


def recipe_reference() -> str:
    """Every setting of a recipe with its type, default and meaning, as Markdown."""
    return "\n".join([_INTRODUCTION, *_sections("", Recipe)])


def _sections(path: str, model: type[BaseModel]) -> Iterator[str]:
    """A table of a section's own settings, then those of the sections within it."""
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


def _inner_path(full: str, field: FieldInfo, section: type[BaseModel], is_choice: bool) -> str:
    if is_choice:
        return f"{full}, where its name is {get_args(section.model_fields['name'].annotation)[0]}"
    return f"{full}.TERM" if get_origin(field.annotation) is dict else full


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    candidates = (annotation, *get_args(annotation))
    return [each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)]


def _bounds(marks: Iterable[object]) -> Iterator[str]:
    """The bounds that marks on a type set, such as `≥ 0`."""
    for mark in marks:
        if isinstance(mark, FieldInfo):
            yield from _bounds(mark.metadata)
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt")):
            if (value := getattr(mark, attribute, None)) is not None:
                yield f"{sign} {value}"


def _words(annotation: Any) -> str:
    """A type as a user of YAML would say it."""
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


def _default(field: FieldInfo, is_section: bool) -> str:
    if field.is_required():
        return "required"
    if is_section and field.default is not None:
        return ""
    value = field.default
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())
