"""Table 2: parameters, and the time of one forward pass of 500 images, of all methods in one go."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from benchmarks.timing import take_turns
from besnn.data import available
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing
from besnn.model.inference import GPU_TYPE
from besnn.training import Recipe, build_method
from besnn.training.device import make_fabric
from besnn.training.record import hardware, model_fields, provenance, write_record
from experiments.benchmarks import Benchmark, benchmark_of
from experiments.runs import Run, Workspace, reproduction_recipe

IMAGES = 500
PRECISION = str(GPU_TYPE).removeprefix("torch.")  # of the products on a GPU; a CPU takes them in float32


def time_methods(
    in_name: str,
    methods: Sequence[str],
    workspace: Workspace,
    *,
    overrides: Sequence[str] = (),
    rounds: int = 50,
) -> list[Run]:
    """Times the methods, taking turns so that a machine's moods meet all of them alike, and writes a record of each.

    What is timed is what a detector runs: from raw images on the device to the evidence for each class, see
    `besnn.model.InferenceNetwork`. The weights don't matter, so nothing is trained. `seconds` is the median over the rounds.

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
    device = make_fabric("tf32", workspace.accelerator).device
    # The paper's table is about FashionMNIST; a line about other data says so.
    where = hardware(device) if in_name == "fashion-mnist" else f"{hardware(device)}, {in_name}"
    runs = [Run("table2", reproduction_recipe(in_name, method, 0, overrides), variant=where) for method in methods]
    models = [_model(run.recipe, benchmark).to(device) for run in runs]
    images = torch.randint(0, 256, (IMAGES, *benchmark.input_shape), dtype=torch.uint8).to(device)
    with torch.inference_mode():
        passes = {run.name: _pass(model, images) for run, model in zip(runs, models, strict=True)}
        timings = take_turns(passes, device, rounds, burst=10 if device.type == "cuda" else 1)
    for run, model in zip(runs, models, strict=True):
        fields = {
            "experiment": run.experiment,
            "variant": run.variant,
            "in": run.in_name,
            "images": IMAGES,
            "precision": PRECISION if device.type == "cuda" else "fp32",
            **asdict(timings[run.name]),
            **model_fields(model, run.recipe),
            "provenance": provenance({}, device),
        }
        write_record(workspace.record(run), fields)
    return runs


def _model(recipe: Recipe, benchmark: Benchmark) -> OODClassifier:
    classes = next(len(info.class_names) for info in available() if info.name == benchmark.name)
    model, _ = build_method(recipe, benchmark.input_shape, classes)
    model.eval()
    model.freeze_classes()
    return model


def _pass(model: OODClassifier, images: Tensor) -> Callable[[], object]:
    channels = images.shape[1]
    preprocessing = Preprocessing(tuple(images.shape[1:]), torch.zeros(channels), torch.ones(channels))
    network = InferenceNetwork(model, preprocessing).to(images.device)
    return lambda: network(images)
