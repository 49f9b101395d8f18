"""The backbones have the shapes of the paper and of the published ResNet-18, and the known numbers of parameters."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from besnn.errors import InputError
from besnn.layers import batch_ensemble, fast_parameters
from besnn.model import BACKBONES, BESNN, Backbone, cifar_resnet18, convnet, fashion_convnet, mlp, two_moons_mlp
from besnn.model.backbones import small_resnet


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def shapes(module, kind):
    return [tuple(layer.weight.shape) for layer in module.modules() if isinstance(layer, kind)]


def test_fashion():
    network = fashion_convnet()
    assert shapes(network, nn.Conv2d) == [(64, 1, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3)]
    assert shapes(network, nn.Linear) == [(256, 512), (256, 256)]
    block = [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]
    assert [type(layer) for layer in network.trunk] == [*block, *block, *block, nn.Flatten]
    x = torch.rand(5, 1, 28, 28)
    assert network.trunk(x).shape == (5, 512)
    assert network(x).shape == (5, 256)
    convolutions = sum(9 * a * b + b + 2 * b for a, b in ((1, 64), (64, 128), (128, 128)))
    assert count(network) == convolutions + 512 * 256 + 256 + 256 * 256 + 256


def test_fashion_for_other_methods():
    network = fashion_convnet((3, 28, 28), feature_dim=10, head_dim=None, widths=(8, 16, 32), last_kernel=5)
    assert shapes(network, nn.Conv2d) == [(8, 3, 3, 3), (16, 8, 3, 3), (32, 16, 5, 5)]
    x = torch.rand(5, 3, 28, 28)
    assert network.trunk(x).shape == (5, 4 * 32)
    assert network(x).shape == (5, 10)
    assert bool((network(x) >= 0).all())


@pytest.mark.parametrize(("paddings", "flat", "last_kernel"), [((1, 0, 0), 512, 3), ((0, 1, 0), 512, 7), ((1, 1, 1), 1152, 3)])
def test_fashion_with_other_paddings(paddings, flat, last_kernel):
    network, x = fashion_convnet(paddings=paddings, last_kernel=last_kernel), torch.rand(2, 1, 28, 28)
    assert network.trunk(x).shape == (2, flat)
    assert network(x).shape == (2, 256)


@pytest.mark.parametrize(("hidden", "feature_dim"), [((), 4), ((8,), 3), ((8, 16), 5)])
def test_mlp(hidden, feature_dim):
    network = mlp((6,), hidden, feature_dim)
    widths = [6, *hidden, feature_dim]
    assert shapes(network, nn.Linear) == [(b, a) for a, b in itertools.pairwise(widths)]
    assert isinstance(network[-1], nn.Linear)
    assert network(torch.rand(2, 6)).shape == (2, feature_dim)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 9), (1, 8, 8), (3, 17, 30)])
def test_convnet_takes_images_of_any_size(shape):
    network = convnet(shape, (4, 8, 8), 16)
    assert network(torch.rand(2, *shape)).shape == (2, 16)


SMALL = {  # the side of the maps after the stem and after stage 2, by the shape of an image
    (1, 1, 1): (1, 1),
    (3, 2, 9): (2, 2),
    (1, 8, 8): (8, 2),
    (3, 28, 28): (14, 3),
    (3, 32, 32): (16, 4),
    (3, 64, 96): (16, 4),
    (3, 224, 224): (14, 3),
}


@pytest.mark.parametrize(("shape", "sides"), SMALL.items())
def test_a_small_resnet_shrinks_images_of_any_size_before_most_of_its_work(shape, sides):
    network, x = small_resnet(shape, feature_dim=16, channels=4), torch.rand(2, *shape)
    early = network.trunk.stem(x)
    late = network.trunk.stage2(network.trunk.stage1(early))
    assert (min(early.shape[2:]), min(late.shape[2:])) == sides
    assert (early.shape[1], late.shape[1]) == (4, 16)
    assert network(x).shape == (2, 16)


PAPER = {
    "two-moons": (two_moons_mlp, (2,), 32, {"num_classes": 2, "noise_dim": 8, "hidden_dim": 32}, (10, 32, 32)),
    "fashion": (fashion_convnet, (1, 28, 28), 256, {"num_classes": 10}, (522, 512, 256)),
}


@pytest.mark.parametrize(("backbone", "shape", "dim", "arguments", "widths"), PAPER.values(), ids=PAPER.keys())
def test_converts_with_few_more_parameters(backbone, shape, dim, arguments, widths):
    plain = backbone()
    model = BESNN(plain, feature_dim=dim, members=4, **arguments)
    inputs, hidden, outputs = widths
    assert model.generator.hidden.weight.shape == (hidden, inputs)
    assert model.generator.output.weight.shape == (outputs, hidden)
    assert model.features(torch.rand(2, *shape)).shape == (4, 2, dim)
    ensemble = batch_ensemble(plain, 4)
    biases = sum(3 * m.bias.numel() for m in plain.modules() if isinstance(m, nn.Linear | nn.Conv2d) and m.bias is not None)
    assert count(ensemble) == count(plain) + sum(p.numel() for p in fast_parameters(ensemble)) + biases
    if backbone is not two_moons_mlp:
        assert count(ensemble) < 1.05 * count(plain)


# --- the registry ---

SHAPES = {
    "mlp": (6,),
    "tabular": (6,),
    "convnet": (2, 9, 7),
    "fashion-convnet": (3, 28, 28),
    "small-resnet": (2, 40, 50),
    "cifar-resnet18": (1, 32, 32),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_builds_by_name_with_the_settings_it_has(name):
    settings = {
        "hidden": (4,),
        "widths": (2, 3, 4),
        "head_dim": 5,
        "last_kernel": 5,
        "paddings": (1, 0, 0),
        "width": 2,
        "channels": 2,
    }
    network = BACKBONES[name].build(SHAPES[name], 7, settings)
    assert BACKBONES[name].name == name
    assert network(torch.rand(2, *SHAPES[name])).shape == (2, 7)
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    inputs = 5 * 6 if name == "tabular" else SHAPES[name][0]  # a number and its four pieces
    assert first.weight.shape[:2] == (4 if "hidden" in BACKBONES[name].settings else 2, inputs)


def test_settings_have_types_and_defaults():
    for backbone in BACKBONES.values():
        for setting in backbone.settings.values():
            assert setting.annotation.__metadata__[-1].description
            assert setting.default is not setting.empty


def test_a_backbone_of_ones_own():
    def wide(input_shape, feature_dim=8, breadth: int = 3):
        return nn.Sequential(nn.Linear(*input_shape, breadth), nn.Linear(breadth, feature_dim))

    backbone = Backbone("wide", wide, "table")
    assert {name: setting.default for name, setting in backbone.settings.items()} == {"breadth": 3}
    assert shapes(backbone.build((4,), 5, {"breadth": 6, "hidden": ()}), nn.Linear) == [(6, 4), (5, 6)]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mlp", (1, 8, 8), r"takes table rows \[columns\], not inputs \[1, 8, 8\]: use backbone.name=auto"),
        ("convnet", (5,), r"'convnet' takes images \[channels, h, w\], not inputs \[5\]"),
        ("fashion-convnet", (1, 32, 32), r"takes 28×28 images, not \[1, 32, 32\]: use backbone.name=convnet"),
        ("cifar-resnet18", (3, 32, 28), r"takes 32×32 images, not \[3, 32, 28\]"),
    ],
)
def test_inputs_that_a_backbone_does_not_take(name, shape, message):
    with pytest.raises(InputError, match=message):
        BACKBONES[name].build(shape, 4)


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


def test_a_residual_block_starts_as_its_shortcut():
    block = cifar_resnet18(width=4).trunk.stage1[0]
    x = torch.rand(2, 4, 4, 4)
    assert torch.equal(block(x), x)


def test_first_distances_are_within_reach_of_the_kernel():
    model = BESNN(cifar_resnet18(width=16), num_classes=10, feature_dim=512, members=2, norm="member")
    assert float(model.distances(torch.randn(8, 3, 32, 32)).detach().mean()) < 100  # exp(−100) is a float32 still
