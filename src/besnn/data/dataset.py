"""A data set in memory: inputs, labels and class names; how it is split, and which of its classes are kept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from besnn.errors import InputError

if TYPE_CHECKING:
    from besnn.data.encoding import TableEncoding
    from besnn.data.folder import StreamingFolder

Inputs: TypeAlias = NDArray[np.uint8 | np.float32]
"""Images `uint8 [n, c, h, w]`, or a table `float32 [n, d]`. See `besnn.data.Dataset`."""


MANY_CLASSES = 10  # if there are this many or more, each must have a few rows; otherwise they are not classes


Labelled = TypeVar("Labelled", bound="Dataset | StreamingFolder")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs with their labels, names and provenance.

    Attributes:
        inputs: images `uint8 [n, c, h, w]`, or a table `float32 [n, d]`.
        labels: `int64 [n]`, indices into `class_names`; None if the data has no labels.
        class_names: the name of class 0, 1, ...
        name: what a person calls the set (`mnist:test`, a path).
        hashes: SHA-256 by file (or by folder) of the content that was read.
        feature_names: the names of a table's columns; empty for images and for arrays without names.
        note: what a reader of results must know, such as that a file holds only a part of the official one.
        lost: which column float32 cannot hold, so that nothing can be learned from it; empty if it holds all.
        weights: how often training draws each row, relative to the others, `[n]`; None for equally often.
        encoding: how cells of the table became these numbers; None if they are the numbers themselves.

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
    weights: NDArray[np.float64] | None = None
    encoding: "TableEncoding | None" = None

    def __post_init__(self) -> None:
        image, table = np.dtype(np.uint8), np.dtype(np.float32)
        if (self.inputs.ndim, self.inputs.dtype) not in ((4, image), (2, table)):
            found = f"{self.inputs.dtype} {list(self.inputs.shape)}"
            raise InputError(f"{self.name}: inputs are {found}; give uint8 [n, c, h, w] or float32 [n, d]")
        if self.feature_names and len(self.feature_names) != self.inputs.shape[1]:
            counts = f"{len(self.feature_names)} feature names for {self.inputs.shape[1]} columns"
            raise InputError(f"{self.name}: {counts}; give one name per column")
        labels = self.labels
        if labels is None:
            return
        if labels.shape != (len(self),) or labels.dtype != np.int64:
            found = f"{labels.dtype} {list(labels.shape)}"
            raise InputError(f"{self.name}: labels are {found}; give int64 [{len(self)}], one per input")
        if len(self) and not (labels.min() >= 0 and labels.max() < len(self.class_names)):
            names = f"there are {len(self.class_names)} class names"
            raise InputError(f"{self.name}: labels run from {labels.min()} to {labels.max()}; {names}")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images rather than rows of a table."""
        return self.inputs.ndim == 4

    def subset(self, indices: Sequence[int] | NDArray[np.integer]) -> "Dataset":
        """Return the rows at `indices`, in that order."""
        rows = np.asarray(indices, dtype=np.int64)
        labels = None if self.labels is None else self.labels[rows]
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, inputs=self.inputs[rows], labels=labels, weights=weights)

    def split(self, *sizes: int | float, seed: int = 0, stratify: bool = True) -> tuple["Dataset", ...]:
        """Split into one part per size and a last part with the rest; a size is a share (float) or a number of rows (int).

        With labels and `stratify`, every part holds each class in its overall share. Take calibration data with
        `stratify=False`: the guarantee of a conformal threshold needs rows drawn without regard to their class.
        """
        labels = self.labels if stratify else None
        return tuple(self.subset(part) for part in split_indices(len(self), sizes, seed=seed, labels=labels))

    def align_classes(self, class_names: Sequence[str]) -> "Dataset":
        """Renumber the labels to the order of `class_names`, the classes that a model was trained on."""
        return align_classes(self, class_names)


def joined(one: Dataset, other: Dataset) -> Dataset:
    """Return the rows of two parts of one labelled data set, without their weights."""
    assert one.labels is not None
    assert other.labels is not None
    inputs, labels = np.concatenate([one.inputs, other.inputs]), np.concatenate([one.labels, other.labels])
    return replace(one, inputs=inputs, labels=labels, weights=None)


def align_classes(data: Labelled, class_names: Sequence[str]) -> Labelled:
    """Renumber the labels of a data set or folder to the order of `class_names`, the classes that a model was trained on."""
    if data.labels is None or data.class_names == tuple(class_names):
        return data
    indices = {name: index for index, name in enumerate(class_names)}
    present = np.unique(data.labels)
    if unknown := [data.class_names[label] for label in present if data.class_names[label] not in indices]:
        known = ", ".join(class_names)
        raise InputError(f"{data.name}: the model does not know class {unknown[0]!r}, only {known}: drop its rows")
    renumber = np.array([indices.get(name, -1) for name in data.class_names], dtype=np.int64)
    return replace(data, labels=renumber[data.labels], class_names=tuple(class_names))


