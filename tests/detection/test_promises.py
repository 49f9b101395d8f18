"""The stated rates end to end: thousands of detectors calibrated, asked and watched as a program would, at fixed seeds."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, binom
from torch import nn

from besnn import BESNN, Detector
from besnn.model import Preprocessing
from besnn.serve.drift import Traffic
from besnn.serve.settings import Settings

torch.set_num_threads(1)  # the tensors are tiny

REPETITIONS = 1000
SMALLEST = {0.01: 99, 0.05: 19, 0.2: 4}
"""The smallest calibration sets: with one input fewer, the rate is refused (tests/detection/test_conformal.py)."""


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    model = BESNN(nn.Linear(1, 4), num_classes=2, feature_dim=4, members=2, noise_dim=2, hidden_dim=4, samples=4)
    return Detector(model, Preprocessing((1,), torch.zeros(1), torch.ones(1)), ["a", "b"])


def false_alarms(detector: Detector, pool: np.ndarray, alpha: float, new: int = 100) -> np.ndarray:
    """Count false alarms among `new` inputs, after each calibration on others of the pool."""
    rng, n, counts = np.random.default_rng(1), SMALLEST[alpha], []
    for _ in range(REPETITIONS):
        rows = rng.permutation(len(pool))[: n + new]
        predictions = detector.calibrate(pool[rows[:n]], alpha).predict(pool[rows[n:]])
        counts.append(predictions.is_ood.sum())
    return np.array(counts)


@pytest.mark.parametrize("alpha", SMALLEST)
def test_false_alarms_follow_the_exact_law(alpha: float, detector: Detector) -> None:
    """If scores do not tie, the count is beta-binomial; the limit of Dvoretzky, Kiefer and Wolfowitz holds but once in 10⁶."""
    pool = np.random.default_rng(0).uniform(-1, 1, (400, 1)).astype(np.float32)
    assert len(np.unique(detector.score(pool))) == len(pool)
    counts = false_alarms(detector, pool, alpha)
    possible = np.arange(101)
    observed = (counts[:, None] <= possible).mean(axis=0)
    law = betabinom(100, 1, SMALLEST[alpha])  # the smallest sets flag what is stranger than all of them
    assert np.abs(observed - law.cdf(possible)).max() < math.sqrt(math.log(2e6) / (2 * REPETITIONS))
    assert counts.mean() / 100 <= alpha + 4 * law.std() / 100 / math.sqrt(REPETITIONS)


def test_ties_only_lower_the_rate(detector: Detector) -> None:
    pool = np.random.default_rng(0).integers(0, 40, (400, 1)).astype(np.float32) / 40
    assert len(np.unique(detector.score(pool))) <= 40
    assert 0 < false_alarms(detector, pool, alpha=0.2).mean() / 100 < 0.2


def test_few_streams_without_drift_ever_raise_the_alarm(detector: Detector) -> None:
    rng, level, alarms = np.random.default_rng(2), 10.0, 0
    for stream in range(REPETITIONS):
        inputs = rng.normal(size=(400, 1)).astype(np.float32).round(stream % 2 + 1)  # scores tie, much or little
        traffic = Traffic(detector.calibrate(inputs[:60]).threshold, Settings(drift_alarm_level=level))
        traffic.record(detector.predict(inputs[60:]))
        alarms += traffic.report().alarm
    assert 0 < alarms <= binom(REPETITIONS, 1 / level).ppf(0.999)
