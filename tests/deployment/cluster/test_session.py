import socket
import sys

import pytest

from besnn.cli.app import run
from besnn.deployment.cluster.session import ray_session, require_ray
from besnn.errors import BesnnError, InputError


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.usefixtures("no_ray")
def test_without_the_extra(moons_file, points, tmp_path, capsys):
    with pytest.raises(InputError, match=r"pip install 'besnn\[ray\]'"):
        require_ray()
    code = run(["score", str(moons_file), str(points / "points.csv"), "-o", str(tmp_path / "scores"), "--engine", "ray"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err == "besnn: --engine ray needs Ray, which is not installed: pip install 'besnn[ray]'\n"
    assert not (tmp_path / "scores").exists()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_no_cluster_at_the_address(scheme, free_port, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    address = f"{scheme}127.0.0.1:{free_port}"
    with pytest.raises(BesnnError, match=f"no Ray cluster can be used at {address}") as caught, ray_session(address):
        pytest.fail("there is none")
    assert "\n" not in str(caught.value)
