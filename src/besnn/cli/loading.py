"""Models, data and recipes, as the arguments of commands name them."""

import json
from collections.abc import Iterable
from pathlib import Path

from besnn.batch import image_spec
from besnn.checks import choose_device
from besnn.data import Dataset, keep_classes, load
from besnn.data.catalogue import parse_name
from besnn.data.folder import open_folder
from besnn.data.formats import column_names, holds_table
from besnn.data.sources import Kind, kind_of
from besnn.detector import Detector
from besnn.errors import DataError, InputError, NotReadyError
from besnn.training import Recipe, load_recipe, shipped_recipes

IMAGES, TABLE = "images", "table"  # the recipes for data that has none of its own


def refuse_to_overwrite(option: str, output: Path | str, *read: Path | str) -> None:
    """Refuse to write to a file that the command reads."""
    output = Path(output)
    if any(output.exists() and Path(each).exists() and output.samefile(each) for each in read):
        raise InputError(f"{option} {output} is a file that this command reads: give another name")


def load_detector(path: Path, *, calibrated: bool = False, device: str = "cpu") -> Detector:
    """Load a model file onto a device; with `calibrated`, refuse one without a threshold."""
    place = choose_device(device)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a model file, as written by besnn train")
    if not path.exists():
        raise InputError(f"{path} does not exist: train a model with `besnn train DATA -o {path}`")
    detector = Detector.load(path)
    if calibrated and detector.threshold is None:
        raise NotReadyError(f"{path} is not calibrated: run `besnn calibrate {path} DATA` with held-out data first")
    return detector.to(place)


def kind_of_data(spec: str) -> Kind:
    """Return the kind of a DATA argument; an unknown one is wrong use, not a damaged file."""
    try:
        return kind_of(spec)
    except DataError as error:
        raise InputError(str(error)) from None


def load_inputs(detector: Detector, spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """Load data in the form that a detector takes: the test split of a built-in set, unless another one is named."""
    kind = kind_of_data(spec)
    if label is None:
        label = label_of(detector)
        if kind is Kind.TABLE and label not in column_names(Path(spec)):
            label = "label"  # a table without the training table's class column needs no labels
    columns = detector.feature_names or None
    return load(spec, data_dir=data_dir, split="test", label=label, image=image_spec(detector), columns=columns)


def load_known(detector: Detector, spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """Load data of the detector's classes: those chosen for training, with labels in the detector's order."""
    dataset = load_inputs(detector, spec, label=label, data_dir=data_dir)
    wanted = () if detector.recipe is None else detector.recipe.data.classes or ()
    if present := set(wanted) & set(dataset.class_names):
        dataset = keep_classes(dataset, present)
    return dataset.align_classes(detector.class_names)


def label_of(detector: Detector) -> str:
    """Return the class column of the table that a detector was trained on."""
    return str(detector.provenance.get("label", "label")) if detector.recipe is None else detector.recipe.data.label


def set_name(spec: str) -> str:
    """Return the name of data in records: of a built-in set its name, otherwise the argument itself.

    >>> set_name("mnist:test"), set_name("mnist:train"), set_name("photos/strange")
    ('mnist', 'mnist:train', 'photos/strange')
    """
    return spec if parse_name(spec) is None else spec.removesuffix(":test")


def input_names(detector: Detector, spec: str) -> list[str] | None:
    """Return the file names in a folder of images, in the order in which they are loaded; None for other data."""
    if kind_of_data(spec) is not Kind.FOLDER:
        return None
    folder = Path(spec)
    return [file.relative_to(folder).as_posix() for file in open_folder(folder, image_spec(detector)).files]


def choose_recipe(spec: str, overrides: Iterable[str] = ()) -> Recipe:
    """Return the recipe for a name, a YAML file or a DATA argument, with overrides such as `training.epochs=5`.

    Data without a recipe of its own is trained by `images` or `table`; a folder is data, whatever its name. Only the images of
    a folder, which may differ in size, are resized as `images` says; arrays keep their size.

    >>> choose_recipe("mnist:test", ["training.epochs=5"]).data.source
    'mnist:test'
    """
    if spec.endswith((".yaml", ".yml")) or (spec in shipped_recipes() and not Path(spec).is_dir()):
        return load_recipe(spec, overrides)
    try:
        kind = kind_of_data(spec)
    except InputError as error:
        raise InputError(f"{error}; nor is it a recipe ({', '.join(shipped_recipes())}, or a .yaml file)") from None
    name = spec.partition(":")[0]
    if kind is Kind.BUILT_IN and name in shipped_recipes():
        return load_recipe(name, [f"data.source={spec}", *overrides])
    is_table = kind in (Kind.TABLE, Kind.ARRAYS) and holds_table(Path(spec))
    base = [setting("data.source", spec), setting("name", Path(spec).stem if parse_name(spec) is None else name)]
    if kind is not Kind.FOLDER and not is_table:
        base.append("data.image=null")
    return load_recipe(TABLE if is_table else IMAGES, [*base, *overrides])


def setting(field: str, value: object) -> str:
    """Return an override of a recipe's field; the value is written as JSON, which is YAML too.

    >>> setting("data.label", "kind: of thing")
    'data.label="kind: of thing"'
    """
    return f"{field}={json.dumps(value, ensure_ascii=False)}"
