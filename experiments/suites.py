"""Which runs an experiment is made of: Tables 1 and 3, the ablations, other settings of the baselines, and unseen classes."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from besnn.data import available
from besnn.recipe.methods import BESNNConfig
from experiments.detection import UNSEEN
from experiments.runs import Run, reproduction_recipe, task_of

PAPER_METHODS = ("be-snn", "duq", "gaussian", "softmax")
FURTHER_METHODS = ("deep-ensemble", "batch-ensemble")
ENSEMBLE_SIZES = (1, 2, 4, 8)
REFERENCE_SIZE = 4
"""The ensemble size whose batch times members all sizes of Table 3 keep."""
GRADIENT_WEIGHTS = (0.0, 0.1, 0.5, 1.0)
ENTROPY_ESTIMATORS = ("kl", "kpn")
PAPER_ENTROPY_WEIGHT = 1.0
KNOWN_CLASSES = 6

BASELINE_VARIANTS: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {
    "fashion-mnist": {
        "duq": {"30 epochs, as its authors train": ["training.epochs=30"]},
        "gaussian": {"margin 0.1": ["method.margin=0.1"], "30 epochs": ["training.epochs=30"]},
    },
    "cifar10": {
        "duq": {
            "75 epochs, as its authors train": [
                "training.epochs=75",
                "training.batch_size=128",
                "training.gradient_every=1",
                "training.optimiser.learning_rate=0.05",
            ]
        }
    },
}
"""Changes to the recipes of Table 1, by data set, method and name."""
TABLE_1_VARIANTS: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {
    "fashion-mnist": {},
    "cifar10": {
        "be-snn": {
            "from scratch": [
                "pretraining=null",
                "method.mirror=false",
                "method.sphere=true",
                "method.length_scale=0.3162",
                "method.class_scale=10",
                "method.entropy_weight=1",
                "method.gradient_weight=0",
                "training.epochs=80",
                "training.gradient_every=1",
                "training.ramps={}",
                "training.optimiser.learning_rate=0.2",
            ]
        }
    },
}
"""Further rows of Table 1: as the paper trains, without a plain network first and without mirror images."""


def table1_runs(
    in_name: str, seeds: Iterable[int], overrides: Sequence[str] = (), methods: Sequence[str] = PAPER_METHODS
) -> list[Run]:
    """Return Table 1's runs: every method with every seed, seed by seed, so that an unfinished table has all methods.

    >>> [run.name for run in table1_runs("cifar10", seeds=[0])][:2]
    ['cifar10-be-snn-n4-seed0', 'cifar10-be-snn-n4-from-scratch-seed0']
    """
    unknown = task_of(in_name).unknown
    variants = {method: {"": (), **TABLE_1_VARIANTS[in_name].get(method, {})} for method in methods}
    return [
        Run("table1", reproduction_recipe(in_name, method, seed, [*own, *overrides]), unknown, name)
        for seed in seeds
        for method in methods
        for name, own in variants[method].items()
    ]


def table3_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return Table 3's runs: every ensemble size with batch times members constant, and the largest with a larger batch.

    >>> runs = table3_runs("fashion-mnist", seeds=[0])
    >>> [(run.recipe.method.members, run.recipe.batch_size) for run in runs]
    [(1, 512), (2, 256), (4, 128), (8, 64), (8, 128)]
    >>> [run.recipe.training.batch_rows for run in table3_runs("cifar10", seeds=[0])]  # there each member sees its own inputs
    [512, 512, 512, 512, 1024]
    """
    reference = reproduction_recipe(in_name, "be-snn", 0, [*overrides, f"method.members={REFERENCE_SIZE}"])
    rows_per_member = reference.batch_size // reference.shares
    settings = [(size, REFERENCE_SIZE * rows_per_member, "") for size in ENSEMBLE_SIZES]
    settings.append((ENSEMBLE_SIZES[-1], ENSEMBLE_SIZES[-1] * rows_per_member, f"batch of N = {REFERENCE_SIZE}"))
    runs = []
    for seed in seeds:
        for members, rows, variant in settings:
            changes = [*overrides, f"method.members={members}", f"training.batch_rows={rows}"]
            recipe = reproduction_recipe(in_name, "be-snn", seed, changes)
            runs.append(Run("table3", recipe, task_of(in_name).unknown, variant))
    return runs


