"""The gradients of a step, by CUDA graphs where there is a GPU: one launch in place of hundreds."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Terms = dict[str, Tensor]
Step = Callable[[Tensor, Tensor, Mapping[str, float]], Terms]
Key = tuple[tuple[str, float], ...]


def key_of(factors: Mapping[str, float]) -> Key:
    """A combination of factors, to look steps up by.

    >>> key_of({"gradient": 4.0, "entropy": 1.0})
    (('entropy', 1.0), ('gradient', 4.0))
    """
    return tuple(sorted(factors.items()))


class GraphedStep:
    """Replays a step that was recorded once, for every combination of factors that keeps coming back.

    The step's first calls run as they are (they are real training steps, in which libraries choose algorithms); then it is
    recorded. Random numbers in a replay follow the seed that was set before it, as they do without a graph.

    Args:
        step: fills the gradients of some parameters from a batch, always of one shape, and returns the loss terms.
        warm_up: how many calls of a combination run before it is recorded.
    """

    def __init__(self, step: Step, warm_up: int = 3) -> None:
        self.step, self.warm_up = step, warm_up
        self.seen: dict[Key, int] = {}
        self.recorded: dict[Key, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Terms]] = {}
        self.stream = torch.cuda.Stream()

    def __call__(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """The loss terms; gradients are left where the step leaves them."""
        key = key_of(factors)
        if key not in self.recorded:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= self.warm_up:
                return self._beside(x, labels, factors)
            self.recorded[key] = self._record(x, labels, factors)
        graph, static_x, static_labels, terms = self.recorded[key]
        static_x.copy_(x)
        static_labels.copy_(labels)
        graph.replay()
        return terms

    def _beside(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """Runs the step on the stream that recording uses, so that its gradients are made there."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            terms = self.step(x, labels, factors)
        torch.cuda.current_stream().wait_stream(self.stream)
        return terms

    def _record(
        self, x: Tensor, labels: Tensor, factors: Mapping[str, float]
    ) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Terms]:
        graph = torch.cuda.CUDAGraph()
        static_x, static_labels = x.clone(), labels.clone()
        with torch.cuda.graph(graph, stream=self.stream):
            terms = self.step(static_x, static_labels, factors)
        return graph, static_x, static_labels, {name: term.detach() for name, term in terms.items()}
