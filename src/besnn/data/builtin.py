"""Load a built-in set: generated, or from its official files (downloaded if they are missing)."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from besnn.data.catalogue import DIGITS, DatasetInfo, require_name
from besnn.data.dataset import Dataset
from besnn.data.download import fetch_files
from besnn.data.official import FileStatus, Status, data_root, read_official
from besnn.errors import DataError


def load_builtin(spec: str, *, split: str | None = None, data_dir: str | Path | None = None) -> Dataset:
    """Load one split of a built-in set: the one that `spec` names, else `split`, else `train` (or the only one).

    Missing files are downloaded. The set's `note` says so if a file holds only a part of the official one.
    """
    info, named = require_name(spec)
    split = named or split or next(iter(info.sizes))
    require_name(f"{info.name}:{split}")  # an unknown split is an error that lists the splits
    if not info.files:
        return replace(_GENERATED[info.name](split), name=f"{info.name}:{split}")
    root, files = data_root(data_dir), info.files[split]
    found = [read_official(info, file, root) for file in files]
    missing = [file for file, each in zip(files, found, strict=True) if each.status is Status.MISSING]
    if missing:
        fetch_files(info, missing, root, progress=sys.stderr.isatty())
        found = [read_official(info, file, root) for file in files]
    return _assemble(info, split, found)


def _assemble(info: DatasetInfo, split: str, found: list[FileStatus]) -> Dataset:
    for each in found:
        if each.records is None:
            raise DataError(each.detail)
    records = [each.records for each in found if each.records is not None]
    images = [part.images for part in records if part.images is not None]
    labels = np.concatenate([part.labels for part in records if part.labels is not None])
    inputs = images[0] if len(images) == 1 else np.concatenate(images)
    if len(inputs) != len(labels):
        folder = found[0].path.parent
        raise DataError(f"{folder} has {len(inputs)} images but {len(labels)} labels: remove both files and fetch again")
    notes = [f"{each.path.name} is partial: {each.detail}" for each in found if each.detail]
    hashes = {file.path: each.sha256 for file, each in zip(info.files[split], found, strict=True)}
    return Dataset(inputs, labels, info.class_names, f"{info.name}:{split}", hashes, note="; ".join(notes))


def two_moons(n: int = 1000, *, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Generate two interleaved half circles in the plane, with the noise that DUQ and the paper use.

    >>> moons = two_moons(100)
    >>> moons.inputs.shape, moons.class_names
    ((100, 2), ('upper', 'lower'))
    """
    from sklearn.datasets import make_moons  # slow to import

    points, labels = make_moons(n, noise=noise, random_state=seed)
    inputs, labels = points.astype(np.float32), labels.astype(np.int64)
    hashes = {"two-moons": hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()}
    return Dataset(inputs, labels, ("upper", "lower"), "two-moons", hashes, feature_names=("x1", "x2"))


def digits() -> Dataset:
    """Load scikit-learn's 1,797 handwritten digits, grey 8x8.

    >>> digits().inputs.shape
    (1797, 1, 8, 8)
    """
    from sklearn.datasets import load_digits  # slow to import

    images, labels = load_digits(return_X_y=True)
    inputs = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # the shades are 0 to 16
    labels = labels.astype(np.int64)
    hashes = {"digits": hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()}
    return Dataset(inputs, labels, DIGITS, "digits", hashes)


_GENERATED: dict[str, Callable[[str], Dataset]] = {
    "two-moons": lambda split: two_moons(1000, seed=int(split == "test")),
    "digits": lambda split: digits().split(0.8, seed=0)[int(split == "test")],  # there is no official split
}
