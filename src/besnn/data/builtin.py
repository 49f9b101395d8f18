"""Load a split of a built-in set: generated, or from its official files (downloaded where absent)."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from besnn.data.catalogue import DatasetInfo, require_name
from besnn.data.dataset import Dataset
from besnn.data.fetching import fetch_files
from besnn.data.store import FileContent, Status, data_root, read_official
from besnn.data.toys import digits, two_moons
from besnn.errors import DataError


def load_builtin(spec: str, *, split: str | None = None, data_dir: str | Path | None = None) -> Dataset:
    """Load one split of a built-in set: the one that `spec` names, else `split`, else `train` (or the only one).

    The set's `note` says so where a file holds only a part of the official one.
    """
    info, named = require_name(spec)
    split = named or split or next(iter(info.sizes))
    require_name(f"{info.name}:{split}")  # where there is no such split, this says which there are
    if not info.files:
        dataset = two_moons(info.sizes[split], seed=int(split == "test")) if info.name == "two-moons" else _digits(split)
        return replace(dataset, name=f"{info.name}:{split}")
    root = data_root(data_dir)
    found = [read_official(info, file, root) for file in info.files[split]]
    if any(each.status.status is Status.MISSING for each in found):
        missing = [f for f, each in zip(info.files[split], found, strict=True) if each.status.status is Status.MISSING]
        fetch_files(info, missing, root, progress=sys.stderr.isatty())
        found = [read_official(info, file, root) for file in info.files[split]]
    return _assemble(info, split, found, root)


def _assemble(info: DatasetInfo, split: str, found: list[FileContent], root: Path) -> Dataset:
    """Put the records of a split's files together."""
    for each in found:
        if each.records is None:
            raise DataError(each.status.detail)
    records = [each.records for each in found if each.records is not None]
    images = [part.images for part in records if part.images is not None]
    labels = np.concatenate([part.labels for part in records if part.labels is not None])
    inputs = images[0] if len(images) == 1 else np.concatenate(images)
    if len(inputs) != len(labels):
        folder = found[0].status.path.parent
        raise DataError(f"{folder} has {len(inputs)} images but {len(labels)} labels: remove both files and fetch again")
    notes = [f"{each.status.path.name} is partial: {each.status.detail}" for each in found if each.status.detail]
    hashes = {file.path: each.sha256 for file, each in zip(info.files[split], found, strict=True)}
    return Dataset(inputs, labels, info.class_names, f"{info.name}:{split}", hashes, note="; ".join(notes))


def _digits(split: str) -> Dataset:
    """scikit-learn's digits have no official split: the same four fifths are always for training."""
    train, test = digits().split(0.8, seed=0)
    return train if split == "train" else test
