"""Running a network on a GPU by replaying a CUDA graph of it: one launch instead of dozens."""

import copy
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Outputs: TypeAlias = tuple[Tensor, ...]
Network: TypeAlias = Callable[[Tensor], Outputs]

_logger = logging.getLogger(__name__)


class Replayed:
    """A network that is recorded for each shape of batch that recurs, and replayed from then on.

    A network that cannot be recorded, or whose recording gives different results, keeps running as it is. `record` makes a
    recording of a network, a function of one tensor without side effects, for batches like an example. `warm_up` batches of a
    shape run before it is recorded, since libraries choose their algorithms in them; `most` shapes are recorded.
    """

    def __init__(self, network: Network, record: Callable[[Network, Tensor], Network], warm_up: int = 2, most: int = 4) -> None:
        self.network, self.record, self.warm_up, self.most = network, record, warm_up, most
        self.seen: Counter[tuple[object, ...]] = Counter()
        self.recordings: dict[tuple[object, ...], Network] = {}
        self.lock = threading.Lock()  # a recording has one buffer for its input and one for its outputs

    def __call__(self, batch: Tensor) -> Outputs:
        """Return the network's outputs."""
        kind = (batch.device, batch.dtype, batch.shape)
        with self.lock:
            if kind in self.recordings:
                return self.recordings[kind](batch)
            self.seen[kind] += 1
            outputs = self.network(batch)
            if self.seen[kind] > self.warm_up and len(self.recordings) < self.most:
                self.recordings[kind] = self._recorded(batch, outputs)
            return outputs

    def __deepcopy__(self, memo: dict[int, Any]) -> "Replayed":
        return Replayed(copy.deepcopy(self.network, memo), copy.deepcopy(self.record, memo), self.warm_up, self.most)

    def _recorded(self, batch: Tensor, expected: Outputs) -> Network:
        try:
            recording = self.record(self.network, batch)
            outputs = recording(batch)
            if all(torch.allclose(*pair, rtol=1e-2, atol=1e-3, equal_nan=True) for pair in zip(outputs, expected, strict=True)):
                return recording
            reason = "the recording gives different results"
        except Exception as error:  # whatever prevents the recording: the network itself still runs
            reason = f"{type(error).__name__}: {error}"
        _logger.info("batches of shape %s are not replayed (%s)", list(batch.shape), reason)
        return self.network


class CudaGraphs:
    """Makes recordings as CUDA graphs, which share memory: one is replayed at a time, and its outputs are copied."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, network: Network, example: Tensor) -> Network:  # pragma: no cover - needs a GPU
        """Record the network as one launch, for batches like the example."""
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(example.device):
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            static, stream, graph = example.clone(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                network(static)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
                outputs = network(static)

        def replay(batch: Tensor) -> Outputs:
            static.copy_(batch)
            graph.replay()
            return tuple(output.clone() for output in outputs)

        return replay
