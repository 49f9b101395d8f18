"""The battery of tests that every batch-ensemble layer passes, with many of torch's own arguments."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
    BatchEnsembleLayer,
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


def test_equals_explicit_weights_member_by_member(case, oracle):
    layer, plain, x = case.build(MEMBERS), case.build_plain(), case.inputs(MEMBERS * 2)
    expected = torch.cat([oracle(layer, plain, n)(rows) for n, rows in enumerate(x.chunk(MEMBERS))])
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_member_weights_are_explicit(case, oracle):
    layer, plain = case.build(MEMBERS), case.build_plain()
    expected = torch.stack([oracle(layer, plain, n).weight for n in range(MEMBERS)])
    torch.testing.assert_close(layer.member_weights(), expected, rtol=1e-12, atol=0)


def test_gradients(case):
    layer, x = case.build(2), case.inputs(2).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def forward(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), x)

    assert set(names) == {"weight", "r", "s"} | ({"bias"} if layer.bias is not None else set())
    assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True)


def test_folds_to_the_same_function(case):
    layer, x = case.build(MEMBERS), case.inputs(2)
    torch.testing.assert_close(fold(layer)(x), layer(tile(x, MEMBERS)), rtol=1e-12, atol=1e-12)


def test_folds_behind_another_layer(case):
    layer, x = case.build(MEMBERS), case.inputs(2)
    inputs, dims = x.shape[layer.channel_dim], layer.weight.ndim - 2
    kinds = {0: BatchEnsembleLinear, 1: BatchEnsembleConv1d, 2: BatchEnsembleConv2d, 3: BatchEnsembleConv3d}
    first = kinds[dims](inputs, inputs, *([1] if dims else []), members=MEMBERS, dtype=torch.float64)
    network = nn.Sequential(first, nn.Tanh(), layer)
    torch.testing.assert_close(fold(network)(x), network(tile(x, MEMBERS)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype(case, dtype):
    layer, x = case.build(MEMBERS, dtype=dtype), case.inputs(MEMBERS, dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    y = layer(x).detach()
    assert y.dtype == dtype
    expected = layer.double()(x.double()).detach()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps * float(expected.abs().max()))


def test_device_argument(kind):
    layer = kind.build(MEMBERS, device="meta")
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


@pytest.mark.parametrize(("members", "batch"), [(1, 1), (1, 3), (4, 1), (2, 0)])
def test_shapes(kind, members, batch):
    layer, x = kind.build(members), kind.inputs(members * batch)
    assert layer(x).shape == kind.build_plain()(x).shape


def test_parameter_shapes(case):
    layer = case.build(MEMBERS)
    plain = case.build_plain()
    inputs, outputs = layer.channels()
    assert layer.weight.shape == plain.weight.shape
    assert [list(p.shape) for p in fast_parameters(layer)] == [[MEMBERS, inputs], [MEMBERS, outputs]]
    assert (layer.bias is None) == (plain.bias is None)
    assert layer.bias is None or layer.bias.shape == (MEMBERS, outputs)


def test_state_dict_round_trip(kind):
    source, target, x = kind.build(MEMBERS), kind.build(MEMBERS), kind.inputs(MEMBERS)
    assert not torch.equal(source(x), target(x))
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(x), target(x))


def test_deepcopy_is_equal_and_independent(kind):
    layer, x = kind.build(MEMBERS), kind.inputs(MEMBERS)
    before = layer(x)
    twin = copy.deepcopy(layer)
    assert type(twin) is type(layer)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        twin.r.zero_()
    assert torch.equal(layer(x), before)


def test_repr_is_torchs_with_members(case):
    plain = repr(case.plain(**case.arguments)).removesuffix(")")
    assert repr(case.build(MEMBERS)) == f"BatchEnsemble{plain}, members={MEMBERS})"


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


@pytest.mark.parametrize("members", [0, -1, 1.5, "4", None])
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


def test_output_size_out_of_reach():
    layer = BatchEnsembleConvTranspose2d(3, 4, 3, stride=2, padding=1, members=2)
    with pytest.raises(ValueError, match="requested an output size"):
        layer(torch.rand(2, 3, 5, 5), output_size=[20, 20])


@settings(deadline=None)
@given(
    members=st.integers(1, 3),
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
)
def test_any_arguments_give_the_plain_convolution_of_scaled_channels(
    members, batch, groups, inputs, outputs, kernel, stride, padding, dilation, bias
):
    assume(all(dilation * (size - 1) < 6 + 2 * padding for size in kernel))
    arguments = (groups * inputs, groups * outputs, kernel, stride, padding, dilation, groups, bias)
    layer = BatchEnsembleConv2d(*arguments, members=members, dtype=torch.float64)
    x = torch.randn(batch, groups * inputs, 6, 6, dtype=torch.float64)
    rows = []
    for n in range(members):
        y = nn.functional.conv2d(x * layer.r[n, :, None, None], layer.weight, None, stride, padding, dilation, groups)
        y = y * layer.s[n, :, None, None]
        rows.append(y + layer.bias[n, :, None, None] if bias else y)
    torch.testing.assert_close(layer(tile(x, members)), torch.cat(rows), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fold(layer)(x), torch.cat(rows), rtol=1e-12, atol=1e-12)


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
