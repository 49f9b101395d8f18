"""Scoring on a cluster, from a model file and inputs to a folder of scores."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch

from besnn.batch import Tally
from besnn.data.catalogue import parse_name
from besnn.detector import Detector
from besnn.errors import DataError, NotReadyError
from besnn.ray.locations import Location
from besnn.ray.manifest import Manifest
from besnn.ray.opening import open_source
from besnn.ray.parts import encode_part, part_name
from besnn.ray.session import Workers, choose_workers, ray_session, require_ray
from besnn.ray.source import Source, Span
from besnn.storage.files import remove_partials
from besnn.version import __version__

SAVE_SECONDS = 10.0
"""How often the manifest is brought up to date; parts that it does not know of yet are found all the same."""


def score_on_ray(
    model: Path,
    source: str,
    output: str,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float = 0.0,
    chunk_rows: int | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Tally:
    """Scores every input of a source into a folder of parquet files, whose rows are those of `score_file`, in order.

    Each part of the output holds the scores of one chunk of the input and is put in place whole. A run that was stopped is
    continued by the same call: chunks whose part is whole are not scored again.

    Args:
        model: the file of a calibrated detector.
        source: as `besnn.ray.opening.open_source` takes it.
        output: the folder to write, a path or an address that all machines of the cluster reach.
        label: a table's class column, which is not looked at.
        data_dir: where built-in sets lie, on every machine.
        address: the cluster, see `ray_session`.
        workers: processes that score; as many as the cluster has GPUs or cores for unless given.
        gpus_per_worker: GPUs of each, perhaps a fraction; 0 scores on CPUs.
        chunk_rows: inputs a part, see `open_source`.
        progress: told the number of inputs after each part.
    """
    require_ray("data")
    content, detector = model.read_bytes(), Detector.load(model)
    if detector.threshold is None:
        raise NotReadyError(f"{model} is not calibrated: run `besnn calibrate {model} DATA` with held-out data first")
    opened = open_source(detector, source, label=label, data_dir=data_dir, chunk_rows=chunk_rows)
    run = {
        "input": source if parse_name(source) else Location.parse(source).address,
        "input_fingerprint": opened.fingerprint(),
        "label": label,
        "model_sha256": hashlib.sha256(content).hexdigest(),
        "chunk_rows": opened.chunk_rows,
        "device": "cuda" if gpus_per_worker else "cpu",
        "besnn": __version__,
        "torch": torch.__version__,
    }
    manifest = Manifest.open(Location.parse(output), run)
    progress(manifest.tally().inputs)
    if not manifest.complete:
        if spans := _pending(opened, manifest):
            with ray_session(address):
                _score(opened, spans, content, manifest, choose_workers(workers, gpus_per_worker), progress)
        _finish(opened, manifest)
    return manifest.tally()


def _pending(source: Source, manifest: Manifest) -> list[Span]:
    """The spans in which a chunk may be left to score."""
    return [
        (first, stop)
        for first, stop in source.spans()
        if stop is None or any(chunk not in manifest.parts for chunk in range(first, stop))
    ]


def _score(
    source: Source, spans: list[Span], model: bytes, manifest: Manifest, workers: Workers, progress: Callable[[int], None]
) -> None:
    from besnn.ray.pipeline import score_chunks  # Ray is there only with the extra

    manifest.save()
    saved = time.monotonic()
    for part in score_chunks(source, spans, model, manifest, workers):
        manifest.parts[part.chunk] = part
        progress(part.rows)
        if time.monotonic() - saved >= SAVE_SECONDS:
            manifest.save()
            saved = time.monotonic()


def _finish(source: Source, manifest: Manifest) -> None:
    """Sees to it that every row is there once, and says so in the manifest."""
    if not manifest.parts:  # no inputs: an empty table is still a table
        content, manifest.parts[0] = encode_part([], manifest.identity, chunk=0)
        (manifest.folder / part_name(0)).write(content)
    rows = manifest.tally().inputs
    expected = source.rows if source.rows is not None else rows
    if sorted(manifest.parts) != list(range(len(manifest.parts))) or rows != expected:
        raise DataError(
            f"{manifest.folder.name} has {rows:,} rows for an input of {expected:,}, which changed while it was read: "
            "remove the folder and score again"
        )
    if (local := manifest.folder.local) is not None:
        remove_partials(local)  # of workers that were killed
    manifest.complete = True
    manifest.save()
