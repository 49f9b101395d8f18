"""The service in a worker process.

What is sent to a new process is imported there before that process can answer its supervisor, so this file imports nothing
heavy until the service is made.
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from besnn.errors import DataError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from besnn.detector import Detector

CANNOT_START = 3
"""The exit status by which uvicorn's supervisor knows that another try would fail too: it then stops all workers."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerApp:
    """Makes the service around a model of the worker's own.

    Attributes:
        model: the model file.
        sha256: its digest, so that a worker that replaces another has the same model as the rest.
        settings: of the service, as plain values.
        examples: inputs for people to try, as plain values.
        threads: that this worker computes with.
        device: where it scores.
    """

    model: Path
    sha256: str
    settings: dict[str, Any]
    examples: list[dict[str, Any]]
    threads: int
    device: str

    def __call__(self) -> "FastAPI":
        """The service; ends the process where the file holds another model by now."""
        import torch

        from besnn.serve.app import create_app
        from besnn.serve.examples import Example
        from besnn.serve.logs import log_to_standard_error
        from besnn.serve.process import exempt_from_collection
        from besnn.serve.settings import Settings

        log_to_standard_error()
        torch.set_num_threads(self.threads)
        examples = [Example.model_validate(example) for example in self.examples]
        try:
            detector = self._load()
        except DataError as error:
            _LOG.error("model not loaded", extra={"fields": {"reason": str(error)}})
            sys.exit(CANNOT_START)
        app = create_app(detector.to(self.device), Settings.model_validate(self.settings), examples)
        exempt_from_collection()
        return app

    def _load(self) -> "Detector":
        from besnn.detector import Detector
        from besnn.storage.model_file import read_header

        detector = Detector.load(self.model)
        if read_header(self.model)["sha256"] != self.sha256:  # looked at last: a file that is swapped meanwhile is refused too
            raise DataError(f"{self.model} is not the file that the service was started with: start the service again")
        return detector
