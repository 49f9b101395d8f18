import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from besnn.errors import InputError
from besnn.objective import kernel_cross_entropy, log1mexp, summed_kernel

EXTREMES = [0.0, 1e-30, 1e4, math.inf]


def exact_log1mexp(d: float) -> float:
    with localcontext() as context:
        context.prec = 400  # 1 − exp(−700) needs 300 digits
        return float((1 - (-Decimal(d)).exp()).ln())


@given(st.floats(1e-300, 700.0))
def test_log1mexp_is_exact_to_the_last_digits(d):
    expected = exact_log1mexp(d)
    assert log1mexp(torch.tensor(d, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14, abs=0)


@given(st.floats(2.0**-100, 80.0, width=32))
def test_the_gradient_of_log1mexp_is_one_over_expm1(d):
    x = torch.tensor(d, requires_grad=True)
    log1mexp(x).backward()
    assert x.grad.item() == pytest.approx(1 / math.expm1(d), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_log1mexp_and_its_gradient_are_finite_everywhere(dtype):
    d = torch.tensor([*EXTREMES, math.log(2.0), 0.5, 0.7, 90.0], dtype=dtype, requires_grad=True)
    value = log1mexp(d)
    value.sum().backward()
    assert value.isfinite().all()
    assert d.grad.isfinite().all()
    assert (value <= 0).all()
    assert value[3] == 0


def test_log1mexp_gradcheck():
    d = torch.tensor([0.01, 0.3, 0.69, 0.7, 3.0, 20.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log1mexp, d)
    assert torch.autograd.gradgradcheck(log1mexp, d)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    distances = 5 * torch.rand(3, 4, 5, generator=generator, dtype=torch.float64) + 0.01
    return distances, torch.tensor([4, 0, 2, 2])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("over_classes", ["sum", "mean"])
def test_cross_entropy_is_binary_cross_entropy_of_the_kernel(batch, over_classes, smoothing):
    distances, labels = batch
    target = (1 - smoothing) * F.one_hot(labels, 5).double().expand(3, 4, 5) + smoothing / 5
    by_class = F.binary_cross_entropy(torch.exp(-distances), target, reduction="none")
    expected = by_class.sum(-1) if over_classes == "sum" else by_class.mean(-1)
    torch.testing.assert_close(kernel_cross_entropy(distances, labels, over_classes, "none", smoothing), expected)
    torch.testing.assert_close(kernel_cross_entropy(distances, labels, over_classes, "mean", smoothing), expected.mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("over_classes", ["sum", "mean"])
def test_labels_of_members_are_those_of_each_alone(batch, over_classes, smoothing):
    distances, _ = batch
    labels = torch.tensor([[4, 0, 2, 2], [0, 0, 1, 3], [1, 4, 3, 2]])
    loss = kernel_cross_entropy(distances, labels, over_classes, "none", smoothing)
    for member in range(3):
        alone = kernel_cross_entropy(distances[member, None], labels[member], over_classes, "none", smoothing)
        torch.testing.assert_close(loss[member], alone[0], rtol=0, atol=0)
    torch.testing.assert_close(kernel_cross_entropy(distances, labels, over_classes, "mean", smoothing), loss.mean())


def test_cross_entropy_gradcheck(batch):
    distances, labels = batch
    assert torch.autograd.gradcheck(lambda d: kernel_cross_entropy(d, labels), distances.requires_grad_())


@pytest.mark.parametrize("right", EXTREMES)
@pytest.mark.parametrize("wrong", EXTREMES)
def test_extreme_distances_never_give_nan(right, wrong):
    distances = torch.tensor([[[right, wrong]]], requires_grad=True)
    loss = kernel_cross_entropy(distances, torch.tensor([0]))
    loss.backward()
    assert not loss.isnan()
    assert loss.isfinite() or right == math.inf
    assert distances.grad.isfinite().all()


def test_summed_kernel(batch):
    distances, _ = batch
    expected = sum(torch.exp(-distances[..., c]) for c in range(5))
    torch.testing.assert_close(summed_kernel(distances), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 5, 0, 0])}, "label 5 is out of range"),
        ({"labels": torch.tensor([0, -1, 0, 0])}, "label -1 is out of range"),
        ({"labels": torch.zeros(4)}, "labels are torch.float32"),
        ({"labels": torch.tensor([0, 1])}, r"labels have shape \[2\]"),
        ({"labels": torch.zeros(2, 4, dtype=torch.int64)}, r"labels have shape \[2, 4\]"),
        ({"labels": torch.zeros(3, 3, dtype=torch.int64)}, r"labels have shape \[3, 3\]"),
        ({"labels": torch.zeros(4, 3, dtype=torch.int64)}, r"labels have shape \[4, 3\]"),
        ({"labels": torch.full((3, 4), 5)}, "label 5 is out of range"),
        ({"distances": torch.zeros(4, 5)}, r"distances have shape \[4, 5\]"),
        ({"distances": torch.full((3, 4, 5), math.nan)}, "NaN"),
        ({"over_classes": "max"}, "over_classes 'max' is unknown: choose from 'sum', 'mean'"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1.0 is not in \[0, 1\)"),
        ({"reduction": "sum"}, "reduction 'sum' is unknown: choose from 'mean', 'none'"),
    ],
)
def test_wrong_input_is_refused_by_name(batch, change, message):
    distances, labels = batch
    with pytest.raises(InputError, match=message):
        kernel_cross_entropy(**{"distances": distances, "labels": labels, **change})
