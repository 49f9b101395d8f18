"""The penalty by hand and by gradcheck; convolutions with the gradients of torch's own, differentiated once and twice."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.objective import gradient_penalty
from besnn.objective.gradient import TwiceDifferentiable


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("squared", [True, False])
def test_a_linear_model_by_hand(squared):
    # The gradient of x·w is w for every row; the penalty and its own gradient in w follow with pencil and paper.
    w, x = draw(3).requires_grad_(), draw(5, 3).requires_grad_()
    penalty = gradient_penalty(x @ w, x, squared=squared)
    penalty.backward()
    length = w.detach().norm()
    if squared:
        expected, slope = (length**2 - 1) ** 2, 4 * (length**2 - 1) * w.detach()
    else:
        expected, slope = (length - 1) ** 2, 2 * (length - 1) * w.detach() / length
    torch.testing.assert_close(penalty, expected)
    torch.testing.assert_close(w.grad, slope)


@pytest.mark.parametrize("squared", [True, False])
def test_parameter_gradients_of_a_smooth_network(squared):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    names, values = zip(*network.named_parameters(), strict=True)
    x = draw(5, 3)

    def penalty(*parameters):
        rows = x.clone().requires_grad_()
        kernel = torch.exp(-functional_call(network, dict(zip(names, parameters, strict=True)), rows).square()).sum(1)
        return gradient_penalty(kernel, rows, squared=squared)

    parameters = [value.detach().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(penalty, parameters)
    assert torch.autograd.gradgradcheck(penalty, parameters)


def test_every_row_has_its_own_penalty_in_the_shape_of_the_kernel():
    x = draw(6, 2, 3, 3).requires_grad_()
    kernel = x.square().sum((1, 2, 3)).view(2, 3) / 2  # the gradient is x itself
    penalty = gradient_penalty(kernel, x, reduction="none")
    expected = (x.detach().square().sum((1, 2, 3)) - 1).square().view(2, 3)
    torch.testing.assert_close(penalty, expected)
    torch.testing.assert_close(gradient_penalty(kernel, x), expected.mean())


@pytest.mark.parametrize("squared", [True, False])
def test_a_vanishing_gradient_keeps_everything_finite(squared):
    w, x = torch.zeros(3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    penalty = gradient_penalty(x @ w, x, squared=squared)
    penalty.backward()
    assert penalty == 1
    assert w.grad.isfinite().all()


def test_wrong_use_is_refused_by_name():
    x = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(InputError, match=r"requires_grad_\(\)"):
        gradient_penalty(x.sum(1), x.detach())
    with pytest.raises(InputError, match="not computed from x"):
        gradient_penalty(x.sum(1), torch.ones(4, 3, requires_grad=True))
    with pytest.raises(InputError, match="not computed from x"):
        gradient_penalty(x.detach().sum(1), x)
    with pytest.raises(InputError, match="8 values for 4 rows of x"):
        gradient_penalty(x.sum(1).repeat(2), x)
    with pytest.raises(InputError, match="reduction 'sum' is unknown"):
        gradient_penalty(x.sum(1), x, reduction="sum")


# --- convolutions that are fast to differentiate twice ---

GEOMETRIES = [
    {"kernel_size": 3},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2},
    {"kernel_size": 2, "stride": 3, "bias": False},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
]


def penalty_gradients(network: nn.Module, x: Tensor, twice: bool) -> list[Tensor]:
    network.zero_grad()
    x = x.clone().requires_grad_()
    if twice:
        with TwiceDifferentiable():
            y = network(x)
    else:
        y = network(x)
    kernel = torch.exp(-y.flatten(1).square().mean(1))
    (gradient_penalty(kernel, x) + y.square().mean()).backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv1d, (9,)), (nn.Conv2d, (8, 7)), (nn.Conv3d, (6, 5, 7))])
def test_gradients_of_the_penalty_equal_the_plain_double_backward(layer, shape, geometry):
    torch.manual_seed(0)
    network = nn.Sequential(layer(2, 4, **geometry), nn.Softplus(), layer(4, 4, kernel_size=1), nn.Tanh()).double()
    x = torch.randn(5, 2, *shape, dtype=torch.float64)
    for found, plain in zip(penalty_gradients(network, x, True), penalty_gradients(network, x, False), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12)


def test_gradients_pass_batch_norm_relu_and_pooling():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2)).double()
    x = torch.randn(6, 1, 10, 10, dtype=torch.float64)
    for found, plain in zip(penalty_gradients(network, x, True), penalty_gradients(network, x, False), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


def test_second_derivatives_by_finite_differences():
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 1, 3, 2, dtype=torch.float64, requires_grad=True)

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        with TwiceDifferentiable():
            return F.conv2d(x, weight, stride=(2, 1), padding=(1, 0), groups=2)

    assert torch.autograd.gradcheck(convolve, (x, weight))
    assert torch.autograd.gradgradcheck(convolve, (x, weight))


def test_runs_in_the_precision_of_autocast():
    convolution = nn.Conv2d(1, 4, 3)
    x = torch.randn(2, 1, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), TwiceDifferentiable():
        y = convolution(x)
    assert y.dtype == torch.bfloat16
    gradient_penalty(y.float().flatten(1).sum(1), x).backward()
    assert bool(torch.isfinite(convolution.weight.grad).all())


def test_leaves_unbatched_input_to_torch():
    convolution = nn.Conv2d(1, 4, 3)
    x = torch.randn(1, 8, 8)
    with TwiceDifferentiable():
        y = convolution(x)
    torch.testing.assert_close(y, convolution(x))
