"""Layers with the operations for a GPU, in plain PyTorch, give what torch's own operations give."""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from besnn.errors import InputError
from besnn.layers import BatchEnsembleConv2d, BatchEnsembleConv3d, BatchEnsembleLinear, normal


@sdpa_kernel(SDPBackend.MATH)  # the one attention that torch differentiates twice
def step(module, x):
    """Outputs, gradients and state after a training step with a gradient penalty."""
    module, x = copy.deepcopy(module).train(), x.clone().requires_grad_()
    outputs = [y for y in tree_leaves(module(x * 1)) if y.is_floating_point()]  # some overwrite their input
    loss = sum(y.sin().sum() for y in outputs)
    (of_x,) = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True, materialize_grads=True)
    (loss + of_x.square().sum()).backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {"outputs": outputs, "gradient": of_x, "gradients": gradients, "state": module.state_dict()}


def test_networks_give_the_same_as_on_a_gpu(network, as_on_a_gpu):
    ensemble, x = network.ensemble(norm="member"), network.inputs(6)
    try:
        expected = step(ensemble, x)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        pytest.skip("it overwrites what its gradient needs")
    as_on_a_gpu()
    torch.testing.assert_close(step(ensemble, x), expected, rtol=1e-9, atol=1e-9)


def test_kernels_are_used_for_maps_only(as_on_a_gpu):
    as_on_a_gpu()
    assert BatchEnsembleConv2d(3, 4, 3, members=2)(torch.rand(4, 3, 5, 5)).grad_fn.name() == "_ScaleShiftBackward"
    assert "_ScaleShift" not in BatchEnsembleLinear(5, 4, members=2)(torch.rand(4, 3, 5)).grad_fn.name()


@pytest.mark.parametrize("name", ["weight", "r", "s", "bias"])
def test_frozen_parameters_as_on_a_gpu(name, as_on_a_gpu):
    layer, x = BatchEnsembleConv3d(2, 3, 2, members=2, init=normal(), dtype=torch.float64), torch.rand(4, 2, 3, 3, 3).double()
    getattr(layer, name).requires_grad_(False)
    expected = step(layer, x)
    assert name not in expected["gradients"]
    as_on_a_gpu()
    torch.testing.assert_close(step(layer, x), expected)


@pytest.mark.parametrize("whole", [False, True], ids=["autocast", "model"])
def test_bfloat16_as_on_a_gpu(whole, as_on_a_gpu):
    layer, x = BatchEnsembleConv2d(3, 4, 3, members=2), torch.rand(8, 3, 6, 6)
    exact = step(copy.deepcopy(layer).double(), x.double())
    as_on_a_gpu()
    if whole:
        found = step(layer.bfloat16(), x.bfloat16())
    else:
        with torch.autocast("cpu", torch.bfloat16):
            found = step(layer, x)
    assert found["outputs"][0].dtype == torch.bfloat16
    for name, gradient in found["gradients"].items():
        expected = exact["gradients"][name]
        assert gradient.dtype == getattr(layer, name).dtype
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=0.05 * float(expected.abs().max()))


def test_bad_input_is_rejected_as_on_a_gpu(as_on_a_gpu):
    as_on_a_gpu()
    layer = BatchEnsembleConv2d(3, 4, 3, members=3)
    with pytest.raises(
        InputError, match=r"members=3 does not divide a batch of 4 rows: tile the input first with .*tile\(x, 3\)"
    ):
        layer(torch.rand(4, 3, 5, 5))
    with pytest.raises(InputError, match=r"input has dtype torch\.float64 but the layer torch\.float32"):
        layer(torch.rand(3, 3, 5, 5).double())
    assert layer(torch.rand(0, 3, 5, 5)).shape == (0, 4, 3, 3)
