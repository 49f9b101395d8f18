"""The tasks of the suite: a table without one of its classes, or whole with disturbed rows, and what is then unknown."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.tables.sets import Table

NEW_WORD = "never seen before"
INCH = 2.54
SEEDS = 5


@dataclass(frozen=True)
class Task:
    """Rows to learn from, new rows of the same classes, and unknown rows by the kind of what is wrong with them."""

    name: str  # `class 3` or `disturbed`
    training: Table
    known: Table
    unknown: dict[str, Table]


def tasks_of(table: Table, seed: int) -> Iterator[Task]:
    """Yield the tasks of a table: classes left out, if two others remain, and one whose test rows are disturbed.

    Over the seeds 0 to 4 each class is left out once. A fifth of the known rows are for testing.
    """
    classes = np.unique(table.labels)
    for left_out in classes[seed % SEEDS :: SEEDS] if len(classes) > 2 else ():
        inside = table.labels != left_out
        training, known = _halves(table.rows(inside), seed)
        yield Task(f"class {left_out}", training, known, {"class": table.rows(~inside)})
    training, known = _halves(table, seed)
    yield Task("disturbed", training, known, dict(disturbances(training, known, seed)))


def _halves(table: Table, seed: int) -> tuple[Table, Table]:
    """Return four fifths of the rows with labels renumbered from 0, and the last fifth."""
    labels = np.unique(table.labels, return_inverse=True)[1].astype(np.int64)
    table = Table(table.numbers, table.words, labels)
    order = np.random.default_rng([seed, 1]).permutation(len(table))
    cut = len(order) * 4 // 5
    return table.rows(np.sort(order[:cut])), table.rows(np.sort(order[cut:]))


def disturbances(training: Table, known: Table, seed: int) -> Iterator[tuple[str, Table]]:
    """Yield test rows with each kind of mistake that the table can have."""
    for kind, disturb in DISTURBANCES.items():
        if (kind != "new category" or known.words.shape[1]) and (kind != "swapped" or known.numbers.shape[1] > 1):
            yield kind, disturb(training, known, np.random.default_rng([seed, zlib.crc32(kind.encode())]))


def unit_errors(training: Table, known: Table, rng: np.random.Generator) -> Table:
    """Multiply one number of each row by 2.54, as if it were in another unit."""
    numbers = known.numbers.copy()
    numbers[np.arange(len(numbers)), rng.integers(0, numbers.shape[1], len(numbers))] *= INCH
    return Table(numbers, known.words, known.labels)


def swapped_columns(training: Table, known: Table, rng: np.random.Generator) -> Table:
    """Exchange two numbers of each row."""
    numbers, rows = known.numbers.copy(), np.arange(len(known))[:, None]
    pairs = rng.permuted(np.tile(np.arange(numbers.shape[1]), (len(numbers), 1)), axis=1)[:, :2]
    numbers[rows, pairs] = numbers[rows, pairs[:, ::-1]]
    return Table(numbers, known.words, known.labels)


def mixed_rows(training: Table, known: Table, rng: np.random.Generator) -> Table:
    """Take each cell of a row from it or from another row, with equal chances."""
    other = rng.permutation(len(known))
    numbers = np.where(rng.uniform(size=known.numbers.shape) < 0.5, known.numbers, known.numbers[other])
    words = np.where(rng.uniform(size=known.words.shape) < 0.5, known.words, known.words[other])
    return Table(numbers, words, known.labels)


def drifted_means(training: Table, known: Table, rng: np.random.Generator) -> Table:
    """Shift a quarter of the columns, at least one, by a standard deviation: the same for all rows."""
    d = known.numbers.shape[1]
    moved = rng.choice(d, max(1, d // 4), replace=False)
    shift = np.zeros(d)
    shift[moved] = np.nanstd(training.numbers, axis=0)[moved] * rng.choice([-1, 1], len(moved))
    return Table(known.numbers + shift, known.words, known.labels)


def new_categories(training: Table, known: Table, rng: np.random.Generator) -> Table:
    """Replace one word of each row by one that training rows do not have."""
    words = known.words.astype(object)
    words[np.arange(len(words)), rng.integers(0, words.shape[1], len(words))] = NEW_WORD
    return Table(known.numbers, words.astype(np.str_), known.labels)


DISTURBANCES: dict[str, Callable[[Table, Table, np.random.Generator], Table]] = {
    "unit error": unit_errors,
    "swapped": swapped_columns,
    "mixed": mixed_rows,
    "drift": drifted_means,
    "new category": new_categories,
}
