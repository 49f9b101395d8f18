"""The first hour with a folder of images: `besnn train` beside what one would write oneself.

Four rows per task: the default of `besnn train`; a plain network of the same size, with the same augmentation and all of the
images; a convolutional network in 40 lines of torch; and a classical detector on the pixels. The plain networks score by energy
(Liu et al. 2020) and by the 10th nearest neighbour among the training features (Sun et al. 2022).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.documents import RESULTS, Table, bench_record
from benchmarks.first_hour_tasks import NEAR, TASKS, Images, Task
from besnn.detection import NearestNeighbourDensity
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model import Preprocessing
from besnn.recipe.config import AugmentConfig
from besnn.recipe.reading import load_recipe, method_overrides
from besnn.training import make_fabric
from besnn.training.augmentation import augment
from besnn.training.fit import fit_detector
from besnn.training.record import read_record, write_record

FOLDER = "bench/first-hour"
BESNN, PLAIN, TORCH, PIXELS = (
    "besnn train",
    "plain network, all images",
    "40 lines of torch, all images",
    "PCA and LOF on pixels",
)
ENERGY, NEIGHBOUR = "energy", "nearest neighbour"
NEIGHBOURS, EPOCHS = 10, 30

Scores = NDArray[np.float32]
Figures = dict[str, dict[str, float]]


def measure(name: str, seed: int, data_dir: Path | None, device: str = "auto", overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the record of one task and seed."""
    task = TASKS[name].make(seed, data_dir)
    settings = ["data.image=null", f"training.seed={seed}", *overrides]
    fields: dict[str, Any] = {
        "task": name,
        "seed": seed,
        "images": len(task.training),
        "classes": list(task.training.class_names),
    }
    detector, seconds = _train(task, settings, device)
    assert detector.recipe is not None
    fields["recipe"] = detector.recipe.model_dump(mode="json")
    fields["made_up"] = detector.provenance.get("score_choice")
    flags = {of: float(detector.predict(images).is_ood.mean()) for of, images in _sets(task).items()}
    rows = {BESNN: _row(task, lambda x: detector.predict(x).indices, detector.scores, seconds, _count(detector.model))}
    rows[BESNN] |= {"default": detector.scoring.name, "flagged": flags}
    rows[PLAIN] = _plain_network(task, settings, detector.recipe.training.augment, device)
    if task.training.inputs.shape[2] <= 32:  # it has nothing to shrink larger images with, and would take four times as long
        rows[TORCH] = _torch_network(task, detector.recipe.training.augment, seed, detector.device)
    rows[PIXELS] = _pixel_detector(task)
    return bench_record(FOLDER, fields | {"rows": rows}, detector.device, dict(task.training.hashes))


def _train(task: Task, settings: Sequence[str], device: str) -> tuple[Detector, float]:
    recipe = load_recipe("images", settings)
    began = time.perf_counter()
    detector = fit_detector(recipe, task.training, fabric=make_fabric(recipe.training.precision, device)).detector
    return detector, time.perf_counter() - began


def _plain_network(task: Task, settings: Sequence[str], augmentation: AugmentConfig, device: str) -> dict[str, Any]:
    """Train the recipe's network as a plain softmax network on all images; nothing is held out."""
    recipe = load_recipe("images", settings)
    plain = [*settings, *method_overrides(recipe, "softmax"), "data.validation=0", "data.calibration=0", "score.name=method"]
    detector, seconds = _train(task, [*plain, f"training.augment={augmentation.model_dump_json()}"], device)

    def outputs(images: Images) -> tuple[Tensor, Tensor]:
        parts = list(detector.outputs(images, "trunk"))
        return torch.cat([logits[0] for logits, _ in parts]), torch.cat([features[0] for _, features in parts])

    return _network_row(task, outputs, seconds, _count(detector.model))


