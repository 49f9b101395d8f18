"""Folders of images: one sub-folder per class, or flat and without labels; listed, hashed, and read whole or in batches."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Dataset
from besnn.data.images import IMAGE_SUFFIXES, ImageSpec, Pixels, decode_image, image_spec_of, read_image
from besnn.data.rows import Batch
from besnn.errors import DataError, one_line, reading

DECODE_THREADS = min(8, os.cpu_count() or 1)
"""Pillow releases Python's lock while it decodes, so threads are enough."""

_LOOKED_AT = 200  # images whose size is looked at
_LISTED = 50  # unreadable images that a message names

S = TypeVar("S")
T = TypeVar("T")
ReadPixels: TypeAlias = Callable[[], Pixels]
"""Reads one image, `uint8 [c, h, w]`."""


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder at any depth in a fixed order, without hidden files and folders."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def hash_listing(listing: Iterable[tuple[str, int | str]]) -> str:
    """Return the SHA-256 of a folder's listing: each file's name within the folder, and its size or the hash of its content."""
    digest = hashlib.sha256()
    for name, content in listing:
        digest.update(f"{name}\t{content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def writable(text: str) -> str:
    """Replace what is not UTF-8 in a text that holds a file's name, so that it can be written to any file."""
    return os.fsencode(text).decode(errors="replace")


@dataclass(frozen=True, eq=False)
class StreamingFolder:
    """A folder of images that are decoded at each access: a map-style data set, as torch's DataLoader takes.

    Labels `int64 [n]` index `class_names`, the sorted names of the sub-folders; None for a flat folder. The hash is over the
    names and sizes of the files, whose content is not read in advance.

    >>> import tempfile
    >>> from PIL import Image
    >>> from besnn.data import load_or_stream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("L", (8, 8)).save(Path(folder, name, "1.png"))
    ...     images = load_or_stream(folder, byte_budget=0)
    ...     pixels, label = images[1]
    >>> pixels.shape, images.class_names[label]
    ((1, 8, 8), 'dog')
    """

    files: tuple[Path, ...]
    labels: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    name: str
    spec: ImageSpec
    hashes: dict[str, str]
    note: str = ""  # what was left out

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """Return image `index`, `uint8 [c, h, w]`, and its label (-1 if there are none)."""
        label = -1 if self.labels is None else int(self.labels[index])
        return read_image(self.files[index], self.spec), label

    @property
    def nbytes(self) -> int:
        """The number of bytes that the decoded pixels take."""
        return len(self) * math.prod(self.spec.shape)

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "StreamingFolder":
        """Return the images at `indices`, in that order."""
        files = tuple(self.files[index] for index in indices)
        return replace(self, files=files, labels=None if self.labels is None else self.labels[np.asarray(indices)])

    def load(self, skip_bad: bool = False) -> Dataset:
        """Decode all images into memory; unreadable ones raise a DataError that lists them, unless they may be left out."""
        images = np.empty((len(self), *self.spec.shape), np.uint8)
        kept: list[int] = []
        contents, errors = [], {}
        for place, (image, sha256, error) in enumerate(self._decode()):
            if image is None:
                errors[place] = error
                continue
            images[len(kept)] = image
            kept.append(place)
            contents.append((_name(self.files[place], Path(self.name)), sha256))
        if errors and not (skip_bad and kept):
            raise DataError(f"{self._unreadable(errors)}: save them again or remove them, or leave them out with --skip-bad")
        labels = None if self.labels is None else self.labels[kept]
        hashes = {self.name: hash_listing(contents)}
        return Dataset(images[: len(kept)], labels, self.class_names, self.name, hashes, note=self._left_out(errors))

    def readable(self) -> "StreamingFolder":
        """Decode all images once, and return those that can be read."""
        errors = {place: error for place, (_, _, error) in enumerate(self._decode()) if error}
        kept = [place for place in range(len(self)) if place not in errors]
        return replace(self.subset(kept), note=self._left_out(errors))

    def _decode(self) -> Iterator[tuple[Pixels | None, str, str]]:
        """Yield each image in order with the SHA-256 of its file; or None, and what is wrong with it."""

        def read(path: Path) -> tuple[Pixels | None, str, str]:
            try:
                data = path.read_bytes()
                return decode_image(data, self.spec, name=str(path)), hashlib.sha256(data).hexdigest(), ""
            except OSError as error:  # among them DataError
                return None, "", one_line(error)

        return chain.from_iterable(in_threads(read, self.files, 256))

    def _left_out(self, errors: dict[int, str]) -> str:
        return f"{self._unreadable(errors)}: they are left out" if errors else ""

    def _unreadable(self, errors: dict[int, str]) -> str:
        """Say which images cannot be read, `{place: error}`."""
        names = [writable(_name(self.files[place], Path(self.name))) for place in errors]
        listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")
        first = next(iter(errors.values()))
        return f"{self.name}: {len(names):,} of {len(self):,} images cannot be read: {listed} (the first: {first})"


def open_folder(folder: Path, spec: ImageSpec | None = None) -> StreamingFolder:
    """List a folder's images without decoding them; the sub-folders, in sorted order of their names, are the classes.

    Hidden files and files that are not images are skipped. Without a spec all images must have the same size, which is kept.
    """
    with reading(folder):
        classes, groups = _list_classes(folder)
        files = tuple(path for group in groups for path in group)
        listing = [(_name(path, folder), path.stat().st_size) for path in files]
    return StreamingFolder(
        files=files,
        labels=np.repeat(np.arange(len(groups)), [len(group) for group in groups]) if classes else None,
        class_names=tuple(each.name for each in classes),
        name=str(folder),
        spec=spec or _common_spec(files),
        hashes={f"{folder} (names and sizes)": hash_listing(listing)},
    )


def suitable_size(folder: Path) -> int:
    """Return the size to bring a folder's images to: 64 pixels if they are usually larger than 48, else 32.

    Larger ones take longer and seldom help where there are only hundreds of images. The headers of some of the images tell.
    """
    files = [path for path in list_files(folder) if _is_image(path)]
    sides = [min(spec.shape[1:]) for _, spec in _specs(files[:: len(files) // _LOOKED_AT + 1])]
    return 64 if sides and np.median(sides) > 48 else 32


def _list_classes(folder: Path) -> tuple[list[Path], list[list[Path]]]:
    """Return the class folders and the images of each; for a flat folder no class, and one list."""
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    flat = [entry for entry in sorted(folder.iterdir()) if _is_image(entry)]
    if classes and flat:
        raise DataError(f"{folder} holds images beside its class folders ({flat[0].name}): move them into a class folder")
    groups = [[path for path in list_files(each) if _is_image(path)] for each in classes] if classes else [flat]
    for group, each in zip(groups, classes or [folder], strict=True):
        if not group:
            raise DataError(f"{each} holds no images: add some, or remove the folder")
    return classes, groups


def folder_batches(source: Path, spec: ImageSpec, batch_size: int) -> Iterator[Batch]:
    """Read all files under a folder, or a single one; a file that is not an image is that input's error."""
    files = list_files(source) if source.is_dir() else iter([source])
    images = ((writable(_name(path, source)), partial(read_image, path, spec)) for path in files)
    with reading(source):
        batches = image_batches(images, spec, batch_size)
        first = next(batches, None)
        if first is None:
            raise DataError(f"{source} holds no files: give a folder with images")
        yield first
        yield from batches


def image_batches(images: Iterable[tuple[str, ReadPixels]], spec: ImageSpec, batch_size: int) -> Iterator[Batch]:
    """Decode images in a few threads, one batch ahead of the one that is yielded.

    Each image is given by its name and a function that reads it; if that raises a DataError, it is the image's error.
    """

    def read(image: tuple[str, ReadPixels]) -> tuple[str, Pixels, str]:
        name, read_pixels = image
        try:
            return name, read_pixels(), ""
        except DataError as error:
            return name, np.zeros(spec.shape, np.uint8), writable(str(error))

    def gather(results: list[tuple[str, Pixels, str]]) -> Batch:
        names, pixels, errors = zip(*results, strict=True)
        return Batch(list(names), np.stack(pixels), list(errors))

    return map(gather, in_threads(read, images, batch_size))


def in_threads(function: Callable[[S], T], items: Iterable[S], size: int) -> Iterator[list[T]]:
    """Apply a function in a few threads; yield lists of `size` results, while those of the next list are computed."""
    items = iter(items)
    with ThreadPoolExecutor(DECODE_THREADS) as pool:
        started = (pool.map(function, chunk) for chunk in iter(lambda: list(islice(items, size)), []))
        yield from map(list, one_ahead(started))


def one_ahead(started: Iterator[T]) -> Iterator[T]:
    """Yield each of the tasks that an iterator starts, when the next one has been started."""
    current = next(started, None)
    while current is not None:
        following = next(started, None)
        yield current
        current = following


def _name(path: Path, folder: Path) -> str:
    return path.name if path == folder else path.relative_to(folder).as_posix()


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _common_spec(files: Sequence[Path]) -> ImageSpec:
    """Return the size that all readable images have; RGB if any of them has colour."""
    specs = list(_specs(files))
    if not specs:
        raise DataError(f"{files[0]} and all other images beside it cannot be read: save them again as PNG or JPEG")
    first, common = specs[0]
    for path, spec in specs:
        if spec.size != common.size:
            sizes = f"{first.name} is {common}, {path.name} is {spec}"
            raise DataError(f"images differ in size ({sizes}): choose a size to resize them to")
    return ImageSpec(common.size, channels=max(spec.channels for _, spec in specs))


def _specs(files: Iterable[Path]) -> Iterator[tuple[Path, ImageSpec]]:
    """Yield the images whose header can be read, with their size and channels; decoding will list the others."""
    for path in files:
        with suppress(DataError):
            yield path, image_spec_of(path)
