"""Runs: what an experiment is made of, and where their records lie."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from besnn.errors import InputError
from besnn.recipe.config import METHOD
from besnn.recipe.reading import method_overrides
from besnn.training import Recipe, load_recipe, parse_recipe
from besnn.training.record import read_record, source_commit
from besnn.version import __version__
from experiments.benchmarks import BENCHMARKS

_NOTHING_HELD_BACK = ("data.calibration=0", "training.patience=null")
_EVERY_DENSITY = ("score.densities=[nearest-neighbour, class-gaussian]",)


@dataclass(frozen=True)
class Run:
    """One training run of an experiment and what it is judged on.

    Attributes:
        experiment: whose run it is; the folder of its record.
        recipe: what to train, seed included.
        unknown: the OOD sets, by their built-in names.
        variant: what sets it apart from runs of the same method, members and seed, in a few words.
    """

    experiment: str
    recipe: Recipe
    unknown: tuple[str, ...] = ()
    variant: str = ""

    @property
    def in_name(self) -> str:
        """The in-distribution set, by its built-in name."""
        return self.recipe.data.source.partition(":")[0]

    @property
    def name(self) -> str:
        """What the run is called: the name of its record's file."""
        members = self.recipe.method.members
        size = f"n{members}" if members > 1 or self.recipe.method.name == "be-snn" else ""
        variant = re.sub(r"[^a-z0-9.]+", "-", self.variant.lower()).strip("-")
        parts = (self.in_name, self.recipe.method.name, size, variant, f"seed{self.recipe.training.seed}")
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Workspace:
    """Where runs read and write.

    Attributes:
        results: the folder of the records, `<experiment>/<run>.json`.
        data_dir: where built-in sets lie; None for the usual places.
        accelerator: `auto`, `cpu`, `gpu` or `mps`.
        keep_weights: whether runs leave their trained networks behind.
    """

    results: Path
    data_dir: Path | None = None
    accelerator: str = "auto"
    keep_weights: bool = False

    def record(self, run: Run) -> Path:
        """Where a run's record lies."""
        return self.results / run.experiment / f"{run.name}.json"

    def weights(self, run: Run) -> Path:
        """Where a run's trained network lies, if it was kept."""
        return self.results / "weights" / run.experiment / f"{run.name}.safetensors"

    @property
    def plain_networks(self) -> Path:
        """Where the networks lie that runs begin with: those of one seed share one, if the same commit made it."""
        return self.results / "runs" / "plain" / (source_commit() or __version__)

    def scratch(self, run: Run) -> Path:
        """Where an unfinished run keeps its checkpoint."""
        return self.results / "runs" / run.experiment / run.name


def reproduction_recipe(in_name: str, method: str, seed: int, overrides: Iterable[str] = ()) -> Recipe:
    """A method on a data set, as its results are reported: by a score that is fixed, a baseline by the one its paper gives it.

    >>> recipe = reproduction_recipe("fashion-mnist", "duq", seed=2)
    >>> recipe.data.validation, recipe.score.name, recipe.training.seed
    (0.0, 'method', 2)
    """
    benchmark = BENCHMARKS.get(in_name)  # none of Two Moons, whose figure has no OOD set
    score = benchmark.score if benchmark and method == "be-snn" else METHOD
    held_out = benchmark.held_out if benchmark else 0
    fixed = [f"data.validation={held_out}", *_NOTHING_HELD_BACK, *_EVERY_DENSITY, f"score.name={score}"]
    replaced = method_overrides(load_recipe(in_name), method)
    return load_recipe(in_name, [*replaced, *fixed, *overrides, f"training.seed={seed}"])


def select(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs whose names hold one of some words; all of them without words."""
    selected = [run for run in runs if not only or any(word in run.name for word in only)]
    if not selected:
        raise InputError(f"--only {' '.join(only)}: no run is called so; there are {', '.join(run.name for run in runs)}")
    return selected


def is_recorded(run: Run, workspace: Workspace) -> bool:
    """Whether a run's record exists; one that another recipe made is an error, never taken for this run's."""
    path = workspace.record(run)
    if not path.exists():
        return False
    other = _recipe_of(read_record(path))
    if other is None:
        raise InputError(f"{path} holds no recipe that this version knows: remove it to run it again")
    if other != run.recipe:
        field, there, here = _first_difference(other.model_dump(mode="json"), run.recipe.model_dump(mode="json"))
        raise InputError(
            f"{path} comes from another recipe ({field} is {there!r} there and {here!r} here): remove it to run it again, "
            "or choose another --results"
        )
    return True


def find_twin(run: Run, workspace: Workspace) -> Path | None:
    """A record of another experiment that the same recipe made, judged on the same sets: tables share runs."""
    for path in sorted(workspace.results.glob("*/*.json")):
        fields = read_record(path)
        if fields.get("out") == list(run.unknown) and _recipe_of(fields) == run.recipe:
            return path
    return None


def _recipe_of(fields: dict[str, Any]) -> Recipe | None:
    try:
        return parse_recipe(fields["recipe"])
    except (KeyError, TypeError, InputError):
        return None


def _first_difference(there: Any, here: Any, field: str = "") -> tuple[str, Any, Any]:
    """The first field in which two unequal recipes differ, and its two values."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return field, there, here
    key = next(key for key in {**there, **here} if there.get(key) != here.get(key))
    return _first_difference(there.get(key), here.get(key), f"{field}.{key}".lstrip("."))
