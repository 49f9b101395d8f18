"""Outputs of named layers along with a network's own."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, WithLayerOutputs, find_layer, fold, tile
from besnn.model import fashion_convnet


def test_output_and_layer_output():
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    x = torch.randn(5, 2)
    output, inner = WithLayerOutputs(network, "1")(x)
    assert torch.equal(output, network(x))
    assert torch.equal(inner, network[:2](x))


def test_a_nested_layer_by_its_full_name():
    network = fashion_convnet(widths=(2, 2, 2)).eval()
    x = torch.rand(2, 1, 28, 28)
    _, inner = WithLayerOutputs(network, "trunk.3")(x)
    assert torch.equal(inner, network.trunk[:4](x))


def test_the_last_call_counts_where_a_layer_runs_twice():
    shared = nn.Linear(2, 2)
    network = nn.Sequential(shared, nn.ReLU(), shared)
    x = torch.randn(5, 2)
    output, inner = WithLayerOutputs(network, "0")(x)
    assert torch.equal(output, inner)


def test_several_layers_in_the_given_order():
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    x = torch.randn(5, 2)
    output, *inner = WithLayerOutputs(network, "1", "0", "1")(x)
    assert torch.equal(output, network(x))
    for found, depth in zip(inner, (2, 1, 2), strict=True):
        assert torch.equal(found, network[:depth](x))


def test_what_goes_into_a_layer():
    class Named(nn.Module):
        def forward(self, x, *, shift):
            return x + shift, x

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.named = nn.Linear(2, 3), Named()

        def forward(self, x):
            return self.named(self.first(x), shift=1.0)[0] * 2

    network, x = Network(), torch.randn(5, 2)
    output, into, out_of = WithLayerOutputs(network, "named:input", "named")(x)
    assert torch.equal(into, network.first(x))
    assert torch.equal(out_of, into + 1)
    assert torch.equal(output, network(x))


def test_no_output_is_kept():
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    network = WithLayerOutputs(plain, "0", "1")
    network(torch.randn(1, 2))
    plain(torch.randn(1, 2))
    assert not network._outputs


def test_threads_do_not_get_each_others_layers():
    meeting = threading.Barrier(2)

    class Meet(nn.Module):
        def forward(self, x):
            meeting.wait(timeout=10)  # until both threads have passed the network layer
            return x

    network = WithLayerOutputs(nn.Sequential(nn.Identity(), Meet()), "0")
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(network, [torch.zeros(1, 2), torch.ones(1, 2)]))
    for output, inner in results:
        assert torch.equal(output, inner)


def test_it_copies_and_exports():
    network = copy.deepcopy(WithLayerOutputs(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "0", "1"))
    x = torch.randn(4, 2)
    expected = network(x)
    program = torch.export.export(network, (x,)).module()
    for found, wanted in zip(program(x), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_folding_keeps_layer_outputs():
    network = nn.Sequential(BatchEnsembleLinear(2, 3, members=4), nn.Tanh(), BatchEnsembleLinear(3, 5, members=4))
    x = torch.randn(6, 2)
    output, *inner = fold(network, "1", "0")(x)
    torch.testing.assert_close(output, network(tile(x, 4)))
    for found, depth in zip(inner, (2, 1), strict=True):
        torch.testing.assert_close(found, network[:depth](tile(x, 4)))


@pytest.mark.parametrize("layer", ["trunk", "", "0.1"])
def test_a_layer_that_is_not_there_lists_those_that_are(layer):
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(InputError, match=f"no layer '{layer}': its layers are 0, 1"):
        find_layer(network, layer)
    with pytest.raises(InputError, match="no layer"):
        WithLayerOutputs(network, layer)
