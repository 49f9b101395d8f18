"""Getting at a Ray cluster, or saying in one line why not."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from besnn.data.messages import one_line
from besnn.errors import BesnnError, InputError

KNOCK_SECONDS = 5.0
"""How long a cluster's head may take to open its door; Ray itself would go on asking for half a minute."""


def require_ray() -> None:
    """Refuses to go on without the extra `ray`."""
    if find_spec("ray") is None:
        raise InputError("--engine ray needs Ray, which is not installed: pip install 'besnn[ray]'")


@contextlib.contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """Connects to a cluster for as long as the block lasts; within another session it is that one.

    Yields whether the cluster ends with the block.

    Args:
        address: `host:port`, `ray://host:port`, or `auto` for the cluster that this machine belongs to. None for the one that
            `$RAY_ADDRESS` names, else for one of this machine alone, which ends with the block.
    """
    require_ray()
    import ray

    if ray.is_initialized():
        yield False
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _knock(address)
    dashboard = False if address == "local" else None  # it is the head's to decide
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, error) from None
    try:
        yield address == "local"
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Workers:
    """Processes that hold the model.

    Attributes:
        count: how many.
        gpus: of each, perhaps a fraction; 0 for none.
    """

    count: int
    gpus: float = 0.0

    @property
    def device(self) -> str:
        """Where each puts the model."""
        return "cuda" if self.gpus else "cpu"


def choose_workers(count: int | None = None, gpus: float = 0.0) -> Workers:
    """As many workers as are asked for, else as many as the cluster has GPUs or cores for."""
    import ray

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    all_cpus, all_gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    most = int(min(all_cpus, all_gpus / gpus) if gpus else all_cpus)
    workers = Workers(count or max(1, most), gpus)
    if workers.count > most:
        raise InputError(
            f"workers={workers.count} with 1 CPU and {gpus:g} GPUs each are too many for this cluster of {all_cpus:g} CPUs and "
            f"{all_gpus:g} GPUs: use at most {most}"
        )
    return workers


def _knock(address: str) -> None:
    """Tries the door of a cluster whose address is known."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> BesnnError:
    return BesnnError(
        f"no Ray cluster can be used at {address} ({one_line(error)}): "
        "start one with `ray start --head`, or leave --address out to use this machine alone"
    )
