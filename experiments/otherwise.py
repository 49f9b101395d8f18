"""Baselines trained otherwise than Table 1 has them: whether that is why they differ from the paper's figures."""

from collections.abc import Iterable, Mapping, Sequence

from experiments.benchmarks import benchmark_of
from experiments.runs import Run, reproduction_recipe

OTHERWISE: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {
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
"""Changes to the recipes of Table 1, by data set, method and what to call them."""


def otherwise_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Every change with every seed. They explain; nothing is chosen by them.

    >>> [run.name for run in otherwise_runs("fashion-mnist", seeds=[0])][1:]
    ['fashion-mnist-gaussian-margin-0.1-seed0', 'fashion-mnist-gaussian-30-epochs-seed0']
    """
    return [
        Run(
            "baselines",
            reproduction_recipe(in_name, method, seed, [*own, *overrides]),
            benchmark_of(in_name).unknown,
            name,
        )
        for seed in seeds
        for method, changes in OTHERWISE[in_name].items()
        for name, own in changes.items()
    ]
