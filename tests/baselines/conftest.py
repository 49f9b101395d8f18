"""Every method, the BE-SNN among them, as the shared battery builds and trains it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from besnn.model import Objective, OODClassifier
from besnn.recipe import METHODS, MethodConfig


@dataclass(frozen=True)
class Method:
    """How to build and train one method."""

    config: MethodConfig

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def members(self) -> int:
        return self.config.members

    @property
    def objective(self) -> Objective:
        return self.config.build(lambda: nn.Linear(2, 4), 2, 4)[1]

    def build(self, make_extractor: Callable[[], nn.Module], num_classes: int, feature_dim: int) -> OODClassifier:
        return self.config.build(make_extractor, num_classes, feature_dim)[0]

    def fit(self, model: OODClassifier, x: Tensor, labels: Tensor, epochs: int, batch: int, lr: float = 0.05) -> None:
        """Plain SGD with the method's own objective, and its classes frozen at the end."""
        objective, steps = self.objective, epochs * (len(x) // batch)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps)
        shuffle = torch.Generator().manual_seed(0)
        model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=shuffle).split(batch)[: len(x) // batch]:
                optimiser.zero_grad()
                sum(objective(model, x[rows], labels[rows]).values()).backward()  # type: ignore[union-attr]
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()
                schedule.step()
                model.after_step(x[rows], labels[rows])
        model.eval()
        model.freeze_classes()


SETTINGS: dict[str, dict[str, object]] = {
    "be-snn": {"members": 2, "noise_dim": 8, "hidden_dim": 32, "samples": 16, "gradient_weight": 0.1},
    "softmax": {},
    "duq": {"embedding_dim": 16, "length_scale": 0.3, "momentum": 0.95},
    "gaussian": {},
    "deep-ensemble": {"members": 2},
    "batch-ensemble": {"members": 2},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Networks this small only wait for each other on more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=METHODS, scope="module")
def method(request: pytest.FixtureRequest) -> Method:
    """Each method in turn."""
    return Method(METHODS[request.param].model_validate(SETTINGS.get(request.param, {})))
