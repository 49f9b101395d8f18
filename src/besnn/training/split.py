"""Splitting data into what the network learns from and what is held out."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from besnn.data import Dataset, StreamingFolder, require_classes
from besnn.data.dataset import rows_of_classes, split_indices
from besnn.errors import InputError
from besnn.recipe.config import DataConfig
from besnn.training.batches import Data

HELD_OUT_BYTES = 2**30
"""The largest held-out part of a streaming folder: held-out parts are kept in memory."""


@dataclass(frozen=True)
class Split:
    """The parts of a data set; None for what the recipe holds out nothing for."""

    training: Data  # what weights and densities are fitted to
    validation: Dataset | None  # for early stopping and for fitting the score
    calibration: Dataset | None  # for the threshold


def split_data(data: Data, config: DataConfig, seed: int, least_calibration: int = 0) -> Split:
    """Select the recipe's classes and rows, and hold out validation and calibration data.

    Only validation rows are drawn class by class. A conformal guarantee needs calibration rows that are drawn like any new
    input, and `least_calibration` of them for the false-alarm rate: where there are few rows, up to half of them are held out.
    """
    data = _select_classes(data, config.classes)
    rows = np.arange(len(data))
    if config.limit is not None and config.limit < len(rows):
        rows, _ = split_indices(len(rows), [config.limit], seed=seed)
    calibration_size = _held_out_size(data, len(rows), "calibration", config.calibration)
    if 0 < calibration_size < least_calibration <= len(rows) // 2:
        calibration_size = least_calibration
    validation_size = _held_out_size(data, len(rows), "validation", config.validation)
    calibration, rows = _hold_out(data, rows, calibration_size, seed)
    validation, rows = _hold_out(data, rows, validation_size, seed, by_class=True)
    return Split(data.subset(rows), validation, calibration)


def _select_classes(data: Data, names: tuple[str, ...] | None) -> Data:
    """Keep the rows of the named classes (None: all), relabelled 0, 1, ... in the data's own order of classes."""
    if names is not None:
        rows, labels, kept = rows_of_classes(data, names)
        data = replace(data.subset(rows), labels=labels, class_names=kept)
    require_classes(data)
    return data


def _held_out_size(data: Data, rows: int, field: str, share: float) -> int:
    size = round(share * rows)
    if share and not size:
        raise InputError(f"data.{field}={share} of {rows} rows is less than one row: raise it, or set it to 0 to hold out none")
    return min(size, max(1, HELD_OUT_BYTES // math.prod(data.spec.shape))) if isinstance(data, StreamingFolder) else size


def _hold_out(
    data: Data, rows: NDArray[np.int64], size: int, seed: int, by_class: bool = False
) -> tuple[Dataset | None, NDArray[np.int64]]:
    """Draw some of the rows into memory; return them as a data set, and the rows that are left."""
    if not size:
        return None, rows
    labels = data.labels[rows] if by_class and data.labels is not None else None
    chosen, rest = split_indices(len(rows), [size], seed=seed, labels=labels)
    held_out = data.subset(rows[chosen])
    return held_out if isinstance(held_out, Dataset) else held_out.load(), rows[rest]
