"""What workers do, done here: their own processes are beyond the reach of a debugger."""

import numpy as np
import pytest
import torch

from besnn.batch import TABLE_ROWS
from besnn.detector import Detector
from besnn.ray.locations import Location
from besnn.ray.opening import open_source
from besnn.ray.parts import Part, decode_part, part_name

pytest.importorskip("ray")

from besnn.ray.worker import FAILURE, ChunkScorer, load_detector, read_chunks


@pytest.fixture
def source(moons_file, points):
    return open_source(Detector.load(moons_file), str(points / "points.parquet"), chunk_rows=TABLE_ROWS)


@pytest.fixture
def make_scorer(cluster, moons_file, source):
    import ray

    threads = torch.get_num_threads()
    model = ray.put(np.frombuffer(moons_file.read_bytes(), np.uint8))
    yield lambda folder: ChunkScorer([model], source, Location.parse(str(folder)), "me", "cpu")
    torch.set_num_threads(threads)


def test_reading_leaves_out_what_is_done(source):
    shares = [[span] for span in source.spans()]
    found = [
        row["chunk"] for reader in range(len(shares)) for row in read_chunks({"id": reader}, source, shares, frozenset({1}))
    ]
    assert found == [0, 2]
    assert [row["chunk"] for row in read_chunks({"id": 0}, source, [source.spans()], frozenset())] == [0, 1, 2]


def test_a_chunk_becomes_a_part(make_scorer, source, tmp_path):
    scorer = make_scorer(tmp_path / "scores")
    [span, *_] = source.spans()
    [row, *_] = source.read(span)
    record = scorer(row)
    content = (tmp_path / "scores" / part_name(0)).read_bytes()
    assert Part(**record) == decode_part(content, "me", 0)
    assert record["rows"] == TABLE_ROWS


def test_what_goes_wrong_is_told_not_raised(make_scorer, source, points, tmp_path):
    (tmp_path / "file").touch()
    [row, *_] = source.read(source.spans()[0])
    record = make_scorer(tmp_path / "file")(row)
    assert list(record) == [FAILURE]
    assert "cannot be written" in record[FAILURE]
    assert make_scorer(tmp_path / "scores")({FAILURE: "the input is bad"}) == {FAILURE: "the input is bad"}

    source.location.local.rename(tmp_path / "away.parquet")
    try:
        [record] = read_chunks({"id": 0}, source, [source.spans()], frozenset())
        assert "points.parquet cannot be read" in record[FAILURE]
    finally:
        (tmp_path / "away.parquet").rename(source.location.local)


def test_a_detector_from_bytes(moons_file):
    inputs = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    expected = Detector.load(moons_file).score(inputs)
    assert np.array_equal(load_detector(moons_file.read_bytes()).score(inputs), expected)
