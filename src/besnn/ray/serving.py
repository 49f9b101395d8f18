"""The HTTP service on Ray Serve: the same application as `besnn.serve`, in as many replicas as are wanted.

Each replica batches the requests that reach it just as the local service does. A new model is swapped in by deploying again:
replicas with the new one are started first, and old ones stop when those answer and they have answered all they had taken.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from ray import serve

from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.ray.locations import Location
from besnn.ray.session import ray_session
from besnn.ray.worker import load_detector
from besnn.serve import Settings, create_app
from besnn.serve.examples import Example

APPLICATION = "besnn"
ONGOING_REQUESTS = 256
"""Requests that one replica works on at the same time; they are scored together."""

REPLICA_CPUS = 0.5
"""So that as many replicas as there are cores leave room for as many new ones during a swap."""

BUSY_REQUESTS = 32
"""Requests at work in a replica, on average, above which another one is started."""


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are, and what each holds.

    Attributes:
        least: always there.
        most: the number may rise to this when there is much to do.
        gpus: of each, perhaps a fraction; 0 for none.
    """

    least: int = 1
    most: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise InputError(f"--max-replicas {self.most} is below --replicas {self.least}: raise it, or leave it out")

    def options(self) -> dict[str, Any]:
        """As Ray Serve takes them."""
        if self.most is None:
            return {"num_replicas": self.least}
        limits = {"min_replicas": self.least, "max_replicas": self.most, "target_ongoing_requests": BUSY_REQUESTS}
        return {"autoscaling_config": limits}


class ServedDetector:
    """A replica: the service around a model of its own.

    Args:
        model: the model file, which every machine of the cluster reaches.
        sha256: of that file, so that all replicas of a deployment are of one model, and another model is another deployment.
        settings: of the service.
        examples: inputs for people to try.
        device: where to put the model.
    """

    def __init__(self, model: Location, sha256: str, settings: Settings, examples: Sequence[Example], device: str) -> None:
        torch.set_num_threads(1)  # the core that the replica holds
        content = model.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{model.name} is not the file that was deployed: deploy it again")
        self.detector = load_detector(content).to(device)
        self.settings, self.examples = settings, examples

    def __serve_build_asgi_app__(self) -> FastAPI:  # the name is Ray's
        """The application that answers."""
        return create_app(self.detector, self.settings, self.examples)


def deploy(model: Path, settings: Settings, examples: Sequence[Example], host: str, port: int, replicas: Replicas) -> str:
    """Serves a model on the cluster that this process is connected to, in place of the one before it.

    Returns when the new replicas answer. The service goes on without this process.

    Args:
        model: the file of a calibrated detector.
        settings: of the service.
        examples: inputs for people to try.
        host: the address to listen on; it and the port stay as the first deployment has set them.
        port: the port to listen on.
        replicas: how many.

    Returns:
        The service's address.
    """
    if port == 0:
        raise InputError("--port 0: Ray Serve takes no port by itself, choose one")
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    deployment = serve.deployment(
        name=APPLICATION,
        ray_actor_options={"num_cpus": REPLICA_CPUS, "num_gpus": replicas.gpus},
        max_ongoing_requests=ONGOING_REQUESTS,
        max_surge_percent=100,  # new replicas come before old ones go
        max_constructor_retry_count=1,  # a model that cannot be loaded once cannot be loaded: the old one goes on
        graceful_shutdown_timeout_s=settings.deadline_seconds,
        **replicas.options(),
    )(serve.ingress()(ServedDetector))
    device = "cuda" if replicas.gpus else "cpu"
    application = deployment.bind(Location.parse(str(model)), sha256, settings, list(examples), device)
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise BesnnError(
            f"Ray Serve could not start {model} ({one_line(error)}): see `serve status`; all machines must read the file"
        ) from error
    return f"http://{host}:{port}"


def serve_on_ray(
    model: Path,
    settings: Settings,
    examples: Sequence[Example],
    host: str,
    port: int,
    replicas: Replicas,
    address: str | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Serves a model on a cluster; on one of this machine alone, until the process is interrupted.

    Args:
        model: the file of a calibrated detector.
        settings: of the service.
        examples: inputs for people to try.
        host: the address to listen on.
        port: the port to listen on.
        replicas: how many.
        address: the cluster, see `ray_session`.
        tell: told where the service is.
    """
    with ray_session(address) as own:
        url = deploy(model, settings, examples, host, port, replicas)
        if not own:
            tell(f"the cluster serves {model} at {url} (`serve shutdown` stops it)")
            return
        tell(f"serving {model} at {url} (Ctrl-C stops it)")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        serve.shutdown()  # type: ignore[no-untyped-call]  # Ray's, without types
