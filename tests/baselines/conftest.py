"""Every method, the BE-SNN among them, as the shared battery builds and trains it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from besnn.baselines import (
    DUQ,
    BatchEnsembleClassifier,
    BatchEnsembleObjective,
    DeepEnsemble,
    DeepEnsembleObjective,
    DUQObjective,
    GaussianClassifier,
    GaussianObjective,
    SoftmaxClassifier,
    SoftmaxObjective,
)
from besnn.model import BESNN, Objective, OODClassifier
from besnn.objective import BESNNObjective


@dataclass(frozen=True)
class Method:
    """How to build and train one method; `build(make_extractor, num_classes, feature_dim)`."""

    name: str
    build: Callable[[Callable[[], nn.Module], int, int], OODClassifier]
    objective: Objective
    members: int
    knows_what_is_far: bool  # a softmax of linear outputs grows surer with distance

    def fit(self, model: OODClassifier, x: Tensor, labels: Tensor, epochs: int, batch: int, lr: float = 0.05) -> None:
        """Plain SGD with the method's own objective, and its classes frozen at the end."""
        steps = epochs * (len(x) // batch)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps)
        shuffle = torch.Generator().manual_seed(0)
        model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=shuffle).split(batch)[: len(x) // batch]:
                optimiser.zero_grad()
                sum(self.objective(model, x[rows], labels[rows]).values()).backward()  # type: ignore[union-attr]
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()
                schedule.step()
                model.after_step(x[rows], labels[rows])
        model.eval()
        model.freeze_classes()


METHODS = [
    Method(
        "be-snn",
        lambda make, classes, d: BESNN(make(), classes, d, members=2, noise_dim=8, hidden_dim=32, samples=16),
        BESNNObjective(gradient_weight=0.1),  # type: ignore[arg-type]  # an objective for its own kind of model
        members=2,
        knows_what_is_far=True,
    ),
    Method(
        "softmax",
        lambda make, classes, d: SoftmaxClassifier(make(), classes, d),
        SoftmaxObjective(),
        members=1,
        knows_what_is_far=False,
    ),
    Method(
        "duq",
        lambda make, classes, d: DUQ(make(), classes, d, embedding_dim=16, length_scale=0.3, momentum=0.95),
        DUQObjective(),
        members=1,
        knows_what_is_far=True,
    ),
    Method(
        "gaussian",
        lambda make, classes, d: GaussianClassifier(make(), classes, d),
        GaussianObjective(),  # type: ignore[arg-type]  # an objective for its own kind of model
        members=1,
        knows_what_is_far=True,
    ),
    Method(
        "deep-ensemble",
        lambda make, classes, d: DeepEnsemble([make() for _ in range(2)], classes, d),
        DeepEnsembleObjective(),
        members=2,
        knows_what_is_far=False,
    ),
    Method(
        "batch-ensemble",
        lambda make, classes, d: BatchEnsembleClassifier(make(), classes, d, members=2),
        BatchEnsembleObjective(),
        members=2,
        knows_what_is_far=False,
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Networks this small only wait for each other on more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=METHODS, ids=lambda method: method.name, scope="module")
def method(request: pytest.FixtureRequest) -> Method:
    """Each method in turn."""
    chosen: Method = request.param
    return chosen


@pytest.fixture(params=[method for method in METHODS if method.name != "be-snn"], ids=lambda method: method.name)
def baseline(request: pytest.FixtureRequest) -> Method:
    """Each method but the BE-SNN in turn."""
    chosen: Method = request.param
    return chosen
