"""One Ray cluster of two cores for all tests, small models, and inputs of every kind, some of them bad."""

import logging
import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import nn

from besnn import wrap
from besnn.batch import score_file
from besnn.data import Dataset
from besnn.detector import Detector
from besnn.model.program import load_program, save_program
from besnn.training import Recipe, make_fabric
from besnn.training.fit import fit_detector

ROWS = 20_000


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a Ray that ends with the tests; this process is connected to it."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")  # a short path: there are sockets in it
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's spelling; by default, other programs take precedence over workers
    context = ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def moons_file(tiny_recipe: Callable[..., Recipe], moons: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a calibrated detector for Two Moons."""
    path = tmp_path_factory.mktemp("moons") / "moons.safetensors"
    fit_detector(tiny_recipe(), moons, fabric=make_fabric(accelerator="cpu")).detector.save(path)
    return path


@pytest.fixture(scope="session")
def stripes_file(tiny_recipe: Callable[..., Recipe], stripes: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a calibrated detector for 8x8 images of stripes."""
    path = tmp_path_factory.mktemp("stripes") / "stripes.safetensors"
    recipe = tiny_recipe("calibration.alpha=0.1", "data.calibration=0.3")
    fit_detector(recipe, stripes, fabric=make_fabric(accelerator="cpu")).detector.save(path)
    return path


@pytest.fixture(scope="session")
def wrapped_file(moons: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a detector around a network for Two Moons, which the file holds."""
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).eval()
    loaded, _, program = load_program(save_program(network, torch.rand(3, 2)))
    path = tmp_path_factory.mktemp("wrapped") / "wrapped.safetensors"
    wrap(loaded, moons, score="nearest-neighbour", alpha=0.2, program=program).save(path)
    return path


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 20,000 points as `points.parquet`, `points.csv` and `points.npz`; every 997th row is bad."""
    folder = tmp_path_factory.mktemp("points")
    inputs = np.random.default_rng(0).normal(scale=2, size=(ROWS, 2)).astype(np.float32)
    inputs[::997, 1] = np.nan
    table = pa.table({"x1": inputs[:, 0], "x2": inputs[:, 1]})
    pa.parquet.write_table(table, folder / "points.parquet", row_group_size=3000)
    pa.csv.write_csv(table, folder / "points.csv")
    np.savez_compressed(folder / "points.npz", X=inputs)
    return folder


@pytest.fixture(scope="session")
def photos(stripe_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, with two files that are not images and a hidden one."""
    folder = tmp_path_factory.mktemp("photos") / "photos"
    shutil.copytree(stripe_folder, folder)
    (folder / "flat" / "00.png").write_bytes(b"not an image")
    (folder / "upright" / "notes.txt").write_text("not an image")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


@pytest.fixture
def score_locally(tmp_path: Path) -> Callable[[Path, str], pa.Table]:
    """A function that scores inputs with the local engine."""

    def score(model: Path, source: str) -> pa.Table:
        target = tmp_path / "local.parquet"
        score_file(Detector.load(model), source, target)
        return pa.parquet.read_table(target)

    return score


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """A function that packs a file or folder into an archive and returns its URL there."""

    def make(path: Path) -> str:
        archive = tmp_path_factory.mktemp("packed") / "all.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for each in [path] if path.is_file() else sorted(path.rglob("*")):
                file.write(each, each.relative_to(path.parent).as_posix())
        return f"zip://{path.name}::file://{archive}"

    return make


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Callable[[Path], str]]:
    """A function that puts a folder on a web server and returns its URL."""
    with ExitStack() as stack:

        def start(folder: Path) -> str:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(folder))))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
