"""A labelled (or unlabelled) set of inputs, whole in memory."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from besnn.data.splits import split_indices
from besnn.errors import InputError

if TYPE_CHECKING:
    from besnn.data.folder import StreamingFolder

Inputs: TypeAlias = NDArray[np.uint8 | np.float32]
"""Images `uint8 [n, c, h, w]`, or a table `float32 [n, d]`."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs with their labels, names and provenance.

    Attributes:
        inputs: images `uint8 [n, c, h, w]`, or a table `float32 [n, d]`.
        labels: `int64 [n]`, places in `class_names`; None where the data has no labels.
        class_names: name of class 0, 1, ...; empty where the data has no labels.
        name: what a person calls the set (`mnist:test`, a path).
        hashes: SHA-256 by file (or by folder), of the content that was read.
        feature_names: names of a table's columns; empty for images and for nameless arrays.
        note: what a reader of results must know about the data, such as that a file holds only a part of the official one.
        lost: which column of a file float32 does not hold, so that nothing can be learned from it; empty where it holds all.

    Example:
        >>> points = Dataset(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]), ("left", "right"), name="points")
        >>> len(points), points.is_image, [len(part) for part in points.split(0.5)]
        (4, False, [2, 2])
    """

    inputs: Inputs
    labels: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    name: str
    hashes: dict[str, str] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()
    note: str = ""
    lost: str = ""

    def __post_init__(self) -> None:
        image, table = np.dtype(np.uint8), np.dtype(np.float32)
        if (self.inputs.ndim, self.inputs.dtype) not in ((4, image), (2, table)):
            found = f"{self.inputs.dtype} {list(self.inputs.shape)}"
            raise InputError(f"{self.name}: inputs are {found}; give uint8 [n, c, h, w] or float32 [n, d]")
        if self.feature_names and len(self.feature_names) != self.inputs.shape[1]:
            counts = f"{len(self.feature_names)} feature names for {self.inputs.shape[1]} columns"
            raise InputError(f"{self.name}: {counts}; give one name a column")
        if self.labels is not None:
            _check_labels(self.labels, rows=len(self), classes=len(self.class_names), name=self.name)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images rather than rows of a table."""
        return self.inputs.ndim == 4

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "Dataset":
        """Return the rows at `indices`, in that order, under the same class names."""
        rows = np.asarray(indices, dtype=np.int64)
        return replace(self, inputs=self.inputs[rows], labels=None if self.labels is None else self.labels[rows])

    def split(self, *sizes: int | float, seed: int = 0, stratify: bool = True) -> tuple["Dataset", ...]:
        """Divide into one part a size and a last part with the rest; a size is a share (float) or a number of rows (int).

        With labels and `stratify`, every part holds each class in its overall share. Take calibration data with
        `stratify=False`: a conformal threshold's guarantee rests on rows drawn without regard to their class.
        """
        labels = self.labels if stratify else None
        return tuple(self.subset(part) for part in split_indices(len(self), sizes, seed=seed, labels=labels))

    def align_classes(self, class_names: Sequence[str]) -> "Dataset":
        """Renumber the labels to the order of `class_names`, the classes some model was trained on."""
        if self.labels is None or self.class_names == tuple(class_names):
            return self
        places = {name: place for place, name in enumerate(class_names)}
        present = np.unique(self.labels)
        if unknown := [self.class_names[label] for label in present if self.class_names[label] not in places]:
            known = ", ".join(class_names)
            raise InputError(f"{self.name}: class {unknown[0]!r} is not one the model knows ({known}): leave its rows out")
        renumber = np.array([places.get(name, -1) for name in self.class_names], dtype=np.int64)
        return replace(self, labels=renumber[self.labels], class_names=tuple(class_names))


def keep_classes(dataset: Dataset, class_names: Collection[str]) -> Dataset:
    """Return the rows of the named classes only, relabelled 0, 1, ... in the set's own order of classes.

    Example:
        >>> from besnn.data import digits
        >>> curved = keep_classes(digits(), {"0", "6", "8"})
        >>> curved.class_names
        ('0', '6', '8')
    """
    rows, labels, kept = rows_of_classes(dataset, class_names)
    return replace(dataset.subset(rows), labels=labels, class_names=kept)


def rows_of_classes(
    dataset: "Dataset | StreamingFolder", class_names: Collection[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return which rows are of the named classes, their labels among these, and the classes in the set's own order."""
    if dataset.labels is None:
        raise InputError(f"{dataset.name} has no labels: classes cannot be left out of it")
    if unknown := sorted(set(class_names) - set(dataset.class_names)):
        raise InputError(f"{dataset.name} has no class {unknown[0]!r}: it has {', '.join(dataset.class_names)}")
    kept = [label for label, name in enumerate(dataset.class_names) if name in class_names]
    rows = np.flatnonzero(np.isin(dataset.labels, kept))
    labels = np.searchsorted(kept, dataset.labels[rows])
    return rows, labels, tuple(dataset.class_names[label] for label in kept)


def require_classes(dataset: "Dataset | StreamingFolder") -> NDArray[np.int64]:
    """Return the labels `[n]` of a set fit to train a classifier on, or say what it lacks.

    Example:
        >>> from besnn.data import two_moons
        >>> require_classes(two_moons(4)).shape
        (4,)
    """
    if dataset.labels is None:
        raise InputError(f"{dataset.name} has no labels: give one sub-folder a class, or name the class column")
    present = np.unique(dataset.labels)
    if len(present) < 2:
        classes = ", ".join(dataset.class_names[label] for label in present)
        raise InputError(f"{dataset.name} has one class only ({classes}): a classifier needs two or more")
    if isinstance(dataset, Dataset) and dataset.lost:
        raise InputError(f"{dataset.name}: {dataset.lost}")
    return dataset.labels


def _check_labels(labels: NDArray[np.int64], *, rows: int, classes: int, name: str) -> None:
    """Raise unless labels are `int64 [rows]` within the named classes."""
    if labels.shape != (rows,) or labels.dtype != np.int64:
        raise InputError(f"{name}: labels are {labels.dtype} {list(labels.shape)}; give int64 [{rows}], one an input")
    if rows and not (labels.min() >= 0 and labels.max() < classes):
        raise InputError(f"{name}: labels run from {labels.min()} to {labels.max()}; there are {classes} class names")
