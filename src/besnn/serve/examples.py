"""Inputs to try: known, ambiguous and unknown ones."""

import base64
import io
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field

from besnn.data import Inputs, made_up_outliers
from besnn.detector import Detector

EXAMPLES_OF_A_KIND = 6
LOOKED_AT = 1000
_FAR = 3.5  # standard deviations in every column


class Example(BaseModel):
    """An input to try."""

    kind: Literal["known", "ambiguous", "unknown"]
    input: str | list[float] = Field(description="As `/v1/predict` takes it: a PNG file in base64, or a table row.")


class ExamplesResponse(BaseModel):
    """Inputs to try."""

    examples: list[Example]


def choose_examples(detector: Detector, inputs: Inputs) -> list[Example]:
    """Some examples of each kind from inputs `[n, ...]` of the classes that a detector knows.

    Known: what looks most ordinary in each predicted class. Ambiguous: where two classes are about equally probable.
    Unknown: outliers made up from images, far rows for tables. The first two are not among those that the detector flags.
    """
    inputs = inputs[np.random.default_rng(0).permutation(len(inputs))[:LOOKED_AT]]
    predictions = detector.predict(inputs)
    accepted = np.flatnonzero(~predictions.is_ood)
    ordinary = accepted[np.argsort(-predictions.p_value[accepted], kind="stable")]
    known = _in_turn(ordinary, predictions.indices[ordinary])[:EXAMPLES_OF_A_KIND]
    top_two = np.sort(predictions.probabilities, axis=1)[:, -2:]
    closest = accepted[np.argsort(np.ptp(top_two, axis=1)[accepted], kind="stable")]
    ambiguous = closest[~np.isin(closest, known)][:EXAMPLES_OF_A_KIND]
    chosen = [_example("known", inputs[row]) for row in known] + [_example("ambiguous", inputs[row]) for row in ambiguous]
    if inputs.ndim == 2 or len(inputs) < EXAMPLES_OF_A_KIND:  # a table's made-up rows may well be ordinary
        return chosen + unknown_examples(detector)
    kinds = list(made_up_outliers(inputs).values())
    return chosen + [_example("unknown", kinds[place % len(kinds)][place]) for place in range(EXAMPLES_OF_A_KIND)]


def unknown_examples(detector: Detector) -> list[Example]:
    """Examples that need no data: noise for images, far rows for tables."""
    rng = np.random.default_rng(0)
    shape = (EXAMPLES_OF_A_KIND, *detector.input_shape)
    if len(detector.input_shape) == 3:
        return [_example("unknown", image) for image in rng.integers(0, 256, shape, dtype=np.uint8)]
    mean, std = detector.preprocessing.mean.cpu().numpy(), detector.preprocessing.std.cpu().numpy()
    rows = mean + _FAR * std * rng.choice([-1, 1], shape) * rng.uniform(0.8, 1, shape)
    return [_example("unknown", row) for row in rows]


def blank_input(input_shape: tuple[int, ...]) -> str | list[float]:
    """An input of zeros, as `/v1/predict` takes it: it tells nothing of the data that a model was made from.

    >>> blank_input((3,))
    [0, 0, 0]
    """
    return _sendable(np.zeros(input_shape, np.uint8))


def _in_turn(rows: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of every class, then the second of every class, and so on.

    >>> _in_turn(np.array([10, 11, 12, 13]), np.array([0, 0, 1, 0])).tolist()
    [10, 12, 11, 13]
    """
    turn = np.array([np.sum(classes[:place] == own) for place, own in enumerate(classes)], dtype=np.int64)
    return rows[np.argsort(turn, kind="stable")]


def _example(kind: Literal["known", "ambiguous", "unknown"], item: NDArray[np.generic]) -> Example:
    return Example(kind=kind, input=_sendable(item))


def _sendable(item: NDArray[np.generic]) -> str | list[float]:
    if item.ndim == 1:
        row: list[float] = item.tolist()
        return row
    pixels = np.ascontiguousarray(item[0] if len(item) == 1 else item.transpose(1, 2, 0))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
