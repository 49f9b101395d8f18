"""The tables of the suite: scikit-learn's, principal components of image sets, and generated ones; none needs a download."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Words = NDArray[np.str_]

DEVELOPMENT = ("wine", "digits", "mnist-50", "made-clusters", "made-rules", "made-waves", "made-shop")
"""Settings may be chosen on these tables."""
REPORTED = ("iris", "breast-cancer", "fashion-30", "letters-30", "made-covertype", "made-sensors", "made-census")
"""Results are reported on these; no setting may be chosen on them."""

IMAGE_ROWS = 3000


@dataclass(frozen=True)
class Table:
    """Rows of numbers (NaN where one is missing) and of words, with their classes.

    Attributes:
        numbers: `[n, d]`.
        words: `[n, k]`; no columns if the table has no categories.
        labels: `[n]`, from 0.
    """

    numbers: Numbers
    words: Words
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, where: NDArray[Any]) -> "Table":
        """Return some of the rows, by index or mask."""
        return Table(self.numbers[where], self.words[where], self.labels[where])

    def arrow(self) -> pa.Table:
        """Return the features as a table with named columns, gaps as nulls."""
        numbers = {f"x{i}": pa.array(column, mask=np.isnan(column)) for i, column in enumerate(self.numbers.T)}
        return pa.table(numbers | {f"word{i}": pa.array(column.tolist()) for i, column in enumerate(self.words.T)})


def load_table(name: str, data_dir: str | Path | None = None) -> Table:
    """Return a table of the suite by its name; the same rows at every call."""
    found = _MAKERS[name](data_dir)
    return found if isinstance(found, Table) else _of_numbers(*found)


def _of_numbers(numbers: NDArray[Any], labels: NDArray[Any]) -> Table:
    return Table(np.asarray(numbers, np.float64), np.empty((len(labels), 0), np.str_), np.asarray(labels, np.int64))


def _of_sklearn(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn import datasets

    rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return rows, labels


def _components(source: str, count: int, data_dir: str | Path | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first principal components of some images of a built-in set."""
    from sklearn.decomposition import PCA

    from besnn.data import load

    images = load(source, data_dir=data_dir)
    assert images.labels is not None
    chosen = np.sort(np.random.default_rng(0).choice(len(images), IMAGE_ROWS, replace=False))
    pixels = images.inputs[chosen].reshape(IMAGE_ROWS, -1) / 255
    return PCA(count, random_state=0).fit_transform(pixels), images.labels[chosen]


def _clusters() -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.datasets import make_classification

    rows, labels = make_classification(
        3000, 20, n_informative=8, n_redundant=4, n_classes=5, n_clusters_per_class=2, class_sep=1.5, random_state=0
    )
    return rows, labels


def _rules() -> tuple[NDArray[Any], NDArray[Any]]:
    """Classes are boxes: a tree of comparisons decides, as many business rules do."""
    x = np.random.default_rng(1).uniform(size=(3000, 10))
    labels = np.where(x[:, 0] < 0.5, np.where(x[:, 1] < 0.6, 0, np.where(x[:, 2] < 0.5, 1, 2)), np.where(x[:, 3] < 0.4, 3, 4))
    return x * [1, 10, 100, 1, 5, 2, 3, 1, 1, 1], labels


def _waves() -> tuple[NDArray[Any], NDArray[Any]]:
    """Breiman's waveforms: each row mixes two of three triangles, with noise."""
    rng = np.random.default_rng(2)
    places = np.arange(1, 22)
    triangles = np.stack([np.maximum(6 - np.abs(places - centre), 0) for centre in (7, 15, 11)])
    labels = rng.integers(0, 3, 3000)
    share = rng.uniform(size=(3000, 1))
    rows = share * triangles[labels] + (1 - share) * triangles[(labels + 1) % 3]
    return rows + rng.normal(size=rows.shape), labels


def _pick(rng: np.random.Generator, shares: Numbers, labels: NDArray[np.int64], names: list[str]) -> Words:
    """Draw one name per row with the shares `[classes, names]` of its class."""
    chosen = (rng.uniform(size=(len(labels), 1)) > shares.cumsum(axis=1)[labels]).sum(axis=1)
    words: Words = np.array(names, np.str_)[np.minimum(chosen, len(names) - 1)]
    return words


