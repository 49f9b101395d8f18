"""From named groups to data: the training data with the new classes, and inputs to set the threshold again with.

Four fifths of the inputs of each named group, and of those that resemble it, join the training data. The others, the false
alarms and all other inputs that were not flagged show what known inputs look like from then on: they make the recalibration
set. Neither has junk or undecided groups.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from besnn.data import Dataset, ImageSpec
from besnn.data.folder import list_files, open_folder
from besnn.errors import InputError
from besnn.storage.files import whole_file, whole_folder
from besnn.triage.groups import FALSE_ALARM, Triage

HELD_OUT_EVERY = 5
"""One input in this many of a named group goes to the recalibration set."""
TRAINING, CALIBRATION = "training", "calibration"


@dataclass(frozen=True)
class Parts:
    """Rows of the inputs: those to train on, by class, and those to calibrate with."""

    training: dict[str, NDArray[np.int64]]
    calibration: NDArray[np.int64]


def parts_of(triage: Triage, inputs: int) -> Parts:
    """Return which inputs, out of this number, are used for what."""
    if not triage.classes and not len(triage.rows_named(FALSE_ALARM)):
        raise InputError("no group has a name: name one in groups.yaml, as a class, 'false alarm' or 'junk'")
    named = {name: triage.rows_named(name) for name in triage.classes}
    held_out = [rows[::HELD_OUT_EVERY] for rows in named.values()]
    flagged = np.concatenate([triage.single, *(group.rows for group in triage.groups.values())])
    accepted = np.setdiff1d(np.arange(inputs), flagged)
    training = {name: np.setdiff1d(rows, rows[::HELD_OUT_EVERY]) for name, rows in named.items()}
    recent = np.concatenate([accepted, triage.rows_named(FALSE_ALARM), *held_out])
    return Parts(training, np.setdiff1d(recent, np.concatenate([np.zeros(0, np.int64), *training.values()])))


def apply_names(triage: Triage, folder: Path, inputs: Dataset, training: Dataset, label: str = "label") -> dict[str, Path]:
    """Write `training` and `calibration` beside the groups, in the form of the inputs; return their paths.

    Folders of images become folders, tables become tables, and everything else an `.npz`.

    >>> import tempfile
    >>> from besnn.triage import Group
    >>> points = Dataset(np.arange(12, dtype=np.float32).reshape(6, 2), np.zeros(6, np.int64), ("cat",), name="points")
    >>> triage = Triage({"group-1": Group(np.array([4, 5]), "cat", name="dog")}, single=np.array([], np.int64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = apply_names(triage, Path(folder), inputs=points, training=points)
    ...     print(np.load(paths["training"])["labels"])
    ['cat' 'cat' 'cat' 'cat' 'cat' 'cat' 'dog']
    """
    parts = parts_of(triage, len(inputs))
    sources = Path(inputs.name), Path(training.name)
    if all(source.is_dir() for source in sources):
        return _write_folders(parts, folder, *sources)
    if all(source.suffix.lower() in _TABLES and source.is_file() for source in sources):
        return _write_tables(parts, folder, *sources, label)
    return _write_arrays(parts, folder, inputs, training)


def _write_arrays(parts: Parts, folder: Path, inputs: Dataset, training: Dataset) -> dict[str, Path]:
    if training.labels is None or training.inputs.shape[1:] != inputs.inputs.shape[1:]:
        raise InputError(
            f"{training.name} has no labels, or inputs of another shape than {inputs.name}: give the training data"
        )
    rows, names = list(parts.training.values()), [np.asarray(training.class_names)[training.labels]]
    names += [np.full(len(own), name) for name, own in parts.training.items()]
    paths = {part: folder / f"{part}.npz" for part in (TRAINING, CALIBRATION)}
    key = "images" if inputs.is_image else "X"
    joined = np.concatenate([training.inputs, *(inputs.inputs[own] for own in rows)])
    arrays: dict[str, dict[str, Any]] = {
        TRAINING: {key: joined, "labels": np.concatenate(names)},
        CALIBRATION: {key: inputs.inputs[parts.calibration]},
    }
    for part in arrays:
        with whole_file(paths[part]) as partial, partial.open("wb") as file:
            np.savez(file, **arrays[part])
    return paths


def _write_folders(parts: Parts, folder: Path, inputs: Path, training: Path) -> dict[str, Path]:
    files = open_folder(inputs, ImageSpec((1, 1), 1)).files  # in the order in which they were loaded
    paths = {part: folder / part for part in (TRAINING, CALIBRATION)}
    with whole_folder(paths[TRAINING]) as joined, whole_folder(paths[CALIBRATION]) as recent:
        for path in list_files(training):
            _place(path, joined / path.relative_to(training))
        for name, rows in parts.training.items():
            if name in (".", "..") or "/" in name or os.sep in name:
                raise InputError(f"class {name!r} cannot be the name of a folder: give another name in groups.yaml")
            _place_all(files, rows, inputs, joined / name)
        _place_all(files, parts.calibration, inputs, recent)
    return paths


def _place_all(files: Sequence[Path], rows: Iterable[int], base: Path, target: Path) -> None:
    for row in rows:
        _place(files[row], target / files[row].relative_to(base).as_posix().replace("/", "--"))


def _place(source: Path, target: Path) -> None:
    """Link a file, or copy it where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_tables(parts: Parts, folder: Path, inputs: Path, training: Path, label: str) -> dict[str, Path]:
    new, old = (_TABLES[path.suffix.lower()](path) for path in (inputs, training))
    new = new.drop_columns([label]) if label in new.column_names else new
    if missing := [name for name in old.column_names if name not in (*new.column_names, label)]:
        raise InputError(f"{inputs} has no column {missing[0]!r}, which {training} has: give the training data with --data")
    named = [
        new.take(rows).append_column(label, pa.array([name] * len(rows), pa.string())) for name, rows in parts.training.items()
    ]
    old = old.set_column(old.column_names.index(label), label, old[label].cast(pa.string()))
    joined = pa.concat_tables([old, *(each.select(old.column_names) for each in named)], promote_options="permissive")
    paths = {part: folder / f"{part}.parquet" for part in (TRAINING, CALIBRATION)}
    for part, table in {TRAINING: joined, CALIBRATION: new.take(parts.calibration)}.items():
        with whole_file(paths[part]) as partial:
            pa.parquet.write_table(table, partial)
    return paths


_TABLES = {".csv": pa.csv.read_csv, ".parquet": pa.parquet.read_table}
