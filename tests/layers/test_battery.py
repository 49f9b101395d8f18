"""The battery that every batch-ensemble layer passes, with many of torch's own arguments."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleLinear,
    fast_parameters,
    fold,
    tile,
)

MEMBERS = 3


def test_equals_explicit_weights_member_by_member(case):
    layer, x = case.build(MEMBERS), case.inputs(MEMBERS * 2)
    expected = torch.cat([case.member(layer, n)(rows) for n, rows in enumerate(x.chunk(MEMBERS))])
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_member_weights_are_explicit(case):
    layer = case.build(MEMBERS)
    expected = torch.stack([case.member(layer, n).weight for n in range(MEMBERS)])
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


def test_device_argument(case):
    layer = case.build(MEMBERS, device="meta")
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


@pytest.mark.parametrize(("members", "batch"), [(1, 1), (1, 3), (4, 1), (2, 0)])
def test_shapes(case, members, batch):
    layer, x = case.build(members), case.inputs(members * batch)
    expected = case.plain(**case.arguments, dtype=torch.float64)(x).shape
    assert layer(x).shape == expected


def test_parameter_shapes(case):
    layer = case.build(MEMBERS)
    plain = case.plain(**case.arguments)
    inputs, outputs = layer.channels()
    assert layer.weight.shape == plain.weight.shape
    assert [list(p.shape) for p in fast_parameters(layer)] == [[MEMBERS, inputs], [MEMBERS, outputs]]
    assert (layer.bias is None) == (plain.bias is None)
    assert layer.bias is None or layer.bias.shape == (MEMBERS, outputs)


def test_state_dict_round_trip(case):
    source, target, x = case.build(MEMBERS), case.build(MEMBERS), case.inputs(MEMBERS)
    assert not torch.equal(source(x), target(x))
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(x), target(x))


def test_deepcopy_is_equal_and_independent(case):
    layer, x = case.build(MEMBERS), case.inputs(MEMBERS)
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


def test_autocast_takes_both_precisions(case):
    layer = case.build(MEMBERS, dtype=torch.float32)
    x = case.inputs(MEMBERS, torch.float32)
    expected = layer(x).detach()
    for rows in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(rows)
        torch.testing.assert_close(y.detach().float(), expected, rtol=0, atol=0.05 * float(expected.abs().max()))


def test_batch_that_members_do_not_divide(case):
    with pytest.raises(
        InputError, match=r"members=3 does not divide a batch of 4 rows: tile the input first with .*tile\(x, 3\)"
    ):
        case.build(3)(case.inputs(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_wrong_dtype(case, dtype):
    with pytest.raises(InputError, match=f"input has dtype {dtype} but the layer torch.float64: convert one, e.g. x.to"):
        case.build(3)(case.inputs(3).to(dtype))


def test_wrong_number_of_channels_is_not_broadcast(case):
    layer, x = case.build(3), case.inputs(3)
    one_channel = x.narrow(layer.channel_dim, 0, 1)
    with pytest.raises(InputError, match=r"input has shape \[3, .*but the layer takes a batch with \d channels"):
        layer(one_channel)


def test_input_without_a_batch(case):
    one = case.inputs(1)[0]
    if one.ndim == 2 and case.plain is nn.Linear:
        one = one[0]  # a linear layer takes any number of axes behind the batch
    with pytest.raises(InputError, match="add a batch axis"):
        case.build(2)(one)


@pytest.mark.parametrize("members", [0, -1, 1.5, True, "4", None])
def test_wrong_members(case, members):
    with pytest.raises(InputError, match="members=.*whole number of members, 1 or more"):
        case.build(members)
