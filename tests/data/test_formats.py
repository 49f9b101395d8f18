import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from besnn.data.formats import parse_cifar, parse_idx, parse_svhn
from besnn.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def mat(**variables):
    file = io.BytesIO()
    savemat(file, variables, do_compression=True)
    return file.getvalue()


def test_idx_images_and_labels():
    images = parse_idx(idx(PIXELS), "images")
    assert images.labels is None
    assert len(images) == 4
    assert np.array_equal(images.images[:, 0], PIXELS)
    assert images.images.flags.writeable
    labels = parse_idx(idx(np.array([3, 1], np.uint8)), "labels")
    assert (labels.images, labels.labels.tolist()) == (None, [3, 1])


def test_cifar_records():
    colours = np.random.default_rng(1).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    content = b"".join(bytes([place]) + image.tobytes() for place, image in enumerate(colours))
    records = parse_cifar(content, "batch")
    assert np.array_equal(records.images, colours)
    assert records.labels.tolist() == [0, 1, 2, 3, 4]


def test_svhn_writes_nought_as_ten():
    images = np.random.default_rng(2).integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    records = parse_svhn(mat(X=images, y=np.array([[10], [1], [9]], np.uint8)), "digits")
    assert records.labels.tolist() == [0, 1, 9]
    assert np.array_equal(records.images[2, 1], images[:, :, 1, 2])


COLOURS = np.zeros((32, 32, 3, 2), np.uint8)
BAD = [
    (parse_idx, b""),
    (parse_idx, b"\0\0\x08"),
    (parse_idx, b"\0\0\x0b\x03" + idx(PIXELS)[4:]),  # 16-bit values
    (parse_idx, idx(PIXELS[None])),
    (parse_idx, idx(PIXELS)[:10]),
    (parse_idx, idx(PIXELS)[:-1]),
    (parse_idx, idx(PIXELS) + b"\0"),
    (parse_idx, b"PK\3\4 another file"),
    (parse_cifar, b""),
    (parse_cifar, bytes(3072)),
    (parse_svhn, b""),
    (parse_svhn, b"not a Matlab file" * 100),
    (parse_svhn, mat(X=COLOURS, y=np.ones((2, 1)))[:-50]),
    (parse_svhn, mat(X=COLOURS)),
    (parse_svhn, mat(X=COLOURS, y=np.ones((3, 1)))),
    (parse_svhn, mat(X=COLOURS.astype(float), y=np.ones((2, 1)))),
    (parse_svhn, b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100)),
]


@pytest.mark.parametrize(("parse", "content"), BAD)
def test_bad_files_are_named_in_one_line(parse, content, one_line):
    with pytest.raises(DataError) as caught:
        parse(content, "the-file")
    one_line(caught, "the-file")


@given(st.binary(max_size=40))
def test_any_bytes_are_an_idx_file_or_an_error(content):
    try:
        records = parse_idx(content, "x")
    except DataError:
        return
    assert len(content) == 4 + (4 + len(records) if records.images is None else 12 + records.images.size)
