"""Folders of images: one sub-folder a class, or flat and without labels."""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Dataset
from besnn.data.images import IMAGE_SUFFIXES, ImageSpec, Pixels, decode_image, image_spec_of, read_image
from besnn.data.splits import split_indices
from besnn.errors import DataError, InputError

BYTE_BUDGET = 4 * 2**30
"""A folder whose decoded pixels need more bytes than this is not loaded whole."""

DECODE_THREADS = min(8, os.cpu_count() or 1)
"""Pillow decodes outside Python's lock, so threads do."""


@dataclass(frozen=True, eq=False)
class StreamingFolder:
    """A folder of images too large for memory, decoded at each access: a map-style data set, as torch's DataLoader takes.

    Attributes:
        files: the image files.
        labels: `int64 [n]`, or None for a flat folder.
        class_names: sorted names of the sub-folders.
        name: the folder.
        spec: the form that images are brought to.
        hashes: by folder, a SHA-256 over the names and sizes of its files (the content is not read in advance).
    """

    files: tuple[Path, ...]
    labels: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    name: str
    spec: ImageSpec
    hashes: dict[str, str]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """Return image `index`, `uint8 [c, h, w]`, and its label (-1 where there are none)."""
        label = -1 if self.labels is None else int(self.labels[index])
        return read_image(self.files[index], self.spec), label

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "StreamingFolder":
        """Return the images at `indices`, in that order."""
        files = tuple(self.files[index] for index in indices)
        return replace(self, files=files, labels=None if self.labels is None else self.labels[np.asarray(indices)])

    def split(self, *sizes: int | float, seed: int = 0, stratify: bool = True) -> tuple["StreamingFolder", ...]:
        """Divide as `Dataset.split` does."""
        labels = self.labels if stratify else None
        return tuple(self.subset(part) for part in split_indices(len(self), sizes, seed=seed, labels=labels))


def open_folder(folder: Path, spec: ImageSpec | None = None) -> StreamingFolder:
    """List a folder's images without decoding them; labels come from the sub-folders, in sorted order of their names.

    Hidden files and files that are not images are passed over. Without a spec all images must be of one size, which is kept.
    """
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    flat = [entry for entry in sorted(folder.iterdir()) if _is_image(entry)]
    if classes and flat:
        raise DataError(f"{folder} holds images beside its class folders ({flat[0].name}): move them into a class folder")
    groups = [[path for path in walk_files(each) if _is_image(path)] for each in classes] if classes else [flat]
    for group, each in zip(groups, classes or [folder], strict=True):
        if not group:
            raise DataError(f"{each} holds no images: fill it, or leave it out")
    files = tuple(path for group in groups for path in group)
    return StreamingFolder(
        files=files,
        labels=np.repeat(np.arange(len(groups)), [len(group) for group in groups]) if classes else None,
        class_names=tuple(each.name for each in classes),
        name=str(folder),
        spec=spec or _common_spec(files),
        hashes={f"{folder} (names and sizes)": _digest(folder, files, [str(path.stat().st_size) for path in files])},
    )


def load_folder(folder: Path, spec: ImageSpec | None = None, *, byte_budget: int = BYTE_BUDGET) -> Dataset:
    """Load a folder of images whole; see `open_folder` for what counts as an image and a class."""
    opened = open_folder(folder, spec)
    if not fits(opened, byte_budget):
        needed = f"{len(opened):,} images of {opened.spec} need more than {byte_budget:,} bytes"
        raise InputError(f"{folder}: {needed}: choose a smaller size, or read them with besnn.data.load_or_stream")

    def read(path: Path) -> tuple[Pixels, str]:
        data = path.read_bytes()
        return decode_image(data, opened.spec, name=str(path)), hashlib.sha256(data).hexdigest()

    images = np.empty((len(opened), *opened.spec.shape), np.uint8)
    digests = []
    with ThreadPoolExecutor(DECODE_THREADS) as pool:
        for start in range(0, len(opened), 256):  # in chunks, so that finished images do not pile up beside the array
            for place, (image, digest) in enumerate(pool.map(read, opened.files[start : start + 256]), start):
                images[place] = image
                digests.append(digest)
    hashes = {str(folder): _digest(folder, opened.files, digests)}
    return Dataset(images, opened.labels, opened.class_names, name=str(folder), hashes=hashes)


def fits(opened: StreamingFolder, byte_budget: int) -> bool:
    """Whether a folder's decoded pixels stay within a number of bytes."""
    return len(opened) * math.prod(opened.spec.shape) <= byte_budget


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder at any depth in a fixed order, hidden files and folders passed over."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _is_image(path: Path) -> bool:
    """Whether training takes a file for an image: by its name, hidden ones left out."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _common_spec(files: Sequence[Path]) -> ImageSpec:
    """The size that all images have; RGB if any has colour."""
    specs = [image_spec_of(path) for path in files]
    for path, spec in zip(files, specs, strict=True):
        if spec.size != specs[0].size:
            sizes = f"{files[0].name} is {specs[0]}, {path.name} is {spec}"
            raise DataError(f"images differ in size ({sizes}): say which size to bring them to")
    return ImageSpec(specs[0].size, channels=max(spec.channels for spec in specs))


def _digest(folder: Path, files: Sequence[Path], parts: Sequence[str]) -> str:
    """SHA-256 over every file's name and what is known of its content."""
    lines = (f"{path.relative_to(folder).as_posix()}\t{part}\n" for path, part in zip(files, parts, strict=True))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
