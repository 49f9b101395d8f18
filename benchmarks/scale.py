"""What scoring a thousand million images, or training on a set of ImageNet's size, would take: a model on paper.

Every stage of a run has a cost per image and a number of workers that share it; the slowest stage sets the pace. The costs of a
core and of Ray's driver are measured here, those of a GPU by the speed benchmark on images 28×28. They are carried over to
larger networks by the number of multiplications, at the same share of the GPU's peak. Larger networks use more of it, so these
are upper bounds.
"""

import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.documents import BENCH, RESULTS, Table, bench_record
from benchmarks.serve_load import untrained_detector
from besnn.batch import SCHEMA
from besnn.data import ImageSpec, decode_image
from besnn.errors import DataError
from besnn.ray.locations import Location
from besnn.ray.manifest import encode_part
from besnn.ray.sources import open_source
from besnn.training.record import read_record

MEMBERS = 4
CONVNET = 18.8e6
"""Multiplications of one member of the FashionMNIST network for one image, 28×28."""

RESNET18, RESNET18_PARAMETERS, FEATURES = 1.82e9, 11.7e6, 512
"""Multiplications of ResNet-18 at 224×224, its parameters, and the length of its features."""

# Assumptions about a rented cluster; these are not measured.
CORES_PER_GPU = 16
STORAGE = 20e9  # bytes per second, of all machines together
NETWORK = 50e9  # bytes per second between machines, of each GPU

IMAGES, CHUNK, ARRAY_BYTES = 1_000_000_000, 16_384, 784
IMAGENET, EPOCHS, BATCH = 1_281_167, 90, 128
GPUS = 8, 64
PENALTY_EVERY = 4
CHUNKS, LISTED, ROWS = 400, 5000, 65_536  # how many are timed


@dataclass(frozen=True)
class Stage:
    """A part of the work.

    Attributes:
        name: what it is.
        seconds: seconds per image, for one worker.
        shared_by: the number of workers.
        lane: stages of one lane wait for each other, stages of different lanes overlap.
        phase: a phase begins when the one before it has ended.
    """

    name: str
    seconds: float
    shared_by: float = 1
    lane: str = ""
    phase: int = 1

    def hours(self, images: float) -> float:
        """Return the hours for a number of images."""
        return images * self.seconds / self.shared_by / 3600


def slowest(stages: list[Stage]) -> str:
    """Return the name of the stage that a run waits for."""
    return max(stages, key=lambda stage: stage.hours(1)).name


