"""Models, data and recipes, as the arguments of commands name them."""

import json
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from besnn.batch import image_spec
from besnn.cli.output import command_line, note
from besnn.data import Dataset, keep_classes, load
from besnn.data.catalogue import available, parse_name
from besnn.data.folder import open_folder
from besnn.data.formats import column_names, holds_table
from besnn.data.sources import Kind, kind_of, kind_of_suffix
from besnn.errors import DataError, InputError, NotReadyError, one_line

if TYPE_CHECKING:  # these bring in torch: what is wrong with an argument is said before that
    from besnn.detector import Detector
    from besnn.recipe.config import Recipe

IMAGES, TABLE = "images", "table"  # the recipes for data that has none of its own


def check_output(option: str, output: Path | str, *read: Path | str) -> None:
    """Refuse an output that is a folder, that the command reads, or that cannot be written: before any work is done."""
    output = Path(output)
    if output.is_dir():
        raise InputError(f"{option} {output} is a folder: give the file to write, such as {output / 'model.safetensors'}")
    if any(output.exists() and Path(each).exists() and output.samefile(each) for each in read):
        raise InputError(f"{option} {output} is a file that this command reads: give another name")
    if output.exists() and not output.is_file():
        return  # a device or pipe
    parent = next(each for each in output.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "you may not write there" if parent.is_dir() else "it is not a folder"
        raise InputError(f"{option} {output} cannot be written to {parent}: {reason}; give another path")


def check_page(option: str, path: Path, *read: Path | str) -> None:
    """Refuse a page whose name does not end in .html, or that cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{option} {str(path)!r}: its name must end in .html")
    check_output(option, path, *read)


def require_model(path: Path) -> None:
    """Refuse a path that is not a file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a model file, as written by besnn train")
    if not path.exists():
        raise InputError(f"{path} does not exist: train a model with `{command_line('besnn', 'train', 'DATA', '-o', path)}`")


def load_detector(path: Path, *, calibrated: bool = False, device: str = "cpu") -> "Detector":
    """Load a model file onto a device; with `calibrated`, refuse one without a threshold."""
    require_model(path)
    from besnn.checks import choose_device
    from besnn.detector import Detector

    place = choose_device(device)
    detector = Detector.load(path)
    if calibrated and detector.threshold is None:
        command = command_line("besnn", "calibrate", path, "DATA")
        raise NotReadyError(f"{path} is not calibrated: run `{command}` with held-out data first")
    return detector.to(place)


def kind_of_data(spec: str) -> Kind:
    """Return the kind of a DATA argument; an unknown one is wrong use, not a damaged file."""
    try:
        return kind_of(spec)
    except DataError as error:
        raise InputError(str(error)) from None


def check_data(*specs: str, quiet: bool) -> None:
    """Refuse DATA arguments that name nothing; say so if one names a folder that hides a built-in set."""
    for spec in specs:
        if kind_of_data(spec) is Kind.FOLDER and spec in {info.name for info in available()}:
            note(f"{spec}: reading your folder, not the built-in set ({spec}:test names that)", quiet=quiet)


def check_label(spec: str, label: str | None, overrides: Iterable[str]) -> None:
    """Refuse to train on a table without its class column, from the header alone."""
    path = Path(spec)
    if not path.is_file() or kind_of_suffix(path.suffix) is not Kind.TABLE or any("data.label=" in each for each in overrides):
        return
    names = column_names(path)
    if (label or "label") not in names:
        columns = one_line(", ".join(names))
        raise InputError(f"{spec} has no column {label or 'label'!r}: name its class column with --label (it has {columns})")


def load_inputs(detector: "Detector", spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """Load data to score; a table's class column is the one of training unless named."""
    kind = kind_of_data(spec)
    if label is None:
        label = label_of(detector)
        if kind is Kind.TABLE and label not in column_names(Path(spec)):
            label = "label"  # a table without the training table's class column needs no labels
    return load_for(detector, spec, "test", label, data_dir)


def load_for(detector: "Detector", spec: str, split: str, label: str, data_dir: Path | None, skip_bad: bool = False) -> Dataset:
    """Load data in the form that a detector takes: that split of a built-in set, unless another one is named."""
    image, columns = image_spec(detector), detector.encoding or detector.feature_names or None
    return load(spec, data_dir=data_dir, split=split, label=label, image=image, columns=columns, skip_bad=skip_bad)


def load_known(detector: "Detector", spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """Load data of the detector's classes: those chosen for training, with labels in the detector's order."""
    dataset = load_inputs(detector, spec, label=label, data_dir=data_dir)
    wanted = () if detector.recipe is None else detector.recipe.data.classes or ()
    if present := set(wanted) & set(dataset.class_names):
        dataset = keep_classes(dataset, present)
    return dataset.align_classes(detector.class_names)


def label_of(detector: "Detector") -> str:
    """Return the class column of the table that a detector was trained on."""
    return str(detector.provenance.get("label", "label")) if detector.recipe is None else detector.recipe.data.label


def set_name(spec: str) -> str:
    """Return the name of data in records: of a built-in set its name, otherwise the argument itself.

    >>> set_name("mnist:test"), set_name("mnist:train"), set_name("photos/strange")
    ('mnist', 'mnist:train', 'photos/strange')
    """
    return spec if parse_name(spec) is None else spec.removesuffix(":test")


def input_names(detector: "Detector", spec: str) -> list[str] | None:
    """Return the file names in a folder of images, in the order in which they are loaded; None for other data."""
    if kind_of_data(spec) is not Kind.FOLDER:
        return None
    folder = Path(spec)
    return [file.relative_to(folder).as_posix() for file in open_folder(folder, image_spec(detector)).files]


def choose_recipe(spec: str, overrides: Iterable[str] = ()) -> "Recipe":
    """Return the recipe for a name, a YAML file or a DATA argument, with overrides such as `training.epochs=5`.

    Data without a recipe of its own is trained by `images` or `table`; a folder is data, whatever its name. Only the images of
    a folder, which may differ in size, are resized as `images` says; arrays keep their size.

    >>> choose_recipe("mnist:test", ["training.epochs=5"]).data.source
    'mnist:test'
    """
    is_recipe = _is_shipped(spec) and not Path(spec).is_dir()
    kind = None if is_recipe or spec.endswith((".yaml", ".yml")) else _kind_of_source(spec)
    from besnn.recipe.reading import load_recipe

    if kind is None:
        return load_recipe(spec, overrides)
    name = spec.partition(":")[0]
    if kind is Kind.BUILT_IN and _is_shipped(name):
        return load_recipe(name, [f"data.source={spec}", *overrides])
    is_table = kind in (Kind.TABLE, Kind.ARRAYS) and holds_table(Path(spec))
    base = [setting("data.source", spec), setting("name", Path(spec).stem if parse_name(spec) is None else name)]
    if kind is not Kind.FOLDER and not is_table:
        base.append("data.image=null")
    return load_recipe(TABLE if is_table else IMAGES, [*base, *overrides])


def _is_shipped(name: str) -> bool:
    """Whether a recipe of that name comes with besnn, looked up without importing what recipes need."""
    folder = resources.files("besnn") / "recipe" / "shipped"
    return f"{name}.yaml" in {entry.name for entry in folder.iterdir()}


def _kind_of_source(spec: str) -> Kind:
    try:
        return kind_of_data(spec)
    except InputError as error:
        raise InputError(f"{error}; nor is it a recipe (see besnn recipes) or a .yaml file") from None


def setting(field: str, value: object) -> str:
    """Return an override of a recipe's field; the value is written as JSON, which is YAML too.

    >>> setting("data.label", "kind: of thing")
    'data.label="kind: of thing"'
    """
    return f"{field}={json.dumps(value, ensure_ascii=False)}"
