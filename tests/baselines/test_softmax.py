"""The softmax network's loss and probabilities against NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from besnn.baselines import SoftmaxClassifier, SoftmaxObjective
from besnn.baselines.softmax import cross_entropy
from besnn.errors import InputError
from besnn.layers import batch_ensemble
from besnn.model.protocol import log_mean_softmax

MEMBERS, BATCH, CLASSES = 3, 7, 4


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(MEMBERS, BATCH, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_by_hand(logits: torch.Tensor, smoothing: float) -> None:
    labels = torch.arange(BATCH) % CLASSES
    target = (1 - smoothing) * np.eye(CLASSES)[labels] + smoothing / CLASSES
    expected = -(target * log_softmax(logits.numpy(), axis=-1)).sum(-1).mean(-1)
    np.testing.assert_allclose(cross_entropy(logits, labels, smoothing), expected, rtol=1e-12)


def test_labels_of_members_are_those_of_each_alone(logits: torch.Tensor) -> None:
    labels = torch.randint(0, CLASSES, (MEMBERS, BATCH), generator=torch.Generator().manual_seed(1))
    expected = [cross_entropy(logits[member, None], labels[member], 0.1).item() for member in range(MEMBERS)]
    np.testing.assert_allclose(cross_entropy(logits, labels, 0.1), expected, rtol=1e-12)
    same = cross_entropy(logits, labels[0].expand(MEMBERS, BATCH), 0.1)
    assert torch.equal(same, cross_entropy(logits, labels[0], 0.1))


@pytest.mark.parametrize("shape", [(BATCH - 1,), (MEMBERS, BATCH - 1), (MEMBERS - 1, BATCH), (BATCH, MEMBERS), (1, BATCH)])
def test_refuses_labels_of_another_shape(logits: torch.Tensor, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"expected one label for each of the {BATCH} inputs"):
        cross_entropy(logits, torch.zeros(shape, dtype=torch.int64))


def test_objective_is_the_mean_over_members(logits: torch.Tensor) -> None:
    labels = torch.arange(BATCH) % CLASSES
    assert SoftmaxObjective(0.1).classification(logits, labels) == pytest.approx(cross_entropy(logits, labels, 0.1).mean())


def test_probabilities_are_the_mean_softmax(logits: torch.Tensor) -> None:
    np.testing.assert_allclose(log_mean_softmax(logits).exp(), softmax(logits.numpy(), axis=-1).mean(0), rtol=1e-12)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_refuses_impossible_smoothing(smoothing: float) -> None:
    with pytest.raises(InputError, match="label_smoothing"):
        SoftmaxObjective(label_smoothing=smoothing)


def test_refuses_a_batch_ensemble_as_extractor() -> None:
    with pytest.raises(InputError, match="batch ensemble of 2 members"):
        SoftmaxClassifier(batch_ensemble(nn.Linear(2, 4), members=2), num_classes=2, feature_dim=4)
