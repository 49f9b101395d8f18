"""Scoring on a real Ray: the same table as the local engine's, whatever happens on the way."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest

from besnn.batch import IMAGE_ROWS, TABLE_ROWS
from besnn.cli.app import run
from besnn.detector import Detector
from besnn.errors import DataError, InputError, NotReadyError
from besnn.ray.manifest import MANIFEST
from besnn.ray.parts import part_name
from besnn.ray.scoring import score_on_ray
from besnn.ray.session import choose_workers

pytestmark = pytest.mark.slow
PATIENCE = 120.0
CHUNKS = 100


@pytest.fixture(scope="module")
def many_images(tmp_path_factory) -> Path:
    """Images for a hundred chunks, some of them out of range for the model's eyes."""
    path = tmp_path_factory.mktemp("many") / "images.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 256, (CHUNKS * IMAGE_ROWS - 100, 1, 8, 8), dtype=np.uint8))
    return path


def scores_in(folder: Path) -> pa.Table:
    """The rows of an output folder, in the order of its parts."""
    return pa.parquet.read_table(folder).replace_schema_metadata(None)


def assert_exactly_once(folder: Path, expected: pa.Table) -> None:
    """Every row is there once, bit for bit, in order; and the manifest says the same of the files."""
    assert scores_in(folder).equals(expected)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["complete"]
    assert manifest["rows"] == expected.num_rows
    assert {part["name"]: part["sha256"] for part in manifest["parts"]} == {
        path.name: sha256_of(path) for path in folder.glob("part-*")
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST,
        *(part_name(chunk) for chunk in range(len(manifest["parts"]))),
    ]


