"""The Ray Data pipeline: reading tasks feed scoring actors."""

import logging
from collections.abc import Iterator
from functools import partial

import numpy as np
import ray
import ray.data

from besnn.data.messages import one_line
from besnn.deployment.cluster.manifest import Manifest
from besnn.deployment.cluster.parts import Part
from besnn.deployment.cluster.session import Workers
from besnn.deployment.cluster.source import Source, Span
from besnn.deployment.cluster.worker import FAILURE, ChunkScorer, read_chunks
from besnn.errors import BesnnError, DataError

WORKER_CPUS, READER_CPUS = 0.75, 0.25
"""A worker and the reader that feeds it share a core."""


def score_chunks(source: Source, spans: list[Span], model: bytes, manifest: Manifest, workers: Workers) -> Iterator[Part]:
    """Scores the chunks of some spans and yields their parts as they are put in place.

    Ray restarts a worker that dies and gives its chunk to one that lives; a part that is written twice is the same.

    Args:
        source: what the chunks come from.
        spans: which of them.
        model: the model file's bytes.
        manifest: where parts go; those that it has are left out.
        workers: who scores.
    """
    shared = ray.put(np.frombuffer(model, np.uint8))  # one copy a machine, however many workers it has
    with ray.data.DataContext.current(_settings()):
        items = [{"first": first, "stop": -1 if stop is None else stop} for first, stop in spans]
        chunks = ray.data.from_items(items, override_num_blocks=len(items)).flat_map(
            partial(read_chunks, source=source, done=frozenset(manifest.parts)),
            compute=ray.data.TaskPoolStrategy(size=min(workers.count, len(items))),
            num_cpus=READER_CPUS,
        )
        records = chunks.map(
            ChunkScorer,  # type: ignore[arg-type]  # Ray takes a class, too
            fn_constructor_args=([shared], source, manifest.folder, manifest.identity, workers.device),
            compute=ray.data.ActorPoolStrategy(size=workers.count),
            num_cpus=WORKER_CPUS,
            num_gpus=workers.gpus,
        )
    try:
        for record in records.iter_rows():
            if FAILURE in record:
                raise DataError(f"{record[FAILURE]}; the same command will continue the run")
            yield Part(**record)
    except ray.exceptions.RayError as error:
        reason = one_line(str(error).strip().splitlines()[-1])
        raise BesnnError(f"the Ray cluster could not go on ({reason}); the same command will continue the run") from error


def _settings() -> ray.data.DataContext:
    """Ray Data's settings, but one chunk a block (so that chunks are handed on as they are read), and no chatter."""
    settings = ray.data.DataContext.get_current().copy()
    settings.target_max_block_size = 1
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return settings
