"""Measures what docs/scale.md's model starts from: seconds an image, a file, a row or a step.

    python benchmarks/scale_costs.py core driver gpu [--json results/scale_costs.json]
    python benchmarks/scale_costs.py bench         # the GPU's, as far as a record of `python -m benchmarks` has them

`core` is the CPU seconds of one core, `driver` those of the process that drives a run on Ray, `gpu` the seconds of the GPU at
hand. The parts that are named are measured here and replaced in the file; the others stay as they are.
"""

import argparse
import io
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from besnn.batch import SCHEMA
from besnn.data import Dataset, ImageSpec, decode_image
from besnn.detector import Detector
from besnn.model import Preprocessing
from besnn.ray.arrays import StreamSource
from besnn.ray.locations import Location
from besnn.ray.parts import encode_part
from besnn.training import Recipe, RunOptions, Trainer, build_method, load_recipe, make_fabric
from besnn.training.batches import ArraySource
from besnn.training.progress import Reporter
from besnn.training.record import provenance

RESULTS = Path(__file__).resolve().parents[1] / "results"
RECORD, BENCH = RESULTS / "scale_costs.json", RESULTS / "bench" / "h200.json"
BATCH, SCORED, CHUNKS, LISTED, ROWS = 128, 500, 400, 5000, 65_536


def main() -> None:
    parts = {"core": measure_core, "driver": measure_driver, "gpu": measure_gpu}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=[*parts, "bench"])
    parser.add_argument("--json", type=Path, default=RECORD, help="the record to bring up to date")
    arguments = parser.parse_args()
    record = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {}
    for part in arguments.parts:
        if part == "bench":
            record["gpu"] |= from_bench(json.loads(BENCH.read_text(encoding="utf-8")))
            continue
        device = torch.device("cuda" if part == "gpu" else "cpu")
        costs = {name: float(f"{value:.3g}") for name, value in parts[part]().items()}
        record[part] = {**costs, "provenance": provenance({}, device)}
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measure_core() -> dict[str, float]:
    """CPU seconds of one core."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, detector = random_images(16_384), untrained_detector()
    photo, small = random_photo(rng), image_file(rng.integers(0, 256, (28, 28), dtype=np.uint8), "PNG")
    scores = random_scores(rng)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "images.npz", images=images)
        arrays = StreamSource(
            location=Location.parse(str(folder / "images.npz")), image=ImageSpec(28, 1), chunk_rows=16_384, batch_rows=256
        )
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
            "read_array": cpu_seconds(lambda: [len(chunk["errors"]) for chunk in arrays.read((0, None))], 5) / len(images),
            "list_file": cpu_seconds(lambda: sum(1 for _ in Location.parse(str(files)).files()), 3) / LISTED,
            "write_row": cpu_seconds(lambda: encode_part([scores], "identity", 0), 5) / ROWS,
            "row_bytes": len(encode_part([scores], "identity", 0)[0]) / ROWS,
        }


def measure_driver() -> dict[str, float]:
    """CPU seconds that the driver of a Ray Data pipeline like that of `besnn score` spends on a chunk."""
    import ray
    import ray.data

    from besnn.ray.pipeline import quiet_settings

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with ray.data.DataContext.current(quiet_settings()):
        chunks = ray.data.from_items([{"first": 0}], override_num_blocks=1).flat_map(_chunks, num_cpus=0.25)
        parts = chunks.map(_Scorer, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.75)
    marks = [time.process_time() for _ in parts.iter_rows()]
    ray.shutdown()
    return {"chunk": (marks[-1] - marks[0]) / (len(marks) - 1)}


def _chunks(_: dict[str, int]) -> Iterator[dict[str, int]]:
    return ({"chunk": chunk} for chunk in range(CHUNKS))


class _Scorer:
    """Stands for a worker that takes no time."""

    def __call__(self, row: dict[str, int]) -> dict[str, int]:
        """The row as it is."""
        return row


def measure_gpu(accelerator: str = "gpu", steps: int = 200) -> dict[str, float]:
    """Seconds an image of the FashionMNIST recipe, N = 4: scored, and trained on with and without the gradient penalty."""
    with_penalty = ["training.epochs=2", f"training.batch_size={BATCH}", "training.gradient_every=1"]
    fabric = make_fabric("tf32", accelerator)
    detector, images = untrained_detector().to(fabric.device), random_images(SCORED)
    rounds = [seconds(lambda: detector.score(images)) for _ in range(20)]
    return {
        "score_small": min(rounds) / SCORED,
        "train_small": step_seconds(load_recipe("fashion-mnist", with_penalty), accelerator, steps) / BATCH,
        "train_small_without_penalty": step_seconds(
            load_recipe("fashion-mnist", [*with_penalty, "method.gradient_weight=0"]), accelerator, steps
        )
        / BATCH,
    }


def from_bench(bench: dict[str, Any]) -> dict[str, Any]:
    """What a record of `python -m benchmarks` says of the same costs; of a step without the penalty it says nothing."""
    seconds_of = {(figure["work"], figure["variant"]): figure["seconds"] for figure in bench["figures"]}
    note = f"train_small_without_penalty is of an earlier profile: `python {Path(__file__).name} gpu` measures all three"
    return {
        "score_small": float(f"{seconds_of[f'score {SCORED} images', 'besnn'] / SCORED:.3g}"),
        "train_small": float(f"{seconds_of['training step as M grows', 'M = 16'] / BATCH:.3g}"),
        "provenance": bench["provenance"] | {"note": note},
    }


class StepClock(Reporter):
    """Notes when each step is over."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def step(self) -> None:
        """One more is over."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())


def step_seconds(recipe: Recipe, accelerator: str, steps: int) -> float:
    """The median step of a run's second epoch."""
    fabric, clock = make_fabric("tf32", accelerator), StepClock()
    images, labels = random_images(steps * BATCH), np.arange(steps * BATCH) % 10
    source = ArraySource(Dataset(images, labels, tuple("0123456789"), "noise"), fabric.device)
    model, objective = build_method(recipe, (1, 28, 28), 10)
    Trainer(recipe, model, objective, Preprocessing.fit(source.inputs), fabric, RunOptions(reporter=clock)).fit(source)
    return float(np.median(np.diff(clock.marks[steps:])))


def untrained_detector() -> Detector:
    recipe = load_recipe("fashion-mnist")
    model, _ = build_method(recipe, (1, 28, 28), 10)
    return Detector(model, Preprocessing.fit(torch.from_numpy(random_images(256))), tuple("0123456789"), recipe)


def random_images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)


def random_photo(rng: np.random.Generator) -> bytes:
    """A JPEG of 500×375, as smooth and as noisy as photos are: about as many bytes as ImageNet's."""
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375)))
    return image_file((smooth + rng.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8), "JPEG", quality=90)


def image_file(pixels: np.ndarray, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def random_scores(rng: np.random.Generator) -> pa.RecordBatch:
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
    """CPU seconds of this process a call, the least of three rounds."""
    call()
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