def _names(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


def _shop() -> Table:
    """Orders of four departments: prices over orders of magnitude, counts, gaps, three categories."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 3000)
    n = len(labels)
    price = np.exp(np.array([3.0, 4.0, 2.5, 5.0])[labels] + 0.6 * rng.normal(size=n))
    items = rng.poisson(np.array([12, 2, 4, 2])[labels]) + 1.0
    weight = price ** np.array([0.9, 0.4, 0.6, 0.9])[labels] * np.exp(0.3 * rng.normal(size=n))
    hour = (np.array([18, 21, 16, 10])[labels] + 2.5 * rng.normal(size=n)) % 24
    age = np.array([45, 32, 38, 50])[labels] + 9 * rng.normal(size=n)
    age[rng.uniform(size=n) < np.array([0.05, 0.3, 0.1, 0.05])[labels]] = np.nan
    rating = np.clip(rng.normal(np.array([4.2, 3.6, 4.0, 4.4])[labels], 0.7), 1, 5)
    rating[rng.uniform(size=n) < 0.4] = np.nan
    shares = [rng.dirichlet(np.full(count, 0.7), 4) for count in (8, 3, 2)]
    kinds = ("land", "device", "gift")
    words = [_pick(rng, own, labels, _names(word, own.shape[1])) for own, word in zip(shares, kinds, strict=True)]
    return Table(np.stack([price, items, weight, hour, age, rating], axis=1), np.stack(words, axis=1), labels)


def _covertype() -> Table:
    """Like the covertype table: seven unequal classes of terrain, skewed distances, and soils that go with some of them."""
    rng = np.random.default_rng(4)
    labels = rng.choice(7, 4000, p=[0.3, 0.35, 0.1, 0.05, 0.07, 0.06, 0.07])
    n = len(labels)
    elevation = np.array([3130, 2920, 2390, 2220, 2790, 2420, 3360])[labels] + np.array([160, 190, 195, 100, 95, 190, 105])[
        labels
    ] * rng.normal(size=n)
    slope = rng.gamma(3.0, np.array([4.3, 4.5, 6.9, 6.2, 5.5, 6.3, 4.7])[labels])
    aspect = (rng.vonmises(np.array([0, 1, 2, 2.5, 1, 2, 0.5])[labels], 0.6) + np.pi) * 180 / np.pi
    water = rng.gamma(1.5, np.array([180, 185, 140, 70, 140, 105, 235])[labels])
    height = 0.15 * water + 30 * rng.normal(size=n)
    roads = rng.gamma(1.8, np.array([1450, 1350, 520, 510, 740, 580, 1520])[labels])
    fires = rng.gamma(1.8, np.array([1100, 1190, 500, 475, 870, 590, 1100])[labels])
    shade = 254 - 0.6 * slope * (1 + np.cos(np.deg2rad(aspect - 220))) + 6 * rng.normal(size=n)
    noon = 235 - 0.9 * slope * (1 - np.cos(np.deg2rad(aspect - 180))) / 2 + 6 * rng.normal(size=n)
    numbers = np.stack([elevation, slope, aspect, water, height, roads, fires, shade, noon], axis=1)
    soils, areas = rng.dirichlet(np.full(12, 0.3), 7), rng.dirichlet(np.full(4, 0.5), 7)
    words = [_pick(rng, soils, labels, _names("soil", 12)), _pick(rng, areas, labels, _names("area", 4))]
    return Table(numbers, np.stack(words, axis=1), labels)


def _sensors() -> tuple[NDArray[Any], NDArray[Any]]:
    """Twenty-four sensors of a machine with six states: few causes, heavy tails, and readings such as 1000 ± 0.002."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 6, 3000)
    states = 1.6 * rng.normal(size=(6, 5))
    causes = states[labels] + 0.7 * rng.normal(size=(3000, 5))
    readings = np.tanh(causes @ rng.normal(size=(5, 12)) / 2) @ rng.normal(size=(12, 24)) + 0.25 * rng.standard_t(4, (3000, 24))
    return 10.0 ** rng.integers(-3, 4, 24) * readings + 1000 * (rng.uniform(size=24) < 0.5), labels


def _census() -> Table:
    """Households of five kinds: seven categories, four numbers, and gaps that depend on the kind."""
    rng = np.random.default_rng(6)
    labels = rng.choice(5, 4000, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    n = len(labels)
    age = np.array([28, 45, 67, 38, 52])[labels] + np.array([6, 9, 8, 10, 11])[labels] * rng.normal(size=n)
    income = np.exp(np.array([10.2, 11.1, 10.4, 10.7, 9.6])[labels] + 0.45 * rng.normal(size=n))
    persons = 1.0 + rng.poisson(np.array([0.4, 2.6, 0.8, 1.5, 3.0])[labels])
    rent = income ** np.array([0.62, 0.58, 0.55, 0.6, 0.66])[labels] * np.exp(0.25 * rng.normal(size=n))
    for column, shares in ((income, [0.05, 0.1, 0.25, 0.05, 0.3]), (rent, [0.02, 0.5, 0.4, 0.1, 0.05])):
        column[rng.uniform(size=n) < np.array(shares)[labels]] = np.nan
    sizes = {"job": 9, "school": 5, "region": 6, "heating": 4, "tenure": 3, "car": 3, "status": 4}
    words = [_pick(rng, rng.dirichlet(np.full(k, 0.8), 5), labels, _names(word, k)) for word, k in sizes.items()]
    return Table(np.stack([age, income, persons, rent], axis=1), np.stack(words, axis=1), labels)


Made = Table | tuple[NDArray[Any], NDArray[Any]]
_MAKERS: dict[str, Callable[[str | Path | None], Made]] = {
    "wine": lambda _: _of_sklearn("wine"),
    "iris": lambda _: _of_sklearn("iris"),
    "breast-cancer": lambda _: _of_sklearn("breast_cancer"),
    "digits": lambda _: _of_sklearn("digits"),
    "mnist-50": lambda data_dir: _components("mnist", 50, data_dir),
    "fashion-30": lambda data_dir: _components("fashion-mnist", 30, data_dir),
    "letters-30": lambda data_dir: _components("not-mnist", 30, data_dir),
    "made-clusters": lambda _: _clusters(),
    "made-rules": lambda _: _rules(),
    "made-waves": lambda _: _waves(),
    "made-shop": lambda _: _shop(),
    "made-covertype": lambda _: _covertype(),
    "made-sensors": lambda _: _sensors(),
    "made-census": lambda _: _census(),
}
