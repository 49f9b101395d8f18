"""Replaying: when it begins, what it returns, and that the network itself runs if anything goes wrong."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from besnn.model.cuda_graphs import CudaGraphs, Network, Outputs, Replayed


def double(batch: Tensor) -> Outputs:
    return (2 * batch,)


class Recorder:
    """Makes recordings that count how often they are replayed, and may be wrong or impossible."""

    def __init__(self, factor: float = 2.0, error: Exception | None = None) -> None:
        self.factor, self.error, self.made, self.replays = factor, error, 0, 0

    def __call__(self, network: Network, example: Tensor) -> Network:
        self.made += 1
        if self.error is not None:
            raise self.error

        def replay(batch: Tensor) -> Outputs:
            assert batch.shape == example.shape
            self.replays += 1
            return (self.factor * batch,)

        return replay


@pytest.fixture
def replayed() -> Callable[[Recorder], Replayed]:
    return lambda recorder: Replayed(double, recorder, warm_up=2, most=2)


def test_begins_after_the_warm_up(replayed):
    recorder = Recorder()
    network = replayed(recorder)
    for turn in range(5):
        batch = torch.rand(3, 2)
        assert torch.equal(network(batch)[0], 2 * batch)
        assert recorder.made == (turn >= 2)
    assert recorder.replays == 3  # the trial at the third batch, then two batches


def test_each_shape_has_its_own_recording_up_to_a_limit(replayed):
    recorder = Recorder()
    network = replayed(recorder)
    for rows in (1, 2, 3, 4):
        for _ in range(4):
            assert network(torch.ones(rows))[0].shape == (rows,)
    assert recorder.made == 2


def test_a_network_that_cannot_be_recorded_runs_as_it_is(replayed):
    recorder = Recorder(error=RuntimeError("depends on its data"))
    network = replayed(recorder)
    for _ in range(6):
        assert network(torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert recorder.made == 1


def test_a_recording_with_different_results_is_not_used(replayed):
    recorder = Recorder(factor=3.0)
    network = replayed(recorder)
    for _ in range(6):
        assert network(torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert recorder.replays == 1


def test_a_copy_records_for_itself(replayed):
    recorder = Recorder()
    network = replayed(recorder)
    for _ in range(4):
        network(torch.ones(2))
    assert not copy.deepcopy(network).recordings


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graphs_give_what_the_network_gives():
    weight = torch.randn(4, 4, device="cuda")
    network = Replayed(lambda batch: (batch @ weight, batch.sum(0)), CudaGraphs())
    for _ in range(6):
        batch = torch.randn(3, 4, device="cuda")
        with torch.inference_mode():
            product, total = network(batch)
        torch.testing.assert_close(product, batch @ weight)
        torch.testing.assert_close(total, batch.sum(0))
    assert len(network.recordings) == 1
