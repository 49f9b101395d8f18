"""What scoring a thousand million images, or training on a set of ImageNet's size, would take: a model on paper.

Every stage of a run has a cost per item and a number of workers that share it; the slowest stage sets the pace. The costs of a
core and of Ray's driver are measured by benchmarks/scale_costs.py, those of a GPU by the speed benchmark on images 28×28. They
are carried over to larger networks by the number of multiplications, at the same share of the GPU's peak. Larger networks use
more of it, so these are upper bounds. The page docs/scale.md is made from benchmarks/scale.md.j2 and these records.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.documents import BENCH, RESULTS, ROOT, markdown_table
from besnn.errors import DataError
from besnn.training.record import read_record

PAGE = ROOT / "docs" / "scale.md"
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


@dataclass(frozen=True)
class Stage:
    """A part of the work.

    Attributes:
        name: what it is.
        seconds: seconds per item, for one worker.
        shared_by: the number of workers.
        lane: stages of one lane wait for each other, stages of different lanes overlap.
        phase: a phase begins when the one before it has ended.
    """

    name: str
    seconds: float
    shared_by: float = 1
    lane: str = ""
    phase: int = 1

    def hours(self, items: float) -> float:
        """Return the hours for a number of items."""
        return items * self.seconds / self.shared_by / 3600


def slowest(stages: list[Stage]) -> str:
    """Return the name of the stage that a run waits for."""
    return max(stages, key=lambda stage: stage.hours(1)).name


def hours_of_run(stages: list[Stage], items: float) -> float:
    """Return the hours of all phases, each as long as its longest lane."""
    lanes: dict[tuple[int, str], float] = {}
    for stage in stages:
        key = stage.phase, stage.lane or stage.name
        lanes[key] = lanes.get(key, 0.0) + stage.hours(items)
    return sum(max(hours for (phase, _), hours in lanes.items() if phase == each) for each in {phase for phase, _ in lanes})


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes per item.

    Attributes:
        core: costs of one core.
        driver: costs of the process that drives a run on Ray.
        gpu: costs of one GPU.
    """

    core: dict[str, Any]
    driver: dict[str, Any]
    gpu: dict[str, Any]

    def score(self, multiplications: float) -> float:
        """Return the seconds of a GPU to score an image."""
        return float(self.gpu["score_small"] * multiplications / CONVNET)

    def train(self, penalty_every: int | None) -> float:
        """Return the seconds of a GPU to train on a photo, with the gradient penalty every so many steps (None: never)."""
        plain, penalised = self.gpu["train_small_without_penalty"], self.gpu["train_small"]
        share = 0.0 if penalty_every is None else 1 / penalty_every
        return float((plain + share * (penalised - plain)) * RESNET18 / CONVNET)

    def scoring_stages(self, kind: str, gpus: int, listers: int = 1) -> list[Stage]:
        """Return the stages of scoring an image (`photo`, `small` or `array`), with `listers` folders at a time."""
        cores = gpus * CORES_PER_GPU
        multiplications = RESNET18 if kind == "photo" else CONVNET
        image_bytes = ARRAY_BYTES if kind == "array" else self.core[f"{kind}_bytes"]
        stages = [
            Stage("GPU", self.score(multiplications), gpus),
            Stage("storage", image_bytes / STORAGE),
            Stage("writing", self.core["write_row"], cores),
            Stage("driver", self.driver["chunk"] / CHUNK, listers),
        ]
        if kind == "array":  # one reader per GPU
            return [*stages, Stage("reading", self.core["read_array"], gpus)]
        # A folder is listed once to know the input, and once more to read it.
        listing = Stage("listing", self.core["list_file"], listers, phase=0)
        again = Stage("listing again", self.core["list_file"], listers)
        return [listing, again, *stages, Stage("decoding", self.core[f"decode_{kind}"], cores)]

    def training_stages(self, gpus: int, penalty_every: int | None) -> list[Stage]:
        """Return the stages of training on a photo; what is done once per step is divided among the photos of the step."""
        batch = gpus * BATCH
        flops = 2 * MEMBERS * CONVNET / self.gpu["score_small"]  # the rate that the GPU reached
        gradients = 2 * (gpus - 1) / gpus * 4 * RESNET18_PARAMETERS / NETWORK
        neighbours = 2 * MEMBERS * batch**2 * FEATURES / flops  # every process looks at the whole batch's features
        return [
            Stage("GPU", self.train(penalty_every), gpus),
            Stage("gradients", gradients / batch, lane="GPU"),
            Stage("entropy", neighbours / batch, lane="GPU"),
            Stage("decoding", self.core["decode_photo"], gpus * CORES_PER_GPU),
            Stage("storage", self.core["photo_bytes"] / STORAGE),
        ]


def scale_page(results: Path = RESULTS) -> str:
    """Return the text of docs/scale.md."""
    costs, run = read_costs(results), read_record(results / BENCH / "ray.json")
    if not run["equal"]:
        raise DataError(f"{results / BENCH / 'ray.json'}: the outputs of the two engines differ; find out why first")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["thousands"] = "{:,}".format
    figures = cost_figures(costs) | scoring_figures(costs) | training_figures(costs)
    return environment.get_template("scale.md.j2").render(run=run, engines=engine_table(run), **figures)


def read_costs(results: Path = RESULTS) -> "Costs":
    """Read the measured costs; those of a GPU are in the record of the speed benchmark."""
    measured, speed = (read_record(results / BENCH / name) for name in ("scale.json", "speed-h200.json"))
    seconds = {(figure["work"], figure["variant"]): figure["seconds"] for figure in speed["figures"]}
    step = f"training step, batch of {BATCH}"
    gpu = {
        "score_small": seconds["score 500 images", "besnn"] / 500,
        "train_small": seconds[step, "with the penalty"] / BATCH,
        "train_small_without_penalty": seconds[step, "without it"] / BATCH,
        "provenance": speed["provenance"],
    }
    return Costs(measured["core"], measured["driver"], gpu)


