"""One way to name every kind of data: a built-in name or a path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from besnn.data.builtin import load_builtin
from besnn.data.catalogue import available, parse_name
from besnn.data.dataset import Dataset, Inputs
from besnn.data.folder import BYTE_BUDGET, StreamingFolder, fits, load_folder, open_folder
from besnn.data.images import IMAGE_SUFFIXES, ImageSpec, convert_images
from besnn.data.npz import load_npz
from besnn.data.tables import load_table
from besnn.errors import BesnnError, DataError, InputError, one_line


class Kind(StrEnum):
    """What a name or path stands for."""

    BUILT_IN = "built-in"
    FOLDER = "folder"
    IMAGE = "image"
    TABLE = "table"
    NPZ = "npz"


KINDS = {".npz": Kind.NPZ, ".csv": Kind.TABLE, ".parquet": Kind.TABLE} | dict.fromkeys(IMAGE_SUFFIXES, Kind.IMAGE)
"""What a file is, by its extension in small letters."""


def kind_of(spec: str | Path) -> Kind:
    """Tell what a name or path stands for; a built-in name goes before a file of that name (`./mnist` is the file).

    Example:
        >>> kind_of("mnist:test")
        <Kind.BUILT_IN: 'built-in'>
    """
    if parse_name(str(spec)):
        return Kind.BUILT_IN
    path = Path(spec)
    if path.is_dir() and str(spec):
        return Kind.FOLDER
    kind = KINDS.get(path.suffix.lower())
    if kind is None or not path.is_file():
        names = ", ".join(info.name for info in available())
        raise DataError(
            f"{str(spec)!r} is neither a built-in set ({names}; a split as mnist:test) nor the path of a folder of images, "
            "an .npz, a .csv or a .parquet file"
        )
    return kind


def load(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    label: str = "label",
    image: ImageSpec | None = None,
    columns: Sequence[str] | None = None,
    byte_budget: int = BYTE_BUDGET,
) -> Dataset:
    """Load data whole.

    Args:
        spec: a built-in name (`mnist`, `mnist:test`), or the path of a folder of images (one sub-folder a class, or
            flat), an `.npz`, a `.csv` or a `.parquet`.
        data_dir: where built-in sets lie; else `$BESNN_DATA`, else the user's cache.
        split: of a built-in set, where `spec` names none; else `train` where there is one.
        label: a table's class column.
        image: the form to bring images to; they keep their own where not given.
        columns: a table's feature columns, in order; all but the class where not given.
        byte_budget: a folder of images whose pixels need more is refused.

    Example:
        >>> load("digits:test").inputs.shape
        (359, 1, 8, 8)
    """
    kind = kind_of(spec)
    with one_line_errors(spec):
        if kind is Kind.BUILT_IN:
            dataset = load_builtin(str(spec), split=split, data_dir=data_dir)
        elif kind is Kind.FOLDER:
            dataset = load_folder(Path(spec), image, byte_budget=byte_budget)
        elif kind is Kind.NPZ:
            dataset = load_npz(Path(spec))
        elif kind is Kind.TABLE:
            dataset = load_table(Path(spec), label=label, columns=columns)
        else:
            raise InputError(f"{spec} is a single image: give a folder of images")
    return replace(dataset, inputs=conform(dataset.inputs, dataset.name, image=image, columns=columns))


def load_or_stream(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    label: str = "label",
    image: ImageSpec | None = None,
    columns: Sequence[str] | None = None,
    byte_budget: int = BYTE_BUDGET,
) -> Dataset | StreamingFolder:
    """Load data as `load` does, but leave a folder of images whose pixels need over `byte_budget` bytes on the disk."""
    if kind_of(spec) is Kind.FOLDER:
        with one_line_errors(spec):
            folder = open_folder(Path(spec), image)
        if not fits(folder, byte_budget):
            return folder
    return load(spec, data_dir=data_dir, split=split, label=label, image=image, columns=columns, byte_budget=byte_budget)


@contextmanager
def one_line_errors(spec: str | Path) -> Iterator[None]:
    """Turn the system's errors on files (no permission, vanished, ...) into DataErrors."""
    try:
        yield
    except BesnnError:
        raise
    except OSError as error:
        raise DataError(f"{spec} cannot be read ({one_line(error)})") from error


def conform(inputs: Inputs, name: str, *, image: ImageSpec | None = None, columns: Sequence[str] | int | None = None) -> Inputs:
    """Bring images to the form that is expected; check that a table has as many columns as are expected.

    Example:
        >>> conform(np.zeros((5, 1, 28, 28), np.uint8), "images", image=ImageSpec(32, channels=3)).shape
        (5, 3, 32, 32)
    """
    if image is not None:
        if inputs.ndim != 4:
            raise InputError(f"{name} is a table, where images ({image}) are expected")
        return convert_images(inputs.astype(np.uint8, copy=False), image)
    expected = columns if isinstance(columns, int) or columns is None else len(columns)
    if expected is not None and inputs.shape[1:] != (expected,):
        found = "images" if inputs.ndim == 4 else f"a table of {inputs.shape[1]} columns"
        raise InputError(f"{name} holds {found}, where a table of {expected} columns is expected")
    return inputs
