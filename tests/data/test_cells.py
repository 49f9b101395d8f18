import math

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.cells import reason_not_finite, to_labels, to_numbers


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9), min_size=1))
def test_numbers_as_python_writes_them_are_read(values):
    plain = to_numbers(pa.array([repr(value) for value in values])).tolist()
    assert plain == [float(value) for value in values]
    with_a_bad_one = to_numbers(pa.array(["x", *(f" {value!r}\t" for value in values)])).tolist()
    assert math.isnan(with_a_bad_one[0])
    assert with_a_bad_one[1:] == plain


@given(st.lists(st.text("0123456789+-.eEx_ inf\u0663", max_size=6)))
def test_any_text_is_a_number_or_nan(cells):
    for cell, value in zip(cells, to_numbers(pa.array([*cells, "x"])), strict=False):
        try:
            expected = float(cell)
        except ValueError:
            assert math.isnan(value)
        else:
            assert math.isnan(value) or value == expected


def test_reasons():
    assert reason_not_finite("x", None) == reason_not_finite("x", " ") == "column 'x' is empty"
    assert "inf" in reason_not_finite("x", math.inf)
    assert len(reason_not_finite("x", "long" * 1000)) < 100


def test_labels():
    assert to_labels(pa.array([b"a", b"b"])) == ["a", "b"]
    assert to_labels(pa.array([1, None])) == [1, None]
