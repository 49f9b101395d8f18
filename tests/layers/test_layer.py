"""Finding fast weights and members by type."""

import pytest
import torch
from torch import nn

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv2d,
    BatchEnsembleLinear,
    MemberBatchNorm1d,
    batch_ensemble,
    fast_parameters,
    members_of,
)


class Decoy(nn.Module):
    """Parameters called as fast weights are, which are none."""

    def __init__(self):
        super().__init__()
        self.r, self.s = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
        self.fast_r = nn.Parameter(torch.ones(1))


def test_fast_weights_are_found_by_type():
    linear, conv = BatchEnsembleLinear(3, 4, members=2), BatchEnsembleConv2d(1, 2, 3, members=2)
    network = nn.Sequential(Decoy(), linear, nn.Sequential(conv, Decoy()))
    assert [id(p) for p in fast_parameters(network)] == [id(linear.r), id(linear.s), id(conv.r), id(conv.s)]
    assert list(fast_parameters(Decoy())) == []


def test_tied_layers_count_once():
    layer, twin = BatchEnsembleLinear(3, 3, members=2), BatchEnsembleLinear(3, 3, members=2)
    twin.r = layer.r
    found = list(fast_parameters(nn.ModuleList([layer, nn.Sequential(layer), twin])))
    assert [id(p) for p in found] == [id(layer.r), id(layer.s), id(twin.s)]


def test_optimiser_takes_fast_and_other_weights_apart():
    network = batch_ensemble(nn.Sequential(nn.Linear(3, 4), nn.MultiheadAttention(4, 2)), 2)
    fast = list(fast_parameters(network))
    others = [p for p in network.parameters() if id(p) not in {id(f) for f in fast}]
    optimiser = torch.optim.SGD([{"params": fast, "lr": 1.0, "weight_decay": 0.0}, {"params": others}], lr=0.1)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(network.parameters()))
    assert len(fast) == 2 * 5  # the linear layer and the four projections


def test_members_of():
    assert members_of(nn.Linear(2, 2)) is None
    assert members_of(nn.Sequential(nn.ReLU(), BatchEnsembleLinear(2, 2, members=5))) == 5
    assert members_of(MemberBatchNorm1d(2, members=3)) == 3
    mixed = nn.Sequential(BatchEnsembleLinear(2, 2, members=4), BatchEnsembleLinear(2, 2, members=2))
    with pytest.raises(InputError, match=r"mixes layers of \[2, 4\] members: build all of them with the same members="):
        members_of(mixed)
