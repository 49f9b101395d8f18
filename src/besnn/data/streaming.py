"""Inputs to score, some at a time: memory does not grow with the source, and a bad row does not stop the rest."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from besnn.data import npz, tables
from besnn.data.dataset import Inputs
from besnn.data.folder import DECODE_THREADS, walk_files
from besnn.data.images import ImageSpec, Pixels, read_image
from besnn.data.messages import writable
from besnn.data.rows import Block
from besnn.data.sources import Kind, conform, kind_of, load, one_line_errors
from besnn.errors import DataError, InputError

ReadPixels: TypeAlias = Callable[[], Pixels]
"""Reads one image, `uint8 [c, h, w]`."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some inputs, in order.

    Attributes:
        ids: what names each input: a file's path within its folder, or a row's number (the first is 0).
        inputs: `uint8 [n, c, h, w]` or `float32 [n, d]`; zeros stand in for an input with an error.
        errors: what is wrong with each input; empty where all is well.
    """

    ids: list[str]
    inputs: Inputs
    errors: list[str]

    @property
    def good(self) -> NDArray[np.bool_]:
        """Which inputs can be scored, `[n]`."""
        return np.array([not error for error in self.errors], dtype=np.bool_)


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

    Args:
        source: as `besnn.data.load` takes it, or a single image file.
        batch_size: inputs a batch.
        image: the form to bring images to.
        columns: the features a table must have, by name and in order, or how many (all columns but the class are taken).
        label: a table's class column, which is not a feature.
        data_dir: where built-in sets lie.

    Example:
        >>> [len(batch.ids) for batch in stream("digits:test", batch_size=200, image=ImageSpec(8, channels=1))]
        [200, 159]
    """
    if batch_size < 1 or (image is None) == (columns is None):
        raise InputError(f"batch_size={batch_size}, image={image}, columns={columns}: give a size and one of the others")
    path, kind = Path(source), kind_of(source)
    if kind in (Kind.FOLDER, Kind.IMAGE):
        if image is None:
            raise InputError(f"{source} holds images, where a table is expected")
        return _folder_batches(path, image, batch_size)
    if kind is Kind.TABLE:
        if columns is None:
            raise InputError(f"{source} is a table, where images ({image}) are expected")
        blocks = tables.read_blocks(path, tables.feature_columns(path, columns, label))
    elif kind is Kind.NPZ:
        blocks = npz.read_blocks(path)
    else:
        inputs = load(source, split="test", data_dir=data_dir).inputs
        blocks = iter([Block(inputs, [""] * len(inputs), labels=[])])
    batches = numbered_batches(blocks, batch_size)
    return (replace(batch, inputs=conform(batch.inputs, str(source), image=image, columns=columns)) for batch in batches)


def numbered_batches(blocks: Iterable[Block], batch_size: int, start: int = 0) -> Iterator[Batch]:
    """Cut blocks of any sizes into batches; inputs are named by their number, which begins with `start`."""
    rest: list[Inputs] = []
    errors: list[str] = []
    for block in blocks:
        inputs = np.concatenate([*rest, block.inputs])
        errors = errors + block.errors
        full = len(errors) - len(errors) % batch_size
        for place in range(0, full, batch_size):
            rows = slice(place, place + batch_size)
            yield Batch(_numbers(start + place, batch_size), inputs[rows], errors[rows])
        start += full
        rest, errors = [inputs[full:]], errors[full:]
    if errors:
        yield Batch(_numbers(start, len(errors)), rest[0], errors)


def _numbers(start: int, count: int) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def _folder_batches(source: Path, spec: ImageSpec, batch_size: int) -> Iterator[Batch]:
    """Read the images of a folder, or a single one."""
    files = walk_files(source) if source.is_dir() else iter([source])
    with one_line_errors(source):
        empty = True
        for batch in image_batches(((_id(path, source), partial(read_image, path, spec)) for path in files), spec, batch_size):
            empty = False
            yield batch
        if empty:
            raise DataError(f"{source} holds no files: give a folder with images")


def image_batches(images: Iterable[tuple[str, ReadPixels]], spec: ImageSpec, batch_size: int) -> Iterator[Batch]:
    """Decode images in a few threads, one batch ahead of the one that is handed out.

    Args:
        images: what names each image, and how to read it; a DataError of the latter is that image's error.
        spec: the form that they are read in.
        batch_size: images a batch.
    """

    def read(image: tuple[str, ReadPixels]) -> tuple[str, Pixels, str]:
        name, read_pixels = image
        try:
            return name, read_pixels(), ""
        except DataError as error:
            return name, np.zeros(spec.shape, np.uint8), writable(str(error))

    def gather(results: Iterable[tuple[str, Pixels, str]]) -> Batch:
        names, pixels, errors = zip(*results, strict=True)
        return Batch(list(names), np.stack(pixels), list(errors))

    images = iter(images)
    with ThreadPoolExecutor(DECODE_THREADS) as pool:
        started = (pool.map(read, chunk) for chunk in iter(lambda: list(islice(images, batch_size)), []))
        current = next(started, None)
        while current is not None:
            upcoming = next(started, None)
            yield gather(current)
            current = upcoming


def _id(path: Path, source: Path) -> str:
    """A file's path within the folder."""
    return writable(path.name if path == source else path.relative_to(source).as_posix())
