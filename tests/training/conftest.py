from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from besnn.data import Dataset
from besnn.model import OODClassifier, Preprocessing
from besnn.training import Recipe, RunOptions, Trainer, build_method, make_fabric
from besnn.training.batches import ArraySource
from besnn.training.progress import Reporter, Row


class InterruptedRunError(Exception):
    """Stops a run."""


@dataclass
class StopAfter(Reporter):
    """Stops the run after some steps."""

    steps: int

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise InterruptedRunError


@pytest.fixture
def never_started() -> Reporter:
    """Fail when training begins."""

    class NeverStarted(Reporter):
        def start(self, done: int, total: int) -> None:
            raise AssertionError("training has begun")

    return NeverStarted()


@dataclass
class Outcome:
    """A trained model and how it was trained."""

    model: OODClassifier
    history: list[Row]
    trainer: Trainer = field(repr=False)

    def validate(self, dataset: Dataset) -> Row:
        return self.trainer.validate(ArraySource(dataset, torch.device("cpu")))

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()


@pytest.fixture(scope="session")
def train() -> Callable[..., Outcome]:
    """Train on a whole data set; `stop_after` interrupts the run after that many steps."""

    def run(
        recipe: Recipe,
        dataset: Dataset,
        *,
        validation: Dataset | None = None,
        folder: Path | None = None,
        resume: bool = False,
        stop_after: int | None = None,
        checkpoint_every: int = 3,
        checkpoint_pause: float = 0,
        identity: str = "me",
        reporter: Reporter | None = None,
    ) -> Outcome:
        fabric = make_fabric(recipe.training.precision, accelerator="cpu")
        source = ArraySource(dataset, fabric.device)
        torch.manual_seed(0)
        model, objective = build_method(recipe, tuple(source.inputs.shape[1:]), len(dataset.class_names))
        reporter = reporter or (Reporter() if stop_after is None else StopAfter(stop_after))
        if hasattr(reporter, "model"):
            reporter.model = model
        preprocessing = Preprocessing.fit(source.inputs)
        options = RunOptions(folder, resume, reporter, checkpoint_every, checkpoint_pause)
        trainer = Trainer(recipe, model, objective, preprocessing, fabric, options, identity)
        held_out = None if validation is None else ArraySource(validation, fabric.device)
        try:
            history = trainer.fit(source, held_out)
        except InterruptedRunError:
            history = trainer.progress.history
        return Outcome(model, history, trainer)

    return run


@pytest.fixture(scope="session")
def assert_same_weights() -> Callable[[Outcome, Outcome], None]:
    """Bit for bit."""

    def check(one: Outcome, other: Outcome) -> None:
        assert one.weights.keys() == other.weights.keys()
        for name, value in one.weights.items():
            assert torch.equal(value, other.weights[name]), name

    return check
