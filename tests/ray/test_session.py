import socket
import sys
import time

import pytest

from besnn.cli.app import run
from besnn.errors import BesnnError, InputError
from besnn.ray.session import ray_session, require_ray


@pytest.fixture
def no_ray(monkeypatch):
    for module in ("ray", "ray.data", "ray.serve"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("no_ray")
def test_without_the_extra(moons_file, points, tmp_path, capsys):
    with pytest.raises(InputError, match=r"pip install 'besnn\[ray\]'"):
        require_ray("serve")
    code = run(["score", str(moons_file), str(points / "points.csv"), "-o", str(tmp_path / "scores"), "--engine", "ray"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("besnn: --engine ray needs Ray, which is not installed (")
    assert captured.err.endswith(": pip install 'besnn[ray]'\n")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "scores").exists()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def not_connected(monkeypatch):
    """Other tests of this process may be connected to a cluster."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.usefixtures("not_connected")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_no_cluster_at_the_address(scheme, free_port, moons_file, points, tmp_path, capsys):
    address = f"{scheme}127.0.0.1:{free_port}"
    command = ["score", str(moons_file), str(points / "points.csv"), "-o", str(tmp_path / "scores"), "--engine", "ray"]
    began = time.monotonic()
    code = run([*command, "--address", address])
    assert time.monotonic() - began < 30  # Ray would ask for longer
    captured = capsys.readouterr()
    assert (code, captured.out) == (1, "")
    assert captured.err.startswith(f"besnn: no Ray cluster can be used at {address} (")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "scores").exists()


@pytest.mark.usefixtures("not_connected")
def test_something_else_at_the_address(web, tmp_path):
    address = web(tmp_path).removeprefix("http://")
    with pytest.raises(BesnnError, match=rf"at {address} \(what listens there is not Ray\)"), ray_session(address):
        pytest.fail("it is a web server")


def test_what_ray_prints_is_one_line_a_message_on_standard_error(cluster, capsys):
    with ray_session():
        print("The task failed and will be retried:\nTraceback\n  ...")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "The task failed and will be retried:\n")
