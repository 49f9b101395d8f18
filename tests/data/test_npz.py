import io
import struct
import zipfile

import numpy as np
import pytest

from besnn.data.formats import load_file, stream_file
from besnn.data.npz import Npz
from besnn.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
POINTS = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
LABELS = np.array([2, 0, 2, 0, 2, 10])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_with_labels(path, save):
    save(path, images=PIXELS, labels=LABELS)
    loaded = load_file(path)
    assert np.array_equal(loaded.inputs[:, 0], PIXELS)
    assert loaded.class_names == ("0", "2", "10")
    assert loaded.labels.tolist() == [1, 0, 1, 0, 1, 2]
    assert list(loaded.hashes) == [str(path)]


def test_a_table_with_words_for_labels(path):
    np.savez(path, X=POINTS, y=np.array(list("bababa")))
    loaded = load_file(path)
    assert np.array_equal(loaded.inputs, POINTS)
    assert loaded.class_names == ("a", "b")


def test_without_labels(path):
    np.savez(path, X=PIXELS)
    loaded = load_file(path)
    assert loaded.is_image
    assert loaded.labels is None


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_cover_all_rows_in_order(path, order):
    rows = np.asarray(np.random.default_rng(2).normal(size=(2500, 3)), order=order)
    np.savez(path, X=rows, y=np.arange(2500))
    blocks = list(Npz().read(path, (), "label"))
    assert [len(block.inputs) for block in blocks] == [1024, 1024, 452]
    assert np.array_equal(np.concatenate([block.inputs for block in blocks]), rows.astype(np.float32))
    assert [label for block in blocks for label in block.labels] == list(range(2500))


def test_a_bad_row_stops_loading_and_says_which(path):
    rows = np.zeros((2000, 2))
    rows[1500, 1] = np.nan
    np.savez(path, X=rows)
    with pytest.raises(DataError, match=r"row 1500 \(the first is 0\): column 1 is not a finite number"):
        load_file(path)
    assert [sum(map(bool, block.errors)) for block in stream_file(path)] == [0, 1]


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


BAD = {
    "nothing": {},
    "no inputs": {"Z": npy(POINTS)},
    "objects": {"X": npy(np.array([{}, {}], dtype=object), allow_pickle=True)},
    "object labels": {"X": npy(POINTS), "y": npy(np.array([None] * 6, dtype=object), allow_pickle=True)},
    "words": {"X": npy(np.array([["a"], ["b"]]))},
    "a number": {"X": npy(np.array(3.0))},
    "no rows": {"X": npy(POINTS[:0])},
    "too few labels": {"X": npy(POINTS), "y": npy(LABELS[:5])},
    "labels of two dimensions": {"X": npy(POINTS), "y": npy(LABELS[:, None])},
    "cut short": {"X": npy(POINTS)[:-4]},
    "no header": {"X": b"hello"},
    "half a header": {"X": npy(POINTS)[:20]},
    "a huge promise": {"X": npy(POINTS).replace(b"(6, 3)", b"(9999999999, 3)").replace(b" " * 8, b"", 1)},
    "a header that claims four gigabytes": {"X": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100_000},
    "a later version": {"X": npy(np.zeros(1, [("\u00e4", "f4")]), version=(3, 0))},
    "four channels": {"images": npy(np.zeros((2, 8, 8, 4), np.uint8))},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_archives(path, name, one_line):
    archive(path, **BAD[name])
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, str(path))


def test_files_that_are_not_archives(path, one_line):
    np.savez(path, X=POINTS)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[200] ^= 1  # within the stored numbers: the archive's own checksum tells
    encrypted = bytearray(whole)
    for place in (6, whole.index(b"PK\1\2") + 8):
        encrypted[place] |= 1
    for content, words in (
        (bytes(encrypted), "encrypted"),
        (b"", "not a zip file"),
        (whole[:200], "not a zip file"),
        (bytes(damaged), "CRC"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            load_file(path)
        one_line(caught, words)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compression(path, method, one_line):
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("X.npy", npy(np.random.default_rng(0).normal(size=(500, 3))))
    damaged = bytearray(path.read_bytes())
    damaged[60:90] = bytes(30)
    path.write_bytes(damaged)
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, str(path), "cannot be read")


@pytest.mark.parametrize("text", ["(" * 9000, "{'shape': " + "(" * 4000 + ")" * 4000 + "}", "-" * 9000 + "1", "{'descr': '''"])
def test_a_header_that_python_cannot_parse(path, text, one_line):
    archive(path, X=b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text.encode())
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, str(path), "cannot be read")


def stored_header(shape, descr="<f4", fortran_order=False):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": fortran_order, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("fortran_order", [False, True])
@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ((10**12, 0), b"", "without any numbers"),
        ((-5, 3), bytes(60), "without any numbers"),
        ((10**12, 1000), bytes(1000), "holds 1,000 bytes, where its shape .* needs 4,000,000,000,000,000"),
        ((4, 250_000_000), bytes(1000), "holds 1,000 bytes"),
        ((2, 3), bytes(25), "holds 25 bytes"),
        ((1000, 1000), bytes(4_000_000), "unpacks from .* to 4,000,.* bytes, as no real data does"),
    ],
)
def test_a_size_that_cannot_be_is_refused_before_anything_is_unpacked(path, shape, data, message, fortran_order, monkeypatch):
    monkeypatch.setattr("besnn.data.npz.SMALL", 2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", stored_header(shape, fortran_order=fortran_order) + data)
    for read in (load_file, lambda file: list(stream_file(file)), Npz().count):
        with pytest.raises((DataError, ValueError), match=message):
            read(path)


def test_wide_rows_are_read_a_few_at_a_time(path, monkeypatch):
    monkeypatch.setattr("besnn.data.npz.BLOCK_BYTES", 40)
    np.savez(path, X=POINTS, y=LABELS)  # rows of 12 bytes
    assert [len(rows.inputs) for rows in stream_file(path)] == [3, 3]
    assert np.array_equal(load_file(path).inputs, POINTS)
