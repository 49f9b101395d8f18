"""Scoring on a real Ray: the same table as the local engine's, whatever happens during the run."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from besnn.batch import IMAGE_ROWS, TABLE_ROWS, score_file
from besnn.cli.app import run
from besnn.detector import Detector
from besnn.errors import DataError, NotReadyError
from besnn.ray.locations import Location
from besnn.ray.manifest import MANIFEST, Part, decode_part, part_name
from besnn.ray.sources import open_source

pytest.importorskip("ray")

import ray

from besnn.ray.scoring import ChunkScorer, _one_line_error, score_on_ray
from besnn.ray.session import Cluster

pytestmark = pytest.mark.slow
PATIENCE = 120.0
CHUNKS = 100


@pytest.fixture(scope="module")
def many_images(tmp_path_factory) -> Path:
    """Images for a hundred chunks."""
    path = tmp_path_factory.mktemp("many") / "images.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 256, (CHUNKS * IMAGE_ROWS - 100, 1, 8, 8), dtype=np.uint8))
    return path


@pytest.fixture(scope="module")
def many_scores(stripes_file, many_images, tmp_path_factory) -> pa.Table:
    """The scores of these images by the local engine."""
    target = tmp_path_factory.mktemp("many") / "scores.parquet"
    score_file(Detector.load(stripes_file), str(many_images), target)
    return pa.parquet.read_table(target)


def scores_in(folder: Path) -> pa.Table:
    """Return the rows of an output folder, in the order of its parts."""
    return pa.parquet.read_table(folder).replace_schema_metadata(None)


def assert_exactly_once(folder: Path, expected: pa.Table) -> None:
    """Assert that every row is there once, bit for bit and in order, and that the manifest agrees with the files."""
    assert scores_in(folder).equals(expected)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["complete"]
    assert manifest["rows"] == expected.num_rows
    assert {part["name"]: part["sha256"] for part in manifest["parts"]} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("part-*")
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST,
        *(part_name(chunk) for chunk in range(len(manifest["parts"]))),
    ]


def times_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("part-*")}


def worker_processes() -> list[psutil.Process]:
    """Return the workers of this test's own Ray, by the names that Ray gives to processes."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
            if "ChunkScorer" in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_the_same_table_as_the_local_engine(cluster, moons_file, points, score_locally, tmp_path):
    """A parquet file is scored by two workers, in three chunks; a second run has nothing to score."""
    source, folder = str(points / "points.parquet"), tmp_path / "scores"
    expected = score_locally(moons_file, source)
    told: list[int] = []
    options = {"chunk_rows": TABLE_ROWS, "cluster": Cluster(workers=2)}
    tally = score_on_ray(moons_file, source, str(folder), progress=told.append, **options)
    assert_exactly_once(folder, expected)
    assert (tally.inputs, tally.failed, sum(told)) == (20_000, 21, 20_000)
    assert tally.flagged == expected["is_ood"].combine_chunks().true_count
    assert tally.first_error == "column 'x2' is not a finite number ('nan')"

    before = times_of(folder)
    assert score_on_ray(moons_file, source, str(folder), **options) == tally
    assert times_of(folder) == before


