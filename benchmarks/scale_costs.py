"""The costs that the model of benchmarks/scale.py starts from: CPU seconds per image, file, row and chunk.

`core` holds the seconds of one core, `driver` those of the process that drives a run on Ray.
"""

import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.documents import bench_record
from benchmarks.serve_load import untrained_detector
from besnn.batch import SCHEMA
from besnn.data import ImageSpec, decode_image
from besnn.ray.locations import Location
from besnn.ray.manifest import encode_part
from besnn.ray.sources import open_source

IMAGES, CHUNKS, LISTED, ROWS = 16_384, 400, 5000, 65_536


def measure_costs() -> dict[str, Any]:
    """Measure all costs; return the record."""
    parts = {"core": measure_core(), "driver": measure_driver()}
    rounded = {part: {name: float(f"{value:.3g}") for name, value in costs.items()} for part, costs in parts.items()}
    return bench_record("scale", rounded)


def measure_core() -> dict[str, float]:
    """Measure the CPU seconds of one core."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, detector = rng.integers(0, 256, (IMAGES, 1, 28, 28), dtype=np.uint8), untrained_detector()
    photo, small = random_photo(rng), image_file(images[0, 0], "PNG")
    scores = random_scores(rng)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "images.npz", images=images)
        arrays = open_source(detector, str(folder / "images.npz"), chunk_rows=IMAGES)
        files = folder / "files"
        for number in range(LISTED):
            file = files / f"{number % 10}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return {
            "score_small": cpu_seconds(lambda: detector.score(images[:256]), 1) / 256,
            "decode_photo": cpu_seconds(lambda: decode_image(photo, ImageSpec(224, 3), "photo"), 100),
            "photo_bytes": len(photo),
            "decode_small": cpu_seconds(lambda: decode_image(small, ImageSpec(28, 1), "small"), 500),
            "small_bytes": len(small),
            "read_array": cpu_seconds(lambda: [len(chunk["errors"]) for chunk in arrays.read((0, None))], 5) / IMAGES,
            "list_file": cpu_seconds(lambda: sum(1 for _ in Location.parse(str(files)).files()), 3) / LISTED,
            "write_row": cpu_seconds(lambda: encode_part([scores], "identity", 0), 5) / ROWS,
            "row_bytes": len(encode_part([scores], "identity", 0)[0]) / ROWS,
        }


def measure_driver() -> dict[str, float]:
    """Measure the CPU seconds per chunk of the driver of a Ray Data pipeline like that of `besnn score`."""
    import ray
    import ray.data

    from besnn.ray.scoring import data_settings

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with ray.data.DataContext.current(data_settings()):
        chunks = ray.data.from_items([{"first": 0}], override_num_blocks=1).flat_map(_chunks, num_cpus=0.25)
        scorer: Any = _Scorer  # Ray's types leave out that a class is allowed
        parts = chunks.map(scorer, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.75)
    marks = [time.process_time() for _ in parts.iter_rows()]
    ray.shutdown()
    return {"chunk": (marks[-1] - marks[0]) / (len(marks) - 1)}


def _chunks(_: dict[str, int]) -> Iterator[dict[str, int]]:
    return ({"chunk": chunk} for chunk in range(CHUNKS))


class _Scorer:
    """Stands for a worker that takes no time."""

    def __call__(self, row: dict[str, int]) -> dict[str, int]:
        """Return the row as it is."""
        return row


def random_photo(rng: np.random.Generator) -> bytes:
    """Return a JPEG of 500×375, as smooth and as noisy as photos are: about as many bytes as ImageNet's."""
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375)))
    return image_file((smooth + rng.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8), "JPEG", quality=90)


def image_file(pixels: NDArray[np.uint8], kind: str, **options: int) -> bytes:
    """Return an image file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def random_scores(rng: np.random.Generator) -> pa.RecordBatch:
    """Return rows as `besnn score` writes them."""
    probability, score, p_value, flag = rng.random((4, ROWS))
    columns = [
        [str(number) for number in range(ROWS)],
        ["a class"] * ROWS,
        probability.astype(np.float32),
        score.astype(np.float32),
        np.round(p_value, 3),  # multiples of 1/(n + 1)
        flag > 0.5,
        [""] * ROWS,
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def cpu_seconds(call: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of this process per call, the least of three rounds."""
    call()
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)
