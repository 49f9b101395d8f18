"""Table 3: the ensemble size, with batch · members constant; and whether N = 8 is held back by the smaller batch."""

from collections.abc import Iterable, Sequence

from experiments.benchmarks import benchmark_of
from experiments.runs import Run, reproduction_recipe

SIZES = (1, 2, 4, 8)
REFERENCE = 4
"""The size whose batch, times its members, all sizes keep."""


def table3_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Every size with every seed, and the largest once more with the batch of the reference.

    >>> runs = table3_runs("fashion-mnist", seeds=[0])
    >>> [(run.recipe.method.members, run.recipe.batch_size) for run in runs]
    [(1, 512), (2, 256), (4, 128), (8, 64), (8, 128)]
    >>> [run.recipe.training.batch_rows for run in table3_runs("cifar10", seeds=[0])]  # members see inputs of their own there
    [512, 512, 512, 512, 1024]
    """
    reference = reproduction_recipe(in_name, "be-snn", 0, [*overrides, f"method.members={REFERENCE}"])
    of_a_member = reference.batch_size // reference.shares
    settings = [(size, REFERENCE * of_a_member, "") for size in SIZES]
    settings.append((SIZES[-1], SIZES[-1] * of_a_member, f"batch of N = {REFERENCE}"))
    return [
        Run(
            "table3",
            reproduction_recipe(
                in_name, "be-snn", seed, [*overrides, f"method.members={members}", f"training.batch_rows={rows}"]
            ),
            benchmark_of(in_name).unknown,
            variant,
        )
        for seed in seeds
        for members, rows, variant in settings
    ]
