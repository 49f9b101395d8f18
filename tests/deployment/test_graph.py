"""The densities' exportable forms against the densities themselves, where a plain product would cancel."""

import pytest
import torch

from besnn.deployment.graph import _density_network
from besnn.detection import ClassGaussianDensity, NearestNeighbourDensity
from besnn.errors import InputError

LABELS = torch.arange(200) % 4


def features(n: int, seed: int, spread: float) -> torch.Tensor:
    """Two members' features on a short arc, `spread` long, far from the origin."""
    angle = spread * torch.rand(2, n, 1, generator=torch.Generator().manual_seed(seed))
    return 10 * torch.cat([angle.cos(), angle.sin(), angle.square(), torch.ones_like(angle)], dim=-1)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 3, 20, 200])
@pytest.mark.parametrize("spread", [1.0, 0.05])
def test_nearest_neighbours(metric: str, k: int, spread: float) -> None:
    density = NearestNeighbourDensity(k=k, metric=metric).fit(features(200, 0, spread))
    batch = features(50, 1, spread)
    found, expected = _density_network(density)(batch), density.score(batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7 if metric == "cosine" else 1e-4)


@pytest.mark.parametrize("covariance", ["shared", "class"])
def test_class_gaussians(covariance: str) -> None:
    density = ClassGaussianDensity(covariance, shrinkage=0.1).fit(features(200, 0, 1.0), LABELS)
    batch = features(50, 1, 3.0)
    torch.testing.assert_close(_density_network(density)(batch).float(), density.score(batch), rtol=1e-5, atol=1e-5)


def test_an_unknown_density_says_that_it_has_no_exportable_form() -> None:
    with pytest.raises(InputError, match="type object"):
        _density_network(object())
