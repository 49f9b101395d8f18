import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.precision import Rounding

TIMES = 1.7e9 + np.arange(400.0)


def rounding_of(*blocks):
    rounding = Rounding()
    for block in blocks:
        rounding.add(block)
    return rounding


def is_lost(column):
    """The rule as it is meant, of a whole column: float32 is off by over 1 % of the standard deviation."""
    with np.errstate(over="ignore"):
        error = np.abs(column - column.astype(np.float32)).max()
    spread = column.std(dtype=np.longdouble)
    return bool((error > 0.01 * spread and spread > 1e-12 * np.abs(column).max()) or np.isinf(error))


@given(st.integers(0, 2**31), st.integers(-20, 45), st.integers(-14, 0), st.integers(1, 50))
def test_what_is_lost_does_not_depend_on_how_rows_come(seed, size, share, cut):
    column = 10.0**size * (1 + 10.0**share * np.random.default_rng(seed).normal(size=(60, 1)))
    whole, cut_up = rounding_of(column).loss(), rounding_of(column[:0], column[:cut], column[cut:]).loss()
    assert bool(whole) == bool(cut_up) == is_lost(column[:, 0])


def test_the_column_is_named_with_its_size_and_its_spread():
    table = np.column_stack([np.zeros(400), TIMES])
    told = f"reaches 1.7e+09 and varies by {TIMES.std():g}, which float32 does not hold: standardise it first"
    assert rounding_of(table).loss() == f"column 1 {told}"
    assert rounding_of(table[:7], table[7:]).loss(("size", "time")) == f"column 'time' {told}"


@pytest.mark.parametrize(
    "column",
    [
        TIMES - TIMES.mean(),
        TIMES.astype(np.float32),  # nothing is lost of it here
        np.arange(2**24 - 400, 2**24),  # whole numbers that float32 has
        np.full(400, 0.1),
        0.3 + 1e-16 * (np.arange(400) % 2),  # constant, but for rounding
        np.array([1e30] + 399 * [0.1]),  # an outlier makes the spread large
    ],
    ids=["centred", "float32", "whole", "constant", "rounding", "outlier"],
)
def test_columns_that_float32_holds(column):
    assert rounding_of(column[:, None]).loss() == ""


def test_a_column_that_is_too_large():
    assert rounding_of(np.geomspace(1e59, 1e60, 5)[:, None]).loss().startswith("column 0 reaches 1e+60")


def test_no_rows_lose_nothing():
    assert rounding_of().loss() == rounding_of(np.zeros((0, 3))).loss() == ""
