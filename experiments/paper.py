"""The published figures: Tables 1, 2 and 3 of Chen, Li and Yang (2022), as printed, mean and sd over 5 seeds."""

from dataclasses import dataclass
from typing import NamedTuple

SEEDS = 5
PAPER_SCORE = "tempered-entropy"
"""The score of the paper's BE-SNN."""
NOT_RUN = "not run"
"""What a table says where the paper has a figure and there is no record."""


class Spread(NamedTuple):
    """A mean and a standard deviation over seeds; None for the deviation of a single run."""

    mean: float
    sd: float | None


def plus_minus(value: Spread, digits: int = 3) -> str:
    """Format mean ± standard deviation; the mean alone for a single run.

    >>> plus_minus(Spread(0.961, 0.016)), plus_minus(Spread(0.5, None))
    ('0.961 ± 0.016', '0.500')
    """
    deviation = "" if value.sd is None else f" ± {value.sd:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


@dataclass(frozen=True)
class PaperRow:
    """One row of Table 1 or 3: a method on one pair of sets.

    `auprc` is one number in the paper, which does not say which class is positive.
    """

    in_name: str
    method: str
    members: int
    out: str
    accuracy: Spread
    fpr95: Spread
    auroc: Spread
    auprc: Spread


@dataclass(frozen=True)
class PaperCost:
    """One row of Table 2: parameters, and seconds of one forward pass of 500 images (RTX 3090)."""

    method: str
    members: int
    parameters: int
    seconds: float


def _row(in_name: str, method: str, members: int, out: str, *figures: float) -> PaperRow:
    """Return a row from mean and sd of accuracy, FPR95, AUROC and AUPRC in turn."""
    return PaperRow(in_name, method, members, out, *map(Spread, figures[::2], figures[1::2]))


_BE_SNN_4 = (
    _row("fashion-mnist", "be-snn", 4, "mnist", 0.924, 0.001, 0.169, 0.016, 0.961, 0.016, 0.989, 0.002),
    _row("fashion-mnist", "be-snn", 4, "not-mnist", 0.924, 0.001, 0.182, 0.057, 0.970, 0.018, 0.988, 0.005),
)

TABLE_1 = (
    *_BE_SNN_4,
    _row("fashion-mnist", "duq", 1, "mnist", 0.921, 0.001, 0.244, 0.043, 0.944, 0.013, 0.975, 0.004),
    _row("fashion-mnist", "duq", 1, "not-mnist", 0.921, 0.001, 0.231, 0.047, 0.953, 0.009, 0.989, 0.007),
    _row("fashion-mnist", "gaussian", 1, "mnist", 0.920, 0.001, 0.274, 0.041, 0.932, 0.014, 0.980, 0.008),
    _row("fashion-mnist", "gaussian", 1, "not-mnist", 0.920, 0.001, 0.281, 0.061, 0.940, 0.012, 0.982, 0.003),
    _row("fashion-mnist", "softmax", 1, "mnist", 0.923, 0.002, 0.564, 0.051, 0.889, 0.034, 0.930, 0.015),
    _row("fashion-mnist", "softmax", 1, "not-mnist", 0.923, 0.002, 0.531, 0.121, 0.910, 0.013, 0.941, 0.009),
    _row("cifar10", "be-snn", 4, "svhn", 0.935, 0.001, 0.359, 0.031, 0.940, 0.017, 0.982, 0.007),
    _row("cifar10", "duq", 1, "svhn", 0.937, 0.002, 0.452, 0.035, 0.921, 0.013, 0.970, 0.006),
    _row("cifar10", "gaussian", 1, "svhn", 0.931, 0.001, 0.492, 0.045, 0.919, 0.009, 0.975, 0.003),
    _row("cifar10", "softmax", 1, "svhn", 0.939, 0.001, 0.680, 0.032, 0.872, 0.024, 0.924, 0.011),
)

TABLE_2 = (
    PaperCost("be-snn", 4, 1_136_878, 5.9e-3),
    PaperCost("duq", 1, 1_009_408, 3.9e-3),
    PaperCost("gaussian", 1, 1_080_320, 3.7e-3),
    PaperCost("softmax", 1, 1_152_778, 1.4e-3),
)

TABLE_3 = (
    _row("fashion-mnist", "be-snn", 1, "mnist", 0.922, 0.001, 0.246, 0.031, 0.945, 0.006, 0.983, 0.004),
    _row("fashion-mnist", "be-snn", 1, "not-mnist", 0.922, 0.001, 0.197, 0.048, 0.963, 0.006, 0.987, 0.007),
    _row("fashion-mnist", "be-snn", 2, "mnist", 0.922, 0.001, 0.204, 0.052, 0.956, 0.011, 0.985, 0.005),
    _row("fashion-mnist", "be-snn", 2, "not-mnist", 0.922, 0.001, 0.211, 0.042, 0.955, 0.013, 0.984, 0.006),
    *_BE_SNN_4,
    _row("fashion-mnist", "be-snn", 8, "mnist", 0.924, 0.002, 0.174, 0.032, 0.972, 0.011, 0.990, 0.004),
    _row("fashion-mnist", "be-snn", 8, "not-mnist", 0.924, 0.002, 0.181, 0.047, 0.969, 0.010, 0.987, 0.004),
)
