"""Sources without a cluster: wherever the inputs are, their chunks give the batches that the local engine scores."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from besnn.batch import IMAGE_ROWS, TABLE_ROWS, open_inputs
from besnn.data import Batch
from besnn.detector import Detector
from besnn.errors import BesnnError, DataError, InputError
from besnn.ray.locations import Location
from besnn.ray.sources import Source, array_batches, open_source, parquet_source, read_chunks


def batches_of(source: Source) -> list[Batch]:
    """Return all batches of spans that are read in reverse order."""
    rows = [row for span in reversed(source.spans) for row in source.read(span)]
    rows.sort(key=lambda row: row["chunk"])
    assert [row["chunk"] for row in rows] == list(range(len(rows)))
    return [batch for row in rows for batch in source.batches(row)]


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert [batch.ids for batch in found] == [batch.ids for batch in expected]
    assert [batch.errors for batch in found] == [batch.errors for batch in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.inputs.dtype == other.inputs.dtype
        assert np.array_equal(one.inputs, other.inputs)


@pytest.fixture(scope="module")
def moons_detector(moons_file):
    return Detector.load(moons_file)


@pytest.fixture(scope="module")
def stripes_detector(stripes_file):
    return Detector.load(stripes_file)


@pytest.mark.parametrize("name", ["points.parquet", "points.csv", "points.npz"])
@pytest.mark.parametrize(("chunk_rows", "packed"), [(None, False), (TABLE_ROWS, True), (2 * TABLE_ROWS, False)])
def test_tables(name, chunk_rows, packed, points, moons_detector, pack):
    source = open_source(moons_detector, pack(points / name) if packed else str(points / name), chunk_rows=chunk_rows)
    expected = list(open_inputs(moons_detector, str(points / name)))
    assert len(expected) == 3
    assert sum(not batch.good.all() for batch in expected) == 3
    assert_same(batches_of(source), expected)
    assert source.rows in (None, 20_000)


def test_a_csv_on_a_web_server(points, moons_detector, web):
    source = open_source(moons_detector, f"{web(points)}/points.csv")
    assert_same(batches_of(source), list(open_inputs(moons_detector, str(points / "points.csv"))))


@pytest.mark.parametrize("packed", [False, True])
def test_folders_of_images(packed, photos, stripes_detector, pack):
    name = pack(photos) if packed else str(photos)
    source = open_source(stripes_detector, name)
    [found] = batches_of(source)
    [expected] = open_inputs(stripes_detector, str(photos))
    renamed = [error.replace(str(photos), "") for error in expected.errors]
    assert_same(
        [Batch(found.ids, found.inputs, [_without(error, name) for error in found.errors])],
        [Batch(expected.ids, expected.inputs, renamed)],
    )
    assert source.rows == 65
    assert sum(map(bool, renamed)) == 2


def _without(error: str, url: str) -> str:
    folder, chain, archive = url.partition("::")
    return error.replace(folder, "", 1).replace(chain + archive, "", 1) if chain else error.replace(url, "", 1)


def test_many_images_are_several_chunks(stripes_detector, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (700, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    source = open_source(stripes_detector, str(tmp_path / "images.npz"), chunk_rows=IMAGE_ROWS)
    found = batches_of(source)
    assert [len(batch.ids) for batch in found] == [256, 256, 188]
    assert np.array_equal(np.concatenate([batch.inputs for batch in found]), images)


def test_a_single_image_and_a_built_in_set(photos, stripes_detector):
    [batch] = batches_of(open_source(stripes_detector, str(photos / "flat" / "02.png")))
    assert batch.ids == ["02.png"]
    assert_same(batches_of(open_source(stripes_detector, "digits")), list(open_inputs(stripes_detector, "digits")))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(rows=st.integers(0, 70), group=st.integers(1, 80), batches=st.integers(1, 4), batch_rows=st.integers(1, 10))
def test_row_groups_of_any_size(rows, group, batches, batch_rows, tmp_path):
    """Every row comes once, in order, whatever the sizes of row groups, chunks and batches are."""
    pa.parquet.write_table(pa.table({"x": np.arange(rows, dtype=np.float32)}), tmp_path / "x.parquet", row_group_size=group)
    location = Location.parse(str(tmp_path / "x.parquet"))
    chunk_rows = batches * batch_rows
    cut = partial(array_batches, batch_rows=batch_rows, chunk_rows=chunk_rows)
    source = parquet_source(location, ["x"], "label", chunk_rows, cut)
    found = batches_of(source)
    assert [int(value) for batch in found for value in batch.inputs[:, 0]] == list(range(rows))
    assert [name for batch in found for name in batch.ids] == [str(row) for row in range(rows)]
    assert all(len(batch.ids) == batch_rows for batch in found[:-1])
    assert len(source.spans) <= max(1, -(-rows // group))


def test_readers_skip_chunks_that_are_done(points, moons_detector):
    source = open_source(moons_detector, str(points / "points.parquet"), chunk_rows=TABLE_ROWS)
    shares = [[span] for span in source.spans]
    rows = [row for reader in range(len(shares)) for row in read_chunks({"id": reader}, source, shares, frozenset({1}))]
    assert [row["chunk"] for row in rows] == [0, 2]
    assert [row["chunk"] for row in read_chunks({"id": 0}, source, [list(source.spans)], frozenset())] == [0, 1, 2]


def test_wide_rows_make_small_chunks(moons_detector, stripes_detector, points, photos, monkeypatch):
    assert open_source(moons_detector, str(points / "points.csv")).chunk_rows == 8 * TABLE_ROWS
    assert open_source(stripes_detector, "digits").chunk_rows == 64 * IMAGE_ROWS
    monkeypatch.setattr(stripes_detector.preprocessing, "input_shape", (3, 512, 512))
    assert open_source(stripes_detector, "digits").chunk_rows == IMAGE_ROWS
    assert open_source(stripes_detector, str(photos)).chunk_rows == 64 * IMAGE_ROWS  # only names are sent


def test_fingerprints_change_with_the_inputs(moons_detector, stripes_detector, tmp_path, photos):
    def fingerprint(detector: Detector, path: Path) -> str:
        return open_source(detector, str(path)).fingerprint

    path = tmp_path / "x.csv"
    path.write_text("x1,x2\n1,2\n")
    before = fingerprint(moons_detector, path)
    path.write_text("x1,x2\n1,2\n3,4\n")
    assert fingerprint(moons_detector, path) != before
    assert open_source(stripes_detector, "digits").fingerprint == "digits"
    before = fingerprint(stripes_detector, photos)
    (photos / "late.png").write_bytes(b"no image")
    assert fingerprint(stripes_detector, photos) != before
    (photos / "late.png").unlink()
    assert fingerprint(stripes_detector, photos) == before


def test_wrong_inputs(moons_detector, stripes_detector, points, photos, tmp_path):
    pa.parquet.write_table(pa.table({"x1": [1.0]}), tmp_path / "narrow.parquet")
    (tmp_path / "narrow.csv").write_text("x1\n1\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    for detector, path, kind, words in [
        (moons_detector, tmp_path / "missing.csv", InputError, "is neither a built-in set nor"),
        (moons_detector, photos, InputError, "holds images, where a table is expected"),
        (stripes_detector, points / "points.parquet", InputError, "is a table, where images"),
        (stripes_detector, points / "points.csv", InputError, "is a table, where images"),
        (moons_detector, tmp_path / "narrow.parquet", DataError, r"narrow\.parquet lacks column 'x2'"),
        (moons_detector, tmp_path / "narrow.csv", DataError, r"narrow\.csv lacks column 'x2'"),
        (stripes_detector, tmp_path / "empty", DataError, "holds no files"),
        (moons_detector, tmp_path / "junk.parquet", DataError, r"junk\.parquet cannot be read"),
    ]:
        with pytest.raises(kind, match=words):
            open_source(detector, str(path))
    with pytest.raises(InputError, match="chunk_rows=100 is not a multiple of the batch size: choose a multiple of 8192"):
        open_source(moons_detector, str(points / "points.csv"), chunk_rows=100)


def test_an_error_of_the_store_is_no_error_of_the_image(photos, stripes_detector, pack):
    """It must not become a row of the output: the run stops, and can continue."""
    url = pack(photos)
    source = open_source(stripes_detector, url)
    [row] = source.read((0, None))
    [batch] = source.batches({**row, "names": [b"flat/missing.png"]})
    assert re.search(r"missing\.png.* cannot be read", batch.errors[0])
    archive = Path(url.partition("::file://")[2])
    content, image = archive.read_bytes(), (photos / "flat" / "02.png").read_bytes()
    with archive.open("r+b") as file:  # the content no longer has the checksum that the store knows
        file.seek(content.index(image) + len(image) // 2)
        file.write(b"damage")
    with pytest.raises(BesnnError, match=r"02\.png.* cannot be read") as caught:
        list(source.batches(row))
    assert not isinstance(caught.value, DataError)
