"""Rows on training: the steps of the trainer, batch after batch, as in any run."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.findings import CLASSES, FEATURES, Check, Figure, Findings, Setting, Target
from benchmarks.timing import EnoughError, StepClock, Timing, work_of
from besnn.data import Dataset
from besnn.layers import tile
from besnn.model import BESNN, Objective, OODClassifier, Preprocessing, fashion_convnet
from besnn.objective import BESNNObjective
from besnn.training import Recipe, RunOptions, Trainer, build_method, load_recipe
from besnn.training.batches import ArraySource
from besnn.training.device import make_fabric
from besnn.training.schedule import term_factors

WORK = "training step"
ALWAYS = "training.gradient_every=1"


def train_steps(setting: Setting) -> Findings:
    """Time a step of BE-SNN training with the gradient penalty at every step, without it, and as often as the recipe says."""
    work, every = f"{WORK}, batch of {setting.batch}", _recipe(setting).training.gradient_every
    lazily = f"penalty at one in {every}"
    findings = Findings(
        [
            _step(setting, work, "with the penalty", ALWAYS),
            _step(setting, work, "without it", ALWAYS, "method.gradient_weight=0"),
            _step(setting, work, lazily),
        ]
    )
    if setting.device.type == "cuda":
        claim = f"milliseconds per step, {lazily}"
        findings.targets.append(Target(work, claim, 1e3 * findings.seconds(work, "be-snn", lazily), 6.0))
    findings.checks.append(penalty_check(work, setting.device))
    return findings


def train_by_samples(setting: Setting) -> Findings:
    """Time a step as the number of class features grows."""
    work = f"{WORK} as M grows"
    few, many = (_step(setting, work, f"M = {samples}", ALWAYS, f"method.samples={samples}") for samples in setting.samples)
    claim = f"time with M = {setting.samples[1]} over M = {setting.samples[0]}"
    return Findings([few, many], [Target(work, claim, many.timing.seconds / few.timing.seconds, 1.3)])


def _step(setting: Setting, work: str, variant: str, *overrides: str) -> Figure:
    recipe = _recipe(setting, *overrides)
    return Figure(work, "be-snn", variant, _time_steps(setting, recipe), step_floor(setting, recipe), members=4)


def _recipe(setting: Setting, *overrides: str) -> Recipe:
    sizes = [f"training.batch_size={setting.batch}", f"backbone.widths={list(setting.widths)}", *setting.recipe]
    return load_recipe("fashion-mnist", ["method.members=4", "training.ramps={}", *sizes, *overrides])


def step_floor(setting: Setting, recipe: Recipe) -> float:
    """Return the least seconds of a step, averaged over a run: its operations, or reading weights and writing gradients."""
    model, objective = build_method(recipe, (1, 28, 28), CLASSES)
    model.to(setting.device).train()
    x = torch.rand(setting.batch, 1, 28, 28, device=setting.device)
    labels = torch.arange(setting.batch, device=setting.device) % CLASSES
    weights = list(model.parameters())

    def gradients(factors: Mapping[str, float]) -> None:
        torch.stack(list(objective(model, x, labels, factors).values())).sum().backward()

    every = recipe.training.gradient_every
    counts = Counter(tuple(term_factors(recipe.training, step, step / every).items()) for step in range(every))
    floors = {key: work_of(partial(gradients, dict(key)), x, *weights, *weights).floor(setting.rates) for key in counts}
    return sum(floors[key] * count for key, count in counts.items()) / every


def _time_steps(setting: Setting, recipe: Recipe) -> Timing:
    count = setting.batch * (_warm_up(setting) + setting.steps + 2) * recipe.training.gradient_every
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    dataset = Dataset(images, np.arange(count) % CLASSES, tuple(map(str, range(CLASSES))), "random", {})
    return time_trainer(setting, recipe, *build_method(recipe, (1, 28, 28), CLASSES), ArraySource(dataset, setting.device))


def time_trainer(setting: Setting, recipe: Recipe, model: OODClassifier, objective: Objective, source: ArraySource) -> Timing:
    """Time the steps of a training run, averaged over those with and without the gradient penalty."""
    every, warm_up = recipe.training.gradient_every, _warm_up(setting)
    fabric = make_fabric(recipe.training.precision, str(setting.device))
    clock = StepClock(setting.device, every, warm_up + setting.steps + 1)
    trainer = Trainer(recipe, model, objective, Preprocessing.fit(source.sample()), fabric, RunOptions(reporter=clock))
    with contextlib.suppress(EnoughError):
        trainer.fit(source)
    timed = itertools.pairwise(clock.marks[warm_up + 1 :])
    return Timing.of([(end - begin) / every for begin, end in timed])


def _warm_up(setting: Setting) -> int:
    return 8 if setting.device.type == "cuda" else setting.warm_up  # on a GPU the first few steps are recorded


def penalty_check(work: str, device: torch.device) -> Check:
    """Compare the gradient of the penalty in training with that of torch's plain double backward, in float64."""
    torch.manual_seed(0)
    model = BESNN(fashion_convnet(widths=(4, 4, 4)), CLASSES, FEATURES, members=2, noise_dim=8, hidden_dim=16)
    model.to(device, torch.float64)
    x = torch.randn(6, 1, 28, 28, dtype=torch.float64, device=device)
    objective = BESNNObjective(entropy_weight=0.0, gradient_weight=1.0)
    torch.manual_seed(1)
    fast = objective(model, x, torch.arange(6, device=device))["gradient"]
    torch.manual_seed(1)
    plain = _plain_penalty(model, x)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    got, expected = (torch.autograd.grad(penalty, parameters, materialize_grads=True) for penalty in (fast, plain))
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True) if b.abs().max() > 0]
    return Check(work, "the penalty's gradient by plain double backward in float64", max(errors), 1e-8)


def _plain_penalty(model: BESNN, x: Tensor) -> Tensor:
    rows = tile(x, model.members).requires_grad_()
    distances = model.distances_to(model.feature_rows(rows), model.class_features())
    (gradient,) = torch.autograd.grad(torch.exp(-distances).sum(), rows, create_graph=True)
    return (gradient.flatten(1).square().sum(1) - 1).square().mean()