def ablation_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return the ablations: the gradient penalty's weight, the entropy term, and mirror images.

    Settings that amount to the same recipe are one run, under all their names. The paper's third ablation, tempered against
    plain softmax, needs no runs: each record of Table 3 holds both scores.

    >>> [run.variant for run in ablation_runs("fashion-mnist", seeds=[0])][:3]
    ['gradient weight 0.0', 'gradient weight 0.1, entropy by kpn', 'gradient weight 0.5']
    """
    base = reproduction_recipe(in_name, "be-snn", 0, overrides).method
    assert isinstance(base, BESNNConfig)
    weight = base.entropy_weight or PAPER_ENTROPY_WEIGHT
    settings = {f"gradient weight {value}": [f"method.gradient_weight={value}"] for value in GRADIENT_WEIGHTS}
    settings["no entropy term"] = ["method.entropy_weight=0"]
    for name in ENTROPY_ESTIMATORS:
        settings[f"entropy by {name}"] = [f"method.estimator={name}", f"method.entropy_weight={weight}"]
    if base.mirror:
        settings["no mirror images"] = ["method.mirror=false"]
    runs = []
    for seed in seeds:
        recipes = {name: reproduction_recipe(in_name, "be-snn", seed, [*overrides, *own]) for name, own in settings.items()}
        for name, recipe in recipes.items():
            same = [other for other in recipes if recipes[other] == recipe]
            if name == same[0]:
                runs.append(Run("ablations", recipe, task_of(in_name).unknown, ", ".join(same)))
    return runs


def baseline_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return runs of baselines with other settings than Table 1's, which may explain why they differ from the paper.

    >>> [run.name for run in baseline_runs("fashion-mnist", seeds=[0])][1:]
    ['fashion-mnist-gaussian-margin-0.1-seed0', 'fashion-mnist-gaussian-30-epochs-seed0']
    """
    unknown = task_of(in_name).unknown
    return [
        Run("baselines", reproduction_recipe(in_name, method, seed, [*own, *overrides]), unknown, name)
        for seed in seeds
        for method, variants in BASELINE_VARIANTS[in_name].items()
        for name, own in variants.items()
    ]


def near_ood_runs(
    in_name: str, seeds: Iterable[int], overrides: Sequence[str] = (), methods: Sequence[str] = PAPER_METHODS
) -> list[Run]:
    """Return every method trained on six classes, drawn anew for each seed; the other classes are one more OOD set.

    >>> run = near_ood_runs("cifar10", seeds=[0])[0]
    >>> len(run.recipe.data.classes), run.unknown
    (6, ('cifar10:unseen', 'svhn', 'cifar100-sample'))
    """
    unknown = (f"{in_name}:{UNSEEN}", *task_of(in_name).unknown)
    class_names = next(info.class_names for info in available() if info.name == in_name)
    runs = []
    for seed in seeds:
        known = sorted(np.random.default_rng(seed).permutation(class_names)[:KNOWN_CLASSES].tolist())
        for method in methods:
            recipe = reproduction_recipe(in_name, method, seed, [f"data.classes={json.dumps(known)}", *overrides])
            runs.append(Run("near-ood", recipe, unknown, f"{KNOWN_CLASSES} classes"))
    return runs


SUITES: dict[str, Callable[[str, Iterable[int], Sequence[str]], list[Run]]] = {
    "table3": table3_runs,
    "ablations": ablation_runs,
    "baselines": baseline_runs,
    "near-ood": near_ood_runs,
}
"""By experiment, the function that makes its runs; Table 1 has a command of its own."""
