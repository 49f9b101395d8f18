"""The service on a real Ray Serve: it answers as the local one does, and a new model comes in without a failed request."""

import socket
import threading
from collections import Counter

import httpx
import numpy as np
import pytest

from besnn.deployment.cluster.locations import Location
from besnn.deployment.cluster.serving import Replicas, ServedDetector, deploy, serve_on_ray
from besnn.deployment.server import Settings
from besnn.detector import Detector
from besnn.errors import BesnnError, DataError, InputError

pytestmark = pytest.mark.slow


@pytest.fixture
def port(cluster):
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    yield free
    serve.shutdown()


@pytest.fixture
def stricter_file(moons_file, tmp_path):
    """The same network with another threshold."""
    detector = Detector.load(moons_file)
    detector.calibrate(np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), alpha=0.5)
    detector.save(tmp_path / "stricter.safetensors")
    return tmp_path / "stricter.safetensors"


class Clients:
    """Clients that go on asking, and note what they are answered."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.stop = url, threading.Event()
        self.statuses: Counter[object] = Counter()
        self.models: Counter[str] = Counter()
        self.threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while not self.stop.is_set():
                try:
                    self.statuses[client.post("/v1/predict", json={"inputs": [[0.1, 0.2], [9, 9]]}).status_code] += 1
                    self.models[client.get("/v1/model").json()["name"]] += 1
                except httpx.HTTPError as error:
                    self.statuses[repr(error)] += 1

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def test_it_answers_as_the_detector_does_and_swaps_models_without_a_failure(cluster, port, moons_file, stricter_file):
    said: list[str] = []
    settings = Settings(model_name="first")
    serve_on_ray(moons_file, settings, [], "127.0.0.1", port, Replicas(), cluster, said.append)
    url = f"http://127.0.0.1:{port}"
    assert said == [f"the cluster serves {moons_file} at {url} (`serve shutdown` stops it)"]
    inputs = np.random.default_rng(0).normal(scale=2, size=(50, 2)).astype(np.float32)
    answer = httpx.post(f"{url}/v1/predict", json={"inputs": inputs.tolist()}, timeout=60).json()["predictions"]
    expected = Detector.load(moons_file).predict(inputs)
    assert [row["score"] for row in answer] == pytest.approx(expected.score.tolist(), abs=1e-6)
    assert [row["is_ood"] for row in answer] == expected.is_ood.tolist()
    assert httpx.get(f"{url}/v2/health/ready", timeout=60).status_code == 200

    with Clients(url, 3) as clients:
        deploy(stricter_file, Settings(model_name="second"), [], "127.0.0.1", port, Replicas(least=1, most=2))
        last = httpx.get(f"{url}/v1/model", timeout=60).json()
    assert set(clients.statuses) == {200}
    assert clients.models["first"] > 0
    assert last["name"] == "second"
    assert last["calibration"]["alpha"] == 0.5

    broken = moons_file.with_name("broken.safetensors")
    broken.write_bytes(b"broken")
    with pytest.raises(BesnnError, match=r"Ray Serve could not start .*broken\.safetensors") as caught:
        deploy(broken, Settings(model_name="third"), [], "127.0.0.1", port, Replicas())
    assert "\n" not in str(caught.value)
    assert httpx.get(f"{url}/v1/model", timeout=60).json()["name"] == "second"  # goes on as before


def test_a_replica_starts_from_the_very_file_that_was_deployed(moons_file):
    with pytest.raises(DataError, match="is not the file that was deployed"):
        ServedDetector(Location.parse(str(moons_file)), "0" * 64, Settings(), [], "cpu")


def test_wrong_settings(moons_file):
    with pytest.raises(InputError, match="--max-replicas 1 is below --replicas 2"):
        Replicas(least=2, most=1)
    with pytest.raises(InputError, match="--port 0"):
        deploy(moons_file, Settings(), [], "127.0.0.1", 0, Replicas())
