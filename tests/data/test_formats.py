"""The registry of file formats, extended from outside the package as docs/extending.md shows."""

import json
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

from besnn.cli.options import DATA_HELP
from besnn.data import FORMATS, ImageSpec, describe_formats, load, rows_from_array, rows_from_cells, stream
from besnn.data.formats import holds_table
from besnn.data.sources import Kind, kind_of
from besnn.errors import DataError, InputError


class JsonLines:
    """One JSON object per row."""

    is_table = True

    def columns(self, path):
        with path.open() as file:
            return tuple(json.loads(file.readline()))

    def read(self, path, columns, label=None):
        with path.open() as file:
            while lines := list(islice(file, 2)):
                cells = pa.RecordBatch.from_pylist([json.loads(line) for line in lines])
                yield rows_from_cells(cells, columns, label)


class Npy:
    """One array of images or rows, without labels."""

    is_table = False

    def columns(self, path):
        return ()

    def read(self, path, columns, label=None):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        for start in range(0, len(array), 2):
            yield rows_from_array(array[start : start + 2])


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(FORMATS, ".jsonl", JsonLines())
    monkeypatch.setitem(FORMATS, ".npy", Npy())


@pytest.fixture
def table(tmp_path):
    rows = [{"x": 1, "y": 2.5, "label": "a"}, {"x": 3, "y": None, "label": "b"}, {"x": 5, "y": 6, "label": "a"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_registered_table_format_is_streamed(table):
    assert kind_of(table) is Kind.TABLE
    batches = list(stream(table, columns=["y", "x"], batch_size=2))
    assert [batch.ids for batch in batches] == [["0", "1"], ["2"]]
    assert np.concatenate([batch.inputs for batch in batches]).tolist() == [[2.5, 1], [0, 0], [6, 5]]
    assert [error for batch in batches for error in batch.errors] == ["", "column 'y' is empty", ""]


def test_a_registered_table_format_is_loaded(table):
    with pytest.raises(DataError, match=r"row 1 \(the first is 0\): column 'y' is empty: fix the row or remove it"):
        load(table)
    loaded = load(table, columns=["x"])
    assert loaded.inputs.tolist() == [[1], [3], [5]]
    assert (loaded.class_names, loaded.labels.tolist()) == (("a", "b"), [0, 1, 0])
    assert loaded.feature_names == ("x",)


def test_a_registered_array_format_is_loaded_and_streamed(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "images.NPY", images)
    (tmp_path / "images.NPY.npy").rename(tmp_path / "images.NPY")
    assert kind_of(tmp_path / "images.NPY") is Kind.ARRAYS
    assert not holds_table(tmp_path / "images.NPY")
    assert np.array_equal(load(tmp_path / "images.NPY").inputs[:, 0], images)
    batches = list(stream(tmp_path / "images.NPY", image=ImageSpec(4, channels=1), batch_size=4))
    assert np.array_equal(np.concatenate([batch.inputs for batch in batches])[:, 0], images)
    with pytest.raises(InputError, match="holds images, where a table of 3 columns is expected"):
        list(stream(tmp_path / "images.NPY", columns=3))


def test_whatever_a_reader_raises_is_one_line(table, one_line):
    table.write_text('{"x": 1}\n{"x":\n')
    for read in (load, lambda path: list(stream(path, columns=1))):
        with pytest.raises(DataError) as caught:
            read(table)
        one_line(caught, f"{table} cannot be read (Expecting value", "check that it is complete and readable")


def test_messages_list_the_registered_formats(tmp_path):
    assert describe_formats() == "a data file (.npz, .csv, .parquet, .jsonl, .npy)"
    with pytest.raises(DataError, match=r"a data file \(.*\.jsonl, \.npy\)$"):
        load(tmp_path / "absent.txt")


def test_tables_and_arrays_of_rows_hold_tables(tmp_path, table):
    np.save(tmp_path / "rows.npy", np.zeros((3, 2)))
    np.save(tmp_path / "none.npy", np.zeros((0, 2)))
    assert holds_table(table)
    assert holds_table(tmp_path / "rows.npy")
    assert not holds_table(tmp_path / "none.npy")


def test_the_help_of_the_command_line_names_every_format():
    assert all(suffix in DATA_HELP for suffix in set(FORMATS) - {".jsonl", ".npy"})
