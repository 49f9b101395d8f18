"""DUQ's kernel, loss and centroids against NumPy in float64, and what its centroid update must leave alone."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from besnn.baselines import DUQ, DUQObjective
from besnn.errors import InputError

CLASSES, INPUTS, FEATURES, EMBEDDING, BATCH = 3, 4, 5, 6, 9
LENGTH_SCALE, MOMENTUM = 0.7, 0.9


@pytest.fixture
def model() -> DUQ:
    """A linear extractor, so that input gradients have a closed form."""
    torch.manual_seed(0)
    return DUQ(nn.Linear(INPUTS, FEATURES), CLASSES, FEATURES, EMBEDDING, LENGTH_SCALE, MOMENTUM, projection_std=0.5).double()


@pytest.fixture
def model_with_norm() -> DUQ:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.Dropout(0.5))
    return DUQ(network, CLASSES, FEATURES, EMBEDDING, LENGTH_SCALE, MOMENTUM).double()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Class 2 is absent."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, INPUTS, dtype=torch.float64, generator=generator), torch.arange(BATCH) % 2


def arrays(model: DUQ) -> tuple[np.ndarray, np.ndarray]:
    """W and the centroids."""
    return model.projection.detach().numpy(), (model.class_sums / model.class_counts[:, None]).numpy()


def kernels_by_hand(model: DUQ, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """K_c(x) `[batch, classes]` and ∇_x Σ_c K_c `[batch, inputs]`, for the linear extractor."""
    weight, centroids = arrays(model)
    layer: Any = model.feature_extractor
    a, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    kernels, gradients = np.zeros((len(x), CLASSES)), np.zeros((len(x), INPUTS))
    for row, point in enumerate(x.numpy()):
        for c in range(CLASSES):
            residual = weight[c] @ (a @ point + b) - centroids[c]
            kernels[row, c] = np.exp(-(residual**2).mean() / (2 * LENGTH_SCALE**2))
            gradients[row] -= kernels[row, c] / (EMBEDDING * LENGTH_SCALE**2) * (a.T @ weight[c].T @ residual)
    return kernels, gradients


def test_evidence_is_minus_log_kernel(model: DUQ, batch: tuple[Tensor, Tensor]) -> None:
    kernels, _ = kernels_by_hand(model, batch[0])
    with torch.no_grad():
        np.testing.assert_allclose(model(batch[0])[0], -np.log(kernels), rtol=1e-12)


@pytest.mark.parametrize("over_classes", ["mean", "sum"])
@pytest.mark.parametrize("squared_norm", [False, True])
def test_loss_by_hand(model: DUQ, batch: tuple[Tensor, Tensor], over_classes: Any, squared_norm: bool) -> None:
    x, labels = batch
    kernels, gradients = kernels_by_hand(model, x)
    target = np.eye(CLASSES)[labels]
    by_class = -(target * np.log(kernels) + (1 - target) * np.log(1 - kernels))
    norm = np.linalg.norm(gradients, axis=1) ** (2 if squared_norm else 1)
    terms = DUQObjective(gradient_weight=0.3, over_classes=over_classes, squared_norm=squared_norm)(model, x, labels)
    classification = by_class.mean() if over_classes == "mean" else by_class.sum(1).mean()
    assert terms["classification"].item() == pytest.approx(classification, rel=1e-12)
    assert terms["gradient"].item() == pytest.approx(0.3 * ((norm - 1) ** 2).mean(), rel=1e-12)


def moved_by_hand(model: DUQ, features: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Counts and sums after one step on a batch of these features."""
    weight, _ = arrays(model)
    counts, sums = model.class_counts.numpy().copy(), model.class_sums.numpy().copy()
    for c in range(CLASSES):
        of_class = features.detach().numpy()[labels.numpy() == c]
        counts[c] = MOMENTUM * counts[c] + (1 - MOMENTUM) * len(of_class)
        sums[c] = MOMENTUM * sums[c] + (1 - MOMENTUM) * (of_class @ weight[c].T).sum(0)
    return counts, sums


def test_centroids_by_hand(model: DUQ, batch: tuple[Tensor, Tensor]) -> None:
    x, labels = batch
    initial = model.centroids
    for _ in range(2):
        counts, sums = moved_by_hand(model, model.features(x)[0], labels)
        model.after_step(x, labels)
        np.testing.assert_allclose(model.class_counts, counts, rtol=1e-12)
        np.testing.assert_allclose(model.class_sums, sums, rtol=1e-12)
        np.testing.assert_allclose(model.centroids, sums / counts[:, None], rtol=1e-12)
    torch.testing.assert_close(model.centroids[2], initial[2])  # the absent class stays where it was
    assert not torch.equal(model.centroids[:2], initial[:2])


def test_centroids_move_in_evaluation_mode(model_with_norm: DUQ, batch: tuple[Tensor, Tensor]) -> None:
    x, labels = batch
    assert model_with_norm.training
    buffers = dict(model_with_norm.feature_extractor.named_buffers())
    buffers["1.running_mean"] += 1.0  # far from the batch's own statistics
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    _, sums = moved_by_hand(model_with_norm, copy.deepcopy(model_with_norm).eval().features(x)[0], labels)
    model_with_norm.after_step(x, labels)
    np.testing.assert_allclose(model_with_norm.class_sums, sums, rtol=1e-12)
    for name, buffer in buffers.items():
        assert torch.equal(buffer, before[name]), name


def test_update_restores_every_module_to_its_own_mode(model_with_norm: DUQ, batch: tuple[Tensor, Tensor]) -> None:
    network: Any = model_with_norm.feature_extractor
    network[1].eval()  # a frozen BatchNorm inside a model in training
    modes = {name: module.training for name, module in model_with_norm.named_modules()}
    model_with_norm.after_step(*batch)
    assert {name: module.training for name, module in model_with_norm.named_modules()} == modes
    with pytest.raises(InputError):
        model_with_norm.after_step(torch.full_like(batch[0], torch.nan), batch[1])
    assert {name: module.training for name, module in model_with_norm.named_modules()} == modes


def test_update_refuses_labels_out_of_range(model: DUQ, batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="label 3"):
        model.after_step(batch[0], batch[1] + 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"length_scale": 0.0},
        {"length_scale": float("inf")},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"embedding_dim": 0},
        {"projection_std": -1.0},
    ],
)
def test_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        DUQ(nn.Linear(2, 4), num_classes=2, feature_dim=4, **wrong)


@pytest.mark.parametrize("wrong", [{"gradient_weight": -1.0}, {"gradient_weight": float("nan")}, {"over_classes": "max"}])
def test_objective_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        DUQObjective(**wrong)
