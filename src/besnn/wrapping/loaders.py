"""Wrapping a network with data loaders of prepared inputs, as OpenOOD and pytorch-ood have them."""

import importlib
from collections.abc import Iterable, Iterator
from itertools import chain
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
from besnn.wrapping.scores import ScoreFit

HELD_OUT = 1000
"""Inputs that scores are combined against: of the held-out loader, or else the first of the training loader, at most half."""


def optional_class(module: str, name: str) -> Any:
    """Return a class of a library that may not be installed, or else `object`."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return object


def wrap_loader(
    network: nn.Module, training: Iterable[Any], held_out: Iterable[Any] | None = None, score: str = COMBINED
) -> Detector:
    """Make a detector of a network and batches of its inputs, `(inputs, labels)` or `{"data": ..., "label": ...}`.

    The detector takes inputs as the loader has them, and has no threshold: calibrate it, or use its scores. The score is named,
    because outliers can be made up from pixels alone. Inputs with negative labels, which mark outliers, are left out.
    """
    rows = len(training.dataset) if hasattr(training, "dataset") else sum(len(inputs) for inputs, _ in _batches(training))
    left, batches = rows, _batches(training)  # one pass: a shuffled loader would have another order in the next one
    if held_out is None:
        reference, batches = _take(batches, min(HELD_OUT, rows // 2))
        left -= len(reference)
    else:
        reference, _ = _take(_batches(held_out), HELD_OUT)
    if min(left, len(reference)) < 2:
        raise InputError(f"the loaders have {rows} training and {len(reference)} held-out inputs: pass a few hundred")
    device = device_of(network)
    examples = reference[:16].to(device)
    network, classes = check_network(network, examples)
    shape = tuple(examples.shape[1:])
    ones = torch.ones(shape[0], device=device)
    detector = Detector(
        WrappedNetwork(network, classes),
        Preprocessing(shape, 0 * ones, ones, form="numbers"),
        [str(label) for label in range(classes)],
    )
    ScoreFit(detector, find_layers(network, examples), _Rest(batches, left), reference).choose(score)
    return detector


class _Rest:
    """What is left of a loader's pass, as the training inputs of `ScoreFit`; there may be fewer than its length."""

    def __init__(self, left: Iterator[LabelledBatch], rows: int) -> None:
        self.left, self.rows = left, rows

    def __len__(self) -> int:
        return self.rows

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield as many inputs as there are indices, in the loader's own order and batches."""
        wanted = len(order)
        for inputs, labels in self.left:
            yield inputs[:wanted], labels[:wanted]
            if (wanted := wanted - len(inputs)) <= 0:
                return


def _batches(loader: Iterable[Any]) -> Iterator[LabelledBatch]:
    for batch in loader:
        inputs, labels = (batch["data"], batch["label"]) if isinstance(batch, dict) else batch[:2]
        known = labels >= 0
        yield inputs[known].cpu().float(), labels[known].cpu().long()


def _take(batches: Iterator[LabelledBatch], count: int) -> tuple[Tensor, Iterator[LabelledBatch]]:
    """Return the first inputs, at most `count`, and the batches after them."""
    taken: list[Tensor] = [torch.empty(0)]
    for inputs, labels in batches:
        first = min(len(inputs), count - sum(map(len, taken)))
        taken.append(inputs[:first])
        if first < len(inputs):
            batches = chain([(inputs[first:], labels[first:])], batches)
            break
    return torch.cat(taken[1:]) if taken[1:] else taken[0], batches
