"""The piecewise-linear embedding: against a loop over bins, and inside a folded batch ensemble."""

import numpy as np
import torch
from scipy.stats import norm
from torch import nn

from besnn.layers import batch_ensemble, fold, tile
from besnn.layers.embedding import PiecewiseLinear


def test_each_bin_is_filled_from_0_to_1():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    embedded = PiecewiseLinear(4).double()(x).numpy()
    assert embedded.shape == (50, 15)
    np.testing.assert_array_equal(embedded[:, :3], x)
    edges = norm.ppf(np.linspace(0.02, 0.98, 5))
    for column in range(3):
        for place in range(4):
            filled = np.interp(x[:, column], edges[place : place + 2], [0, 1])
            np.testing.assert_allclose(embedded[:, 3 + 4 * column + place], filled, atol=1e-6)


def test_members_share_it_when_folded():
    torch.manual_seed(0)
    plain = nn.Sequential(PiecewiseLinear(4), nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 2))
    ensemble = batch_ensemble(plain, members=3).eval()
    x = torch.randn(5, 3)
    rows = []
    folded = fold(ensemble)
    for module in folded.modules():
        if isinstance(module, PiecewiseLinear):
            module.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    torch.testing.assert_close(folded(x), ensemble(tile(x, 3)))
    assert rows == [5]  # embedded once, not once per member
