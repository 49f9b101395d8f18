"""The pairs of data sets that the paper reports on."""

from dataclasses import dataclass

from besnn.errors import InputError


@dataclass(frozen=True)
class Benchmark:
    """An in-distribution set and the sets to tell it apart from, all by their built-in names.

    Attributes:
        name: the in-distribution set; the recipe that is trained on it has the same name.
        unknown: the OOD sets.
        input_shape: of one image, `(channels, h, w)`.
        score: what BE-SNN is reported by beside its paper's score, fixed before any test data is seen.
        held_out: share of the training set that scores are combined against; no network learns from it.
    """

    name: str
    unknown: tuple[str, ...]
    input_shape: tuple[int, int, int]
    score: str
    held_out: float = 0.0


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("fashion-mnist", ("mnist", "not-mnist"), (1, 28, 28), "nearest-neighbour"),
        Benchmark("cifar10", ("svhn",), (3, 32, 32), "combined", held_out=0.02),
    )
}


def benchmark_of(in_name: str) -> Benchmark:
    """The benchmark of an in-distribution set.

    >>> benchmark_of("cifar10").unknown
    ('svhn',)
    """
    if in_name not in BENCHMARKS:
        raise InputError(f"no benchmark is called {in_name!r}: use one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[in_name]
