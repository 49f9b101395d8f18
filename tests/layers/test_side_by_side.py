"""Members side by side: on a GPU the same answers; without one, with streams that only take notes, the right order."""

import contextlib

import pytest
import torch
from torch import nn

from besnn.layers import batch_ensemble, fold
from besnn.layers.folding.fuse import fuse
from besnn.layers.folding.side_by_side import SideBySide

MEMBERS = 3


class NotedStream:
    """A stream that notes whom it waited for."""

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
    side_by_side, x = SideBySide(network), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(side_by_side.run(x), network(x))
    streams = set(side_by_side.streams.values())
    assert len(streams) == MEMBERS
    assert streams <= noted.waited_for
    assert all(noted in stream.waited_for for stream in streams)  # for the input


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(folded):
    network, x = folded.to("cuda"), torch.randn(2, 1, 8, 8, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(SideBySide(network).run(x), network(x), rtol=1e-3, atol=1e-3)
