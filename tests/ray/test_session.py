import socket
import sys
import time

import pytest

from besnn.cli.app import run
from besnn.errors import InputError
from besnn.ray import require_ray


@pytest.fixture
def command(moons_file, points, tmp_path):
    return ["score", str(moons_file), str(points / "points.csv"), "-o", str(tmp_path / "scores"), "--engine", "ray"]


def assert_one_line(captured, start: str) -> None:
    assert captured.out == ""
    assert captured.err.startswith(start)
    assert captured.err.count("\n") == 1


def test_without_the_extra(command, tmp_path, capsys, monkeypatch):
    for module in ("ray", "ray.data", "ray.serve"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'besnn\[ray\]'"):
        require_ray("serve")
    assert run(command) == 2
    captured = capsys.readouterr()
    assert_one_line(captured, "besnn: --engine ray needs Ray, which is not installed (")
    assert captured.err.endswith(": pip install 'besnn[ray]'\n")
    assert not (tmp_path / "scores").exists()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def not_connected(monkeypatch):
    """Other tests may have connected this process to a cluster."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.usefixtures("not_connected")
@pytest.mark.parametrize("address", ["127.0.0.1:{free}", "ray://127.0.0.1:{free}", "127.0.0.1:{web}", "127.0.0.1:port"])
def test_no_cluster_at_the_address(address, free_port, web, command, tmp_path, capsys):
    address = address.format(free=free_port, web=web(tmp_path).rpartition(":")[2])
    began = time.monotonic()
    assert run([*command, "--address", address]) == 1
    assert time.monotonic() - began < 30  # Ray itself keeps trying for longer
    assert_one_line(capsys.readouterr(), f"besnn: no Ray cluster is available at {address} (")
    assert not (tmp_path / "scores").exists()


def test_messages_of_ray_go_to_standard_error(cluster, capsys):
    from besnn.ray.session import ray_session

    with ray_session() as temporary:
        print("The task failed and will be retried.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "The task failed and will be retried.\n")
    assert not temporary


def test_the_number_of_workers(cluster):
    from besnn.ray.session import Cluster, choose_workers

    assert choose_workers(Cluster()) == 2
    assert choose_workers(Cluster(workers=1)) == 1
    with pytest.raises(InputError, match=r"workers=3 with 1 CPU and 0 GPUs each do not fit .* at most 2"):
        choose_workers(Cluster(workers=3))
    with pytest.raises(InputError, match="workers=1 with 1 CPU and 1 GPUs each do not fit"):
        choose_workers(Cluster(gpus_per_worker=1.0))
