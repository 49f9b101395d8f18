"""From a DATA argument (a built-in name or a path) to data: loaded whole, or streamed in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from besnn.data.builtin import load_builtin
from besnn.data.catalogue import available, parse_name, require_name
from besnn.data.dataset import Dataset, Inputs
from besnn.data.encoding import Columns
from besnn.data.folder import StreamingFolder, folder_batches, list_files, open_folder
from besnn.data.formats import FORMATS, count_rows, describe_formats, load_file, stream_file
from besnn.data.images import IMAGE_SUFFIXES, ImageSpec, convert_images
from besnn.data.rows import Batch, Rows, numbered_batches
from besnn.errors import DataError, InputError

BYTE_BUDGET = 4 * 2**30


class Kind(StrEnum):
    """What a name or path stands for."""

    BUILT_IN = "built-in"
    FOLDER = "folder"
    IMAGE = "image"
    TABLE = "table"
    ARRAYS = "arrays"


def kind_of(spec: str | Path) -> Kind:
    """Return what a name or path stands for; a folder takes precedence over the built-in set of its name (`mnist:test`)."""
    if parse_name(str(spec)):
        return Kind.BUILT_IN
    path = Path(spec)
    if path.is_dir() and str(spec):
        return Kind.FOLDER
    kind = kind_of_suffix(path.suffix)
    if kind is None or not path.is_file():
        names = ", ".join(info.name for info in available())
        sets = f"a built-in set ({names}; a split is written mnist:test)"
        raise DataError(f"{str(spec)!r} is neither {sets} nor the path of a folder of images or of {describe_formats()}")
    return kind


def kind_of_suffix(suffix: str) -> Kind | None:
    """Return what a file holds, by its suffix; None if no format is registered for it."""
    suffix = suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return Kind.IMAGE
    found = FORMATS.get(suffix)
    return None if found is None else Kind.TABLE if found.is_table else Kind.ARRAYS


def load(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    label: str = "label",
    image: ImageSpec | None = None,
    columns: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Dataset:
    """Load data whole; a folder of images whose pixels need over `BYTE_BUDGET` bytes is refused.

    Args:
        spec: a built-in name (`mnist`, `mnist:test`), or the path of a folder of images (one sub-folder per class, or
            flat) or of a file in one of the `FORMATS`.
        data_dir: where built-in sets lie; else `$BESNN_DATA`, else the user's cache.
        split: of a built-in set, unless `spec` names one; else `train` if there is one.
        label: a table's class column.
        image: the form to bring images to; they keep their own unless given.
        columns: a table's feature columns, in order, or the encoding of the training table; all but the class unless given.
        skip_bad: leave out images and rows that cannot be read, and say so in the set's `note`, instead of raising.

    >>> load("digits:test").inputs.shape
    (359, 1, 8, 8)
    """
    loaded = load_or_stream(spec, data_dir=data_dir, split=split, label=label, image=image, columns=columns, skip_bad=skip_bad)
    if isinstance(loaded, StreamingFolder):
        needed = f"{len(loaded):,} images of {loaded.spec} need more than {BYTE_BUDGET:,} bytes"
        raise InputError(f"{spec}: {needed}: choose a smaller size, or read them with besnn.data.load_or_stream")
    return loaded


def load_or_stream(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    label: str = "label",
    image: ImageSpec | None = None,
    columns: Sequence[str] | None = None,
    skip_bad: bool = False,
    byte_budget: int | None = None,
) -> Dataset | StreamingFolder:
    """Load data as `load` does, but leave a large folder of images on the disk: one whose pixels need over `byte_budget` bytes.

    >>> type(load_or_stream("digits:test")).__name__
    'Dataset'
    """
    kind = kind_of(spec)
    if kind is Kind.IMAGE:
        raise InputError(f"{spec} is a single image: give a folder of images")
    _check_kind(kind, str(spec), image, columns)
    if kind is Kind.BUILT_IN:
        dataset = load_builtin(str(spec), split=split, data_dir=data_dir)
    elif kind is Kind.FOLDER:
        folder = open_folder(Path(spec), image)
        if folder.nbytes > (BYTE_BUDGET if byte_budget is None else byte_budget):
            return folder.readable() if skip_bad else folder
        dataset = folder.load(skip_bad)
    else:
        try:
            dataset = load_file(Path(spec), label=label, columns=columns, skip_bad=skip_bad)
        except MemoryError:
            raise DataError(f"{spec} does not fit into memory: give fewer rows at a time") from None
    return replace(dataset, inputs=_conform(dataset.inputs, dataset.name, image=image, columns=columns))


def stream(
    source: str | Path,
    *,
    batch_size: int = 256,
    image: ImageSpec | None = None,
    columns: Sequence[str] | int | None = None,
    label: str = "label",
    data_dir: str | Path | None = None,
) -> Iterator[Batch]:
    """Yield every input of a source, in order, in batches of `batch_size` (the last may be smaller).

    Memory does not grow with the source, and a bad row does not stop the others.

    Args:
        source: as `load` takes it, or a single image file.
        batch_size: inputs per batch.
        image: the form to bring images to.
        columns: the features that a table must have, by name and in order, the encoding of the training table, or how many
            features (all columns but the class).
        label: a table's class column, which is not a feature.
        data_dir: where built-in sets lie.

    >>> [len(batch.ids) for batch in stream("digits:test", batch_size=200, image=ImageSpec(8, channels=1))]
    [200, 159]
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: give a whole number, 1 or more")
    if (image is None) == (columns is None):
        raise InputError(f"image={image}, columns={columns}: give one of the two")
    kind = kind_of(source)
    _check_kind(kind, str(source), image, columns)
    if image is not None and kind in (Kind.FOLDER, Kind.IMAGE):
        return folder_batches(Path(source), image, batch_size)
    if kind is Kind.BUILT_IN:
        inputs = load(source, split="test", data_dir=data_dir).inputs
        blocks = iter([Rows(inputs, [""] * len(inputs))])
    else:
        blocks = stream_file(Path(source), label=label, columns=columns)
    batches = numbered_batches(blocks, batch_size)
    return (replace(batch, inputs=_conform(batch.inputs, str(source), image=image, columns=columns)) for batch in batches)


