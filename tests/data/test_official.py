import gzip
import hashlib
import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from besnn.data import Status, data_root, verify
from besnn.data.catalogue import DatasetInfo, OfficialFile
from besnn.data.official import parse_cifar, parse_idx, parse_npz, parse_svhn, read_official, unpacked
from besnn.errors import DataError, InputError


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


CONTENT = idx(np.arange(50, dtype=np.uint8))
FILE = OfficialFile("SET/raw/labels", hashlib.sha256(CONTENT).hexdigest(), 50, ("http://127.0.0.1/labels.gz",))
INFO = DatasetInfo("set", "made up", "none", ("a",), {"test": 50}, {"test": (FILE,)}, format="idx")

CASES = {
    "unpacked": ("labels", CONTENT, Status.OK),
    "gzipped": ("labels.gz", gzip.compress(CONTENT), Status.OK),
    "gzipped again": ("labels.gz", gzip.compress(CONTENT, 1, mtime=7), Status.OK),
    "fewer records": ("labels", idx(np.arange(20, dtype=np.uint8)), Status.PARTIAL),
    "one byte altered": ("labels", CONTENT[:-1] + b"\xff", Status.ALTERED),
    "more records": ("labels", idx(np.arange(51, dtype=np.uint8)), Status.ALTERED),
    "cut short": ("labels", CONTENT[:30], Status.ALTERED),
    "wrong magic": ("labels", b"\1" + CONTENT[1:], Status.ALTERED),
    "gzip cut short": ("labels.gz", gzip.compress(CONTENT)[:-12], Status.ALTERED),
    "gzip altered": ("labels.gz", gzip.compress(CONTENT)[:15] + b"\xff\xff" + gzip.compress(CONTENT)[17:], Status.ALTERED),
    "gzip with another checksum": ("labels.gz", gzip.compress(CONTENT)[:-8] + b"\0" * 8, Status.ALTERED),
    "elsewhere": ("other", CONTENT, Status.MISSING),
}


@pytest.mark.parametrize("case", CASES)
def test_status_of_a_file(tmp_path, case):
    name, content, status = CASES[case]
    (tmp_path / "SET" / "raw").mkdir(parents=True)
    (tmp_path / "SET" / "raw" / name).write_bytes(content)
    found = read_official(INFO, FILE, tmp_path)
    assert found.status == status
    assert (found.detail == "") == (status is Status.OK)
    assert "\n" not in found.detail
    assert (found.detail == "20 of 50 records") == (status is Status.PARTIAL)
    assert (found.records is not None) == (status in (Status.OK, Status.PARTIAL))


def test_a_file_that_cannot_be_read_is_altered(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "SET" / "raw").mkdir(parents=True)
    (tmp_path / "SET" / "raw" / "labels").write_bytes(CONTENT)
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    found = read_official(INFO, FILE, tmp_path)
    assert found.status is Status.ALTERED
    assert "Permission denied" in found.detail


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BESNN_DATA", str(tmp_path / "named"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "named"
    monkeypatch.delenv("BESNN_DATA")
    assert data_root().name == "besnn"


def test_verify_takes_a_set_or_a_split(tmp_path):
    assert len(verify("mnist", tmp_path)) == 4
    assert {each.status for each in verify("mnist:test", tmp_path)} == {Status.MISSING}
    assert len(verify("mnist:test", tmp_path)) == 2
    assert "besnn data fetch mnist" in verify("mnist:test", tmp_path)[0].detail
    with pytest.raises(InputError, match="no built-in set is called 'imagenet'"):
        verify("imagenet", tmp_path)


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)


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


def test_svhn_writes_digit_0_as_10():
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


def test_an_npz_is_read_however_it_is_compressed(tmp_path):
    images, labels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3), np.array([7, 3])
    np.savez(tmp_path / "plain.npz", labels=labels, images=images)
    np.savez_compressed(tmp_path / "packed.npz", images=images, labels=labels)
    content = unpacked(tmp_path / "plain.npz")
    assert content == unpacked(tmp_path / "packed.npz")
    records = parse_npz(content, "sample")
    assert np.array_equal(records.images, images.transpose(0, 3, 1, 2))
    assert records.labels.tolist() == [7, 3]


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((2, 4, 4, 3)), "labels": np.zeros(2)},
        {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(3)},
        {"images": np.zeros((2, 4, 4, 3), np.uint8)},
        {"images": np.array([None]), "labels": np.zeros(1)},
    ],
)
def test_another_npz_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(DataError, match="sample does not hold images and labels"):
        parse_npz(unpacked(tmp_path / "other.npz"), "sample")
