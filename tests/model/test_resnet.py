"""The CIFAR ResNet-18 against the published network, written out by hand; its conversion, its fold and its penalty."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from besnn.layers import batch_ensemble, fold, ones, tile
from besnn.model import BESNN, cifar_resnet18
from besnn.objective import BESNNObjective

STAGES = [f"trunk.stage{number}" for number in (1, 2, 3, 4)]


@pytest.fixture
def narrow():
    """A network of the same depth, fast to run, with BatchNorm statistics and weights that are not the initial ones."""
    network = cifar_resnet18(feature_dim=6, width=4).double()
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        for values in (norm.weight, norm.running_var):
            nn.init.uniform_(values, 0.5, 1.5)
        for values in (norm.bias, norm.running_mean):
            nn.init.normal_(values, std=0.2)
    return network.eval()


def images(count=2):
    return torch.randn(count, 3, 32, 32, dtype=torch.float64)


def published_resnet18(state, x):
    """ResNet-18 of He et al. (2016) with the stem that is usual on CIFAR, from weights in the order in which they are used."""
    values = iter([value for name, value in state.items() if not name.endswith("num_batches_tracked")])

    def convolved(x, stride):
        kernel = next(values)
        y = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        weight, bias, mean, variance = (next(values) for _ in range(4))
        return (y - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt() * weight[:, None, None] + bias[:, None, None]

    maps = []
    x = convolved(x, 1).clamp(min=0)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            y = convolved(convolved(x, stride).clamp(min=0), 1)
            x = (y + (convolved(x, stride) if stride == 2 else x)).clamp(min=0)
        maps.append(x)
    features = x.flatten(2).mean(2) @ next(values).T + next(values)
    assert next(values, None) is None
    return features, maps


def test_it_is_the_published_network(narrow):
    x = images()
    features, maps = published_resnet18(narrow.state_dict(), x)
    torch.testing.assert_close(narrow(x), features)
    assert [tuple(each.shape[1:]) for each in maps] == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    for number, expected in enumerate(maps, start=1):
        x = narrow.trunk[number](x if number > 1 else narrow.trunk.stem(x))
        torch.testing.assert_close(x, expected)


def test_parameters():
    network = cifar_resnet18()
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in network.named_children()}
    ten_classes = 512 * 10 + 10
    assert sizes["trunk"] + ten_classes == 11_173_962  # as published for ResNet-18 on CIFAR-10
    assert sizes["head"] == 512 * 512 + 512
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 18 layers with the classifier, and three shortcuts
    model = BESNN(network, num_classes=10, feature_dim=512, members=4, norm="member")
    fast = 4 * sum(layer.in_channels + layer.out_channels for layer in convolutions) + 4 * (512 + 512)
    norms = 3 * 2 * sum(layer.out_channels for layer in convolutions)  # three more members' scales and shifts
    generator = 522 * 512 + 512 * 512 + 4 * (522 + 512 + 512 + 512) + 4 * (512 + 512)
    total = sum(p.numel() for p in model.parameters())
    assert total == sizes["trunk"] + sizes["head"] + fast + norms + 3 * 512 + generator
    assert total < 1.1 * 11_173_962


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("norm", ["shared", "member"])
def test_members_with_fast_weights_of_one_are_the_plain_network(norm, mode, narrow):
    ensemble = batch_ensemble(narrow, 3, norm=norm, init=ones()).train(mode == "train")
    x = images(4)
    expected = narrow.train(mode == "train")(x)
    for member in ensemble(tile(x, 3)).chunk(3):
        torch.testing.assert_close(member, expected)


@pytest.mark.parametrize("layer", [*STAGES, "trunk", "head"])
def test_folded_outputs_and_layer_outputs(layer, narrow):
    ensemble = batch_ensemble(narrow, 3, norm="member").eval()
    x = images()
    seen = {}
    handle = ensemble.get_submodule(layer).register_forward_hook(lambda *call: seen.update(output=call[2]))
    expected = ensemble(tile(x, 3))
    handle.remove()
    features, inner = fold(ensemble, layer)(x)
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(inner, seen["output"])


def test_the_penalty_has_the_gradients_of_a_plain_double_backward(narrow):
    model = BESNN(narrow, num_classes=3, feature_dim=6, members=2, noise_dim=4, hidden_dim=5, samples=6, norm="member").double()
    model.train()
    x, labels = images(3), torch.arange(3)
    torch.manual_seed(1)
    objective = BESNNObjective(entropy_weight=0, gradient_weight=0.5)
    objective(model, x, labels, {"classification": 0})["gradient"].backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    torch.manual_seed(1)
    rows = tile(x, 2).requires_grad_()
    class_features = model.class_features()  # [members, classes, samples, d]
    features = model.feature_extractor(rows).view(2, 3, 1, 1, 6)
    distances = (features - class_features[:, None]).square().sum(-1).mean(-1)  # [members, batch, classes]
    (gradient,) = torch.autograd.grad(distances.neg().exp().sum(), rows, create_graph=True)
    (0.5 * (gradient.flatten(1).square().sum(1) - 1).square().mean()).backward()
    assert len(found) > 60
    for name, expected in found.items():
        torch.testing.assert_close(model.get_parameter(name).grad, expected)


def test_a_residual_block_starts_as_its_shortcut():
    block = cifar_resnet18(width=4).trunk.stage1[0]
    x = torch.rand(2, 4, 4, 4)
    assert torch.equal(block(x), x)


def test_first_distances_are_within_reach_of_the_kernel():
    model = BESNN(cifar_resnet18(width=16), num_classes=10, feature_dim=512, members=2, norm="member")
    assert float(model.distances(torch.randn(8, 3, 32, 32)).detach().mean()) < 100  # exp(−100) is a float32 still