def split_indices(
    rows: int, sizes: Sequence[int | float], *, seed: int, labels: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], ...]:
    """Return the row numbers of each part, ascending: one part per size (a share or a number of rows), then the rest.

    With labels `[rows]`, every part holds each class in its overall share, as nearly as whole rows allow.
    """
    counts = [_count(size, rows) for size in sizes]
    if sum(counts) >= rows:
        raise InputError(f"parts of {counts} rows leave nothing of {rows} for the last part: ask for smaller ones")
    order = np.random.default_rng(seed).permutation(rows)
    if labels is not None:
        order = _spread_classes(order, labels)
    return tuple(np.sort(part) for part in np.split(order, np.cumsum(counts)))


def _count(size: int | float, rows: int) -> int:
    if isinstance(size, float) and not 0 < size < 1:
        raise InputError(f"a share of {size} is not between 0 and 1: give a number of rows as an int")
    count = round(size * rows) if isinstance(size, float) else size
    if count < 1:
        raise InputError(f"a part of size {size} out of {rows} rows would be empty: ask for a larger one")
    return count


def _spread_classes(order: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reorder shuffled rows so that each class is spread evenly: any run of rows then has every class in its share."""
    position = np.empty(len(order))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(position[order], kind="stable")]


def keep_classes(dataset: Dataset, class_names: Collection[str]) -> Dataset:
    """Return the rows of the named classes only, relabelled 0, 1, ... in the set's own order of classes.

    >>> from besnn.data import digits
    >>> keep_classes(digits(), {"0", "6", "8"}).class_names
    ('0', '6', '8')
    """
    rows, labels, kept = rows_of_classes(dataset, class_names)
    return replace(dataset.subset(rows), labels=labels, class_names=kept)


def rows_of_classes(
    dataset: "Dataset | StreamingFolder", class_names: Collection[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return the numbers of the rows of the named classes, their new labels, and the classes in the set's own order."""
    if dataset.labels is None:
        raise InputError(f"{dataset.name} has no labels, so classes cannot be selected: pass labelled data")
    if unknown := sorted(set(class_names) - set(dataset.class_names)):
        raise InputError(f"{dataset.name} has no class {unknown[0]!r}: it has {', '.join(dataset.class_names)}")
    kept = [label for label, name in enumerate(dataset.class_names) if name in class_names]
    rows = np.flatnonzero(np.isin(dataset.labels, kept))
    labels = np.searchsorted(kept, dataset.labels[rows])
    return rows, labels, tuple(dataset.class_names[label] for label in kept)


def require_classes(dataset: "Dataset | StreamingFolder") -> NDArray[np.int64]:
    """Return the labels `[n]` of a set that a classifier can be trained on, or raise an error that says what is missing.

    >>> points = Dataset(np.zeros((3, 2), np.float32), np.array([0, 1, 0]), ("left", "right"), name="points")
    >>> require_classes(points)
    array([0, 1, 0])
    """
    if dataset.labels is None:
        names = dataset.feature_names if isinstance(dataset, Dataset) else ()
        columns = f" (it has {', '.join(names)})" if names else ""
        fix = f"give one sub-folder per class, or name a table's class column with --label{columns}"
        raise InputError(f"{dataset.name} has no labels: {fix}")
    present = np.unique(dataset.labels)
    classes = [dataset.class_names[label] for label in present]
    per_class = len(dataset) / len(present)
    if len(present) >= MANY_CLASSES and per_class < (20 if _are_fractions(classes) else 3):
        found = f"{len(present):,} classes, such as {', '.join(classes[:3])}, in {len(dataset):,} rows"
        raise InputError(f"{dataset.name} has {found}: those are numbers or identifiers; name a class column with --label")
    if isinstance(dataset, Dataset) and dataset.lost:
        raise InputError(f"{dataset.name}: {dataset.lost}")
    return dataset.labels


def _are_fractions(names: Sequence[str]) -> bool:
    """Whether class names are all numbers, and some of them not whole: a quantity rather than a class."""
    try:
        return not all(float(name).is_integer() for name in names)
    except ValueError:
        return False


def varies_within_classes(dataset: Dataset) -> bool:
    """Whether any row differs from another of its class; otherwise feature densities have no width."""
    assert dataset.labels is not None
    _, first, place = np.unique(dataset.labels, return_index=True, return_inverse=True)
    return bool((dataset.inputs != dataset.inputs[first[place]]).any())
