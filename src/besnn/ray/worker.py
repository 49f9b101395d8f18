"""What runs in the processes of a cluster: reading chunks, and scoring them into parts."""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from besnn.batch import score_batches
from besnn.detector import Detector
from besnn.errors import BesnnError
from besnn.ray.locations import Location
from besnn.ray.parts import encode_part, part_name
from besnn.ray.source import Row, Source, Span

if TYPE_CHECKING:
    from ray import ObjectRef

FAILURE = "failure"
"""The field of a row that says in one line why the run cannot go on; Ray would wrap an exception in pages of its own."""


def read_chunks(row: Row, source: Source, shares: list[list[Span]], done: frozenset[int]) -> Iterator[Row]:
    """Reads the chunks of one reader's spans, but for those that are done.

    Args:
        row: the reader's number, as `id`.
        source: what to read.
        shares: the spans of each reader.
        done: the chunks to leave out.
    """
    try:
        for span in shares[row["id"]]:
            for chunk in source.read(span):
                if chunk["chunk"] not in done:
                    yield chunk
    except (BesnnError, OSError) as error:
        yield {FAILURE: str(error)}


class ChunkScorer:
    """Scores chunks into parts of the output; one in each worker process, with a model of its own.

    Args:
        model: the model file's bytes, kept once in the cluster's object store.
        source: what the chunks come from.
        folder: the output.
        identity: the run's, which each part bears.
        device: where to put the model.
    """

    def __init__(
        self, model: "list[ObjectRef[NDArray[np.uint8]]]", source: Source, folder: Location, identity: str, device: str
    ) -> None:
        torch.set_num_threads(1)  # the core that the worker holds
        self.source, self.folder, self.identity = source, folder, identity
        self.detector = load_detector(ray.get(model[0]).data).to(device)

    def __call__(self, row: Row) -> dict[str, Any]:
        """Puts a chunk's part in place and tells what is in it."""
        if FAILURE in row:
            return row
        chunk = int(row["chunk"])
        try:
            content, part = encode_part(score_batches(self.detector, self.source.batches(row)), self.identity, chunk)
            (self.folder / part_name(chunk)).write(content)
        except (BesnnError, OSError) as error:
            return {FAILURE: str(error)}
        return asdict(part)


def load_detector(content: bytes | memoryview) -> Detector:
    """A detector from the bytes of its file."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        return Detector.load(Path(file.name))
