"""The HTTP service on Ray Serve: the application of `besnn.serve`, in any number of replicas.

Each replica batches its requests as the local service does. Deploying again swaps the model: replicas with the new model start
first, and old ones stop once those answer and their own requests are done.
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

from besnn.detector import Detector
from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.ray.locations import Location
from besnn.ray.session import ray_session
from besnn.serve import Settings, create_app
from besnn.serve.examples import Example
from besnn.storage.signature import check_signature, model_key

APPLICATION = "besnn"
ONGOING_REQUESTS = 256
"""Requests that one replica handles at the same time; they are scored together."""

REPLICA_CPUS = 0.5
"""Half a core, so that during a swap the old and the new replicas fit on the same cores."""

BUSY_REQUESTS = 32
"""Ongoing requests per replica above which another replica is started."""


@dataclass(frozen=True)
class Replicas:
    """How many replicas always run, how many may run under load (`least` if None), and the GPUs of each (or a fraction)."""

    least: int = 1
    most: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise InputError(f"--max-replicas {self.most} is below --replicas {self.least}: raise it, or leave it out")

    def options(self) -> dict[str, Any]:
        """Return the options of a Ray Serve deployment."""
        actor = {"ray_actor_options": {"num_cpus": REPLICA_CPUS, "num_gpus": self.gpus}}
        if self.most is None:
            return {"num_replicas": self.least, **actor}
        limits = {"min_replicas": self.least, "max_replicas": self.most, "target_ongoing_requests": BUSY_REQUESTS}
        return {"autoscaling_config": limits, **actor}


class ServedDetector:
    """A replica: the service around a model of its own, from a file that every machine of the cluster can read.

    By the file's SHA-256, all replicas have the same model, and another model makes another deployment.
    """

    def __init__(self, model: Location, sha256: str, settings: Settings, examples: Sequence[Example], device: str) -> None:
        torch.set_num_threads(1)  # the replica holds at most one core
        content = model.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{model.name} is not the file that was deployed: deploy it again")
        self.detector = Detector.from_bytes(content).to(device)
        self.settings, self.examples = settings, examples

    def __serve_build_asgi_app__(self) -> FastAPI:  # Ray Serve's name
        """Return the application."""
        return create_app(self.detector, self.settings, self.examples)


def deploy(model: Path, settings: Settings, examples: Sequence[Example], host: str, port: int, replicas: Replicas) -> str:
    """Serve a model on the cluster of this session, in place of the one before it, as `serve_on_ray` describes.

    Returns the URL once the new replicas answer. Host and port stay those of the first deployment.
    """
    if port == 0:
        raise InputError("--port 0: Ray Serve cannot choose a port: give one")
    deployment = serve.deployment(
        name=APPLICATION,
        max_ongoing_requests=ONGOING_REQUESTS,
        max_surge_percent=100,  # new replicas start before old ones stop
        max_constructor_retry_count=1,  # a model that does not load once never will: the old one stays
        graceful_shutdown_timeout_s=settings.deadline_seconds,
        **replicas.options(),
    )(serve.ingress()(ServedDetector))
    content = model.read_bytes()
    check_signature(model, content, model_key())  # again: the file may have been replaced since the detector was loaded
    sha256 = hashlib.sha256(content).hexdigest()
    device = "cuda" if replicas.gpus else "cpu"
    application = deployment.bind(Location.parse(str(model)), sha256, settings, list(examples), device)
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        remedy = "see `serve status`; every machine must be able to read it"
        raise BesnnError(f"Ray Serve could not start {model} ({one_line(error)}): {remedy}") from error
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
    """Serve a model file on a cluster; on a cluster of this machine alone, until the process is interrupted.

    `address` is that of a `besnn.ray.session.Cluster`; `tell` is called with a sentence that says where the service is.
    """
    with ray_session(address) as temporary:
        url = deploy(model, settings, examples, host, port, replicas)
        if not temporary:
            tell(f"the cluster serves {model} at {url} (`serve shutdown` stops it)")
            return
        tell(f"serving {model} at {url} (Ctrl-C stops it)")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        serve.shutdown()  # type: ignore[no-untyped-call]  # has no types
