"""Wrapping a network with data loaders of prepared inputs, as OpenOOD and pytorch-ood have them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import Preprocessing, WrappedNetwork
from besnn.training.batches import LabelledBatch
from besnn.wrapping.checks import check_network, device_of
from besnn.wrapping.layers import find_layers
from besnn.wrapping.scores import MOST_ROWS, ScoreFit

HELD_OUT = 1000
"""Inputs that scores are combined against, unless held-out ones are given: the first of the loader."""


def wrap_loader(
    network: nn.Module, training: Iterable[Any], held_out: Iterable[Any] | None = None, score: str = COMBINED
) -> Detector:
    """Make a detector of a network and batches of its inputs, `(inputs, labels)` or `{"data": ..., "label": ...}`.

    The detector takes inputs as the loader has them, and has no threshold: calibrate it, or use its scores. The score is named,
    because outliers can be made up from pixels alone.
    """
    first = next(iter(training), None)
    if first is None:
        raise InputError("the loader has no batches: pass one with training data")
    device = device_of(network)
    examples = _inputs(first)[:16].to(device)
    network, classes = check_network(network, examples)
    shape = tuple(examples.shape[1:])
    ones = torch.ones(shape[0], device=device)
    detector = Detector(
        WrappedNetwork(network, classes),
        Preprocessing(shape, 0 * ones, ones, form="numbers"),
        [str(label) for label in range(classes)],
    )
    reference = _some(training if held_out is None else held_out, HELD_OUT)
    source = LoaderSource(training, skipped=len(reference) if held_out is None else 0)
    ScoreFit(detector, find_layers(network, examples), source, reference).choose(score)
    return detector


class LoaderSource:
    """The labelled inputs of a loader in its own order, a `besnn.training.batches.Source`."""

    def __init__(self, loader: Iterable[Any], skipped: int = 0) -> None:
        self.loader, self.skipped = loader, skipped
        self.rows = sum(len(_inputs(batch)) for batch in loader) if not hasattr(loader, "dataset") else len(loader.dataset)

    def __len__(self) -> int:
        return min(MOST_ROWS, self.rows - self.skipped)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield as many inputs as there are indices, in the loader's batches."""
        left, skip = len(order), self.skipped
        for batch in self.loader:
            inputs, labels = _inputs(batch)[skip:], _labels(batch)[skip:]
            skip = max(0, skip - len(_inputs(batch)))
            if len(inputs := inputs[:left]):
                yield inputs.cpu().float(), labels[: len(inputs)].cpu().long()
                left -= len(inputs)

    def sample(self) -> Tensor:
        """Return the first inputs."""
        return _some(self.loader, HELD_OUT)


def _some(loader: Iterable[Any], count: int) -> Tensor:
    """Return the first inputs of a loader, at most half of them."""
    parts: list[Tensor] = []
    for batch in loader:
        parts.append(_inputs(batch).cpu().float())
        if sum(map(len, parts)) >= count:
            break
    found = torch.cat(parts)
    return found[: min(count, max(2, len(found) // 2))]


def _inputs(batch: Any) -> Tensor:
    inputs: Tensor = batch["data"] if isinstance(batch, dict) else batch[0]
    return inputs


def _labels(batch: Any) -> Tensor:
    labels: Tensor = batch["label"] if isinstance(batch, dict) else batch[1]
    return labels
