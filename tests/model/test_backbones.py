"""The paper's backbones have the paper's shapes and the known numbers of parameters; all are built by name."""

import itertools

import pytest
import torch
from torch import nn

from besnn.errors import InputError
from besnn.layers import batch_ensemble, fast_parameters, tile
from besnn.model import BACKBONES, BESNN, Backbone, cifar_resnet18, convnet, fashion_convnet, mlp, two_moons_mlp


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def shapes(module, kind):
    return [tuple(layer.weight.shape) for layer in module.modules() if isinstance(layer, kind)]


def test_two_moons():
    network = two_moons_mlp()
    assert shapes(network, nn.Linear) == [(32, 2), (32, 32), (32, 32)]
    assert [type(layer) for layer in network] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert network(torch.rand(5, 2)).shape == (5, 32)


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


@pytest.mark.parametrize(("paddings", "flat"), [((1, 0, 0), 512), ((0, 1, 0), 512), ((1, 1, 1), 1152), ((0, 0, 0), 128)])
@pytest.mark.parametrize("last_kernel", [3, 7])
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


PAPER = {
    "two-moons": (two_moons_mlp, (2,), 32, {"num_classes": 2, "noise_dim": 8, "hidden_dim": 32}, (10, 32, 32)),
    "fashion": (fashion_convnet, (1, 28, 28), 256, {"num_classes": 10}, (522, 512, 256)),
    "cifar": (cifar_resnet18, (3, 32, 32), 512, {"num_classes": 10}, (522, 512, 512)),
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


def test_members_of_a_converted_backbone_differ():
    ensemble = batch_ensemble(two_moons_mlp(), 3)
    a, b, c = ensemble(tile(torch.rand(4, 2), 3)).chunk(3)
    assert not torch.allclose(a, b)
    assert not torch.allclose(b, c)


# --- the registry ---

SHAPES = {"mlp": (6,), "convnet": (2, 9, 7), "fashion-convnet": (3, 28, 28), "cifar-resnet18": (1, 32, 32)}


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_builds_by_name_with_the_settings_it_has(name):
    settings = {"hidden": (4,), "widths": (2, 3, 4), "head_dim": 5, "last_kernel": 5, "paddings": (1, 0, 0), "width": 2}
    network = BACKBONES[name].build(SHAPES[name], 7, settings)
    assert BACKBONES[name].name == name
    assert network(torch.rand(2, *SHAPES[name])).shape == (2, 7)
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    assert first.weight.shape[:2] == ({"mlp": 4, "convnet": 4}.get(name, 2), SHAPES[name][0])


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
