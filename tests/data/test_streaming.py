import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from besnn.data import ImageSpec, load, stream
from besnn.errors import BesnnError

SPEC = ImageSpec(4, channels=1)


def gather(source, **options):
    batches = list(stream(source, **options))
    ids = [name for batch in batches for name in batch.ids]
    errors = [error for batch in batches for error in batch.errors]
    inputs = np.concatenate([batch.inputs for batch in batches])
    assert len(ids) == len(errors) == len(inputs)
    assert [batch.good.tolist() for batch in batches] == [[not error for error in batch.errors] for batch in batches]
    return ids, inputs, errors


@pytest.fixture
def points():
    return np.random.default_rng(0).normal(size=(10_000, 3)).astype(np.float32)


@pytest.fixture
def files(tmp_path, points):
    """One table in every format."""
    table = pa.table({name: points[:, place] for place, name in enumerate("xyz")} | {"label": ["a"] * len(points)})
    pa.csv.write_csv(table, tmp_path / "points.csv")
    pa.parquet.write_table(table, tmp_path / "points.parquet", row_group_size=3000)
    np.savez(tmp_path / "points.npz", X=points)
    return {suffix: tmp_path / f"points.{suffix}" for suffix in ("csv", "parquet", "npz")}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("batch_size", [1, 7, 50_000])
def test_a_table_streams_whole_and_in_order(files, points, suffix, batch_size):
    if batch_size == 1:
        batches = stream(files[suffix], batch_size=1, columns=3)
        assert [next(batches).ids for _ in range(5)] == [["0"], ["1"], ["2"], ["3"], ["4"]]
        return
    sizes = [len(batch.ids) for batch in stream(files[suffix], batch_size=batch_size, columns=3)]
    assert set(sizes[:-1]) <= {batch_size}
    ids, inputs, errors = gather(files[suffix], batch_size=batch_size, columns=list("xyz"))
    assert ids == [str(row) for row in range(len(points))]
    assert np.array_equal(inputs, points)
    assert not any(errors)


def test_streaming_and_loading_agree(files):
    for path in files.values():
        assert np.array_equal(gather(path, columns=3)[1], load(path).inputs)


@pytest.fixture
def photos(tmp_path):
    for number in range(20):
        path = tmp_path / ("even" if number % 2 == 0 else "odd") / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (6, 6), number).save(path)
    return tmp_path


@pytest.mark.parametrize("batch_size", [1, 3, 20, 100])
def test_a_folder_streams_in_order(photos, batch_size):
    ids, inputs, errors = gather(photos, image=SPEC, batch_size=batch_size)
    assert ids == [f"even/{n:02}.png" for n in range(0, 20, 2)] + [f"odd/{n:02}.png" for n in range(1, 20, 2)]
    assert np.array_equal(inputs, load(photos, image=SPEC).inputs)
    assert not any(errors)


def test_bad_files_are_reported_in_their_places(photos):
    (photos / "even" / "02.png").write_bytes((photos / "even" / "04.png").read_bytes()[:40])
    (photos / "notes.txt").write_text("not an image")
    (photos / ".hidden.png").write_bytes(b"skipped")
    (photos / "odd" / "00.png").symlink_to("nowhere")
    ids, inputs, errors = gather(photos, image=SPEC)
    assert len(ids) == 22
    bad = {name: error for name, error in zip(ids, errors, strict=True) if error}
    assert sorted(bad) == ["even/02.png", "notes.txt", "odd/00.png"]
    assert all("\n" not in error for error in bad.values())
    assert not inputs[ids.index("even/02.png")].any()


def test_a_single_image_and_a_built_in_set(photos):
    ids, inputs, _ = gather(photos / "odd" / "07.png", image=SPEC)
    assert (ids, inputs[0, 0, 0, 0]) == (["07.png"], 7)
    ids, inputs, _ = gather("digits", image=SPEC, batch_size=100)
    assert inputs.shape == (359, 1, 4, 4)
    assert ids[-1] == "358"


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not UTF-8")
def test_a_name_that_is_not_utf8_can_still_be_written(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    ids, _, errors = gather(tmp_path, image=SPEC)
    assert ids == ["\ufffd.png"]
    assert ids[0].encode()
    assert errors == [""]
    assert load(tmp_path).inputs.shape == (1, 1, 4, 4)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")).write_bytes(b"no image")
    _, _, [error] = gather(tmp_path, image=SPEC)
    assert error.encode().startswith(f"{tmp_path}/\ufffd.png is not an image".encode())


WRONG = [
    ("points.csv", {"columns": 4}, "3 feature columns"),
    ("points.npz", {"image": SPEC}, "is a table, where images"),
    ("empty", {"image": SPEC}, "holds no files"),
    ("points.csv", {}, "give one of the two"),
    ("points.csv", {"columns": 3, "batch_size": 0}, "batch_size=0"),
]


@pytest.mark.parametrize(("name", "options", "words"), WRONG)
def test_sources_of_the_wrong_kind(tmp_path, files, name, options, words, one_line):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BesnnError) as caught:
        list(stream(tmp_path / name, **options))
    one_line(caught, words)


def write_csv(path, points):
    lines = "\n".join(",".join(map(str, row)) for row in points[:1000].tolist())
    path.write_text("\n".join([",".join(map(str, range(24)))] + [lines] * (len(points) // 1000)))


def write_parquet(path, points):
    table = pa.table({str(place): column for place, column in enumerate(points.T)})
    pa.parquet.write_table(table, path, row_group_size=10_000)


def write_npz(path, points):
    np.savez(path, X=points)


# pyarrow reads a CSV some 32 blocks of 1 MB ahead, so that only a longer one shows that memory stays constant.
@pytest.mark.parametrize(("write", "limit"), [(write_csv, 45e6), (write_parquet, 11e6), (write_npz, 11e6)])
def test_memory_stays_far_below_the_size_of_the_source(tmp_path, write, limit):
    """The peak of pyarrow's memory and of Python's own is under half the size of the file."""
    suffix = write.__name__.removeprefix("write_")
    path = tmp_path / f"large.{suffix}"
    write(path, np.random.default_rng(0).random((240_000, 24), np.float32))
    tracemalloc.start()
    before, peak = pa.total_allocated_bytes(), 0
    for _ in stream(path, columns=24, batch_size=4096):
        peak = max(peak, pa.total_allocated_bytes() - before)
    peak += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 2 * limit
    assert peak < limit
