"""Densities as exported programs."""

from collections.abc import Callable

import pytest
import torch

from besnn.detection import Density


class Score(torch.nn.Module):
    def __init__(self, density: Density) -> None:
        super().__init__()
        self.density = density

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.density.score(features)


@pytest.fixture
def exported() -> Callable[[Density, torch.Tensor], torch.Tensor]:
    """Scores `[batch]` of features by a program that was exported with other features."""

    def scores(density: Density, features: torch.Tensor) -> torch.Tensor:
        shapes = ({1: torch.export.Dim.AUTO},)
        return torch.export.export(Score(density), (features[:, :3].contiguous(),), dynamic_shapes=shapes).module()(features)

    return scores
