"""From what a user names to a source of chunks."""

from pathlib import Path

import numpy as np

from besnn.batch import IMAGE_ROWS, TABLE_ROWS, image_spec
from besnn.data import describe_formats
from besnn.data.catalogue import parse_name
from besnn.data.sources import Kind, kind_of_suffix
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.ray.sources import ParquetSource, StreamSource
from besnn.ray.folder import FolderSource
from besnn.ray.locations import Location
from besnn.ray.source import Source

CHUNK_BYTES = 2**24
"""Arrays that travel together are not much larger than this: a few of them wait before each worker."""

IMAGE_BATCHES, TABLE_BATCHES = 64, 8
"""The most batches a chunk: what is lost with a worker is at most the work on one chunk."""


def open_source(
    detector: Detector,
    name: str,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    chunk_rows: int | None = None,
) -> Source:
    """The inputs of a path, an address or a built-in set, in the form that a detector takes.

    Args:
        detector: what will score them.
        name: of a folder of images or an image, a `.csv`, `.parquet` or `.npz` file, or a built-in set.
        label: a table's class column, which is not looked at.
        data_dir: where built-in sets lie, on every machine.
        chunk_rows: inputs a chunk, a multiple of what the local engine scores together; chosen by their size unless given.
    """
    image = image_spec(detector)
    columns = None if image is not None else detector.feature_names or detector.input_shape[0]
    batch_rows = TABLE_ROWS if image is None else IMAGE_ROWS
    if chunk_rows is not None and (chunk_rows < 1 or chunk_rows % batch_rows):
        raise InputError(
            f"chunk_rows={chunk_rows} is no multiple of {batch_rows}, which are scored together: choose one that is"
        )
    array_rows = chunk_rows or _array_chunk(detector, batch_rows)
    if parse_name(name) is not None:
        return StreamSource(
            location=name, image=image, columns=columns, data_dir=data_dir, chunk_rows=array_rows, batch_rows=batch_rows
        )
    location = Location.parse(name)
    kind = _kind_of(location)
    if kind in (Kind.FOLDER, Kind.IMAGE):
        if image is None:
            raise InputError(f"{name} holds images, where a table is expected")
        return FolderSource.open(location, image, chunk_rows=chunk_rows or IMAGE_BATCHES * batch_rows, batch_rows=batch_rows)
    if kind is Kind.TABLE and columns is None:
        raise InputError(f"{name} is a table, where images ({image}) are expected")
    if location.suffix == ".parquet" and columns is not None:
        return ParquetSource.open(location, columns, label, chunk_rows=array_rows, batch_rows=batch_rows)
    source = StreamSource(
        location=location, image=image, columns=columns, label=label, chunk_rows=array_rows, batch_rows=batch_rows
    )
    source.check()
    return source


def _array_chunk(detector: Detector, batch_rows: int) -> int:
    """How many inputs travel together."""
    is_image = len(detector.input_shape) > 1
    row_bytes = int(np.prod(detector.input_shape)) * (1 if is_image else 4)
    most = IMAGE_BATCHES if is_image else TABLE_BATCHES
    return batch_rows * max(1, min(most, CHUNK_BYTES // (batch_rows * row_bytes)))


def _kind_of(location: Location) -> Kind:
    if location.is_folder():
        return Kind.FOLDER
    kind = kind_of_suffix(location.suffix)
    if kind is None or not location.is_file():
        raise InputError(
            f"{location.name!r} is neither a built-in set nor a folder of images, an image or {describe_formats()}"
        )
    return kind