def cost_figures(costs: Costs) -> dict[str, str]:
    """Return what the page says about costs."""
    core, gpu = costs.core, costs.gpu
    return {
        "gpu_name": gpu["provenance"]["hardware"],
        "score_us": f"{gpu['score_small'] * 1e6:.2g}",
        "train_us": f"{gpu['train_small'] * 1e6:.3g}",
        "plain_us": f"{gpu['train_small_without_penalty'] * 1e6:.2g}",
        "times": f"{RESNET18 / CONVNET:.0f}",
        "photo_ms": f"{core['decode_photo'] * 1e3:.2g}",
        "photo_kb": f"{core['photo_bytes'] / 1e3:.0f}",
        "png_us": f"{core['decode_small'] * 1e6:.2g}",
        "list_us": f"{core['list_file'] * 1e6:.2g}",
        "core_rate": f"{1 / core['score_small']:.0f}",
        "gpu_rate": f"{1 / gpu['score_small']:,.0f}",
        "chunk_ms": f"{costs.driver['chunk'] * 1e3:.2g}",
        "cores": f"{CORES_PER_GPU}",
        "storage": f"{STORAGE / 1e9:.0f}",
        "network": f"{NETWORK / 1e9:.0f}",
    }


def scoring_figures(costs: Costs) -> dict[str, str]:
    """Return what the page says about scoring."""
    core, photo, small = costs.core, costs.score(RESNET18), costs.score(CONVNET)
    tables = {"photos": ("photo", 1), "folders": ("photo", 16), "small": ("small", 1), "arrays": ("array", 1)}
    fed = max(photo, core["decode_photo"] / CORES_PER_GPU)  # a photo's time on one GPU and its cores
    return {
        name: hours_table({(gpus, ""): costs.scoring_stages(kind, gpus, listers) for gpus in GPUS}, IMAGES)
        for name, (kind, listers) in tables.items()
    } | {
        "scores_gb": f"{IMAGES * core['row_bytes'] / 1e9:.0f}",
        "parts": f"{IMAGES / CHUNK:,.0f}",
        "listing_gpus": f"{fed / core['list_file']:.0f}",
        "list_rate": f"{1 / core['list_file']:,.0f}",
        "decoding_cores": f"{core['decode_photo'] / photo:.1f}",
        "storage_gpus": f"{fed / core['photo_bytes'] * STORAGE:.0f}",
        "bound_by": "decoding" if fed > photo else "the GPUs",
        "png_scores": f"{core['decode_small'] / small:.0f}",
        "driver_gpus": f"{small * CHUNK / costs.driver['chunk']:.0f}",
    }


def training_figures(costs: Costs) -> dict[str, Any]:
    """Return what the page says about training."""
    kinds = {"with penalty": 1, f"penalty every {PENALTY_EVERY}th step": PENALTY_EVERY, "without penalty": None}
    photos = IMAGENET * EPOCHS
    always, seldom = (hours_of_run(costs.training_stages(64, every), photos) for every in (1, PENALTY_EVERY))
    rows = {(gpus, f", {name}"): costs.training_stages(gpus, every) for name, every in kinds.items() for gpus in GPUS}
    return {
        "imagenet": f"{IMAGENET:,}",
        "epochs": f"{EPOCHS}",
        "batch": f"{BATCH}",
        "training": hours_table(rows, photos),
        "penalty_share": f"{100 * (1 - costs.train(None) / costs.train(1)):.0f}",
        "penalty_every": f"{PENALTY_EVERY}",
        "always_h": f"{always:.2g}",
        "seldom_h": f"{seldom:.2g}",
        "train_rate": f"{1 / costs.train(1):.0f}",
        "distances": {gpus: f"{4 * MEMBERS * (gpus * BATCH) ** 2 / 1e9:.2g}" for gpus in (*GPUS, 512)},
        "global_batch": f"{64 * BATCH:,}",
    }


def hours_table(rows: dict[tuple[int, str], list[Stage]], items: float) -> str:
    """Return the hours of each stage by itself and of the run, one row per number of GPUs and kind of work."""
    heads = ["", *(f"{stage.name}, h" for stage in next(iter(rows.values()))), "run, h", "GPU hours", "slowest"]
    cells = []
    for (gpus, what), stages in rows.items():
        each = [f"{stage.hours(items):.2g}" if stage.hours(items) >= 0.005 else "< 0.01" for stage in stages]
        run = hours_of_run(stages, items)
        cells.append([f"{gpus} GPUs{what}", *each, f"**{run:.2g}**", f"{float(f'{gpus * run:.2g}'):g}", slowest(stages)])
    return markdown_table(heads, cells)


def engine_table(run: dict[str, Any]) -> str:
    """Return the table for docs/scale.md: one row per engine."""
    heads = ["engine", "rows per second", "relative", "seconds with the start", "peak memory of a worker"]
    rows = []
    for each in [run["local"], *run["ray"]]:
        label = f"Ray, workers: {each['workers']}" if "workers" in each else "local, one thread"
        memory = f"{each['worker_peak_mb']:.0f} MB" if "worker_peak_mb" in each else ""
        rows.append([label, f"{each['rows_per_second']:,.0f}", f"{each['relative']}", f"{each['seconds']}", memory])
    return markdown_table(heads, rows)
