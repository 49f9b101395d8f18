"""The Ray Data pipeline: reading tasks feed scoring actors."""

import logging
import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import ray
import ray.data

from besnn.errors import BesnnError, DataError, one_line
from besnn.ray.manifest import Manifest
from besnn.ray.parts import Part
from besnn.ray.session import Workers
from besnn.ray.source import Source, Span
from besnn.ray.worker import FAILURE, ChunkScorer, read_chunks

WORKER_CPUS, READER_CPUS = 0.75, 0.25
"""A worker and the reader that feeds it share a core."""

CONTINUE = "what was scored stays, and the same command continues"


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
    with ray.data.DataContext.current(quiet_settings()):
        # One long task a reader: Ray ends processes that idle for a second, and new ones would import everything anew.
        readers = min(workers.count, len(spans))
        shares = [spans[reader::readers] for reader in range(readers)]
        chunks = ray.data.from_items([{"id": reader} for reader in range(readers)], override_num_blocks=readers).flat_map(
            partial(read_chunks, source=source, shares=shares, done=frozenset(manifest.parts)),
            compute=ray.data.TaskPoolStrategy(size=readers),
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
                raise DataError(f"{record[FAILURE]}; {CONTINUE}")
            yield Part(**record)
    except ray.exceptions.RayError as error:
        raise BesnnError(f"the Ray cluster could not go on ({reason_in(str(error))}); {CONTINUE}") from error


def reason_in(report: str) -> str:
    r"""What went wrong in the first place, out of a report of Ray's, which has tracebacks and advice around it.

    >>> reason_in("Traceback:\n  File ...\nNameError: name 'x' is not defined\nray.exceptions.UserCodeException: no.\nAdvice.")
    "NameError: name 'x' is not defined"
    >>> reason_in("The actor died.\nIts node is gone.")
    'Its node is gone.'
    """
    lines = [line.strip() for line in report.strip().splitlines()]
    named = [line for line in lines if re.match(r"(?!ray\.)[\w.]+(Error|Exception): ", line)]
    return one_line([*lines, *named][-1])


def quiet_settings() -> ray.data.DataContext:
    """Ray Data's settings, but one chunk a block (so that chunks are handed on as they are read), and no chatter."""
    settings = ray.data.DataContext.get_current().copy()
    settings.target_max_block_size = 1
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return settings
