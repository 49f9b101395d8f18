"""Fusing and streams: the same function; on a GPU the kernels against plain PyTorch."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from besnn.layers import batch_ensemble, fold
from besnn.layers.folding.fuse import ConvReLU, FirstBlock, MemberProducts, MemberStreams, Pool, fuse, fuse_for_cpu

MEMBERS = 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def kinds(module):
    return [type(part) for part in module.children()]


def test_fused_networks_are_equal(network):
    ensemble, x = network.ensemble(MEMBERS, "member"), network.inputs(2)
    folded = fold(ensemble)
    if not isinstance(folded, fx.GraphModule):
        pytest.skip("not traced")
    expected, got = folded(x), fuse(copy.deepcopy(folded))(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_first_blocks_of_all_members_become_one():
    plain = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 4, 3), nn.ReLU())
    fused = fuse(fold(batch_ensemble(plain, MEMBERS)))
    assert kinds(fused).count(FirstBlock) == 1
    assert kinds(fused).count(ConvReLU) == MEMBERS


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.Conv2d(1, 16, (3, 1)),
        nn.Conv2d(1, 12, 3),
        nn.Conv2d(8, 16, 3),
        nn.Conv2d(2, 16, 3, groups=2),
        nn.Conv2d(1, 16, 3, padding="same"),
    ],
    ids=["stride", "oblong", "not a power of two", "many taps", "groups", "padding by name"],
)
def test_convolutions_that_the_kernel_does_not_support(conv):
    plain = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2)).eval()
    folded, x = fold(batch_ensemble(plain, MEMBERS)), torch.randn(2, conv.in_channels, 12, 12)
    fused = fuse(copy.deepcopy(folded))
    assert FirstBlock not in kinds(fused)
    torch.testing.assert_close(fused(x), folded(x))


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)],
    ids=["3x3", "overlapping", "padded", "ceiling", "average"],
)
def test_other_pooling_is_left_alone(pool):
    folded = fold(batch_ensemble(nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), pool), MEMBERS))
    fused, x = fuse(copy.deepcopy(folded)), torch.randn(2, 1, 11, 11)
    assert not {Pool, FirstBlock} & set(kinds(fused))
    torch.testing.assert_close(fused(x), folded(x))


def test_a_convolution_that_is_used_twice_keeps_its_output():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 16, 3)

        def forward(self, x):
            y = self.conv(x)
            return torch.relu(y) + y

    folded, x = fold(batch_ensemble(Twice(), MEMBERS)), torch.randn(2, 1, 6, 6)
    fused = fuse(copy.deepcopy(folded))
    assert ConvReLU not in kinds(fused)
    torch.testing.assert_close(fused(x), folded(x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(8, 8), (15, 13)])
def test_pool(device, size):
    x = torch.randn(3, 32, *size, device=device).contiguous(memory_format=torch.channels_last)
    assert torch.equal(Pool()(x), F.max_pool2d(x, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("channels", "kernel", "padding", "bias"), [(1, 3, 1, True), (3, 3, 0, False), (2, 5, 2, True)])
@torch.no_grad()
def test_first_block(device, channels, kernel, padding, bias):
    convs = [nn.Conv2d(channels, 32, kernel, padding=padding, bias=bias).to(device) for _ in range(MEMBERS)]
    x = torch.randn(5, channels, 17, 18, device=device)
    expected = [F.max_pool2d(torch.relu(conv.double()(x.double())), 2) for conv in copy.deepcopy(convs)]
    for got, wanted in zip(FirstBlock(convs)(x), expected, strict=True):
        assert (got - wanted).norm() / wanted.norm() < (1e-6 if device == "cpu" else 2e-3)  # a GPU takes products in TF32


# --- products on a CPU ---


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 200])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_products_that_follow_each_other_become_one_module(rows, bias):
    plain = nn.Sequential(
        nn.Linear(5, 16, bias=bias), nn.ReLU(), nn.Linear(16, 16, bias=bias), nn.Tanh(), nn.Linear(16, 3, bias=bias), nn.ReLU()
    )
    folded, x = fold(batch_ensemble(plain, MEMBERS)), torch.randn(rows, 5)
    fused = fuse_for_cpu(copy.deepcopy(folded))
    assert kinds(fused).count(MemberProducts) == 2  # the hyperbolic tangent is in between
    torch.testing.assert_close(fused(x), folded(x))
    torch.testing.assert_close(copy.deepcopy(fused)(x), folded(x))


@torch.no_grad()
def test_a_product_that_is_used_twice_keeps_its_output():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x):
            y = self.first(x)
            return self.second(torch.relu(y)) + y

    folded, x = fold(batch_ensemble(Twice(), MEMBERS)), torch.randn(100, 5)
    fused = fuse_for_cpu(copy.deepcopy(folded))
    assert kinds(fused).count(MemberProducts) == 2
    torch.testing.assert_close(fused(x), folded(x))


@torch.no_grad()
def test_products_of_sequences():
    folded, x = fold(batch_ensemble(nn.Sequential(nn.Linear(5, 4), nn.ReLU()), MEMBERS)), torch.randn(100, 7, 5)
    torch.testing.assert_close(fuse_for_cpu(copy.deepcopy(folded))(x), folded(x))


# --- members on streams of their own ---


class NotedStream:
    """A stream that records which others it waited for."""

    current: "NotedStream"

    def __init__(self):
        self.waited_for = set()

    def wait_stream(self, other):
        self.waited_for |= {other, *other.waited_for}


@pytest.fixture
def noted(monkeypatch):
    main = NotedStream.current = NotedStream()

    @contextlib.contextmanager
    def on(stream):
        before, NotedStream.current = NotedStream.current, stream
        yield
        NotedStream.current = before

    monkeypatch.setattr(torch.cuda, "Stream", NotedStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: NotedStream.current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return main


@pytest.fixture
def folded():
    first = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    plain = nn.Sequential(first, nn.Conv2d(16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    return fold(batch_ensemble(plain.eval(), MEMBERS))


@pytest.mark.parametrize("fused", [False, True])
def test_each_member_has_a_stream_and_the_end_waits_for_all(noted, folded, fused):
    network = fuse(folded) if fused else folded
    streamed, x = MemberStreams(network), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(streamed.run(x), network(x))
    streams = set(streamed.streams.values())
    assert len(streams) == MEMBERS
    assert streams <= noted.waited_for
    assert all(noted in stream.waited_for for stream in streams)  # for the input


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(folded):
    network, x = folded.to("cuda"), torch.randn(2, 1, 8, 8, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(MemberStreams(network).run(x), network(x), rtol=1e-3, atol=1e-3)
