"""The battery of tests that every batch-ensemble layer passes, with many of torch's own arguments."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
    BatchEnsembleLinear,
    MemberBatchNorm1d,
    batch_ensemble,
    fast_parameters,
    fold,
    members_of,
    normal,
    ones,
    tile,
)
from besnn.layers.layer import BatchEnsembleLayer

MEMBERS = 3


@dataclass(frozen=True)
class LayerCase:
    layer: type[BatchEnsembleLayer]
    plain: type[nn.Module]
    arguments: dict[str, Any]
    input_shape: tuple[int, ...]

    def build(self, members: int = 3, **others: Any) -> BatchEnsembleLayer:
        others = {"dtype": torch.float64, "init": normal(0.5), **others}
        return self.layer(**self.arguments, members=members, **others)

    def inputs(self, rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(rows, *self.input_shape, dtype=dtype)

    def build_plain(self) -> nn.Module:
        return self.plain(**self.arguments, dtype=torch.float64)


def _linear(input_shape: tuple[int, ...] = (6,), **arguments: Any) -> LayerCase:
    return LayerCase(BatchEnsembleLinear, nn.Linear, {"in_features": 6, "out_features": 4, **arguments}, input_shape)


def _conv(dims: int, transposed: bool = False, **arguments: Any) -> LayerCase:
    arguments = {"in_channels": 4, "out_channels": 6, "kernel_size": 3, **arguments}
    layer, plain = {
        1: (BatchEnsembleConv1d, nn.Conv1d),
        2: (BatchEnsembleConv2d, nn.Conv2d),
        3: (BatchEnsembleConv3d, nn.Conv3d),
        -2: (BatchEnsembleConvTranspose2d, nn.ConvTranspose2d),
    }[-dims if transposed else dims]
    return LayerCase(layer, plain, arguments, (4, *(5, 6, 7)[:dims]))


LAYER_CASES = {
    "linear": _linear(),
    "linear-nobias": _linear(bias=False),
    "linear-sequence": _linear((5, 6)),
    "conv1d": _conv(1),
    "conv1d-stride": _conv(1, stride=2, padding=1),
    "conv1d-same-circular": _conv(1, padding="same", dilation=2, padding_mode="circular"),
    "conv1d-groups-nobias": _conv(1, groups=2, bias=False),
    "conv2d": _conv(2),
    "conv2d-tuples": _conv(2, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    "conv2d-same": _conv(2, padding="same", dilation=(2, 1)),
    "conv2d-valid": _conv(2, padding="valid", stride=2),
    "conv2d-groups": _conv(2, groups=2, padding=1),
    "conv2d-depthwise": _conv(2, out_channels=4, groups=4, padding=1),
    "conv2d-depthwise-multiplier": _conv(2, out_channels=12, groups=4, bias=False),
    "conv2d-reflect": _conv(2, padding=2, padding_mode="reflect"),
    "conv2d-circular": _conv(2, padding=(1, 2), padding_mode="circular", groups=2),
    "conv2d-replicate-same": _conv(2, padding="same", padding_mode="replicate"),
    "conv2d-nobias": _conv(2, bias=False),
    "conv3d": _conv(3, stride=2, padding=1),
    "conv3d-depthwise-replicate": _conv(3, out_channels=4, groups=4, padding=1, padding_mode="replicate"),
    "transpose2d": _conv(2, transposed=True, stride=2, padding=1, output_padding=1),
    "transpose2d-groups": _conv(2, transposed=True, groups=2, stride=(2, 1)),
    "transpose2d-depthwise-nobias": _conv(2, transposed=True, out_channels=4, groups=4, bias=False, dilation=2),
}


@pytest.fixture(params=LAYER_CASES.values(), ids=LAYER_CASES.keys())
def case(request: pytest.FixtureRequest) -> LayerCase:
    return request.param


@pytest.fixture(params=["linear", "conv1d", "conv2d", "conv3d", "transpose2d"])
def kind(request: pytest.FixtureRequest) -> LayerCase:
    """One case per kind of layer, for what does not depend on torch's arguments."""
    return LAYER_CASES[request.param]


def test_equals_explicit_weights_member_by_member_also_when_folded(case, oracle):
    layer, plain, x = case.build(MEMBERS), case.build_plain(), case.inputs(2)
    expected = torch.cat([oracle(layer, plain, n)(x) for n in range(MEMBERS)])
    torch.testing.assert_close(layer(tile(x, MEMBERS)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fold(layer)(x), expected, rtol=1e-12, atol=1e-12)
    assert repr(layer) == f"BatchEnsemble{repr(plain).removesuffix(')')}, members={MEMBERS})"


def test_gradients(case):
    layer, x = case.build(2), case.inputs(2).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def forward(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), x)

    assert set(names) == {"weight", "r", "s"} | ({"bias"} if layer.bias is not None else set())
    assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True)


