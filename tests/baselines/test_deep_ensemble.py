"""A deep ensemble trained side by side equals its networks trained in turn."""

import copy

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from besnn.baselines import DeepEnsemble, DeepEnsembleObjective, SoftmaxClassifier, SoftmaxObjective
from besnn.errors import InputError
from besnn.layers import batch_ensemble
from besnn.model import OODClassifier, two_moons_mlp

MEMBERS, CLASSES, FEATURES = 3, 4, 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, FEATURES))


@pytest.fixture
def ensemble() -> DeepEnsemble:
    torch.manual_seed(0)
    return DeepEnsemble([network() for _ in range(MEMBERS)], CLASSES, FEATURES).double()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, dtype=torch.float64, generator=generator), torch.randint(CLASSES, (8,), generator=generator))
        for _ in range(5)
    ]


def alone(ensemble: DeepEnsemble, member: int) -> SoftmaxClassifier:
    """A member as a network of its own."""
    classifier = SoftmaxClassifier(copy.deepcopy(ensemble.feature_extractors[member]), CLASSES, FEATURES).double()
    classifier.head.load_state_dict(ensemble.heads[member].state_dict())
    return classifier


def train(model: OODClassifier, objective: SoftmaxObjective, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for x, labels in batches:
        optimiser.zero_grad()
        sum(objective(model, x, labels).values()).backward()  # type: ignore[union-attr]
        optimiser.step()


def test_training_side_by_side_equals_training_in_turn(ensemble: DeepEnsemble, batches: list[tuple[Tensor, Tensor]]) -> None:
    singles = [alone(ensemble, member) for member in range(MEMBERS)]
    train(ensemble, DeepEnsembleObjective(label_smoothing=0.1), batches)
    for member, single in enumerate(singles):
        train(single, SoftmaxObjective(label_smoothing=0.1), batches)
        trained = alone(ensemble, member).state_dict()
        for name, value in single.state_dict().items():  # weights and BatchNorm statistics
            torch.testing.assert_close(trained[name], value, rtol=1e-12, atol=1e-12)


def test_probabilities_are_the_members_mean(ensemble: DeepEnsemble, batches: list[tuple[Tensor, Tensor]]) -> None:
    ensemble.eval()
    with torch.no_grad():
        logits = np.stack([alone(ensemble, member).eval()(batches[0][0])[0] for member in range(MEMBERS)])
        probabilities = ensemble.log_probabilities(ensemble(batches[0][0])).exp()
    np.testing.assert_allclose(probabilities, softmax(logits, axis=-1).mean(0), rtol=1e-12)


def image_ensemble(members: int) -> DeepEnsemble:
    """Every second network sees mirror images."""
    torch.manual_seed(0)
    networks = [
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, FEATURES))
        for _ in range(members)
    ]
    return DeepEnsemble(networks, CLASSES, FEATURES, mirror=True).double()


@torch.no_grad()
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_every_second_network_sees_mirror_images_in_evaluation(members: int) -> None:
    ensemble, images = image_ensemble(members).eval(), torch.randn(6, 2, 6, 6, dtype=torch.float64)
    views = [images, images.flip(3)]
    singles = [alone(ensemble, member).eval() for member in range(members)]
    features = torch.cat([single.features(views[member % 2]) for member, single in enumerate(singles)])
    logits = torch.cat([single(views[member % 2]) for member, single in enumerate(singles)])
    torch.testing.assert_close(ensemble.features(images), features)
    torch.testing.assert_close(ensemble(images), logits)
    if members > 1:
        assert not torch.allclose(singles[1](images)[0], logits[1])


def test_only_images_have_mirror_images() -> None:
    ensemble = DeepEnsemble([network()], CLASSES, FEATURES, mirror=True).eval()
    with pytest.raises(InputError, match=r"inputs of shape \[6\] are not images and have no mirror images: set mirror=False"):
        ensemble(torch.randn(4, 6))


def test_refuses_members_that_share_weights() -> None:
    with pytest.raises(InputError, match="share weights"):
        DeepEnsemble([two_moons_mlp()] * 2, num_classes=2, feature_dim=32)


def test_refuses_an_ensemble_without_members() -> None:
    with pytest.raises(InputError, match="0 feature extractors"):
        DeepEnsemble([], num_classes=2, feature_dim=32)


def test_refuses_a_batch_ensemble_among_its_members() -> None:
    with pytest.raises(InputError, match="plain network"):
        DeepEnsemble([two_moons_mlp(), batch_ensemble(two_moons_mlp(), 2)], num_classes=2, feature_dim=32)
