"""The Triton kernels, run by Triton's interpreter on a CPU, against the same sums in plain PyTorch and float64.

Triton decides once, when it is imported, whether its kernels are interpreted, and this process may have imported it already:
so the kernels run in a process of their own.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from besnn.layers.folding.fuse import FirstBlock
from besnn.layers.gpu import kernels
from tests.layers.gpu import plain_kernels

pytest.importorskip("triton", reason="needs Triton, which is made for Linux")

MEMBERS = 2
# Shapes of maps, and whether their memory is channels-last. In the last three, several programs share a channel.
MAPS = {
    "image per line": ((4, 3, 5, 7), False),
    "sequence": ((6, 5, 19), False),
    "volume": ((2, 3, 2, 3, 4), False),
    "few places": ((4, 70, 3, 3), False),
    "one place": ((6, 130, 1), False),
    "channels-last": ((4, 5, 3, 3), True),
    "one channel": ((4, 1, 4, 4), False),
    "many places": ((4, 1, 90, 92), False),
    "many lines": ((1400, 5, 3), False),
    "many pixels": ((4, 65, 11, 13), True),
}
SHARED = list(MAPS)[-3:]
ROUNDED = [(name, dtype) for name in ("image per line", *SHARED) for dtype in (torch.float32, torch.bfloat16)]


@pytest.fixture(scope="module")
def interpreted():
    """Calls a function of `kernels` where Triton interprets."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            assert pool.submit(kernels.available, torch.device("cpu")).result()  # starts the process
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@pytest.fixture(params=[*((name, torch.float64) for name in MAPS), *ROUNDED], ids=str)
def maps(request):
    name, dtype = request.param
    shape, last = MAPS[name]
    torch.manual_seed(0)
    made = [(3 + 2 * torch.randn(shape, dtype=torch.float64)).to(dtype) for _ in range(3)]
    return [x.contiguous(memory_format=torch.channels_last) for x in made] if last else made


def coefficients(x, count):
    """In the type that a map is summed up in."""
    torch.manual_seed(1)
    return [torch.randn(MEMBERS, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32)) for _ in range(count)]


def exact(values):
    return [None if value is None else value.double() for value in values]


def assert_close(got, expected, dtype, rounded_to=None):
    """Equal but for the rounding of the type that sums are kept in, and of the one that results are written in."""
    tolerance = {torch.float64: 1e-12}.get(dtype, 1e-5)
    written = torch.finfo(rounded_to).eps if rounded_to else 0.0
    torch.testing.assert_close(got.double(), expected, rtol=written, atol=tolerance * max(1.0, float(expected.abs().max())))


def test_combine(maps, interpreted):
    *scales, shift = coefficients(maps[0], 4)
    dtype = maps[0].dtype
    for count, shifted in ((2, None), (3, shift)):
        got = interpreted(kernels.combine, list(zip(maps, scales, strict=True))[:count], shifted)
        expected = plain_kernels.combine(list(zip(exact(maps), exact(scales), strict=True))[:count], *exact([shifted]))
        assert (got.dtype, got.stride()) == (dtype, maps[0].stride())
        assert_close(got, expected, dtype, rounded_to=dtype)


def test_sums_and_moments(maps, interpreted):
    a, x, b = maps
    for others in ((None, None), (coefficients(x, 1)[0], b)):
        got = interpreted(kernels.sums, a, x, MEMBERS, *others)
        expected = plain_kernels.sums(*exact([a, x]), MEMBERS, *exact(others))
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.shape == (MEMBERS, x.shape[1])
            assert_close(ours, theirs, x.dtype)
    moments = interpreted(kernels.moments, x, MEMBERS), plain_kernels.moments(x.double(), MEMBERS)
    for ours, theirs in zip(*moments, strict=True):
        assert_close(ours, theirs, x.dtype)


@pytest.mark.parametrize("name", SHARED)
def test_moments_do_not_cancel(name, interpreted):
    shape, last = MAPS[name]
    x = 1e4 + torch.randn(shape)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    mean, variance = interpreted(kernels.moments, x, MEMBERS)
    expected_mean, expected_variance = plain_kernels.moments(x.double(), MEMBERS)
    torch.testing.assert_close(mean.double(), expected_mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), expected_variance, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", MAPS)
def test_large_maps_are_shared_by_several_programs(name):
    shape, last = MAPS[name]
    x = torch.empty(shape).contiguous(memory_format=torch.channels_last) if last else torch.empty(shape)
    layout = kernels._layout(x, MEMBERS)
    programs = kernels._partial(3, layout, x).shape[1]
    assert layout.last == last
    assert (programs > 1) == (name in SHARED)
    assert layout.lines * layout.places % layout.long != 0


