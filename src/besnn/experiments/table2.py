"""Table 2: parameters, and the time of one forward pass of 500 images, of all methods in one go."""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from besnn.data import available
from besnn.experiments.benchmarks import Benchmark, benchmark_of
from besnn.experiments.runs import Run, Workspace, reproduction_recipe
from besnn.model import InferenceNetwork, Preprocessing
from besnn.training import Recipe, build_method
from besnn.training.fabric import make_fabric
from besnn.training.provenance import hardware, provenance
from besnn.training.record import model_fields, write_record

IMAGES = 500
PRECISION = "tf32"  # on a GPU; a CPU has no such mode


def time_methods(
    in_name: str,
    methods: Sequence[str],
    workspace: Workspace,
    *,
    overrides: Sequence[str] = (),
    rounds: int = 50,
) -> list[Run]:
    """Times the methods, taking turns so that a machine's moods meet all of them alike, and writes a record of each.

    What is timed is what a detector runs: from raw images on the device to the evidence for each class, with ensembles folded
    and class features kept. The weights don't matter, so nothing is trained. `seconds` is the median over the rounds.

    Args:
        in_name: the benchmark whose networks and image sizes are meant.
        methods: which methods.
        workspace: where records go, and what to run on.
        overrides: to every recipe.
        rounds: passes of each method.

    Returns:
        The methods as runs, by whose names the records are called.
    """
    benchmark = benchmark_of(in_name)
    device = make_fabric(PRECISION, workspace.accelerator).device
    # The paper's table is about FashionMNIST; a line about other data says so.
    where = hardware(device) if in_name == "fashion-mnist" else f"{hardware(device)}, {in_name}"
    runs = [Run("table2", reproduction_recipe(in_name, method, 0, overrides), variant=where) for method in methods]
    networks = [_network(run.recipe, benchmark).to(device) for run in runs]
    images = torch.randint(0, 256, (IMAGES, *benchmark.input_shape), dtype=torch.uint8).to(device)
    seconds = _take_turns(networks, images, rounds)
    for run, network, passes in zip(runs, networks, seconds, strict=True):
        fields = {
            "experiment": run.experiment,
            "variant": run.variant,
            "in": run.in_name,
            "images": IMAGES,
            "precision": PRECISION if device.type == "cuda" else "fp32",
            "rounds": rounds,
            "seconds": statistics.median(passes),
            "quartiles": statistics.quantiles(passes, n=4),
            **model_fields(network.model, run.recipe),
            "provenance": provenance({}, device),
        }
        write_record(workspace.record(run), fields)
    return runs


def _network(recipe: Recipe, benchmark: Benchmark) -> InferenceNetwork:
    classes = next(len(info.class_names) for info in available() if info.name == benchmark.name)
    model, _ = build_method(recipe, benchmark.input_shape, classes)
    model.eval()
    model.freeze_classes()
    channels = benchmark.input_shape[0]
    return InferenceNetwork(model, Preprocessing(benchmark.input_shape, torch.zeros(channels), torch.ones(channels)))


@torch.inference_mode()
def _take_turns(networks: Sequence[InferenceNetwork], images: Tensor, rounds: int, warm_up: int = 3) -> list[list[float]]:
    """Seconds of each pass, by network."""
    seconds: list[list[float]] = [[] for _ in networks]
    for turn in range(warm_up + rounds):
        for network, passes in zip(networks, seconds, strict=True):
            _synchronise(images.device)
            began = time.perf_counter()
            network(images)
            _synchronise(images.device)
            if turn >= warm_up:
                passes.append(time.perf_counter() - began)
    return seconds


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
