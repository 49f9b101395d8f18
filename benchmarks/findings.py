"""What a benchmark finds: figures, targets, and checks that what was timed is right."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from benchmarks.timing import Timing


@dataclass(frozen=True)
class Figure:
    """How long a piece of work takes.

    Attributes:
        work: what is done; figures of the same work stand side by side.
        method: by what, in the words of records (`be-snn`, `softmax`, ...).
        variant: how, in a few words.
        timing: of one pass.
        floor: seconds that no program on this machine goes below; None where that is not known.
        members: N.
    """

    work: str
    method: str
    variant: str
    timing: Timing
    floor: float | None = None
    members: int = 1

    def fields(self) -> dict[str, object]:
        """For a record, under the names that all records use."""
        names = {"work": self.work, "method": self.method, "variant": self.variant, "members": self.members}
        return names | asdict(self.timing) | {"floor_seconds": self.floor}


@dataclass(frozen=True)
class Target:
    """A promise about figures: `value` must not exceed `at_most`."""

    work: str
    claim: str
    value: float
    at_most: float

    def fields(self) -> dict[str, object]:
        """For a record."""
        return asdict(self) | {"met": self.met}

    @property
    def met(self) -> bool:
        """Whether it is kept."""
        return self.value <= self.at_most


@dataclass(frozen=True)
class Check:
    """A comparison of what was timed with a plain version of it: `error` must not exceed `at_most`."""

    work: str
    against: str
    error: float
    at_most: float

    def fields(self) -> dict[str, object]:
        """For a record."""
        return asdict(self) | {"passed": self.passed}

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return self.error <= self.at_most


@dataclass
class Findings:
    """All that some benchmarks found."""

    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, others: Iterable["Findings"]) -> "Findings":
        """These and others, in order."""
        for other in others:
            self.figures += other.figures
            self.targets += other.targets
            self.checks += other.checks
            self.left_out += other.left_out
        return self

    def seconds(self, work: str, method: str, variant: str | None = None) -> float:
        """The time of one figure, by what it is called."""
        return next(
            figure.timing.seconds
            for figure in self.figures
            if (figure.work, figure.method) == (work, method) and variant in (None, figure.variant)
        )