@pytest.mark.parametrize("first_is_last", [True, False], ids=["channels-last first", "contiguous first"])
def test_maps_in_several_layouts(first_is_last, interpreted):
    contiguous = torch.randn(4, 6, 5, 5, dtype=torch.float64)
    last = torch.randn(4, 6, 5, 5, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    expanded = torch.randn(4, 6, 1, 1, dtype=torch.float64).expand(4, 6, 5, 5)  # as the gradient of a sum
    sliced = torch.randn(4, 12, 5, 5, dtype=torch.float64)[:, ::2]
    first, second = (last, contiguous) if first_is_last else (contiguous, last)
    scales = coefficients(first, 3)
    for maps in ([first, second, expanded], [second, sliced, first], [expanded, first, sliced], [sliced, expanded, second]):
        terms = list(zip(maps, scales, strict=True))
        torch.testing.assert_close(interpreted(kernels.combine, terms, None), plain_kernels.combine(terms, None))
        a, x, b = maps
        arguments = a, x, MEMBERS, scales[0], b
        torch.testing.assert_close(interpreted(kernels.sums, *arguments), plain_kernels.sums(*arguments))
        torch.testing.assert_close(interpreted(kernels.moments, a, MEMBERS), plain_kernels.moments(a, MEMBERS))


def test_a_model_in_bfloat16_as_a_whole(interpreted):
    x = torch.randn(4, 3, 5, 5, dtype=torch.bfloat16)
    scale, shift = torch.randn(2, MEMBERS, 3, dtype=torch.bfloat16)
    got = interpreted(kernels.combine, [(x, scale)], shift)
    assert_close(got, plain_kernels.combine([(x.double(), scale.double())], shift.double()), torch.bfloat16, torch.bfloat16)


def test_kernels_are_not_available_without_a_gpu(caplog, monkeypatch):
    monkeypatch.setattr(kernels, "_works", {})
    for _ in range(2):
        assert not kernels.available(torch.device("cpu"))  # without the interpreter
    assert caplog.text.count("training on cpu runs without Triton, more slowly") == 1
    monkeypatch.setattr(kernels, "triton", None)
    assert not kernels.available(torch.device("cpu"))


@pytest.mark.parametrize("trouble", ["capture", "memory"])
def test_a_trial_that_could_not_run_is_repeated(trouble, monkeypatch):
    def no_memory(*arguments):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(kernels, "_works", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: trouble == "capture")
    monkeypatch.setattr(torch, "ones", lambda shape, device: torch.full(shape, 1.0))
    monkeypatch.setattr(kernels, "combine", no_memory)
    device = torch.device("cuda", 0)
    if trouble == "capture":
        assert not kernels.available(device)
    else:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            kernels.available(device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(kernels, "combine", lambda *arguments: None)
    assert kernels.available(device)


@pytest.mark.parametrize("wide", [1, 64])
def test_they_compile_for_a_gpu(wide, tmp_path, monkeypatch):
    """The interpreter takes what the compiler does not, and the compiler needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = dict.fromkeys(["x0", "x1", "x2", "x", "a", "b"], "*bf16") | {"out": "*bf16"}
    types |= dict.fromkeys(["scale0", "scale1", "scale2", "shift", "mean"], "*fp32")
    constants = {"places": 49 if wide == 1 else 1, "WIDE": wide, "LONG": 2048 // wide, "DOUBLE": False}
    options = {"TERMS": 3, "SHIFTED": True, "CENTRED": True, "PAIRED": True}
    for kernel in (kernels._combine, kernels._sums, kernels._moments):
        chosen = {name: value for name, value in (constants | options).items() if name in kernel.arg_names}
        signature = {name: "constexpr" if name in chosen else types.get(name, "i32") for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, chosen)
        assert ".visible .entry" in triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]


@pytest.mark.parametrize("size", [(8, 8), (15, 13)])
def test_max_pool(size, interpreted):
    x = torch.randn(3, 20, *size).contiguous(memory_format=torch.channels_last)
    x[0, 0, 1, 1] = torch.nan
    pooled = interpreted(kernels.max_pool, x)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(pooled, F.max_pool2d(x, 2), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("channels", "kernel", "padding", "bias"), [(1, 3, 1, True), (3, 3, 0, False), (2, 5, 2, True)])
@torch.no_grad()
def test_first_block(channels, kernel, padding, bias, interpreted):
    convs = [nn.Conv2d(channels, 16, kernel, padding=padding, bias=bias) for _ in range(MEMBERS)]
    block, x = FirstBlock(convs), torch.randn(5, channels, 9, 10)
    found = interpreted(kernels.first_block, x, block.filters, block.bias, kernel, padding)
    expected = torch.stack([F.max_pool2d(torch.relu(conv.double()(x.double())), 2) for conv in convs])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
