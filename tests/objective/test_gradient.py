import pytest
import torch
from torch import nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.objective import gradient_penalty


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
