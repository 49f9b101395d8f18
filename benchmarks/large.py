"""The row on a large network: what an ensemble of four costs beside the plain network, for images of photographs' size."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.findings import CLASSES, Figure, Findings, Setting, Target
from benchmarks.scoring import MEMBERS
from benchmarks.timing import Timing, take_turns
from benchmarks.training import time_trainer
from besnn.data import Dataset
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing
from besnn.model.inference import GPU_TYPE
from besnn.recipe.reading import method_overrides
from besnn.training import Recipe, build_method, load_recipe
from besnn.training.batches import ArraySource

FEATURES = 2048
MANY_EPOCHS = 1000  # of a few images


def train_and_score_large(setting: Setting) -> Findings:
    """Time training steps and scoring with torchvision's ResNet-50."""
    try:
        from torchvision.models import resnet50
    except ImportError:
        return Findings(left_out=["ResNet-50: torchvision is not installed"])
    network = resnet50()
    network.fc = nn.Identity()
    return compare_large(setting, "ResNet-50", network, FEATURES)


def compare_large(setting: Setting, name: str, network: nn.Module, feature_dim: int) -> Findings:
    """Compare a BE-SNN whose members share the batch with a softmax network of the same layers."""
    count, side = setting.photos
    sizes = f"{count} images of {side} x {side} pixels, {name}"
    images = np.random.default_rng(0).integers(0, 256, (2 * count, 3, side, side), dtype=np.uint8)
    labels, classes = np.arange(len(images)) % CLASSES, tuple(map(str, range(CLASSES)))
    source = ArraySource(Dataset(images, labels, classes, "random", {}), setting.device)
    preprocessing = Preprocessing.fit(source.sample()).to(setting.device)
    training, scoring = f"training step, {sizes}", f"score {sizes}"
    findings, memory = Findings(), dict[str, int]()
    runs: dict[tuple[str, str, int], Callable[[], object]] = {}
    for method, members, own in (("softmax", 1, "plain"), ("be-snn", MEMBERS, "own inputs")):
        recipe = _recipe(count, feature_dim, method)
        model, timing, memory[method] = _train(setting, recipe, source, network)
        findings.figures.append(Figure(training, method, own, timing, members=members))
        runs[method, "by besnn", members] = partial(InferenceNetwork(model.eval(), preprocessing), source.inputs[:count])
        if method == "softmax":
            runs[method, "eager", 1] = partial(_eager, model.eval(), preprocessing, source.inputs[:count])
    with torch.inference_mode():
        timings = take_turns(
            {str(key): run for key, run in runs.items()}, setting.device, min(setting.rounds, 10), setting.warm_up
        )
    findings.figures += [Figure(scoring, *key[:2], timings[str(key)], members=key[2]) for key in runs]
    plain, ensemble = (findings.seconds(training, method) for method in ("softmax", "be-snn"))
    findings.targets.append(Target(training, "time over the plain network's", ensemble / plain, 1.2))
    if setting.device.type == "cuda":
        share = memory["be-snn"] / memory["softmax"]
        findings.targets.append(Target(training, "peak memory over the plain network's", share, 1.2))
    per_member = findings.seconds(scoring, "be-snn") / MEMBERS / findings.seconds(scoring, "softmax", "by besnn")
    findings.targets.append(Target(scoring, "a member's time over the plain network's", per_member, 1.0))
    return findings


def _recipe(count: int, feature_dim: int, method: str) -> Recipe:
    recipe = load_recipe("cifar10")
    same = ["pretraining=null", f"backbone.feature_dim={feature_dim}", "training.precision=bf16"]
    same += [f"training.batch_rows={count}", f"training.epochs={MANY_EPOCHS}"]
    own = method_overrides(recipe, method) or ["training.ramps={}", "method.mirror=false"]
    return load_recipe("cifar10", [*own, *same])


def _train(setting: Setting, recipe: Recipe, source: ArraySource, network: nn.Module) -> tuple[OODClassifier, Timing, int]:
    """Return the network after some steps, how long they took, and the most memory that they held on a GPU."""
    if setting.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(setting.device)
    model, objective = build_method(recipe, tuple(source.inputs.shape[1:]), CLASSES, network)
    timing = time_trainer(setting, recipe, model, objective, source)
    return model, timing, torch.cuda.max_memory_allocated(setting.device) if setting.device.type == "cuda" else 0


def _eager(model: OODClassifier, preprocessing: Preprocessing, raw: Tensor) -> Tensor:
    with torch.autocast(raw.device.type, GPU_TYPE, enabled=raw.is_cuda):
        return model.evidence(model.features(preprocessing(raw)))
