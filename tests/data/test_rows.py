import numpy as np
import pytest

from besnn.data.arrays import inputs_from_rows
from besnn.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6), dtype=np.uint8)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),
        (PIXELS[:, 0], PIXELS[:, :1]),
        (PIXELS[:, :1], PIXELS[:, :1]),
        (PIXELS[:, :1].transpose(0, 2, 3, 1), PIXELS[:, :1]),
        (PIXELS.astype(np.int64), PIXELS),
        (PIXELS.astype(np.float32) / 255, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1) / 255, PIXELS),
        (PIXELS > 127, (PIXELS > 127) * np.uint8(255)),
    ],
)
def test_images_of_any_layout_and_range(rows, expected):
    images, errors = inputs_from_rows(rows)
    assert images.dtype == np.uint8
    assert np.array_equal(images, expected)
    assert images.flags.c_contiguous
    assert images.flags.writeable
    assert errors == [""] * 4


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, np.inf])
def test_float_images_out_of_range(bad):
    rows = PIXELS / 255
    rows[2, 1, 1, 1] = bad
    images, errors = inputs_from_rows(rows)
    assert errors == ["", "", "pixels outside 0 to 1", ""]
    assert not images[2].any()
    assert np.array_equal(images[[0, 1, 3]], PIXELS[[0, 1, 3]])


def test_whole_number_images_out_of_range():
    rows = PIXELS.astype(np.int32)
    rows[0, 0, 0, 0], rows[1, 0, 0, 0] = -1, 256
    assert inputs_from_rows(rows)[1] == ["pixels outside 0 to 255"] * 2 + ["", ""]


def test_tables():
    rows = np.array([[1, 2.5], [np.nan, 1], [0, 1e300], [np.inf, np.inf]])
    inputs, errors = inputs_from_rows(rows)
    assert inputs.dtype == np.float32
    assert inputs.tolist() == [[1, 2.5], [0, 0], [0, 0], [0, 0]]
    assert errors[0] == ""
    assert errors[1:] == [f"column {c} is not a finite number ({v})" for c, v in ((0, "nan"), (1, "1e+300"), (0, "inf"))]


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros(3),
        np.zeros((3, 5, 6, 4)),
        np.zeros((3, 3, 6, 3)),
        np.zeros((3, 1, 2, 3, 4)),
        np.array([["a", "b"]]),
        np.array([[1j]]),
    ],
)
def test_other_arrays_are_refused(rows):
    with pytest.raises(InputError, match="an array of"):
        inputs_from_rows(rows)
