"""The service on a real Ray Serve: it answers as the local one does, and models are swapped without a failed request."""

import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from besnn.detector import Detector
from besnn.errors import BesnnError, DataError, InputError
from besnn.ray.locations import Location

pytest.importorskip("ray")

from besnn.ray.serving import APPLICATION, Replicas, ServedDetector, deploy, serve_on_ray
from besnn.serve import Settings

pytestmark = pytest.mark.slow
PATIENCE = 120.0


@pytest.fixture
def port(cluster):
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    yield free
    serve.shutdown()


INPUTS = [[0.1, 0.2], [9.0, 9.0], [-0.5, 0.4]]


class Clients:
    """Clients that keep sending requests, and collect the p-values in the answers and the failures."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.stop = url, threading.Event()
        self.answers: list[tuple[float, ...]] = []
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=PATIENCE) as client:
            while not self.stop.wait(0.05):  # pauses, so that the new replica gets a core to start on
                try:
                    response = client.post("/v1/predict", json={"inputs": INPUTS}).raise_for_status()
                    self.answers.append(tuple(row["p_value"] for row in response.json()["predictions"]))
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def running_replicas() -> int:
    from ray import serve

    return serve.status().applications[APPLICATION].deployments[APPLICATION].replica_states["RUNNING"]


def p_values(model: Path) -> tuple[float, ...]:
    return tuple(Detector.load(model).predict(np.array(INPUTS, np.float32)).p_value.tolist())


def test_the_service_answers_as_the_detector_and_models_are_swapped(cluster, port, moons_file, wrapped_file):
    """A trained model is served first, then a wrapped network."""
    said: list[str] = []
    serve_on_ray(moons_file, Settings(model_name="first"), [], "127.0.0.1", port, Replicas(), cluster, said.append)
    url = f"http://127.0.0.1:{port}"
    assert said == [f"the cluster serves {moons_file} at {url} (`serve shutdown` stops it)"]
    assert running_replicas() == 1
    inputs = np.random.default_rng(0).normal(scale=2, size=(50, 2)).astype(np.float32)
    answer = httpx.post(f"{url}/v1/predict", json={"inputs": inputs.tolist()}, timeout=PATIENCE).json()["predictions"]
    expected = Detector.load(moons_file).predict(inputs)
    assert [row["score"] for row in answer] == pytest.approx(expected.score.tolist(), abs=1e-6)
    assert [row["is_ood"] for row in answer] == expected.is_ood.tolist()
    assert httpx.get(f"{url}/v2/health/ready", timeout=PATIENCE).status_code == 200

    first, second = p_values(moons_file), p_values(wrapped_file)
    assert first != second
    with Clients(url, 3) as clients:
        deploy(wrapped_file, Settings(model_name="second"), [], "127.0.0.1", port, Replicas(least=1, most=2))
        deadline = time.monotonic() + PATIENCE
        while set(clients.answers[-3:]) != {second} and time.monotonic() < deadline:
            time.sleep(0.1)
    assert clients.failures == []
    assert set(clients.answers) == {first, second}
    assert httpx.get(f"{url}/v1/model", timeout=PATIENCE).json()["name"] == "second"

    broken = moons_file.with_name("broken.safetensors")
    broken.write_bytes(b"broken")
    with pytest.raises(BesnnError, match=r"Ray Serve could not start .*broken\.safetensors") as caught:
        deploy(broken, Settings(model_name="third"), [], "127.0.0.1", port, Replicas())
    assert "\n" not in str(caught.value)
    assert httpx.get(f"{url}/v1/model", timeout=PATIENCE).json()["name"] == "second"  # the old one stays


def test_a_replica_refuses_a_file_that_changed_since(moons_file):
    with pytest.raises(DataError, match="is not the file that was deployed"):
        ServedDetector(Location.parse(str(moons_file)), "0" * 64, Settings(), [], "cpu")


def test_settings_of_replicas(moons_file):
    assert Replicas(2).options() == {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 0.0}}
    limits = Replicas(least=1, most=4).options()["autoscaling_config"]
    assert (limits["min_replicas"], limits["max_replicas"]) == (1, 4)
    with pytest.raises(InputError, match="--max-replicas 1 is below --replicas 2"):
        Replicas(least=2, most=1)
    with pytest.raises(InputError, match="--port 0"):
        deploy(moons_file, Settings(), [], "127.0.0.1", 0, Replicas())
