"""The connection to a Ray cluster, and the workers that it has room for."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import grpc  # type: ignore[import-untyped]  # has no types
import ray

from besnn.errors import BesnnError, InputError, one_line

PROBE_SECONDS = 5.0
"""How long the head of a cluster may take to answer; Ray itself would keep trying for minutes."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and how much of it to use.

    Attributes:
        address: `host:port`, `ray://host:port`, or `auto` for the cluster that this machine belongs to. None for the one that
            `$RAY_ADDRESS` names; without that, for a cluster of this machine alone that ends with the session.
        workers: processes that score; as many as there are GPUs or cores for unless given.
        gpus_per_worker: GPUs of each worker, which may be a fraction; 0 scores on CPUs.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float = 0.0

    @property
    def device(self) -> str:
        """The device that workers put the model on."""
        return "cuda" if self.gpus_per_worker else "cpu"


@contextlib.contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """Connect to a cluster (see `Cluster`) for the block; within another session, use that one.

    Messages that Ray prints go to standard error. Yields whether the cluster ends with the block.
    """
    with contextlib.redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield False
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        _connect(address)
        try:
            yield address == "local"
        finally:
            ray.shutdown()


def _connect(address: str) -> None:
    _require_cluster(address)
    dashboard = False if address == "local" else None  # an existing cluster has decided that already
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, one_line(error)) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; the handler that Ray has set aborts


def _require_cluster(address: str) -> None:
    """Raise unless a gRPC server answers at an address; whether it implements the health check does not matter."""
    target = address.removeprefix("ray://")
    if ":" not in target or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    with grpc.insecure_channel(target) as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise _no_cluster(address, one_line(error.details())) from None


def _no_cluster(address: str, reason: str) -> BesnnError:
    remedy = "start one with `ray start --head`, or leave --address out to use this machine alone"
    return BesnnError(f"no Ray cluster is available at {address} ({reason}): {remedy}")


def choose_workers(cluster: Cluster) -> int:
    """Return how many workers to start in this session; raise if the cluster has no room for them."""
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]  # has no types
    cpus, gpus, each = resources.get("CPU", 0.0), resources.get("GPU", 0.0), cluster.gpus_per_worker
    most = int(min(cpus, gpus / each) if each else cpus)
    workers = cluster.workers or max(1, most)
    if workers > most:
        room = f"this cluster of {cpus:g} CPUs and {gpus:g} GPUs"
        raise InputError(f"workers={workers} with 1 CPU and {each:g} GPUs each do not fit on {room}: use at most {most}")
    return workers
