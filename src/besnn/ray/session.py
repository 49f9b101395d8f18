"""Getting at a Ray cluster, or saying in one line why not."""

import contextlib
import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, TextIO

from besnn.errors import BesnnError, InputError, one_line

KNOCK_SECONDS = 5.0
"""How long a cluster's head may take to open its door; Ray itself would go on asking for half a minute."""

SETTINGS = b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + bytes(5)
"""RFC 9113, 3.4: both sides begin with a frame of settings, whose fourth byte is its type; a client with a fixed text first."""


def require_ray(part: Literal["data", "serve"]) -> None:
    """Refuses to go on without the extra `ray`, of which a part is needed."""
    try:
        import_module(f"ray.{part}")
    except ImportError as error:
        raise InputError(
            f"--engine ray needs Ray, which is not installed ({one_line(error)}): pip install 'besnn[ray]'"
        ) from None


@contextlib.contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """Connects to a cluster for as long as the block lasts; within another session it is that one.

    Yields whether the cluster ends with the block.

    Args:
        address: `host:port`, `ray://host:port`, or `auto` for the cluster that this machine belongs to. None for the one that
            `$RAY_ADDRESS` names, else for one of this machine alone, which ends with the block.
    """
    with contextlib.redirect_stdout(_FirstLines(sys.stderr)), _connected(address) as own, _stoppable():
        yield own


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[bool]:
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


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Lets SIGTERM end the block as Ctrl-C does; Ray would print addresses of its own code and abort."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _FirstLines(io.TextIOBase):
    """Passes on the first line of each message: Ray prints, on standard output, whole tracebacks of what it will try again."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """A message, or the line's end that `print` writes after it."""
        first = text.strip("\n").partition("\n")[0]
        if first:
            self.stream.write(f"{first}\n")
        return len(text)


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

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's, without types
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
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS) as door:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _greet(door)
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _greet(door: socket.socket) -> None:
    """Sees whether gRPC is spoken there, which is how Ray talks: what else listens would be waited for, minute after minute."""
    door.sendall(HTTP2_GREETING)
    with door.makefile("rb") as answer:
        if answer.read(9)[3:4] != SETTINGS:
            raise ConnectionError("what listens there is not Ray")


def _no_cluster(address: str, error: Exception) -> BesnnError:
    return BesnnError(
        f"no Ray cluster can be used at {address} ({one_line(error)}): "
        "start one with `ray start --head`, or leave --address out to use this machine alone"
    )
