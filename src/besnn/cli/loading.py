"""Models and data as the arguments of a command name them."""

from pathlib import Path

from besnn.batch import image_spec
from besnn.checks import choose_device
from besnn.data import Dataset, keep_classes, load
from besnn.data.catalogue import parse_name
from besnn.data.folder import open_folder
from besnn.data.sources import Kind, kind_of
from besnn.data.tables import column_names
from besnn.detector import Detector
from besnn.errors import DataError, InputError, NotReadyError


def refuse_to_overwrite(option: str, output: Path | str, *read: Path | str) -> None:
    """Makes sure that a command writes to no file that it reads."""
    output = Path(output)
    if any(output.exists() and Path(each).exists() and output.samefile(each) for each in read):
        raise InputError(f"{option} {output} is a file that this command reads: give another name")


def load_detector(path: Path, *, calibrated: bool = False, device: str = "cpu") -> Detector:
    """Load a model file onto a device; with `calibrated`, refuse one without a threshold."""
    place = choose_device(device)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a model file, as besnn train writes it")
    if not path.exists():
        raise InputError(f"{path} does not exist: train a model with `besnn train DATA -o {path}`")
    detector = Detector.load(path)
    if calibrated and detector.threshold is None:
        raise NotReadyError(f"{path} is not calibrated: run `besnn calibrate {path} DATA` with held-out data first")
    return detector.to(place)


def kind_of_data(spec: str) -> Kind:
    """What a DATA argument stands for; one that stands for nothing is wrong use, not a fault of some file."""
    try:
        return kind_of(spec)
    except DataError as error:
        raise InputError(str(error)) from None


def load_inputs(detector: Detector, spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """Data in the form that a detector takes; of a built-in set the test split, unless another one is named."""
    kind = kind_of_data(spec)
    return load(
        spec,
        data_dir=data_dir,
        split="test",
        label=label or _label_column(detector, spec, kind),
        image=image_spec(detector),
        columns=detector.feature_names or None,
    )


def load_known(detector: Detector, spec: str, *, label: str | None, data_dir: Path | None) -> Dataset:
    """As `load_inputs`, for data of the classes that a detector knows: chosen as in training, labels in its own order."""
    dataset = load_inputs(detector, spec, label=label, data_dir=data_dir)
    wanted = () if detector.recipe is None else detector.recipe.data.classes or ()
    if present := set(wanted) & set(dataset.class_names):
        dataset = keep_classes(dataset, present)
    return dataset.align_classes(detector.class_names)


def label_of(detector: Detector) -> str:
    """The class column of the table that a detector was trained on."""
    return "label" if detector.recipe is None else detector.recipe.data.label


def _label_column(detector: Detector, spec: str, kind: Kind) -> str:
    """The training table's class column; the usual name where this table has none, which then needs no labels."""
    own = label_of(detector)
    return own if kind is not Kind.TABLE or own in column_names(Path(spec)) else "label"


def set_name(spec: str) -> str:
    """What to call data in records: a built-in set by its name, anything else as it was given.

    >>> set_name("mnist:test"), set_name("mnist:train"), set_name("photos/strange")
    ('mnist', 'mnist:train', 'photos/strange')
    """
    return spec if parse_name(spec) is None else spec.removesuffix(":test")


def input_names(detector: Detector, spec: str) -> list[str] | None:
    """The file names of a folder of images, in the order in which it is loaded; None for other data."""
    if kind_of_data(spec) is not Kind.FOLDER:
        return None
    folder = Path(spec)
    return [file.relative_to(folder).as_posix() for file in open_folder(folder, image_spec(detector)).files]
