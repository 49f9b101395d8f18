"""Sources of inputs for a cluster, cut into chunks.

A chunk is a fixed number of inputs, cut where the local engine cuts its batches, so that both engines score the same inputs
together. A source is sent to the readers, which turn it into a Ray data set with one row per chunk, and to the workers, which
turn such a row into batches.
"""

import bisect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow.parquet

from besnn.batch import IMAGE_ROWS, TABLE_ROWS, image_spec
from besnn.data import Batch, ImageSpec, decode_image, stream
from besnn.data.catalogue import parse_name
from besnn.data.encoding import rows_from_cells
from besnn.data.folder import hash_listing, image_batches, writable
from besnn.data.formats import describe_formats
from besnn.data.images import Pixels, read_image
from besnn.data.rows import Rows, numbered_batches
from besnn.data.sources import Kind, kind_of_suffix
from besnn.data.tables import BLOCK_ROWS, choose_columns
from besnn.errors import BesnnError, DataError, InputError, reading
from besnn.ray.locations import Location

if TYPE_CHECKING:
    from besnn.detector import Detector  # brings in torch, which readers do without

Row: TypeAlias = dict[str, Any]
"""A chunk in a Ray data set: its number as `chunk`, and what `Source.batches` needs."""

Span: TypeAlias = tuple[int, int | None]
"""Chunks to read together: the first, and the one after the last (None: to the end)."""

CHUNK_BYTES = 2**24
"""Roughly the largest size of a chunk of arrays: a few of them wait for each worker."""

IMAGE_BATCHES, TABLE_BATCHES = 64, 8
"""The most batches per chunk: with a worker, at most the work on one chunk is lost."""


@dataclass(frozen=True)
class Source:
    """Inputs in chunks. All fields can be pickled."""

    fingerprint: str  # changes when the inputs change
    chunk_rows: int  # inputs per chunk; the last chunk may have fewer
    read: Callable[[Span], Iterator[Row]]  # yields the chunks of a span, in order
    batches: Callable[[Row], Iterator[Batch]]  # yields a chunk in the batches that the local engine scores
    rows: int | None = None  # the number of inputs, if it is known without reading them
    spans: tuple[Span, ...] = ((0, None),)  # what readers can read independently of each other


def open_source(
    detector: "Detector", name: str, *, label: str = "label", data_dir: Path | None = None, chunk_rows: int | None = None
) -> Source:
    """Open a folder of images, an image, a data file (a path or URL) or a built-in set as inputs for a detector.

    A chunk has `chunk_rows` inputs, a multiple of the local engine's batch size; chosen by the size of an input unless given.
    """
    image = image_spec(detector)
    columns = None if image is not None else detector.columns
    batch_rows = TABLE_ROWS if image is None else IMAGE_ROWS
    if chunk_rows is not None and (chunk_rows < 1 or chunk_rows % batch_rows):
        raise InputError(f"chunk_rows={chunk_rows} is not a multiple of the batch size: choose a multiple of {batch_rows}")
    array_rows = chunk_rows or _rows_per_array(detector.input_shape, batch_rows)
    batches = partial(array_batches, batch_rows=batch_rows, chunk_rows=array_rows)
    open_stream = partial(stream, batch_size=array_rows, image=image, columns=columns, label=label, data_dir=data_dir)
    if parse_name(name) is not None:  # the files of a built-in set have checksums of their own
        return Source(name, array_rows, partial(_read_builtin, open_stream=partial(open_stream, name)), batches)
    location = Location.parse(name)
    kind = Kind.FOLDER if location.is_folder() else kind_of_suffix(location.suffix)
    if kind is None or (kind is not Kind.FOLDER and not location.is_file()):
        raise InputError(f"{name!r} is neither a built-in set nor a folder of images, an image or {describe_formats()}")
    if kind in (Kind.FOLDER, Kind.IMAGE):
        if image is None:
            raise InputError(f"{name} holds images, where a table is expected")
        return folder_source(location, image, chunk_rows or IMAGE_BATCHES * IMAGE_ROWS)
    if kind is Kind.TABLE and columns is None:
        raise InputError(f"{name} is a table, where images ({image}) are expected")
    if location.suffix == ".parquet" and columns is not None:
        return parquet_source(location, columns, label, array_rows, batches)
    if (path := location.local) is not None:
        open_stream(path)  # finds missing columns before a cluster starts to work, and reads no further
    read = partial(_read_file, location=location, open_stream=open_stream)
    return Source(location.fingerprint(), array_rows, read, batches)


