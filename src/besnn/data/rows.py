"""Rows on their way from a file: some at a time, each with its error if it has one."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Dataset, Inputs
from besnn.data.labels import encode_labels
from besnn.data.precision import Rounding
from besnn.errors import DataError

Label: TypeAlias = str | int | float | None


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a source, in order.

    Attributes:
        inputs: `[n, ...]`; a row with an error holds zeros.
        errors: what is wrong with each row; empty where all is well.
        labels: each row's class as the source writes it; empty where the source has none.
        exact: a table's numbers `[n, d]` as the source has them, where float32 may hold less; None where nobody asks.
    """

    inputs: Inputs
    errors: list[str]
    labels: list[Label]
    exact: NDArray[np.generic] | None = None


def collect(blocks: Iterable[Block], path: Path, *, labelled: bool, feature_names: tuple[str, ...] = ()) -> Dataset:
    """Put all blocks of a file together; the first bad row is a DataError."""
    inputs: list[Inputs] = []
    labels: list[Label] = []
    rounding = Rounding()
    start = 0
    for block in blocks:
        for row, error in enumerate(block.errors, start):
            if error:
                raise DataError(f"{path}, row {row} (the first is 0): {error}: mend it, or leave it out")
        start += len(block.inputs)
        inputs.append(block.inputs)
        labels.extend(block.labels)
        if block.exact is not None:
            rounding.add(block.exact)
    if start == 0:
        raise DataError(f"{path} has no rows: give at least one")
    encoded, class_names = encode_labels(labels, str(path)) if labelled else (None, ())
    with path.open("rb") as file:
        hashes = {str(path): hashlib.file_digest(file, "sha256").hexdigest()}
    lost = rounding.loss(feature_names)
    return Dataset(np.concatenate(inputs), encoded, class_names, str(path), hashes, feature_names, lost=lost)
