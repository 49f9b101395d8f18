"""Batch scoring on Ray Data: readers → chunks → workers with a model each → one parquet file per chunk."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.data
import torch
from numpy.typing import NDArray

from besnn.batch import Tally, score_batches
from besnn.data.catalogue import parse_name
from besnn.detector import Detector
from besnn.errors import BesnnError, DataError, NotReadyError, one_line
from besnn.ray.locations import Location
from besnn.ray.manifest import Manifest, Part, encode_part, part_name
from besnn.ray.session import Cluster, choose_workers, ray_session
from besnn.ray.sources import Row, Source, Span, open_source, read_chunks
from besnn.storage.files import remove_partials
from besnn.storage.signature import check_signature, model_key
from besnn.version import __version__

if TYPE_CHECKING:
    from ray import ObjectRef

WORKER_CPUS, READER_CPUS = 0.75, 0.25
"""A worker and the reader that feeds it share a core."""

CONTINUE = "scores so far are kept, and the same command continues"


def score_on_ray(
    model: Path,
    source: str,
    output: str,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    cluster: Cluster | None = None,
    chunk_rows: int | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Tally:
    """Score every input of a source into a folder of parquet files, with the same rows as `score_file`, in order.

    Each part of the output holds the scores of one chunk and is put in place whole. The same call continues a run that was
    stopped: chunks whose part is intact are not scored again.

    All machines of the cluster must reach the source (see `besnn.ray.sources.open_source`), the output and `data_dir`.
    `progress` is called with the number of inputs after each part.
    """
    cluster = cluster or Cluster()
    content, detector = model.read_bytes(), Detector.load(model)
    check_signature(model, content, model_key())  # again: the file may have been replaced in between
    if detector.threshold is None:
        raise NotReadyError(f"{model} is not calibrated: run `besnn calibrate {model} DATA` with held-out data first")
    inputs = open_source(detector, source, label=label, data_dir=data_dir, chunk_rows=chunk_rows)
    run = {
        "input": source if parse_name(source) else Location.parse(source).url,
        "input_fingerprint": inputs.fingerprint,
        "label": label,
        "model_sha256": hashlib.sha256(content).hexdigest(),
        "chunk_rows": inputs.chunk_rows,
        "device": cluster.device,
        "besnn": __version__,
        "torch": torch.__version__,
    }
    manifest = Manifest.open(Location.parse(output), run)
    progress(manifest.tally().inputs)
    if manifest.complete:
        return manifest.tally()
    if spans := [span for span in inputs.spans if not manifest.covers(*span)]:
        with ray_session(cluster.address):
            for part in _score_chunks(inputs, spans, content, manifest, cluster):
                manifest.parts[part.chunk] = part
                progress(part.inputs)
    _finish(inputs, manifest)
    return manifest.tally()


def _score_chunks(source: Source, spans: list[Span], model: bytes, manifest: Manifest, cluster: Cluster) -> Iterator[Part]:
    """Score the chunks of some spans that the manifest lacks, and yield their parts as they are put in place.

    Ray restarts a worker that dies and gives its chunk to another one; a part that is written twice is the same.
    """
    workers = choose_workers(cluster)
    manifest.save()
    # One long task per reader: Ray ends processes that are idle for a second, and new ones would import everything again.
    readers = min(workers, len(spans))
    shares = [spans[reader::readers] for reader in range(readers)]
    shared_model = ray.put(np.frombuffer(model, np.uint8))  # one copy per machine
    with ray.data.DataContext.current(data_settings()):
        chunks = ray.data.from_items([{"id": reader} for reader in range(readers)], override_num_blocks=readers).flat_map(
            partial(read_chunks, source=source, shares=shares, done=frozenset(manifest.parts)),
            compute=ray.data.TaskPoolStrategy(size=readers),
            num_cpus=READER_CPUS,
        )
        records = chunks.map(
            ChunkScorer,  # type: ignore[arg-type]  # Ray takes a class, too
            fn_constructor_args=([shared_model], source, manifest.folder, manifest.identity, cluster.device),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=WORKER_CPUS,
            num_gpus=cluster.gpus_per_worker,
        )
    try:
        for record in records.iter_rows():
            yield Part(**record)
    except ray.exceptions.RayError as error:
        raise _one_line_error(error) from error


class ChunkScorer:
    """Scores chunks into parts of the output; each worker process holds one, with a model (a file's content) of its own."""

    def __init__(
        self, model: "list[ObjectRef[NDArray[np.uint8]]]", source: Source, folder: Location, identity: str, device: str
    ) -> None:
        torch.set_num_threads(1)  # the worker holds one core
        self.source, self.folder, self.identity = source, folder, identity
        self.detector = Detector.from_bytes(ray.get(model[0]).data).to(device)

    def __call__(self, row: Row) -> dict[str, Any]:
        """Put the part of a chunk in place, and return the fields of its `Part`."""
        chunk = int(row["chunk"])
        content, part = encode_part(score_batches(self.detector, self.source.batches(row)), self.identity, chunk)
        (self.folder / part_name(chunk)).write(content)
        return asdict(part)


def data_settings() -> ray.data.DataContext:
    """Return settings of Ray Data: one chunk per block, the errors of readers and workers as they are, and no chatter."""
    settings = ray.data.DataContext.get_current().copy()
    settings.target_max_block_size = 1
    settings.raise_original_map_exception = True
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return settings


def _one_line_error(error: ray.exceptions.RayError) -> BesnnError:
    """Return what to tell the user: a reader's or worker's own error, or why the cluster failed."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BesnnError | OSError):
        message = str(cause).partition("\n")[0]  # Ray appends lines of advice
        return DataError(f"{message}; {CONTINUE}")
    reason = str(error).strip().splitlines()[-1] if cause is None else repr(cause)
    return BesnnError(f"the Ray cluster failed ({one_line(reason)}); {CONTINUE}")


def _finish(source: Source, manifest: Manifest) -> None:
    """Check that every input is scored once, and mark the manifest as complete."""
    if not manifest.parts:  # without inputs the output is still a table
        content, manifest.parts[0] = encode_part([], manifest.identity, chunk=0)
        (manifest.folder / part_name(0)).write(content)
    rows = manifest.tally().inputs
    expected = rows if source.rows is None else source.rows
    if sorted(manifest.parts) != list(range(len(manifest.parts))) or rows != expected:
        found = f"{rows:,} rows for {expected:,} inputs, which changed during the run"
        raise DataError(f"{manifest.folder.name} has {found}: remove the folder and score again")
    if (local := manifest.folder.local) is not None:
        remove_partials(local)  # left by workers that were killed
    manifest.complete = True
    manifest.save()
