"""The Gaussian classifier against SciPy, and the L-GM loss, its margin above all, against numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from besnn.baselines import GaussianClassifier, GaussianObjective
from besnn.errors import InputError

D = 2


def classifier(means: list[list[float]], log_variances: list[list[float]] | None = None) -> GaussianClassifier:
    """A float64 classifier whose features are its inputs."""
    covariance: Any = "identity" if log_variances is None else "diagonal"
    model = GaussianClassifier(nn.Identity(), len(means), D, covariance).double()
    with torch.no_grad():
        model.mean.copy_(torch.tensor(means, dtype=torch.float64))
        if model.log_scales is not None:
            model.log_scales.copy_(torch.tensor(log_variances, dtype=torch.float64))
    return model


def train(model: GaussianClassifier, objective: GaussianObjective, x: Tensor, labels: Tensor, lr: float, steps: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        sum(objective(model, x, labels).values()).backward()  # type: ignore[union-attr]
        optimiser.step()


@pytest.fixture
def model() -> GaussianClassifier:
    """Λ_0 = diag(2, 1/2), Λ_1 = diag(4, 1/4): log determinants 0, and a mean log variance of 0."""
    return classifier([[0.0, 0.0], [3.0, 1.0]], [[math.log(2), -math.log(2)], [math.log(4), -math.log(4)]])


@pytest.fixture
def x() -> Tensor:
    return torch.tensor([[1.0, 1.0], [2.0, 0.0], [-5.0, 3.0]], dtype=torch.float64)


def test_evidence_is_the_log_density(model: GaussianClassifier, x: Tensor) -> None:
    with torch.no_grad():
        model.get_parameter("log_scales").add_(torch.tensor([[0.7, 0.0], [0.0, 0.3]]))
        variances = model.log_variances().exp().numpy()
        assert not np.allclose(variances.prod(axis=1), 1)
        for c, (mean, variance) in enumerate(zip(model.mean.numpy(), variances, strict=True)):
            np.testing.assert_allclose(model(x)[0, :, c], multivariate_normal(mean, np.diag(variance)).logpdf(x), rtol=1e-12)


def test_identity_covariance_has_nothing_to_learn(x: Tensor) -> None:
    model = classifier([[0.0, 0.0], [3.0, 1.0]])
    assert [name for name, _ in model.named_parameters()] == ["mean"]
    with torch.no_grad():
        np.testing.assert_allclose(model(x)[0, :, 1], multivariate_normal([3, 1], np.eye(2)).logpdf(x), rtol=1e-12)


def test_loss_by_hand(model: GaussianClassifier) -> None:
    # x = (1, 1), y = 0: d_0 = 1/2 + 1/(1/2) = 2.5 and d_1 = 4/4 + 0 = 1.
    # x = (2, 0), y = 1: d_0 = 4/2 + 0 = 2 and d_1 = 1/4 + 1/(1/4) = 4.25.
    x = torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    terms = GaussianObjective(margin=0.4, likelihood_weight=0.3)(model, x, torch.tensor([0, 1]))
    first = math.log(1 + math.exp(-0.5 * 1.0 + 0.5 * 2.5 * 1.4))
    second = math.log(1 + math.exp(-0.5 * 2.0 + 0.5 * 4.25 * 1.4))
    assert terms["classification"].item() == pytest.approx((first + second) / 2, rel=1e-14)
    assert terms["likelihood"].item() == pytest.approx(0.3 * (0.5 * 2.5 + 0.5 * 4.25) / 2, rel=1e-14)


def test_loss_by_hand_with_unequal_determinants() -> None:
    # Λ_0 = diag(1, 2), Λ_1 = diag(1, 1/2): log determinants log 2 and −log 2. x = (1, 2), y = 1: d_0 = 3, d_1 = 9.
    model = classifier([[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(2)], [0.0, -math.log(2)]])
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    terms = GaussianObjective(margin=0.5, likelihood_weight=1.0)(model, x, torch.tensor([1]))
    own, other = -0.5 * 9 * 1.5 + 0.5 * math.log(2), -0.5 * 3 - 0.5 * math.log(2)
    assert terms["classification"].item() == pytest.approx(math.log(1 + math.exp(other - own)), rel=1e-14)
    assert terms["likelihood"].item() == pytest.approx(0.5 * 9 - 0.5 * math.log(2), rel=1e-14)


def test_without_margin_the_loss_is_the_cross_entropy_of_the_evidence(model: GaussianClassifier, x: Tensor) -> None:
    labels = torch.tensor([0, 1, 0])
    expected = nn.functional.cross_entropy(model(x)[0], labels)
    torch.testing.assert_close(GaussianObjective(margin=0.0)(model, x, labels)["classification"], expected)


@pytest.mark.parametrize("margin", [0.0, 0.1, 1.0])
def test_margin_moves_the_boundary_to_its_ratio_of_distances(margin: float) -> None:
    # On the line between two means at distance 1, the loss is log 2 where d_other = (1 + α) d_own, not half-way.
    model = classifier([[0.0, 0.0], [1.0, 0.0]])
    place = 1 / (1 + math.sqrt(1 + margin))
    x = torch.tensor([[place, 0.0]], dtype=torch.float64)
    loss = GaussianObjective(margin=margin)(model, x, torch.tensor([0]))["classification"]
    assert loss.item() == pytest.approx(math.log(2), rel=1e-14)


def test_margin_is_no_part_of_prediction(model: GaussianClassifier, x: Tensor) -> None:
    model.train()
    before = model(x)
    GaussianObjective(margin=2.0)(model, x, torch.tensor([0, 1, 0]))
    assert torch.equal(model(x), before)


def test_overall_scale_of_the_covariances_is_fixed(model: GaussianClassifier, x: Tensor) -> None:
    before = model(x)
    with torch.no_grad():
        model.get_parameter("log_scales").add_(3.0)
    torch.testing.assert_close(model(x), before)


def test_training_does_not_shrink_to_a_point() -> None:
    """With a free scale the likelihood term falls to −70 here, until the steps overshoot and the classes are lost."""
    torch.manual_seed(0)
    model = GaussianClassifier(nn.Linear(2, 64), num_classes=2, feature_dim=64)
    labels = torch.arange(64) % 2
    x = torch.randn(64, 2) + 3 * labels[:, None]
    objective = GaussianObjective(likelihood_weight=1.0)
    train(model, objective, x, labels, lr=0.02, steps=1000)
    terms = objective(model, x, labels)
    assert 0 <= terms["likelihood"].item() < 0.5
    assert terms["classification"].item() < 0.3


@pytest.mark.parametrize("wrong", [{"margin": -0.1}, {"margin": math.inf}, {"likelihood_weight": -1.0}])
def test_objective_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        GaussianObjective(**wrong)


def test_refuses_an_unknown_covariance() -> None:
    with pytest.raises(InputError, match=r"'full'.*'diagonal'"):
        GaussianClassifier(nn.Identity(), 2, 2, covariance="full")  # type: ignore[arg-type]
