"""Which training inputs a detector keeps, to show the nearest ones to an input that it does not know."""

import numpy as np
import torch
from torch.nn import functional as F

from besnn.detection.explanation import Examples
from besnn.detector import Detector
from besnn.model.feature_layers import PIXELS
from besnn.training.batches import Data, in_order, open_source
from besnn.training.choose_score import layer_columns

BYTES = 2**22
"""Most bytes that the kept inputs may take; their features may take as many again."""
SIDE = 64
"""Larger images are kept as thumbnails of at most this many pixels per side."""


def keep_examples(detector: Detector, training: Data, most: int = 1000) -> None:
    """Keep a random sample of at most `most` training inputs in a detector.

    Their features are those of the layers before `pixels`, whose large numbers would decide alone which inputs are near.
    """
    if not most:
        return
    members, numbers = _features_of_one(detector, training)
    columns = next((each.start for layer, each in layer_columns(detector, numbers).items() if layer == PIXELS), 0) or numbers
    channels, *sides = (*detector.input_shape, 1, 1)[:3]
    pixels = channels * min(SIDE, sides[0]) * min(SIDE, sides[1]) * (1 if detector.preprocessing.form == "pixels" else 4)
    count = min(most, len(training), max(1, BYTES // (members * columns)), max(1, BYTES // pixels))
    rows = np.sort(np.random.default_rng(0).permutation(len(training))[:count])
    kept, labels, features = [], [], []
    for inputs, targets in in_order(open_source(training.subset(rows), torch.device("cpu")), 256):
        features += [part[..., :columns].cpu() for _, part in detector.outputs(inputs, detector.layer)]
        kept.append(thumbnails(inputs))
        labels.append(targets)
    detector.examples = Examples.of(torch.cat(kept).numpy(), torch.cat(labels).numpy(), torch.cat(features, dim=1))


def _features_of_one(detector: Detector, training: Data) -> tuple[int, int]:
    """Return how many members have features of their own, and how many numbers each."""
    inputs, _ = next(in_order(open_source(training.subset(np.arange(1)), torch.device("cpu")), 1))
    _, features = next(detector.outputs(inputs, detector.layer))
    return features.shape[0], features.shape[2]


def thumbnails(inputs: torch.Tensor) -> torch.Tensor:
    """Return images `uint8 [n, c, h, w]` no larger than `SIDE`; rows as they are, in float32."""
    if inputs.ndim != 4:
        return inputs.float()
    height, width = inputs.shape[2:]
    share = min(1.0, SIDE / max(height, width))
    if share == 1.0:
        return inputs
    size = max(1, round(share * height)), max(1, round(share * width))
    return F.interpolate(inputs.float(), size, mode="area").round().to(torch.uint8)