def hours_of_run(stages: list[Stage], images: float) -> float:
    """Return the hours of all phases, each as long as its longest lane."""
    lanes: dict[tuple[int, str], float] = {}
    for stage in stages:
        key = stage.phase, stage.lane or stage.name
        lanes[key] = lanes.get(key, 0.0) + stage.hours(images)
    return sum(max(hours for (phase, _), hours in lanes.items() if phase == each) for each in {phase for phase, _ in lanes})


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes per image, of one core, of the process that drives a run on Ray, and of one GPU."""

    core: dict[str, Any]
    driver: dict[str, Any]
    gpu: dict[str, Any]

    @classmethod
    def read(cls, results: Path = RESULTS) -> "Costs":
        """Read the measured costs; those of a GPU are in the record of the speed benchmark."""
        measured, speed = (read_record(results / BENCH / name) for name in ("scale.json", "speed-h200.json"))
        seconds = {(figure["work"], figure["variant"]): figure["seconds"] for figure in speed["figures"]}
        step = f"training step, batch of {BATCH}"
        gpu = {
            "score_small": seconds["score 500 images", "besnn"] / 500,
            "train_small": seconds[step, "with the penalty"] / BATCH,
            "train_small_without_penalty": seconds[step, "without it"] / BATCH,
            "name": speed["provenance"]["hardware"],
        }
        return cls(measured["core"], measured["driver"], gpu)

    def scoring_stages(self, kind: str, gpus: int, listers: int = 1) -> list[Stage]:
        """Return the stages of scoring an image (`photo`, `small` or `array`), with `listers` folders at a time."""
        cores = gpus * CORES_PER_GPU
        size = RESNET18 / CONVNET if kind == "photo" else 1.0
        image_bytes = ARRAY_BYTES if kind == "array" else self.core[f"{kind}_bytes"]
        stages = [
            Stage("GPU", self.gpu["score_small"] * size, gpus),
            Stage("storage", image_bytes / STORAGE),
            Stage("writing", self.core["write_row"], cores),
            Stage("driver", self.driver["chunk"] / CHUNK, listers),
        ]
        if kind == "array":  # one reader per GPU
            return [*stages, Stage("reading", self.core["read_array"], gpus)]
        # A folder is listed once to know the input, and once more to read it.
        listing = Stage("listing", self.core["list_file"], listers, phase=0)
        again = Stage("listing again", self.core["list_file"], listers)
        return [listing, again, *stages, Stage("reading", self.core[f"decode_{kind}"], cores)]

    def training_stages(self, gpus: int, penalty_every: int | None) -> list[Stage]:
        """Return the stages of training on a photo, with the gradient penalty every so many steps (None: never).

        What is done once per step is divided among the photos of the step.
        """
        batch = gpus * BATCH
        plain, penalised = self.gpu["train_small_without_penalty"], self.gpu["train_small"]
        step = plain + (penalised - plain) / penalty_every if penalty_every else plain
        flops = 2 * MEMBERS * CONVNET / self.gpu["score_small"]  # the rate that the GPU reached
        gradients = 2 * (gpus - 1) / gpus * 4 * RESNET18_PARAMETERS / NETWORK
        neighbours = 2 * MEMBERS * batch**2 * FEATURES / flops  # every process looks at the whole batch's features
        return [
            Stage("GPU", step * RESNET18 / CONVNET, gpus),
            Stage("gradients", gradients / batch, lane="GPU"),
            Stage("entropy", neighbours / batch, lane="GPU"),
            Stage("reading", self.core["decode_photo"], gpus * CORES_PER_GPU),
            Stage("storage", self.core["photo_bytes"] / STORAGE),
        ]


def scale_tables(results: Path = RESULTS) -> list[Table]:
    """Return the tables of the plan for docs/scale.md."""
    costs = Costs.read(results)
    inputs = {
        "photos in one folder": ("photo", 1),
        "photos in 1,000 folders, 16 at a time": ("photo", 16),
        "PNG files 28×28 in one folder": ("small", 1),
        "arrays 28×28": ("array", 1),
    }
    scoring = {
        (name, gpus): costs.scoring_stages(kind, gpus, listers) for name, (kind, listers) in inputs.items() for gpus in GPUS
    }
    penalties = {"at every step": 1, f"at every {PENALTY_EVERY}th step": PENALTY_EVERY, "never": None}
    training = {(name, gpus): costs.training_stages(gpus, every) for name, every in penalties.items() for gpus in GPUS}
    scored = (
        "Hours of each stage by itself, and of the run. Photos are JPEG, scored by ResNet-18 at 224×224; images 28×28 by the "
        "FashionMNIST network; N = 4, the method's own score. Reading is decoding, or reading arrays. The scores are "
        f"{IMAGES * costs.core['row_bytes'] / 1e9:.0f} GB in {IMAGES / CHUNK:,.0f} parts."
    )
    trained = (
        f"Hours for {IMAGENET:,} photos and {EPOCHS} epochs, ResNet-18, N = 4, {BATCH} images per GPU and step. The exchange "
        "of gradients and the entropy of the gathered batch add to the GPU's time; the others overlap."
    )
    return [
        _cost_table(costs),
        _hours_table("Scoring 10⁹ images", "Input", scoring, IMAGES, scored),
        _hours_table("Training on a set of ImageNet's size", "Gradient penalty", training, IMAGENET * EPOCHS, trained),
    ]


def _cost_table(costs: Costs) -> Table:
    core, gpu = costs.core, costs.gpu
    rows = [
        (gpu["name"], "score an image 28×28", f"{gpu['score_small'] * 1e6:.3g} µs"),
        (gpu["name"], "train on one, with the gradient penalty", f"{gpu['train_small'] * 1e6:.3g} µs"),
        (gpu["name"], "train on one, without it", f"{gpu['train_small_without_penalty'] * 1e6:.3g} µs"),
        ("core", "score an image 28×28", f"{core['score_small'] * 1e3:.2g} ms"),
        ("core", f"decode a photo of {core['photo_bytes'] / 1e3:.0f} kB", f"{core['decode_photo'] * 1e3:.2g} ms"),
        ("core", "decode a PNG of 28×28", f"{core['decode_small'] * 1e6:.2g} µs"),
        ("core", "list a file", f"{core['list_file'] * 1e6:.2g} µs"),
        ("driver", f"hand out a chunk of {CHUNK:,} images", f"{costs.driver['chunk'] * 1e3:.2g} ms"),
    ]
    note = (
        f"A GPU's times are carried over to ResNet-18 at 224×224 by its multiplications, {RESNET18 / CONVNET:.0f} times as "
        f"many. Assumed, not measured: {CORES_PER_GPU} cores per GPU, {STORAGE / 1e9:.0f} GB/s of storage for all machines "
        f"together, {NETWORK / 1e9:.0f} GB/s per GPU between machines."
    )
    return Table("Measured costs", ("Where", "What", "Time"), rows, note)


def _hours_table(title: str, kind: str, runs: dict[tuple[str, int], list[Stage]], images: float, note: str) -> Table:
    names = list(dict.fromkeys(stage.name for stages in runs.values() for stage in stages))
    rows = []
    for (name, gpus), stages in runs.items():
        hours = {stage.name: stage.hours(images) for stage in stages}
        each = [("< 0.01" if hours[stage] < 0.005 else f"{hours[stage]:.2g}") if stage in hours else "—" for stage in names]
        run = hours_of_run(stages, images)
        rows.append((name, str(gpus), *each, f"**{run:.2g}**", f"{float(f'{gpus * run:.2g}'):g}", slowest(stages)))
    return Table(title, (kind, "GPUs", *names, "run", "GPU hours", "slowest"), rows, note)


def ray_table(record: Mapping[str, Any]) -> Table:
    """Return the table of `python -m benchmarks ray` for docs/scale.md: one row per engine."""
    if not record["equal"]:
        raise DataError("results/bench/ray.json: the outputs of the two engines differ; find out why first")
    rows = []
    for each in [record["local"], *record["ray"]]:
        label = f"Ray, workers: {each['workers']}" if "workers" in each else "local, one thread"
        memory = f"{each['worker_peak_mb']:.0f} MB" if "worker_peak_mb" in each else ""
        rows.append((label, f"{each['rows_per_second']:,.0f}", f"{each['relative']}", f"{each['seconds']}", memory))
    worker, driver = record["stopped"]
    note = (
        f"{record['rows']:,} rows of {record['columns']} columns ({record['table_mb']} MB), with an object store of "
        f"{record['object_store_mb']} MB: medians of {record['rounds']} rounds on two cores, at a load average of "
        f"{record['load_average']}. Rates leave out the start, in which workers import torch. In one more run a worker was "
        f"killed after {worker['after_rows']:,} rows. In another, `besnn score` itself was killed after "
        f"{driver['after_rows']:,} rows and started again; it scored {driver['parts_scored_again']} parts a second time. The "
        f"rows of all outputs have the same SHA-256: `{record['checksums'][0]}`."
    )
    header = ("Engine", "Rows per second", "Relative", "Seconds with the start", "Peak memory of a worker")
    return Table("Scoring a table on Ray", header, rows, note)


def measure_costs() -> dict[str, Any]:
    """Measure the costs of a core and of the driver; return the record."""
    parts = {"core": measure_core(), "driver": measure_driver()}
    rounded = {part: {name: float(f"{value:.3g}") for name, value in costs.items()} for part, costs in parts.items()}
    return bench_record("scale", rounded)


def measure_core() -> dict[str, float]:
    """Measure the CPU seconds of one core."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, detector = rng.integers(0, 256, (CHUNK, 1, 28, 28), dtype=np.uint8), untrained_detector()
    photo, small = random_photo(rng), image_file(images[0, 0], "PNG")
    scores = random_scores(rng)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "images.npz", images=images)
        arrays = open_source(detector, str(folder / "images.npz"), chunk_rows=CHUNK)
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
            "read_array": cpu_seconds(lambda: [len(chunk["errors"]) for chunk in arrays.read((0, None))], 5) / CHUNK,
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
