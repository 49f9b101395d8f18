"""The schema of the records of all runs, `results/<experiment>/<run>.json`, and how they are read and averaged."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.documents import BENCH
from besnn.errors import DataError
from besnn.evaluation.result import method_name
from besnn.training.record import read_record
from experiments.paper import Spread

NOT_MEASURED = float("nan")


class Setting(NamedTuple):
    """What is averaged over seeds: one method in one setting of one experiment.

    `variant` says in a few words what distinguishes settings that share the rest, such as the sides of an ablation or the
    hardware of a timing.
    """

    experiment: str
    in_name: str
    method: str
    members: int
    variant: str = ""

    @property
    def description(self) -> str:
        """The method with its members and variant, as tables show it."""
        members = f", N = {self.members}" if self.members > 1 or self.method == "be-snn" else ""
        return f"{method_name(self.method)}{members}" + (f", {self.variant}" if self.variant else "")


class Ring(BaseModel):
    """The mean confidence in a ring around the training data (Figure 1)."""

    model_config = ConfigDict(frozen=True)
    inner: float
    outer: float
    mean_confidence: float


class Record(BaseModel):
    """One run. The last fields are those of one experiment each; fields that no table shows are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    experiment: str
    in_name: str = Field(alias="in")
    method: str
    members: int
    seed: int
    parameters: int
    seconds: float
    variant: str = ""
    provenance: dict[str, Any] = {}
    recipe: dict[str, Any] = {}

    accuracy: float = NOT_MEASURED
    default_score: str = ""
    scores: dict[str, dict[str, dict[str, float]]] = {}  # by score and OOD set

    validation_accuracy: float = NOT_MEASURED  # a hunt
    made_up: dict[str, dict[str, float]] = {}  # a hunt: AUROC by score and kind of made-up outlier
    labels: dict[str, Any] = {}  # decisions
    selective: dict[str, Any] = {}  # decisions: areas by order of answering
    ece: float = NOT_MEASURED
    class_features: dict[str, float] = {}

    score_seconds: float = NOT_MEASURED  # costs
    training_bytes: int | None = None
    score_bytes: int | None = None

    rings: list[Ring] = []  # Figure 1
    share_confident: float = NOT_MEASURED

    @property
    def setting(self) -> Setting:
        """What the run shares with other seeds."""
        return Setting(self.experiment, self.in_name, self.method, self.members, self.variant)


def load_records(results: Path) -> list[Record]:
    """Read all records of runs under a folder, ordered by setting and seed.

    A seed that counts twice would make the spread look smaller than it is, so two records of one setting and seed are an
    error.
    """
    if not results.is_dir():
        raise DataError(f"{results} is not a folder: give the one that holds <experiment>/<run>.json")
    records = [_read(path) for path in sorted(results.glob("*/*.json")) if path.parent.name != BENCH]
    for (setting, seed), count in Counter((record.setting, record.seed) for record in records).items():
        if count > 1:
            raise DataError(
                f"{count} records of seed {seed} for {setting}: remove all but one, or distinguish them by 'variant'"
            )
    return sorted(records, key=lambda record: (record.setting, record.seed))


def of_experiment(records: Sequence[Record], experiment: str) -> list[Record]:
    """Return the records of one experiment."""
    return [record for record in records if record.experiment == experiment]


def spread(values: Sequence[float]) -> Spread:
    """Return mean and sample standard deviation over seeds.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, sd=1.4142135623730951)
    """
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _read(path: Path) -> Record:
    try:
        return Record.model_validate(read_record(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path} is not a record: {place}: {first['msg'].lower()}") from None
