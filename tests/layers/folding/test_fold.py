"""Folding: the same function, by plain weights per member; and the outputs of named layers along with it."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from besnn.errors import InputError
from besnn.layers import BatchEnsembleConv2d, BatchEnsembleLinear, batch_ensemble, fold, tile
from besnn.layers.folding.fold import WithLayerOutputs, find_layer
from besnn.layers.folding.folded_layers import FoldedLinear
from besnn.layers.layer import BatchEnsembleLayer
from besnn.model import cifar_resnet18, convnet, mlp

MEMBERS = 3


def relative_error(got, expected):
    """The largest over all outputs, of which a network may have several."""
    if isinstance(expected, tuple):
        return max(relative_error(a, b) for a, b in zip(got, expected, strict=True))
    assert got.shape == expected.shape
    return float((got - expected).detach().abs().max() / expected.detach().abs().max())


def mirrored(x):
    """The rows of `MEMBERS` members, of which every second one gets mirror images."""
    return torch.cat([x, x.flip(3), x])


def targets(folded):
    return [node.target for node in folded.graph.nodes]


@pytest.mark.parametrize("norm", ["shared", "member"])
def test_equals_the_unfolded_network_by_plain_weights_and_leaves_it_alone(network, norm):
    ensemble, x = network.ensemble(MEMBERS, norm).train(), network.inputs(2)
    before, types = copy.deepcopy(ensemble.state_dict()), [type(module) for module in ensemble.modules()]
    folded, given = fold(ensemble), x.clone()
    assert all(module.training for module in ensemble.modules())
    assert [type(module) for module in ensemble.modules()] == types
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())
    expected = ensemble.eval()(tile(x, MEMBERS))
    for inputs in (x, x, x.to(memory_format=torch.channels_last) if x.ndim == 4 else x):
        assert relative_error(folded(inputs), expected) < 1e-12
        assert torch.equal(x, given)
    assert isinstance(folded, fx.GraphModule) == network.traced
    assert not any(isinstance(module, BatchEnsembleLayer) for module in folded.modules())
    assert not any(module.training for module in folded.modules())


def test_input_is_not_tiled_before_the_first_layer(untiled_network):
    folded, x = fold(untiled_network.ensemble(MEMBERS)), untiled_network.inputs(2)
    first = next(module for module in folded.modules() if isinstance(module, FoldedLinear | _ConvNd))
    seen = []
    first.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].shape))
    folded(x)
    assert seen[0][0] == 2
    assert seen[0].numel() == x.numel() or untiled_network.share  # a shared layer before it may change the size


def test_convolutions_stay_apart_and_norms_disappear():
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.MaxPool2d(2)
    )
    behind_linear = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    for norm in ("shared", "member"):
        assert not any(
            isinstance(module, nn.BatchNorm1d) for module in fold(batch_ensemble(behind_linear, 2, norm=norm)).modules()
        )
        folded = fold(batch_ensemble(plain, MEMBERS, norm=norm))
        assert targets(folded).count(torch.cat) == 1  # for the output
        assert tile not in targets(folded)
        assert {type(module) for module in folded.modules() if not list(module.children())} == {
            nn.Conv2d,
            nn.ReLU,
            nn.MaxPool2d,
        }


def test_norm_over_positions_as_many_as_features_is_refused_not_misread(shake):
    plain = shake(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    with pytest.raises(InputError, match=r"shape \[2, 4, 3\] in front of a folded BatchNorm: put nn.Identity\(\)"):
        fold(batch_ensemble(plain, MEMBERS))(torch.randn(2, 4, 3))
    plain.insert(1, nn.Identity())
    ensemble, x = batch_ensemble(plain, MEMBERS).eval(), torch.randn(2, 4, 3)
    assert relative_error(fold(ensemble)(x), ensemble(tile(x, MEMBERS))) < 1e-5


def test_norm_with_an_activation_of_its_own_keeps_it(shake):
    class NormAndActivation(nn.BatchNorm2d):
        def forward(self, x):
            return torch.tanh(super().forward(x))

    plain = shake(nn.Sequential(nn.Conv2d(3, 4, 3), NormAndActivation(4), nn.Conv2d(4, 2, 3)))
    ensemble, x = batch_ensemble(plain, MEMBERS).eval(), torch.randn(2, 3, 6, 6)
    assert relative_error(fold(ensemble)(x), ensemble(tile(x, MEMBERS))) < 1e-5


def test_shared_trunk_runs_once_for_all_members():
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    plain = nn.Sequential(trunk, nn.Flatten(), nn.Linear(64, 2))
    folded = fold(batch_ensemble(plain, MEMBERS, share=["0"]))
    assert tile not in targets(folded)


def test_sequence_first_network_is_tiled_on_its_batch_axis():
    ensemble = batch_ensemble(nn.TransformerEncoderLayer(8, 2, 16), 2).eval()
    x = torch.randn(4, 6, 8)  # length, batch, features
    assert relative_error(fold(ensemble)(x), ensemble(tile(x, 2, dim=1))) < 1e-5


def test_optional_arguments_keep_their_defaults():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BatchEnsembleLinear(3, 4, members=2)

        def forward(self, x, mask=None):
            return self.layer(x if mask is None else x * mask)

    network, x = Scaled(), torch.randn(2, 3)
    assert relative_error(fold(network)(x), network(tile(x, 2))) < 1e-5


def test_statistics_wider_than_the_weights():
    layer, norm = BatchEnsembleConv2d(3, 4, 3, members=2, dtype=torch.bfloat16), nn.BatchNorm2d(4)
    folded = fold(nn.Sequential(layer, norm))
    assert {value.dtype for value in folded.state_dict().values()} == {torch.bfloat16}


def test_one_layer_under_two_names_is_folded_under_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = BatchEnsembleLinear(3, 3, members=2)

        def forward(self, x):
            return self.second(self.first(x)) if x.sum() > 0 else self.first(x)

    network, x = Twice(), torch.rand(2, 3)
    folded = fold(network)
    assert not any(isinstance(module, BatchEnsembleLayer) for module in folded.modules())
    assert relative_error(folded(x), network(tile(x, 2))) < 1e-5


def assert_layer_outputs_are_the_layers_rows(ensemble, x, rows, **options):
    observed, seen = copy.deepcopy(ensemble), {}
    for name, layer in list(observed.named_modules())[1:]:
        layer.register_forward_hook(lambda module, arguments, output, name=name: seen.update({name: output}))
    expected = observed(rows)
    tensors = {name: inner for name, inner in seen.items() if isinstance(inner, torch.Tensor)}
    kept = [name for name, inner in tensors.items() if inner._version == 0]  # an output that nothing overwrites later
    for names in [*((name,) for name in (kept[0], kept[len(kept) // 2], kept[-1])), kept]:
        output, *others = fold(ensemble, *names, **options)(x)
        for found, wanted in zip([output, *others], [expected, *(seen[name] for name in names)], strict=True):
            assert relative_error(found, wanted) < 1e-12, names


def test_layer_outputs_are_the_layers_rows(network):
    ensemble, x = network.ensemble(MEMBERS, "member"), network.inputs(2)
    assert_layer_outputs_are_the_layers_rows(ensemble, x, tile(x, MEMBERS))


def test_nothing_to_fold():
    with pytest.raises(InputError, match="no batch-ensemble layers to fold: convert it first"):
        fold(nn.Linear(2, 3))


# --- mirror images for every second member ---


def test_mirrored_it_equals_the_unfolded_network(image_network):
    ensemble, x = image_network.ensemble(MEMBERS, "member"), image_network.inputs(2)
    before = x.clone()
    folded = fold(ensemble, mirror=True)
    for inputs in (x, x.to(memory_format=torch.channels_last)):
        assert relative_error(folded(inputs), ensemble(mirrored(x))) < 1e-12
    assert torch.equal(x, before)
    assert isinstance(folded, fx.GraphModule) == image_network.traced


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("traced", [True, False])
def test_mirrored_input_that_the_network_overwrites_is_left_alone(members, traced):
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = BatchEnsembleConv2d(3, 4, 3, members=members)

        def forward(self, x):
            x += 1
            return self.conv(x) if traced or x.sum() > 0 else x

    network, x = Overwriting(), torch.rand(2, 3, 5, 5)
    before = x.clone()
    folded = fold(network, mirror=True)
    found = folded(x)
    assert isinstance(folded, fx.GraphModule) == traced
    assert torch.equal(x, before)
    assert relative_error(found, network(torch.cat([x, x.flip(3)][:members]))) < 1e-5


def test_mirror_images_of_a_table():
    with pytest.raises(InputError, match=r"inputs of shape \[3\] are not images and have no mirror images: set mirror=False"):
        fold(BatchEnsembleLinear(3, 4, members=2), mirror=True)(torch.randn(2, 3))


EXPORTED = {
    "table": (lambda: mlp((2,), (4,), 3), (2,)),
    "convnet": (lambda: convnet((1, 8, 8), (4, 6), 5), (1, 8, 8)),
    "resnet": (lambda: cifar_resnet18(width=4, feature_dim=6), (3, 32, 32)),
    "transformer": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, 2)
        ),
        (5, 6),
    ),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_with_a_dynamic_batch(name, shake):
    build, shape = EXPORTED[name]
    ensemble, mirror = shake(batch_ensemble(build(), MEMBERS)).eval(), name == "convnet"
    folded = fold(ensemble, mirror=mirror)
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        program = torch.export.export(folded, (torch.randn(3, *shape),), dynamic_shapes=({0: batch},))
        for size in (1, 4):
            x = torch.randn(size, *shape)
            assert relative_error(program.module()(x), ensemble(mirrored(x) if mirror else tile(x, MEMBERS))) < 1e-5


def test_views_as_another_type_and_by_keyword():
    class Bits(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BatchEnsembleLinear(4, 2, members=MEMBERS)

        def forward(self, x):
            y = self.layer(x)
            return y.view(torch.int32).view(dtype=torch.float32).view(size=(-1, 2, 1)).view(y.size(0), 1, 2)

    network, x = Bits().eval(), torch.rand(5, 4)
    folded = fold(network)
    assert isinstance(folded, fx.GraphModule)
    torch.testing.assert_close(folded(x), network(tile(x, MEMBERS)))


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


@pytest.mark.parametrize("layer", ["trunk", "", "0.1"])
def test_a_layer_that_is_not_there_lists_those_that_are(layer):
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(InputError, match=f"no layer '{layer}': its layers are 0, 1"):
        find_layer(network, layer)
    with pytest.raises(InputError, match="no layer"):
        WithLayerOutputs(network, layer)
