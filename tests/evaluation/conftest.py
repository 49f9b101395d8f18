"""A made-up evaluation (digits 0 to 7 known; 8, 9 and scrambled images unknown), and figures read back as pixels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from besnn.evaluation import Evaluation, ScoredSet
from besnn.evaluation.checks import FloatArray
from besnn.evaluation.style import save_figure

ALPHA = 0.1
Pixels = npt.NDArray[np.uint8]


@pytest.fixture(scope="session")
def evaluation_settings() -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    order = generator.permutation(np.flatnonzero(labels < 8))
    training, calibration, test = np.split(order, [500, 800])
    classifier = LogisticRegression(C=0.05, max_iter=200).fit(images[training] / 16, labels[training])

    def entropy(probabilities: FloatArray) -> FloatArray:
        return -(probabilities * np.log(probabilities)).sum(axis=1)

    calibrated = np.sort(entropy(classifier.predict_proba(images[calibration] / 16)))
    threshold = float(calibrated[int(np.ceil(301 * (1 - ALPHA))) - 1])

    def answers(rows: FloatArray) -> ScoredSet:
        probabilities = classifier.predict_proba(rows / 16)
        score = entropy(probabilities)
        return ScoredSet(
            probabilities=probabilities,
            scores={"entropy": score, "max-probability": 1 - probabilities.max(axis=1)},
            p_values=(1 + (calibrated >= score[:, None]).sum(axis=1)) / 301,
            is_ood=score >= threshold,
            inputs=(rows * 15).astype(np.uint8).reshape(-1, 1, 8, 8),
        )

    return {
        "title": "Digits 0 to 7",
        "method": "softmax",
        "class_names": [f"digit {label}" for label in range(8)],
        "alpha": ALPHA,
        "threshold": threshold,
        "default_score": "entropy",
        "known_name": "digits",
        "known": answers(images[test]),
        "labels": labels[test],
        "unknown": {
            "eight and nine": answers(images[labels >= 8]),
            "scrambled": answers(generator.permuted(images[test], axis=1)),
        },
        "provenance": {"seed": 0, "versions": {"besnn": "1.0.0"}, "argv": ["besnn", "evaluate"]},
    }


@pytest.fixture
def make_evaluation(evaluation_settings: dict[str, Any]) -> Callable[..., Evaluation]:
    """The evaluation with some of its settings replaced."""
    return lambda **changes: Evaluation(**(evaluation_settings | changes))


@pytest.fixture
def pixels_of(tmp_path: Path) -> Callable[[Figure], Pixels]:
    """Save a figure as PNG and read it back, ``[height, width, 3]``; a blank one fails here."""

    def read(figure: Figure) -> Pixels:
        path = save_figure(figure, tmp_path / "figure.png")
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        width, height = figure.get_size_inches()
        assert pixels.shape[:2] == pytest.approx((200 * height, 200 * width), abs=1)
        assert pixels.std() > 5, "the picture is blank"
        return pixels

    return read
