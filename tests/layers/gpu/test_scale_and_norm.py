"""Scales and BatchNorms against torch's own, with their gradients and gradients of gradients."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from besnn.layers.gpu import scale_and_norm
from besnn.layers.gpu.scale_and_norm import gradients_of_inputs_only, normalise, scale_shift, use_kernels
from tests.layers.gpu import plain_kernels

MEMBERS, BATCH, CHANNELS, EPS = 2, 3, 4, 1e-3
SPATIAL = {"sequence": (5,), "volume": (2, 1, 2)}


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(scale_and_norm, "_kernels", lambda: plain_kernels)


@pytest.fixture(params=SPATIAL.values(), ids=SPATIAL.keys())
def x(request):
    return torch.randn(MEMBERS * BATCH, CHANNELS, *request.param, dtype=torch.float64, requires_grad=True)


def coefficients():
    return torch.randn(MEMBERS, CHANNELS, dtype=torch.float64, requires_grad=True)


def plain_scale_shift(x, scale, shift=None):
    """Row by row."""
    shape = CHANNELS, *[1] * (x.ndim - 2)
    rows = [row * scale[number // BATCH].view(shape) for number, row in enumerate(x)]
    if shift is not None:
        rows = [row + shift[number // BATCH].view(shape) for number, row in enumerate(rows)]
    return torch.stack(rows)


def plain_normalise(x, weight, bias):
    """Member by member."""
    parts = zip(x.chunk(MEMBERS), weight, bias, strict=True)
    return torch.cat([F.batch_norm(rows, None, None, w, b, training=True, eps=EPS) for rows, w, b in parts])


def first_output(x, weight, bias):
    return normalise(x, weight, bias, EPS)[0]


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def assert_same_gradients(function, plain, inputs):
    """Outputs, all gradients, and the gradients of a penalty on the first gradient."""
    weights = torch.randn_like(inputs[0])

    def results(function):
        loss = (function(*inputs).sin() * weights).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        return [loss, *first, *torch.autograd.grad(penalty, inputs)]

    assert_same(results(function), results(plain))


@pytest.mark.parametrize("shifted", [False, True], ids=["scaled", "shifted"])
def test_scale_shift(x, shifted):
    inputs = [x, coefficients(), *([coefficients()] if shifted else [])]
    assert_same(scale_shift(*inputs), plain_scale_shift(*inputs))
    assert_same_gradients(scale_shift, plain_scale_shift, inputs)
    assert torch.autograd.gradcheck(scale_shift, inputs)
    assert torch.autograd.gradgradcheck(scale_shift, inputs)


def test_normalise(x):
    inputs = [x, coefficients(), coefficients()]
    assert_same(first_output(*inputs), plain_normalise(*inputs))
    assert_same_gradients(first_output, plain_normalise, inputs)
    assert torch.autograd.gradcheck(first_output, inputs)
    assert torch.autograd.gradgradcheck(first_output, inputs)


def test_a_third_derivative_of_normalise_is_refused():
    x, weight, bias = torch.rand(4, 2, 3, requires_grad=True), torch.rand(2, 2), torch.rand(2, 2)
    (first,) = torch.autograd.grad(first_output(x, weight, bias).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


def test_gradients_of_inputs_only(x):
    inputs = [x, coefficients(), coefficients()]
    y = scale_shift(*inputs)
    with gradients_of_inputs_only():
        of_x, *others = torch.autograd.grad(y.sin().sum(), inputs, create_graph=True, allow_unused=True)
    assert others == [None, None]
    expected = torch.autograd.grad(plain_scale_shift(*inputs).sin().sum(), x, create_graph=True)
    assert_same((of_x,), expected)
    # of the inputs' gradient, all gradients are there again
    assert_same(*(torch.autograd.grad(g.square().sum(), inputs) for g in (of_x, *expected)))


def test_gradients_in_other_memory():
    x = torch.randn(4, CHANNELS, 3, 3, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    inputs = [x, coefficients(), coefficients()]
    for gradient in (
        torch.ones(1, 1, 1, 1, dtype=torch.float64).expand(x.shape),
        torch.randn(x.shape, dtype=torch.float64),
        torch.randn(4, CHANNELS, 3, 6, dtype=torch.float64)[..., ::2],
    ):
        for function, plain in ((scale_shift, plain_two), (first_output, plain_normalise)):
            assert_same(*(torch.autograd.grad(f(*inputs), inputs, gradient) for f in (function, plain)))


def plain_two(x, scale, shift):
    return torch.cat(
        [rows * s[:, None, None] + t[:, None, None] for rows, s, t in zip(x.chunk(MEMBERS), scale, shift, strict=True)]
    )


def test_results_may_be_overwritten(x):
    for function in (scale_shift, first_output):
        inputs = [x, coefficients(), coefficients()]
        expected = torch.autograd.grad(function(*inputs).relu().sum(), inputs)
        assert_same(torch.autograd.grad(function(*inputs).relu_().sum(), inputs), expected)


class OnGPU(SimpleNamespace):
    """What `use_kernels` asks of a tensor."""

    def __init__(self, *shape, dtype=torch.float32):
        values = torch.empty(shape, dtype=dtype)
        super().__init__(is_cuda=True, ndim=values.ndim, numel=values.numel, is_floating_point=values.is_floating_point)
        self.device = torch.device("cuda")


def test_kernels_are_used_for_maps_on_a_gpu():
    assert use_kernels(OnGPU(2, 3, 4))
    assert not use_kernels(torch.rand(2, 3, 4))
    assert not use_kernels(OnGPU(2, 3))
    assert not use_kernels(OnGPU(0, 3, 4))
    assert not use_kernels(OnGPU(2, 3, 4, dtype=torch.int64))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, FakeTensorMode, forward_ad.dual_level])
def test_kernels_are_not_used_without_gradients_or_where_operations_are_recorded(context):
    with context():
        assert not use_kernels(OnGPU(2, 3, 4))
    assert use_kernels(OnGPU(2, 3, 4))


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.vmap,
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: lambda x: torch.jit.trace(f, x),
        lambda f: lambda x: make_fx(f)(x),
        lambda f: lambda x: torch.compile(f, backend="eager")(x),
    ],
    ids=["vmap", "grad", "jit", "make_fx", "compile"],
)
def test_transforms_tracers_and_compilers_see_torchs_operations(transform):
    def function(x):
        used.append(use_kernels(OnGPU(2, 3, 4)))
        return 2 * x

    used = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit, that it is old
        transform(function)(torch.ones(2))
    assert used
    assert not any(used)


def test_the_gradient_of_a_frozen_scale_keeps_no_map(x):
    scale, shift = coefficients().detach(), coefficients()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor):
        scale_shift(x, scale, shift)
    assert kept == [scale.shape]