def count_inputs(source: str | Path) -> int | None:
    """Count what `stream` yields of a source, or nearly so, without reading it; None if that is not known in advance."""
    kind, path = kind_of(source), Path(source)
    if kind is Kind.BUILT_IN:
        info, split = require_name(str(source))
        return info.sizes[split or "test"]
    if kind in (Kind.FOLDER, Kind.IMAGE):
        return sum(1 for _ in list_files(path)) if path.is_dir() else 1
    return count_rows(path)


def _check_kind(kind: Kind, source: str, image: ImageSpec | None, columns: Sequence[str] | int | None) -> None:
    """Refuse a table where images are expected, or the other way round, before anything is read."""
    if kind is Kind.TABLE and image is not None:
        raise InputError(f"{source} is a table, where images ({image}) are expected")
    if kind in (Kind.FOLDER, Kind.IMAGE) and columns is not None:
        expected = _width(columns)
        raise InputError(f"{source} holds images, where a table of {expected} columns is expected")


def _conform(inputs: Inputs, name: str, *, image: ImageSpec | None, columns: Sequence[str] | int | None) -> Inputs:
    """Bring images to the expected form, or check that a table has the expected number of columns."""
    if image is not None:
        if inputs.ndim != 4:
            raise InputError(f"{name} is a table, where images ({image}) are expected")
        return convert_images(inputs.astype(np.uint8, copy=False), image)
    expected = None if columns is None else _width(columns)
    if expected is not None and inputs.shape[1:] != (expected,):
        found = "images" if inputs.ndim == 4 else f"a table of {inputs.shape[1]} columns"
        raise InputError(f"{name} holds {found}, where a table of {expected} columns is expected")
    return inputs


def _width(columns: Sequence[str] | int) -> int:
    """Return how many numbers a row with these columns has."""
    return columns if isinstance(columns, int) else columns.width if isinstance(columns, Columns) else len(columns)
