"""Runs: what an experiment is made of, what they are judged on, and where they read and write."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from besnn.data import Dataset
from besnn.detection.score_set import COMBINED
from besnn.errors import InputError
from besnn.recipe.config import METHOD
from besnn.recipe.reading import method_overrides
from besnn.training import Recipe, load_recipe, parse_recipe
from besnn.training.record import read_record, source_commit
from besnn.version import __version__

_NOTHING_HELD_BACK = ("data.calibration=0", "training.patience=null")
HELD_OUT = 0.02
"""The share of the training set that scores are combined against; no network learns from it."""


@dataclass(frozen=True)
class Task:
    """An in-distribution set of the paper and the sets to tell it apart from, all by their built-in names.

    Attributes:
        name: the in-distribution set; the recipe that is trained on it has the same name.
        unknown: the OOD sets.
        input_shape: the shape of one image, `(channels, h, w)`.
        backbone: the backbone of the recipe, whose layers a density may look at.
    """

    name: str
    unknown: tuple[str, ...]
    input_shape: tuple[int, int, int]
    backbone: str


TASKS = {
    task.name: task
    for task in (
        Task("fashion-mnist", ("mnist", "not-mnist"), (1, 28, 28), "fashion-convnet"),
        Task("cifar10", ("svhn", "cifar100-sample"), (3, 32, 32), "cifar-resnet18"),
    )
}


def task_of(in_name: str) -> Task:
    """Return the task of an in-distribution set.

    >>> task_of("cifar10").unknown
    ('svhn', 'cifar100-sample')
    """
    if in_name not in TASKS:
        raise InputError(f"unknown task {in_name!r}: use one of {', '.join(TASKS)}")
    return TASKS[in_name]


@dataclass(frozen=True)
class Run:
    """One training run of an experiment and the OOD sets that it is judged on, by their built-in names."""

    experiment: str  # also the folder of the record
    recipe: Recipe
    unknown: tuple[str, ...] = ()
    variant: str = ""  # the difference to other runs of the same method, members and seed, in a few words

    @property
    def in_name(self) -> str:
        """The in-distribution set, by its built-in name."""
        return self.recipe.data.source.partition(":")[0]

    @property
    def name(self) -> str:
        """The name of the run and of its record's file."""
        members = self.recipe.method.members
        size = f"n{members}" if members > 1 or self.recipe.method.name == "be-snn" else ""
        variant = re.sub(r"[^a-z0-9.]+", "-", self.variant.lower()).strip("-")
        parts = (self.in_name, self.recipe.method.name, size, variant, f"seed{self.recipe.training.seed}")
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Measured:
    """What a run found: fields for its record, and the data sets that they were measured on."""

    fields: dict[str, object]
    data: list[Dataset] = field(default_factory=list)


@dataclass(frozen=True)
class Workspace:
    """Where runs read and write, and on which device."""

    results: Path  # the folder of the records, <experiment>/<run>.json
    data_dir: Path | None = None  # of the built-in sets; None for the usual places
    accelerator: str = "auto"
    keep_weights: bool = False

    def record(self, run: Run) -> Path:
        """Return the path of a run's record."""
        return self.results / run.experiment / f"{run.name}.json"

    def weights(self, run: Run) -> Path:
        """Return the path of a run's trained network, if it was kept."""
        return self.results / "weights" / run.experiment / f"{run.name}.safetensors"

    @property
    def plain_networks(self) -> Path:
        """The folder of the plain networks that runs begin with; runs of one seed and one commit share them."""
        return self.results / "runs" / "plain" / (source_commit() or __version__)

    def scratch(self, run: Run) -> Path:
        """Return the folder of an unfinished run's checkpoint."""
        return self.results / "runs" / run.experiment / run.name


def reproduction_recipe(in_name: str, method: str, seed: int, overrides: Iterable[str] = ()) -> Recipe:
    """Return the recipe by which a method's results are reported, its score fixed before any test data is seen.

    BE-SNN is reported by the combined score beside its paper's, a baseline by the score of its paper.

    >>> recipe = reproduction_recipe("fashion-mnist", "duq", seed=2)
    >>> recipe.data.validation, recipe.score.name, recipe.training.seed
    (0.02, 'method', 2)
    """
    task = TASKS.get(in_name)  # Two Moons has none: its figure has no OOD set
    score = COMBINED if task and method == "be-snn" else METHOD
    held_out = HELD_OUT if task else 0
    fixed = [f"data.validation={held_out}", *_NOTHING_HELD_BACK, f"score.name={score}"]
    replaced = method_overrides(load_recipe(in_name), method)
    return load_recipe(in_name, [*replaced, *fixed, *overrides, f"training.seed={seed}"])


def select(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """Return the runs whose names contain one of the words; all runs if there are no words."""
    selected = [run for run in runs if not only or any(word in run.name for word in only)]
    if not selected:
        raise InputError(f"no run matches --only {' '.join(only)}: there are {', '.join(run.name for run in runs)}")
    return selected


def is_recorded(run: Run, workspace: Workspace) -> bool:
    """Return whether a run's record exists; a record of another recipe is an error."""
    path = workspace.record(run)
    if not path.exists():
        return False
    other = _recipe_of(read_record(path))
    if other is None:
        raise InputError(f"{path} has no recipe that this version can read: remove the file to run it again")
    if other != run.recipe:
        name, there, here = _first_difference(other.model_dump(mode="json"), run.recipe.model_dump(mode="json"))
        raise InputError(
            f"{path} comes from another recipe ({name} is {there!r} there and {here!r} here): remove the file to run it "
            "again, or choose another --results"
        )
    return True


def find_twin(run: Run, workspace: Workspace) -> Path | None:
    """Return the record of another experiment with the same recipe and OOD sets, if there is one: tables share runs."""
    for path in sorted(workspace.results.glob("*/*.json")):
        fields = read_record(path)
        if fields.get("out") == list(run.unknown) and _recipe_of(fields) == run.recipe:
            return path
    return None


def _recipe_of(fields: dict[str, Any]) -> Recipe | None:
    """Return the recipe of a record. Earlier ones also name a second density that was measured beside, but not combined."""
    try:
        recipe = parse_recipe(fields["recipe"])
        return recipe.model_copy(update={"score": recipe.score.model_copy(update={"densities": recipe.score.densities[:1]})})
    except (KeyError, TypeError, InputError):
        return None


def _first_difference(there: Any, here: Any, field: str = "") -> tuple[str, Any, Any]:
    """Return the first field in which two unequal recipes differ, and its two values."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return field, there, here
    key = next(key for key in {**there, **here} if there.get(key) != here.get(key))
    return _first_difference(there.get(key), here.get(key), f"{field}.{key}".lstrip("."))
