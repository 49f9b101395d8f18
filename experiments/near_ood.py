"""Outliers nearer than another data set: classes of the same set that training never showed."""

import json
from collections.abc import Iterable, Sequence

import numpy as np

from besnn.data import available
from experiments.benchmarks import benchmark_of
from experiments.detection import UNSEEN
from experiments.runs import Run, reproduction_recipe
from experiments.table1 import PAPER_METHODS

KNOWN_CLASSES = 6


def near_ood_runs(
    in_name: str, seeds: Iterable[int], overrides: Sequence[str] = (), methods: Sequence[str] = PAPER_METHODS
) -> list[Run]:
    """Every method on six of the classes, which each seed draws anew; the other classes' test images are one OOD set more.

    >>> run = near_ood_runs("cifar10", seeds=[0])[0]
    >>> len(run.recipe.data.classes), run.unknown
    (6, ('cifar10:unseen', 'svhn'))
    """
    unknown = (f"{in_name}:{UNSEEN}", *benchmark_of(in_name).unknown)
    class_names = next(info.class_names for info in available() if info.name == in_name)
    runs = []
    for seed in seeds:
        known = sorted(np.random.default_rng(seed).permutation(class_names)[:KNOWN_CLASSES].tolist())
        for method in methods:
            recipe = reproduction_recipe(in_name, method, seed, [f"data.classes={json.dumps(known)}", *overrides])
            runs.append(Run("near-ood", recipe, unknown, f"{KNOWN_CLASSES} classes"))
    return runs
