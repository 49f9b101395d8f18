"""Dividing data into what is learned from and what is held out."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from besnn.data import Dataset, StreamingFolder
from besnn.data.splits import split_indices
from besnn.errors import InputError
from besnn.training.config import DataConfig
from besnn.training.source import Data, load_rows

HELD_OUT_BYTES = 2**30
"""Held-out parts of a folder that is too large for memory are kept in memory, so they are no larger than this."""


@dataclass(frozen=True)
class Parts:
    """The data, divided: the network learns from `training` alone.

    Attributes:
        training: what weights and densities are fitted to.
        validation: held out to stop early and to choose the score; None for no such part.
        calibration: held out for the threshold, drawn without regard to class; None for no such part.
    """

    training: Data
    validation: Dataset | None
    calibration: Dataset | None


def divide(data: Data, config: DataConfig, seed: int) -> Parts:
    """Chooses classes and rows as the recipe says, and holds data out.

    Rows are drawn without regard to their class, but for the validation part: a conformal guarantee rests on calibration rows
    that are drawn as any new input is.
    """
    data = _choose_classes(data, config.classes)
    rows = np.arange(len(data))
    if config.limit is not None and config.limit < len(rows):
        rows, _ = split_indices(len(rows), [config.limit], seed=seed)
    calibration_size = _part_size(data, len(rows), "calibration", config.calibration)
    validation_size = _part_size(data, len(rows), "validation", config.validation)
    calibration, rows = _hold_out(data, rows, calibration_size, seed)
    validation, rows = _hold_out(data, rows, validation_size, seed, by_class=True)
    return Parts(data.subset(rows), validation, calibration)


def _choose_classes(data: Data, names: tuple[str, ...] | None) -> Data:
    """The rows of the named classes (all, where None), relabelled 0, 1, ... in the data's own order of classes."""
    labels = data.labels
    if labels is None:
        raise InputError(f"{data.name} has no labels: give one sub-folder a class, or name the class column")
    if names is not None:
        if unknown := [name for name in names if name not in data.class_names]:
            raise InputError(f"data.classes: {data.name} has no class {unknown[0]!r}, it has {', '.join(data.class_names)}")
        kept = [label for label, name in enumerate(data.class_names) if name in names]
        renumbered = np.full(len(data.class_names), -1)
        renumbered[kept] = np.arange(len(kept))
        rows = np.flatnonzero(np.isin(labels, kept))
        labels = renumbered[labels[rows]]
        data = replace(data.subset(rows), labels=labels, class_names=tuple(data.class_names[label] for label in kept))
    present = np.unique(labels)
    if len(present) < 2:
        classes = ", ".join(data.class_names[label] for label in present)
        raise InputError(f"{data.name} has one class only ({classes}): a classifier needs two or more")
    return data


def _part_size(data: Data, rows: int, field: str, share: float) -> int:
    """How many rows a share of them is; 0 for no such part."""
    size = round(share * rows)
    if share and not size:
        raise InputError(f"data.{field}={share} of {rows} rows is less than one: raise it, or set it to 0 for no such part")
    return min(size, max(1, HELD_OUT_BYTES // math.prod(data.spec.shape))) if isinstance(data, StreamingFolder) else size


def _hold_out(
    data: Data, rows: NDArray[np.int64], size: int, seed: int, by_class: bool = False
) -> tuple[Dataset | None, NDArray[np.int64]]:
    """A part of some rows, in memory, and the rows that are left."""
    if not size:
        return None, rows
    labels = data.labels[rows] if by_class and data.labels is not None else None
    chosen, rest = split_indices(len(rows), [size], seed=seed, labels=labels)
    part = data.subset(rows[chosen])
    return part if isinstance(part, Dataset) else load_rows(part), rows[rest]
