"""Rows on growth: as classes, pixels or stored features become more, time should grow no faster than the work."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks.findings import CLASSES, FEATURES, Figure, Findings, Setting, Target
from benchmarks.scoring import MEMBERS, AsUsersScore, floor_of, images_for
from benchmarks.timing import Work, take_turns
from besnn.detection import NearestNeighbourDensity
from besnn.model import BESNN, InferenceNetwork, Preprocessing
from besnn.model.backbones import small_resnet

DIMENSIONS, QUERIES, NEIGHBOUR = 128, 500, 20
PHOTOS = 32  # in a batch of images of growing size

Runs = dict[str, tuple[Callable[[], object], float]]
"""What to time, with its floor, by what grows."""


@torch.inference_mode()
def score_by_classes(setting: Setting) -> Findings:
    """Time the method's score as classes become more."""
    raw, runs = images_for(setting, setting.images), Runs()
    for classes in setting.classes:
        model = BESNN(setting.network(), classes, FEATURES, MEMBERS).to(setting.device).eval()
        scorer = AsUsersScore(model, setting)
        runs[f"C = {classes}"] = _with_floor(scorer, scorer.weights, raw, setting)
    return _time(f"score {setting.images} images as C grows", "be-snn", runs, setting)


@torch.inference_mode()
def score_by_pixels(setting: Setting) -> Findings:
    """Time the default network for images of a user's own as they become larger."""
    runs: Runs = {}
    for side in setting.sides:
        shape = (3, side, side)
        model = BESNN(small_resnet(shape), CLASSES, 64, MEMBERS).to(setting.device).eval()
        network = InferenceNetwork(
            model, Preprocessing(shape, torch.full((3,), 128.0), torch.full((3,), 64.0)).to(setting.device)
        )
        raw = torch.randint(0, 256, (PHOTOS, *shape), dtype=torch.uint8).to(setting.device)
        runs[f"{side}x{side}"] = _with_floor(network, network.extractors, raw, setting)
    return _time(f"score {PHOTOS} images as they grow", "be-snn", runs, setting)


@torch.inference_mode()
def neighbours_by_rows(setting: Setting) -> Findings:
    """Time the nearest-neighbour density as stored features become more."""
    queries, runs = torch.randn(1, QUERIES, DIMENSIONS, device=setting.device), Runs()
    for rows in setting.rows:
        density = NearestNeighbourDensity(k=NEIGHBOUR).fit(torch.randn(1, rows, DIMENSIONS, device=setting.device))
        least = Work(2.0 * rows * QUERIES * DIMENSIONS, 4.0 * (rows + QUERIES) * DIMENSIONS).floor(setting.rates)
        runs[f"{rows:,} stored"] = partial(density.score, queries), least
    return _time(f"{QUERIES} features against more and more, {DIMENSIONS} dimensions", "nearest-neighbour", runs, setting)


def _with_floor(
    run: Callable[[Tensor], object], weights: torch.nn.Module, raw: Tensor, setting: Setting
) -> tuple[Callable[[], object], float]:
    return partial(run, raw), floor_of(partial(run, raw), weights, raw, setting)


def _time(work: str, method: str, runs: Mapping[str, tuple[Callable[[], object], float]], setting: Setting) -> Findings:
    timings = take_turns(
        {name: run for name, (run, _) in runs.items()}, setting.device, min(setting.rounds, 10), setting.warm_up, setting.burst
    )
    members = MEMBERS if method == "be-snn" else 1
    figures = [Figure(work, method, name, timings[name], floor, members) for name, (_, floor) in runs.items()]
    first, *_, last = (timings[name].seconds / floor for name, (_, floor) in runs.items())
    claim = f"growth of time over growth of the floor, {figures[0].variant} to {figures[-1].variant}"
    return Findings(figures, [Target(work, claim, last / first, 1.0)])
