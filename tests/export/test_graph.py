"""The densities' exportable forms against the densities themselves, where a plain product would cancel."""

import pytest
import torch

from besnn.detection import ClassGaussianDensity, CombinedScore, NearestNeighbourDensity, ScoreSet
from besnn.detection.densities import LayerDensity
from besnn.export.graph import _ScoreNetwork

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
    found, expected = density.network()(batch), density.score(batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7 if metric == "cosine" else 1e-4)


def test_class_gaussians() -> None:
    density = ClassGaussianDensity().fit(features(200, 0, 1.0), LABELS)
    batch = features(50, 1, 3.0)
    torch.testing.assert_close(density.network()(batch).float(), density.score(batch), rtol=1e-5, atol=1e-5)


BLOCKS = {
    "nearest-neighbour at trunk.3": lambda: LayerDensity(NearestNeighbourDensity(k=3), 0, 2),
    "class-gaussian at trunk.3+trunk": lambda: LayerDensity(ClassGaussianDensity(), 1, 2),
    "nearest-neighbour at trunk": lambda: LayerDensity(NearestNeighbourDensity(k=2), 1, 3),
}


@pytest.mark.parametrize("name", ["predictive-entropy", *BLOCKS, "combined"])
def test_scores_of_layers_apart(name: str) -> None:
    torch.manual_seed(0)
    densities = {name: make().fit(features(200, 0, 1.0), LABELS) for name, make in BLOCKS.items()}
    parts = ScoreSet("logits", "predictive-entropy", densities)
    evidence, held_out = torch.randn(2, 80, 4), features(80, 1, 1.2)
    combined = CombinedScore({each: parts.score(evidence, held_out, each) for each in ("predictive-entropy", *BLOCKS)})
    scoring = ScoreSet("logits", "predictive-entropy", densities, combined).keep(name)
    evidence, batch = torch.randn(2, 50, 4), features(50, 2, 1.5)
    expected = scoring.score(evidence, batch)
    torch.testing.assert_close(_ScoreNetwork(scoring)(evidence, batch), expected.float(), rtol=1e-3, atol=1e-4)
    assert len(expected.unique()) > 40
