"""The registry of file formats, extended with arrays; tests/test_extending_page.py adds a table format."""

import numpy as np
import pytest

from besnn.cli.options import DATA_HELP
from besnn.data import FORMATS, ImageSpec, load, rows_from_array, stream
from besnn.data.formats import describe_formats, holds_table
from besnn.data.sources import Kind, kind_of
from besnn.errors import DataError, InputError


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
    monkeypatch.setitem(FORMATS, ".npy", Npy())


def test_a_registered_format_is_loaded_and_streamed(tmp_path):
    path = tmp_path / "images.NPY"
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    with path.open("wb") as file:
        np.save(file, images)
    assert kind_of(path) is Kind.ARRAYS
    assert np.array_equal(load(path).inputs[:, 0], images)
    batches = list(stream(path, image=ImageSpec(4, channels=1), batch_size=4))
    assert [len(batch.ids) for batch in batches] == [4, 1]
    assert np.array_equal(np.concatenate([batch.inputs for batch in batches])[:, 0], images)
    with pytest.raises(InputError, match="holds images, where a table of 3 columns is expected"):
        list(stream(path, columns=3))


def test_whatever_a_reader_raises_is_one_line(tmp_path, one_line):
    path = tmp_path / "bad.npy"
    path.write_bytes(b"bad")
    for read in (load, lambda path: list(stream(path, columns=1))):
        with pytest.raises(DataError) as caught:
            read(path)
        one_line(caught, f"{path} cannot be read (", "check that it is complete and readable")


def test_messages_list_the_registered_formats(tmp_path):
    assert describe_formats() == "a data file (.npz, .csv, .tsv, .gz, .parquet, .npy)"
    with pytest.raises(DataError, match=r"a data file \(.*\.npy\)$"):
        load(tmp_path / "absent.txt")


@pytest.mark.parametrize(("shape", "expected"), [((3, 2), True), ((0, 2), False), ((3, 4, 4), False)])
def test_arrays_of_rows_hold_tables(tmp_path, shape, expected):
    np.save(tmp_path / "rows.npy", np.zeros(shape))
    (tmp_path / "rows.csv").write_text("x\n1\n")
    assert holds_table(tmp_path / "rows.npy") == expected
    assert holds_table(tmp_path / "rows.csv")


def test_the_help_of_the_command_line_names_every_format():
    assert all(suffix in DATA_HELP for suffix in set(FORMATS) - {".npy"})