def test_folds_behind_another_layer(case):
    layer, x = case.build(MEMBERS), case.inputs(2)
    inputs, dims = x.shape[layer.channel_dim], layer.weight.ndim - 2
    kinds = {0: BatchEnsembleLinear, 1: BatchEnsembleConv1d, 2: BatchEnsembleConv2d, 3: BatchEnsembleConv3d}
    first = kinds[dims](inputs, inputs, *([1] if dims else []), members=MEMBERS, dtype=torch.float64)
    network = nn.Sequential(first, nn.Tanh(), layer)
    torch.testing.assert_close(fold(network)(x), network(tile(x, MEMBERS)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype(kind, dtype):
    layer, x = kind.build(MEMBERS, dtype=dtype), kind.inputs(MEMBERS, dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    y = layer(x).detach()
    assert y.dtype == dtype
    expected = layer.double()(x.double()).detach()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps * float(expected.abs().max()))


@pytest.mark.parametrize(("members", "batch"), [(1, 1), (1, 3), (4, 1), (2, 0)])
def test_shapes(kind, members, batch):
    layer, x = kind.build(members), kind.inputs(members * batch)
    assert layer(x).shape == kind.build_plain()(x).shape


def test_state_dict_round_trip(kind):
    source, target, x = kind.build(MEMBERS), kind.build(MEMBERS), kind.inputs(MEMBERS)
    assert not torch.equal(source(x), target(x))
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(x), target(x))


def test_autocast_takes_both_precisions(kind):
    layer = kind.build(MEMBERS, dtype=torch.float32)
    x = kind.inputs(MEMBERS, torch.float32)
    expected = layer(x).detach()
    for rows in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(rows)
        assert y.dtype == (torch.bfloat16 if layer.weight.ndim > 2 else torch.float32)  # maps stay small
        torch.testing.assert_close(y.detach().float(), expected, rtol=0, atol=0.05 * float(expected.abs().max()))


def test_batch_that_members_do_not_divide(kind):
    with pytest.raises(
        InputError, match=r"members=3 does not divide a batch of 4 rows: tile the input first with .*tile\(x, 3\)"
    ):
        kind.build(3)(kind.inputs(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_wrong_dtype(kind, dtype):
    with pytest.raises(InputError, match=f"input has dtype {dtype} but the layer torch.float64: convert one, e.g. x.to"):
        kind.build(3)(kind.inputs(3).to(dtype))


def test_wrong_number_of_channels_is_not_broadcast(kind):
    layer, x = kind.build(3), kind.inputs(3)
    one_channel = x.narrow(layer.channel_dim, 0, 1)
    with pytest.raises(InputError, match=r"input has shape \[3, .*but the layer takes a batch with \d channels"):
        layer(one_channel)


def test_input_without_a_batch(kind):
    one = kind.inputs(1)[0]
    if one.ndim == 2 and kind.plain is nn.Linear:
        one = one[0]  # a linear layer takes any number of axes behind the batch
    with pytest.raises(InputError, match="add a batch axis"):
        kind.build(2)(one)


@pytest.mark.parametrize("members", [0, 1.5])
def test_wrong_members(kind, members):
    with pytest.raises(InputError, match=r"members=.*: give a whole number, 1 or more"):
        kind.build(members)


# --- convolutions ---


@pytest.mark.parametrize("size", [[9, 10], [10, 9], [12, 4, 10, 10]], ids=str)
@pytest.mark.parametrize("by_name", [True, False])
def test_output_size_of_the_transposed_convolution(size, by_name):
    plain = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, dtype=torch.float64)
    layer = batch_ensemble(plain, 2, init=ones())
    x = torch.randn(6, 3, 5, 5, dtype=torch.float64)
    expected = plain(x, output_size=size)
    got = layer(tile(x, 2), output_size=size) if by_name else layer(tile(x, 2), size)
    assert list(expected.shape[2:]) == size[-2:]
    torch.testing.assert_close(got, tile(expected, 2), rtol=1e-12, atol=1e-12)


# --- finding fast weights and members by type ---


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


def test_members_of():
    assert members_of(nn.Linear(2, 2)) is None
    assert members_of(nn.Sequential(nn.ReLU(), BatchEnsembleLinear(2, 2, members=5))) == 5
    assert members_of(MemberBatchNorm1d(2, members=3)) == 3
    mixed = nn.Sequential(BatchEnsembleLinear(2, 2, members=4), BatchEnsembleLinear(2, 2, members=2))
    with pytest.raises(InputError, match=r"mixes layers of \[2, 4\] members: build all of them with the same members="):
        members_of(mixed)
