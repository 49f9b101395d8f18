"""Table 1: the methods, on FashionMNIST or CIFAR-10."""

from collections.abc import Iterable, Sequence

from experiments.benchmarks import benchmark_of
from experiments.runs import Run, reproduction_recipe

PAPER_METHODS = ("be-snn", "duq", "gaussian", "softmax")
FURTHER_METHODS = ("deep-ensemble", "batch-ensemble")


def table1_runs(
    in_name: str, seeds: Iterable[int], overrides: Sequence[str] = (), methods: Sequence[str] = PAPER_METHODS
) -> list[Run]:
    """Every method with every seed; seeds go round last, so that a table that is cut short has all methods.

    >>> [run.name for run in table1_runs("cifar10", seeds=[0])][:2]
    ['cifar10-be-snn-n4-seed0', 'cifar10-duq-seed0']
    """
    unknown = benchmark_of(in_name).unknown
    return [
        Run("table1", reproduction_recipe(in_name, method, seed, overrides), unknown) for seed in seeds for method in methods
    ]