def test_images_in_an_archive_from_the_command_line(cluster, stripes_file, photos, pack, score_locally, tmp_path, capsys):
    folder = f"file://{tmp_path}/scores"
    options = ["--engine", "ray", "--workers", "1", "--json", "-"]
    assert run(["score", str(stripes_file), pack(photos), "-o", folder, *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["output"], facts["inputs"], facts["failed"]) == (folder, 65, 2)
    found, expected = scores_in(tmp_path / "scores"), score_locally(stripes_file, str(photos))
    assert found.drop_columns("error").equals(expected.drop_columns("error"))
    for error, local in zip(found["error"].to_pylist(), expected["error"].to_pylist(), strict=True):
        assert error.startswith("zip://photos/") if local else not error


DRIVER = """
import sys
from pathlib import Path
from besnn.ray.scoring import score_on_ray
from besnn.ray.session import Cluster
model, source, folder, address = sys.argv[1:]
score_on_ray(Path(model), source, folder, cluster=Cluster(address, workers=1), chunk_rows=256)
"""


def test_a_run_that_is_killed_continues_and_a_worker_that_is_killed_is_replaced(
    cluster, stripes_file, many_images, many_scores, tmp_path, capsys
):
    """All intact parts are kept; a damaged one, and one that was not put in place, are scored again."""
    folder = tmp_path / "scores"
    arguments = [stripes_file, many_images, folder, cluster]
    driver = subprocess.Popen([sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, arguments)])
    wait_until(lambda: len(list(folder.glob("part-*"))) >= 4 or driver.poll() is not None)
    driver.kill()
    driver.wait()
    wait_until(lambda: not worker_processes())  # Ray ends the workers of the driver
    assert 4 <= len(list(folder.glob("part-*"))) < CHUNKS
    assert not json.loads((folder / MANIFEST).read_text())["complete"]
    damaged, partial = folder / part_name(0), folder / part_name(2)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    partial.rename(folder / f".{partial.stem}-0.partial.parquet")  # as a worker leaves it that is killed
    done = times_of(folder)
    del done[damaged]

    told: list[int] = []

    def kill_the_worker(rows: int) -> None:
        told.append(rows)
        if len(told) == 2:  # it has scored its first chunk
            worker_processes()[0].kill()

    options = {"chunk_rows": IMAGE_ROWS, "cluster": Cluster(workers=1)}
    score_on_ray(stripes_file, str(many_images), str(folder), progress=kill_the_worker, **options)
    assert told[0] == IMAGE_ROWS * len(done)
    assert len(told) > 2
    assert capsys.readouterr().out == ""  # Ray's messages go to standard error
    assert done.items() <= times_of(folder).items()  # none was scored again
    assert_exactly_once(folder, many_scores)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_run_with_one_line(cluster, stripes_file, many_images, many_scores, small_disk):
    folder = small_disk / "scores"
    options = {"chunk_rows": IMAGE_ROWS, "cluster": Cluster(workers=1)}
    with pytest.raises(
        DataError, match=r"No space left on device.*; scores so far are kept, and the same command continues"
    ) as caught:
        score_on_ray(stripes_file, str(many_images), str(folder), **options)
    assert "\n" not in str(caught.value)
    assert not json.loads((folder / MANIFEST).read_text())["complete"]
    # A worker that Ray stops while it writes may leave an unfinished file, hidden, which the next run removes.
    parts = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST and not path.name.startswith("."))
    assert parts == [part_name(chunk) for chunk in range(len(parts))]
    assert 0 < len(parts) < CHUNKS
    assert scores_in(folder).equals(many_scores.slice(0, len(parts) * IMAGE_ROWS))


def test_damaged_input_stops_the_run_with_one_line(cluster, moons_file, points, tmp_path):
    content = bytearray((points / "points.npz").read_bytes())
    content[len(content) // 2] ^= 255
    bad = tmp_path / "bad.npz"
    bad.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.npz cannot be read .*; scores so far are kept") as caught:
        score_on_ray(moons_file, str(bad), str(tmp_path / "scores"), cluster=Cluster(workers=1), chunk_rows=TABLE_ROWS)
    assert "\n" not in str(caught.value)
    assert not json.loads((tmp_path / "scores" / MANIFEST).read_text())["complete"]


def test_an_empty_table_needs_no_cluster(moons_file, score_locally, tmp_path):
    pa.parquet.write_table(
        pa.table({"x1": pa.array([], pa.float32()), "x2": pa.array([], pa.float32())}), tmp_path / "none.parquet"
    )
    tally = score_on_ray(moons_file, str(tmp_path / "none.parquet"), str(tmp_path / "scores"))
    assert tally.inputs == 0
    assert_exactly_once(tmp_path / "scores", score_locally(moons_file, str(tmp_path / "none.parquet")))


def test_an_uncalibrated_detector(moons_file, points, tmp_path):
    detector = Detector.load(moons_file)
    detector.threshold = None
    detector.save(tmp_path / "model.safetensors")
    with pytest.raises(NotReadyError, match="is not calibrated"):
        score_on_ray(tmp_path / "model.safetensors", str(points / "points.csv"), str(tmp_path / "scores"))


def test_a_worker_puts_the_part_of_a_chunk_in_place(cluster, moons_file, points, tmp_path):
    """In this process, where a debugger and the coverage can see it."""
    source = open_source(Detector.load(moons_file), str(points / "points.parquet"), chunk_rows=TABLE_ROWS)
    [row, *_] = source.read(source.spans[0])
    model, threads = ray.put(np.frombuffer(moons_file.read_bytes(), np.uint8)), torch.get_num_threads()
    record = ChunkScorer([model], source, Location.parse(str(tmp_path / "scores")), "me", "cpu")(row)
    torch.set_num_threads(threads)
    assert Part(**record) == decode_part((tmp_path / "scores" / part_name(0)).read_bytes(), "me", 0)
    assert record["inputs"] == TABLE_ROWS


def test_errors_of_the_cluster_are_one_line():
    lost = _one_line_error(ray.exceptions.RayError("The actor died.\nIts node is gone."))
    assert str(lost) == "the Ray cluster failed (Its node is gone.); scores so far are kept, and the same command continues"
    bug = ray.exceptions.RayTaskError("read", "Traceback ...", NameError("x"))
    assert "(NameError('x'))" in str(_one_line_error(bug))
