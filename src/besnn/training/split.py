"""Dividing data into what is learned from and what is held out."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from besnn.data import Dataset, StreamingFolder, require_classes
from besnn.data.dataset import rows_of_classes
from besnn.data.splits import split_indices
from besnn.errors import InputError
from besnn.recipe.config import DataConfig
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
    if names is not None:
        rows, labels, kept = rows_of_classes(data, names)
        data = replace(data.subset(rows), labels=labels, class_names=kept)
    require_classes(data)
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
