import torch
from torch import nn

from besnn.training.weights import average_weights, copy_weights, load_average


def test_the_running_mean_is_the_mean():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average, seen = {}, []
    for count in range(1, 8):
        network(torch.randn(5, 3))  # moves the statistics
        with torch.no_grad():
            network[0].weight.normal_()
        seen.append(copy_weights(network))
        average_weights(average, network, count)
    assert set(average) == set(seen[0]) - {"1.num_batches_tracked"}
    for name, mean in average.items():
        expected = torch.stack([weights[name].double() for weights in seen]).mean(0)
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
    load_average(average, network)
    assert torch.equal(network[0].weight, average["0.weight"])
    assert torch.equal(network[1].running_mean, average["1.running_mean"])
    assert network[1].num_batches_tracked == 7


def test_a_copy_does_not_change_with_the_model():
    layer = nn.Linear(2, 2)
    kept = copy_weights(layer)
    before = kept["weight"].clone()
    with torch.no_grad():
        layer.weight.zero_()
    assert torch.equal(kept["weight"], before)
    assert not kept["weight"].requires_grad
