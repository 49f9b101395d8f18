"""Examples for the page: known, ambiguous and unknown inputs to try."""

import base64
import io
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field

from besnn.data import Inputs, made_up_outliers
from besnn.detector import Detector

EXAMPLES_PER_KIND = 6
MAX_CANDIDATES = 1000
_FAR = 3.5  # standard deviations in every column


class Example(BaseModel):
    """An input to try."""

    kind: Literal["known", "ambiguous", "unknown"]
    input: str | list[float] = Field(description="As `/v1/predict` takes it: a PNG file in base64, or a table row.")


def choose_examples(detector: Detector, inputs: Inputs) -> list[Example]:
    """Choose some examples of each kind from inputs `[n, ...]` of the classes that a detector knows.

    Known: the most ordinary inputs of each predicted class. Ambiguous: two classes are about equally probable. Unknown:
    outliers made up from images, or rows far from the training data. The detector flags none of the first two kinds.
    """
    inputs = inputs[np.random.default_rng(0).permutation(len(inputs))[:MAX_CANDIDATES]]
    predictions = detector.predict(inputs)
    accepted = np.flatnonzero(~predictions.is_ood)
    ordinary = accepted[np.argsort(-predictions.p_value[accepted], kind="stable")]
    known = _by_turns(ordinary, predictions.indices[ordinary])[:EXAMPLES_PER_KIND]
    top_two = np.sort(predictions.probabilities, axis=1)[:, -2:]
    doubt = np.ptp(top_two, axis=1) - (predictions.decision == "unsure")  # unsure ones first
    closest = accepted[np.argsort(doubt[accepted], kind="stable")]
    ambiguous = closest[~np.isin(closest, known)][:EXAMPLES_PER_KIND]
    chosen = _examples("known", inputs[known]) + _examples("ambiguous", inputs[ambiguous])
    if inputs.ndim == 2 or len(inputs) < EXAMPLES_PER_KIND:  # rows made up from a table may well be ordinary
        return chosen + unknown_examples(detector)
    kinds = list(made_up_outliers(inputs).values())
    return chosen + _examples("unknown", [kinds[index % len(kinds)][index] for index in range(EXAMPLES_PER_KIND)])


def unknown_examples(detector: Detector) -> list[Example]:
    """Make examples without data: noise images, or rows far from the training data."""
    rng = np.random.default_rng(0)
    shape = (EXAMPLES_PER_KIND, *detector.input_shape)
    if len(detector.input_shape) == 3:
        return _examples("unknown", rng.integers(0, 256, shape, dtype=np.uint8))
    mean, std = detector.preprocessing.mean.cpu().numpy(), detector.preprocessing.std.cpu().numpy()
    return _examples("unknown", mean + _FAR * std * rng.choice([-1, 1], shape) * rng.uniform(0.8, 1, shape))


def _examples(kind: Literal["known", "ambiguous", "unknown"], items: Iterable[NDArray[np.generic]]) -> list[Example]:
    return [Example(kind=kind, input=encode_input(item)) for item in items]


def _by_turns(rows: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of every class, then the second of every class, and so on.

    >>> _by_turns(np.array([10, 11, 12, 13]), np.array([0, 0, 1, 0])).tolist()
    [10, 12, 11, 13]
    """
    turn = np.array([np.sum(classes[:index] == own) for index, own in enumerate(classes)], dtype=np.int64)
    return rows[np.argsort(turn, kind="stable")]


def encode_input(item: NDArray[np.generic]) -> str | list[float]:
    """Return an input as `/v1/predict` takes it: a table row as numbers, an image as a PNG file in base64."""
    if item.ndim == 1:
        return [float(value) for value in item]
    pixels = np.ascontiguousarray(item[0] if len(item) == 1 else item.transpose(1, 2, 0))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
