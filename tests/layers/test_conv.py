"""What only convolutions have: output_size, and freely combined arguments."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from besnn.layers import BatchEnsembleConv2d, BatchEnsembleConvTranspose2d, batch_ensemble, fold, ones, tile


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