def _torch_network(task: Task, augmentation: AugmentConfig, seed: int, device: torch.device) -> dict[str, Any]:
    """Train a convolutional network with no help from besnn but its augmentation."""
    torch.manual_seed(seed)
    images = torch.from_numpy(task.training.inputs).to(device)
    labels = torch.from_numpy(np.asarray(task.training.labels)).to(device)
    preprocessing = Preprocessing.fit(images.cpu()).to(device)
    body = nn.Sequential(*_three_stages(images.shape[1]), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(device)
    head = nn.Linear(128, len(task.training.class_names)).to(device)
    optimiser = torch.optim.SGD(
        [*body.parameters(), *head.parameters()], momentum=0.9, nesterov=True, weight_decay=1e-3, lr=0.1
    )
    steps = EPOCHS * (len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.1, total_steps=steps)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), device=device).split(64)[: len(images) // 64]:
            x = augment(preprocessing(images[rows]), augmentation).contiguous(memory_format=torch.channels_last)
            optimiser.zero_grad()
            F.cross_entropy(head(body(x)), labels[rows]).backward()
            optimiser.step()
            schedule.step()
    seconds = time.perf_counter() - began
    body.eval()

    def outputs(batch: Images) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            parts = [body(preprocessing(part.to(device))) for part in torch.from_numpy(np.ascontiguousarray(batch)).split(500)]
            return head(torch.cat(parts)), torch.cat(parts)

    return _network_row(task, outputs, seconds, _count(body) + _count(head))


def _three_stages(channels: int) -> Iterator[nn.Module]:
    for width in (32, 64, 128):
        for inputs in (channels, width):
            yield from (nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        yield nn.MaxPool2d(2)
        channels = width


def _network_row(
    task: Task, outputs: Callable[[Images], tuple[Tensor, Tensor]], seconds: float, parameters: int
) -> dict[str, Any]:
    neighbours = NearestNeighbourDensity(NEIGHBOURS).fit(outputs(task.training.inputs)[1][None])

    def scores(images: Images) -> dict[str, Scores]:
        logits, features = outputs(images)
        found = {ENERGY: -logits.logsumexp(dim=1), NEIGHBOUR: neighbours.score(features[None])}
        return {name: score.float().cpu().numpy() for name, score in found.items()}

    return _row(task, lambda images: outputs(images)[0].argmax(dim=1).cpu().numpy(), scores, seconds, parameters)


def _pixel_detector(task: Task) -> dict[str, Any]:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import LocalOutlierFactor

    began = time.perf_counter()
    flat = [task.training.inputs.reshape(len(task.training), -1) / 255]
    reduce = PCA(50, random_state=0).fit(flat[0])
    factor = LocalOutlierFactor(novelty=True).fit(reduce.transform(flat[0]))
    seconds = time.perf_counter() - began

    def scores(images: Images) -> dict[str, Scores]:
        return {"LOF": -factor.score_samples(reduce.transform(images.reshape(len(images), -1) / 255)).astype(np.float32)}

    return _row(task, None, scores, seconds, 0)


def _row(
    task: Task,
    classify: Callable[[Images], NDArray[np.int64]] | None,
    scores: Callable[[Images], Mapping[str, Scores]],
    seconds: float,
    parameters: int,
) -> dict[str, Any]:
    """Return accuracy, and AUROC and FPR95 of each score on each unknown set, `{score: {set: figures}}`."""
    known = scores(task.test.inputs)
    figures: dict[str, Figures] = {name: {} for name in known}
    for of, images in task.unknown.items():
        for name, strange in scores(images).items():
            full = ood_metrics(known[name], strange)
            figures[name][of] = {"auroc": round(full["auroc"], 4), "fpr95": round(full["fpr95"], 4)}
    accuracy = None if classify is None else float(np.mean(classify(task.test.inputs) == task.test.labels))
    return {"accuracy": accuracy, "seconds": round(seconds, 2), "parameters": parameters, "scores": figures}


def _sets(task: Task) -> dict[str, Images]:
    return {"known": task.test.inputs, **task.unknown}


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def write_records(
    tasks: Sequence[str], seeds: Sequence[int], data_dir: Path | None, device: str, results: Path, say: Callable[[str], None]
) -> None:
    """Measure what has no record yet, `results/bench/first-hour/<task>-seed<seed>.json`."""
    for seed in seeds:
        for name in tasks:
            path = results / FOLDER / f"{name}-seed{seed}.json"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            write_record(path, measure(name, seed, data_dir, device))
            say(f"wrote {path}")


def first_hour_tables(results: Path = RESULTS) -> list[Table]:
    """Return a table per task: mean and standard deviation over seeds."""
    records = [read_record(path) for path in sorted((results / FOLDER).glob("*.json"))]
    names = [name for name in TASKS if any(record["task"] == name for record in records)]
    return [_table(name, [record for record in records if record["task"] == name]) for name in names]


def _table(name: str, records: Sequence[Mapping[str, Any]]) -> Table:
    sets = list(TASKS[name].far)
    rows = []
    for row, first in records[0]["rows"].items():
        default = first.get("default")
        for score in [default] if default else list(first["scores"]):
            accuracies = [record["rows"][row]["accuracy"] for record in records]
            cells = [_figures(records, row, score, of) for of in (NEAR, *sets)]
            accuracy = "" if accuracies[0] is None else _spread([100 * value for value in accuracies], 1)
            rows.append((f"{row}, {score}", accuracy, *cells))
    count = len(records)
    seeds = f"Mean ± standard deviation over {count} seed{'s' if count > 1 else ''}, each with images of its own"
    known = ", ".join(records[0]["classes"])
    note = f"{seeds}; AUROC / FPR95. {records[0]['images']:,} training images of {known}."
    return Table(f"First hour: {name}", ("detector, score", "accuracy, %", NEAR, *sets), rows, note)


def _figures(records: Sequence[Mapping[str, Any]], row: str, score: str, of: str) -> str:
    found = [record["rows"][row]["scores"][score][of] for record in records]
    auroc = _spread([each["auroc"] for each in found], 3)
    return f"{auroc} / {np.mean([each['fpr95'] for each in found]):.2f}"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"
