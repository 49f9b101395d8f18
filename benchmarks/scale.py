"""Makes docs/scale.md from benchmarks/scale.md.j2 and records of measurements.

    python benchmarks/scale_page.py [--costs results/scale_costs.json] [--scoring results/ray_scoring.json]

The first record is that of benchmarks/scale_costs.py, from which benchmarks/scale_model.py computes; the second that of
benchmarks/ray_scoring.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import scale_model as model
from benchmarks.scale_model import Costs, Stage, hours_of_run, slowest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scale.md"
COSTS, SCORING = ROOT / "results" / "scale_costs.json", ROOT / "results" / "ray_scoring.json"
GPUS = 8, 64
PENALTY_EVERY = 4


def page(costs: Path = COSTS, scoring: Path = SCORING) -> str:
    """The page's text."""
    known = Costs(**json.loads(costs.read_text(encoding="utf-8")))
    run = json.loads(scoring.read_text(encoding="utf-8"))
    if not run["equal"]:
        raise SystemExit(f"{scoring}: the engines' outputs differ")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["thousands"] = "{:,}".format
    figures = on_costs(known) | on_scoring(known) | on_training(known)
    return environment.get_template("scale.md.j2").render(run=run, engines=engines(run), **figures)


def on_costs(costs: Costs) -> dict[str, str]:
    core, gpu = costs.core, costs.gpu
    return {
        "gpu_name": gpu["provenance"]["hardware"],
        "score_us": f"{gpu['score_small'] * 1e6:.2g}",
        "train_us": f"{gpu['train_small'] * 1e6:.3g}",
        "plain_us": f"{gpu['train_small_without_penalty'] * 1e6:.2g}",
        "times": f"{model.RESNET18 / model.CONVNET:.0f}",
        "photo_ms": f"{core['decode_photo'] * 1e3:.2g}",
        "photo_kb": f"{core['photo_bytes'] / 1e3:.0f}",
        "png_us": f"{core['decode_small'] * 1e6:.2g}",
        "list_us": f"{core['list_file'] * 1e6:.2g}",
        "core_rate": f"{1 / core['score_small']:.0f}",
        "gpu_rate": f"{1 / gpu['score_small']:,.0f}",
        "chunk_ms": f"{costs.driver['chunk'] * 1e3:.2g}",
        "cores": f"{model.CORES_PER_GPU}",
        "storage": f"{model.STORAGE / 1e9:.0f}",
        "network": f"{model.NETWORK / 1e9:.0f}",
    }


def on_scoring(costs: Costs) -> dict[str, str]:
    core, photo, small = costs.core, costs.score(model.RESNET18), costs.score(model.CONVNET)
    tables = {"photos": ("photo", 1), "folders": ("photo", 16), "small": ("small", 1), "arrays": ("array", 1)}
    fed = max(photo, core["decode_photo"] / model.CORES_PER_GPU)  # a photo's time on a GPU and its cores
    return {
        name: hours({(gpus, ""): costs.scoring_stages(kind, gpus, listers) for gpus in GPUS}, model.IMAGES)
        for name, (kind, listers) in tables.items()
    } | {
        "scores_gb": f"{model.IMAGES * core['row_bytes'] / 1e9:.0f}",
        "parts": f"{model.IMAGES / model.CHUNK:,.0f}",
        "listing_gpus": f"{fed / core['list_file']:.0f}",
        "list_rate": f"{1 / core['list_file']:,.0f}",
        "decoding_cores": f"{core['decode_photo'] / photo:.1f}",
        "storage_gpus": f"{fed / core['photo_bytes'] * model.STORAGE:.0f}",
        "bound_by": "decoding" if fed > photo else "the GPUs",
        "png_scores": f"{core['decode_small'] / small:.0f}",
        "driver_gpus": f"{small * model.CHUNK / costs.driver['chunk']:.0f}",
    }


def on_training(costs: Costs) -> dict[str, Any]:
    kinds = {"with penalty": 1, f"penalty every {PENALTY_EVERY}th step": PENALTY_EVERY, "without penalty": None}
    photos = model.IMAGENET * model.EPOCHS
    always, seldom = (hours_of_run(costs.training_stages(64, every), photos) for every in (1, PENALTY_EVERY))
    rows = {(gpus, f", {name}"): costs.training_stages(gpus, every) for name, every in kinds.items() for gpus in GPUS}
    return {
        "imagenet": f"{model.IMAGENET:,}",
        "epochs": f"{model.EPOCHS}",
        "batch": f"{model.BATCH}",
        "training": hours(rows, photos),
        "penalty_share": f"{100 * (1 - costs.train(None) / costs.train(1)):.0f}",
        "penalty_every": f"{PENALTY_EVERY}",
        "always_h": f"{always:.2g}",
        "seldom_h": f"{seldom:.2g}",
        "train_rate": f"{1 / costs.train(1):.0f}",
        "distances": {gpus: f"{4 * model.MEMBERS * (gpus * model.BATCH) ** 2 / 1e9:.2g}" for gpus in (*GPUS, 512)},
        "global_batch": f"{64 * model.BATCH:,}",
    }


def engines(run: dict[str, Any]) -> str:
    """How fast the engines were, one row each."""
    heads = ["engine", "rows a second", "relative", "seconds with the start", "peak memory of a worker"]
    rows = []
    for each in [run["local"], *run["ray"]]:
        label = f"Ray, workers: {each['workers']}" if "workers" in each else "local, one thread"
        memory = f"{each['worker_peak_mb']:.0f} MB" if "worker_peak_mb" in each else ""
        rows.append([label, f"{each['rows_per_second']:,.0f}", f"{each['relative']}", f"{each['seconds']}", memory])
    return markdown(heads, rows)


def hours(rows: dict[tuple[int, str], list[Stage]], items: float) -> str:
    """Hours of each stage by itself and of the run, by the number of GPUs and what they do."""
    heads = ["", *(f"{stage.name}, h" for stage in next(iter(rows.values()))), "run, h", "GPU hours", "slowest"]
    cells = []
    for (gpus, what), stages in rows.items():
        each = [f"{stage.hours(items):.2g}" if stage.hours(items) >= 0.005 else "< 0.01" for stage in stages]
        run = hours_of_run(stages, items)
        cells.append([f"{gpus} GPUs{what}", *each, f"**{run:.2g}**", f"{float(f'{gpus * run:.2g}'):g}", slowest(stages)])
    return markdown(heads, cells)


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--costs", type=Path, default=COSTS)
    parser.add_argument("--scoring", type=Path, default=SCORING)
    arguments = parser.parse_args()
    PAGE.write_text(page(arguments.costs, arguments.scoring), encoding="utf-8")
