"""One made-up evaluation: digits 0 to 7 by logistic regression, digits 8 and 9 and scrambled images unknown."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from besnn.evaluation import Evaluation, ScoredSet
from besnn.evaluation.arrays import FloatArray

ALPHA = 0.1


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
        "provenance": {"seed": 0, "versions": {"besnn": "0.1.0"}, "argv": ["besnn", "evaluate"]},
    }


@pytest.fixture
def make_evaluation(evaluation_settings: dict[str, Any]) -> Callable[..., Evaluation]:
    """The evaluation with some of its settings replaced."""
    return lambda **changes: Evaluation(**(evaluation_settings | changes))
