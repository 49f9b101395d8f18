"""Which recipe to train by, from what the command line says."""

import json
from collections.abc import Iterable
from pathlib import Path

from besnn.cli.loading import kind_of_data
from besnn.data import npz
from besnn.data.catalogue import parse_name
from besnn.data.sources import Kind
from besnn.errors import InputError
from besnn.training import Recipe, load_recipe, shipped_recipes

YAML_SUFFIXES = (".yaml", ".yml")
FOR_OWN_DATA = ("images", "table")


def choose_recipe(spec: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that a name, a YAML file or a DATA argument stands for, with overrides such as `training.epochs=5`.

    Data without a recipe of its own is trained on by `images` or `table`; a folder of that name is data. Only folders, whose
    images may differ in size, are brought to the size that `images` names; arrays keep their own.

    >>> choose_recipe("digits", ["training.epochs=5"]).training.epochs
    5
    >>> choose_recipe("mnist:test").data.source
    'mnist:test'
    """
    is_own_data = spec in FOR_OWN_DATA and Path(spec).exists()
    if spec.endswith(YAML_SUFFIXES) or (spec in shipped_recipes() and not is_own_data):
        return load_recipe(spec, overrides)
    try:
        kind = kind_of_data(spec)
    except InputError as error:
        raise InputError(f"{error}; nor is it a recipe ({', '.join(shipped_recipes())}, or a .yaml file)") from None
    name = spec.partition(":")[0]
    if kind is Kind.BUILT_IN and name in shipped_recipes():
        return load_recipe(name, [f"data.source={spec}", *overrides])
    is_table = kind is Kind.TABLE or (kind is Kind.NPZ and _holds_rows(Path(spec)))
    base = [setting("data.source", spec), setting("name", Path(spec).stem if parse_name(spec) is None else name)]
    if kind is not Kind.FOLDER and not is_table:
        base.append("data.image=null")
    return load_recipe(FOR_OWN_DATA[is_table], [*base, *overrides])


def _holds_rows(path: Path) -> bool:
    """Whether an `.npz` holds rows of a table rather than images."""
    first = next(npz.read_blocks(path), None)
    return first is not None and first.inputs.ndim == 2


def setting(field: str, value: object) -> str:
    """An override that sets a field to a value of any characters; JSON is YAML.

    >>> setting("data.label", "kind: of thing")
    'data.label="kind: of thing"'
    """
    return f"{field}={json.dumps(value, ensure_ascii=False)}"
