"""Embeddings of numbers, which let a network treat small and large values of a column differently."""

import torch
from torch import Tensor, nn

OUTER = 0.02  # share of a normal distribution on either side of all bins


class PiecewiseLinear(nn.Module):
    """Piecewise-linear encoding of standardised numbers, `[rows, d] → [rows, d · (1 + bins)]` (Gorishniy et al. 2022).

    Each number is followed by how much of each bin it fills: 0 below the bin, 1 above it, linear inside. The bins hold equal
    shares of a normal distribution. A threshold in one column, which a tree finds at once, is then a single weight.

    >>> PiecewiseLinear(2)(torch.tensor([[-9.0], [0.0], [9.0]])).tolist()
    [[-9.0, 0.0, 0.0], [0.0, 1.0, 0.0], [9.0, 1.0, 1.0]]
    """

    starts: Tensor
    widths: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        edges = torch.special.ndtri(torch.linspace(OUTER, 1 - OUTER, bins + 1, dtype=torch.float64))
        self.register_buffer("starts", edges[:-1].float())
        self.register_buffer("widths", edges.diff().float())

    def forward(self, x: Tensor) -> Tensor:
        """Embed rows."""
        filled = ((x[..., None] - self.starts) / self.widths).clamp(0, 1)
        return torch.cat([x, filled.flatten(1)], dim=1)
