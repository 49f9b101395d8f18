"""The service in a worker process.

What is sent to a new process is imported there before that process can answer its supervisor, so this file imports nothing
heavy until the service is made.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True)
class WorkerApp:
    """Makes the service around a model of the worker's own.

    Attributes:
        model: the model file.
        settings: of the service, as plain values.
        examples: inputs for people to try, as plain values.
        threads: that this worker computes with.
        device: where it scores.
    """

    model: Path
    settings: dict[str, Any]
    examples: list[dict[str, Any]]
    threads: int
    device: str

    def __call__(self) -> "FastAPI":
        """The service."""
        import torch

        from besnn.deployment.server.app import create_app
        from besnn.deployment.server.examples import Example
        from besnn.deployment.server.logs import log_to_standard_error
        from besnn.deployment.server.process import exempt_from_collection
        from besnn.deployment.server.settings import Settings
        from besnn.detector import Detector

        log_to_standard_error()
        torch.set_num_threads(self.threads)
        examples = [Example.model_validate(example) for example in self.examples]
        app = create_app(Detector.load(self.model).to(self.device), Settings.model_validate(self.settings), examples)
        exempt_from_collection()
        return app