def _rows_per_array(input_shape: tuple[int, ...], batch_rows: int) -> int:
    is_image = len(input_shape) > 1
    batch_bytes = batch_rows * math.prod(input_shape) * (1 if is_image else 4)
    return batch_rows * max(1, min(IMAGE_BATCHES if is_image else TABLE_BATCHES, CHUNK_BYTES // batch_bytes))


def read_chunks(row: Row, source: Source, shares: list[list[Span]], done: frozenset[int]) -> Iterator[Row]:
    """Read the spans that are the share of reader `row["id"]`, and yield the chunks that are not done."""
    for span in shares[row["id"]]:
        yield from (chunk for chunk in source.read(span) if chunk["chunk"] not in done)


def _read_builtin(_: Span, open_stream: Callable[[], Iterator[Batch]]) -> Iterator[Row]:
    return _array_rows(open_stream())


def _read_file(_: Span, location: Location, open_stream: Callable[[Path], Iterator[Batch]]) -> Iterator[Row]:
    """Read a file that can only be read from its beginning, such as a CSV or an `.npz`."""
    with location.as_local_file() as path:
        yield from _array_rows(open_stream(path))


def _array_rows(chunks: Iterable[Batch], first: int = 0) -> Iterator[Row]:
    for chunk, batch in enumerate(chunks, first):
        yield {"chunk": chunk, "inputs": batch.inputs, "errors": batch.errors}


def array_batches(row: Row, batch_rows: int, chunk_rows: int) -> Iterator[Batch]:
    """Cut a chunk that was sent as an array into batches."""
    rows = Rows(np.asarray(row["inputs"]), list(row["errors"]))
    return numbered_batches([rows], batch_rows, start=row["chunk"] * chunk_rows)


def parquet_source(
    location: Location, columns: Sequence[str] | int, label: str, chunk_rows: int, batches: Callable[[Row], Iterator[Batch]]
) -> Source:
    """Open a parquet file, whose row groups are read independently of each other."""
    with _open_parquet(location) as table:
        names, metadata = table.schema_arrow.names, table.metadata
    features = choose_columns(names, columns, label, location.name)
    starts = np.cumsum([0, *(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))]).tolist()
    # Chunks that begin in the same row group are read together, so that hardly any group is read twice.
    chunks = range(math.ceil(metadata.num_rows / chunk_rows))
    groups = groupby(chunks, key=lambda chunk: bisect.bisect_right(starts, chunk * chunk_rows))
    spans = tuple((span[0], span[-1] + 1) for span in (list(chunks) for _, chunks in groups))
    read = partial(_read_parquet, location=location, columns=features, starts=starts, chunk_rows=chunk_rows)
    return Source(location.fingerprint(), chunk_rows, read, batches, metadata.num_rows, spans)


def _read_parquet(
    span: tuple[int, int], location: Location, columns: Sequence[str], starts: list[int], chunk_rows: int
) -> Iterator[Row]:
    """Read a span, given the first row of each row group, followed by the number of all rows."""
    first, stop = span[0] * chunk_rows, min(span[1] * chunk_rows, starts[-1])
    groups = [group for group, (low, high) in enumerate(pairwise(starts)) if low < stop and first < high]

    def read() -> Iterator[Rows]:
        start = starts[groups[0]]
        with _open_parquet(location) as table:
            for batch in table.iter_batches(BLOCK_ROWS, row_groups=groups, columns=list(columns)):
                low, high = max(first - start, 0), min(stop - start, batch.num_rows)
                start += batch.num_rows
                if low < high:
                    yield rows_from_cells(batch.slice(low, high - low), columns)

    return _array_rows(numbered_batches(read(), chunk_rows), span[0])


@contextmanager
def _open_parquet(location: Location) -> Iterator[pyarrow.parquet.ParquetFile]:
    with location.opened() as file, reading(location.name), pyarrow.parquet.ParquetFile(file) as table:
        yield table


def folder_source(location: Location, image: ImageSpec, chunk_rows: int) -> Source:
    """Open a folder of images, or one image. Only names are sent; workers decode the images, in threads."""
    counter = count()
    fingerprint = hash_listing(file for file, _ in zip(location.files(), counter, strict=False))
    rows = next(counter)
    if not rows:
        raise DataError(f"{location.name} holds no files: give a folder of images")
    batches = partial(_decoded_batches, location=location, is_folder=location.is_folder(), image=image)
    read = partial(_read_names, location=location, chunk_rows=chunk_rows)
    return Source(fingerprint, chunk_rows, read, batches, rows)


def _read_names(_: Span, location: Location, chunk_rows: int) -> Iterator[Row]:
    names = (os.fsencode(name) for name, _ in location.files())  # bytes: names need not be UTF-8
    for chunk, names_of_chunk in enumerate(iter(lambda: list(islice(names, chunk_rows)), [])):
        yield {"chunk": chunk, "names": names_of_chunk}


def _decoded_batches(row: Row, location: Location, is_folder: bool, image: ImageSpec) -> Iterator[Batch]:
    names = [os.fsdecode(name) for name in row["names"]]
    files = ((writable(name), location / name if is_folder else location) for name in names)
    return image_batches(((name, partial(_read_pixels, file, image)) for name, file in files), image, IMAGE_ROWS)


def _read_pixels(file: Location, image: ImageSpec) -> Pixels:
    if (path := file.local) is not None:
        return read_image(path, image, file.name)
    try:
        content = file.read()
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise
        raise BesnnError(str(error)) from error  # the store failed: that stops the run, and is no error of the image
    return decode_image(content, image, file.name)