def sha256_of(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def worker_processes() -> list[psutil.Process]:
    """The processes of this test's own Ray that score, by the names that Ray gives them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
            if "ChunkScorer" in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_until(condition, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_the_same_table_as_the_local_engine(cluster, moons_file, points, score_locally, tmp_path):
    """Parquet by two workers, in three chunks; then again, which scores nothing; then after damage, which mends it."""
    source, folder = str(points / "points.parquet"), tmp_path / "scores"
    expected = score_locally(moons_file, source)
    told: list[int] = []
    tally = score_on_ray(moons_file, source, str(folder), workers=2, chunk_rows=TABLE_ROWS, progress=told.append)
    assert_exactly_once(folder, expected)
    assert (tally.inputs, tally.failed, sum(told)) == (20_000, 21, 20_000)
    assert tally.flagged == expected["is_ood"].combine_chunks().true_count
    assert tally.first_error == "column 'x2' is not a finite number ('nan')"

    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert score_on_ray(moons_file, source, str(folder), chunk_rows=TABLE_ROWS) == tally
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before

    (folder / part_name(0)).write_bytes((folder / part_name(0)).read_bytes()[:-9])
    (folder / part_name(2)).rename(folder / f".{part_name(2)}-0.partial.parquet")  # as a worker leaves it that is killed
    told.clear()
    assert score_on_ray(moons_file, source, str(folder), workers=1, chunk_rows=TABLE_ROWS, progress=told.append) == tally
    assert told[0] == TABLE_ROWS  # what was still there
    assert (folder / part_name(1)).stat().st_mtime_ns == before[folder / part_name(1)]
    assert_exactly_once(folder, expected)


def test_a_csv_on_a_web_server_from_the_command_line(cluster, moons_file, points, web, score_locally, tmp_path, capsys):
    folder = f"file://{tmp_path}/scores"
    command = [
        "score",
        str(moons_file),
        f"{web(points)}/points.csv",
        "-o",
        folder,
        "--engine",
        "ray",
        "--workers",
        "1",
        "--json",
    ]
    code = run(command)
    facts = json.loads(capsys.readouterr().out)
    assert (code, facts["output"], facts["inputs"], facts["failed"]) == (0, folder, 20_000, 21)
    assert_exactly_once(tmp_path / "scores", score_locally(moons_file, str(points / "points.csv")))


@pytest.mark.parametrize("option", ["--address=x:1", "--workers=2", "--gpus-per-worker=1"])
def test_options_of_ray_are_for_ray(option, moons_file, points, tmp_path, capsys):
    code = run(["score", str(moons_file), str(points / "points.csv"), "-o", str(tmp_path / "scores.csv"), option])
    assert code == 2
    assert capsys.readouterr().err == f"besnn: {option.partition('=')[0]} is for Ray: add --engine ray, or leave it out\n"


def test_bad_images_in_an_archive(cluster, stripes_file, photos, pack, score_locally, tmp_path):
    tally = score_on_ray(stripes_file, pack(photos), str(tmp_path / "scores"), workers=1)
    assert (tally.inputs, tally.failed) == (65, 2)
    found, expected = scores_in(tmp_path / "scores"), score_locally(stripes_file, str(photos))
    assert found.drop_columns("error").equals(expected.drop_columns("error"))
    for error, local in zip(found["error"].to_pylist(), expected["error"].to_pylist(), strict=True):
        assert error.startswith("zip://photos/") if local else not error


def test_a_worker_that_is_killed_is_replaced(cluster, stripes_file, many_images, score_locally, tmp_path, capsys):
    killed: list[int] = []
    after: list[int] = []

    def kill_one(rows: int) -> None:
        if rows and not killed:
            victim = worker_processes()[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)
        elif killed:
            after.append(rows)

    folder = tmp_path / "scores"
    score_on_ray(stripes_file, str(many_images), str(folder), workers=2, chunk_rows=IMAGE_ROWS, progress=kill_one)
    assert killed
    assert after
    assert capsys.readouterr().out == ""  # what Ray says of it goes elsewhere
    assert_exactly_once(folder, score_locally(stripes_file, str(many_images)))


DRIVER = """
import sys
from pathlib import Path
from besnn.ray.scoring import score_on_ray
model, source, folder, address = sys.argv[1:]
score_on_ray(Path(model), source, folder, address=address, workers=1, chunk_rows=256)
"""


def test_a_driver_that_is_killed_is_continued(cluster, stripes_file, many_images, score_locally, tmp_path):
    folder = tmp_path / "scores"
    arguments = [stripes_file, many_images, folder, cluster]
    driver = subprocess.Popen([sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, arguments)])
    wait_until(lambda: len(list(folder.glob("part-*"))) >= 3 or driver.poll() is not None)
    driver.kill()
    driver.wait()
    wait_until(lambda: not worker_processes())  # Ray ends what the driver had started
    done = {path: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert 3 <= len(done) < CHUNKS
    assert not json.loads((folder / MANIFEST).read_text())["complete"]

    told: list[int] = []
    score_on_ray(stripes_file, str(many_images), str(folder), workers=1, chunk_rows=IMAGE_ROWS, progress=told.append)
    assert told[0] == IMAGE_ROWS * len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == done  # none was scored again
    assert_exactly_once(folder, score_locally(stripes_file, str(many_images)))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_no_half_files(cluster, stripes_file, many_images, score_locally, small_disk):
    folder = small_disk / "scores"
    with pytest.raises(
        DataError, match=r"No space left on device.*; what was scored stays, and the same command continues"
    ) as caught:
        score_on_ray(stripes_file, str(many_images), str(folder), workers=1, chunk_rows=IMAGE_ROWS)
    assert "\n" not in str(caught.value)
    assert not json.loads((folder / MANIFEST).read_text())["complete"]
    # A worker that Ray stops while it writes may leave an unfinished file, hidden, which the next run removes.
    parts = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST and not path.name.startswith("."))
    assert parts == [part_name(chunk) for chunk in range(len(parts))]
    assert 0 < len(parts) < CHUNKS
    expected = score_locally(stripes_file, str(many_images))
    assert scores_in(folder).equals(expected.slice(0, len(parts) * IMAGE_ROWS))


def test_an_input_that_turns_out_bad(cluster, moons_file, points, tmp_path):
    """What was scored before the bad place stays; the error is one line that names the file."""
    content = bytearray((points / "points.npz").read_bytes())
    content[len(content) // 2] ^= 255
    bad = tmp_path / "bad.npz"
    bad.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.npz cannot be read") as caught:
        score_on_ray(moons_file, str(bad), str(tmp_path / "scores"), workers=1, chunk_rows=TABLE_ROWS)
    assert "\n" not in str(caught.value)
    assert not json.loads((tmp_path / "scores" / MANIFEST).read_text())["complete"]


def test_no_rows_are_an_empty_table(moons_file, score_locally, tmp_path):
    """For which no cluster is needed."""
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


def test_more_workers_than_the_cluster_holds(cluster):
    assert choose_workers().count == 2
    with pytest.raises(InputError, match=r"workers=3 with 1 CPU and 0 GPUs each are too many .* at most 2"):
        choose_workers(3)
    with pytest.raises(InputError, match="workers=1 with 1 CPU and 1 GPUs each are too many"):
        choose_workers(None, 1.0)
