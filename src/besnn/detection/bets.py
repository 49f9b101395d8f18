"""Betting against uniform p-values: what the bets pay, and how capital flows through them."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

# Some share of strange inputs among ordinary ones makes some p-values small: (1 − share) + share · ε p^(ε − 1).
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
EXPONENTS = (0.1, 0.5)
# Any other change (inputs too ordinary, a sensor that repeats itself) crowds some decile: part of the stake goes on each.
DECILES = 10
DECILE_STAKE = 0.2

BETS = len(SHARES) * len(EXPONENTS) + DECILES

# Capital still at rest after t steps: (1 + (t + 1) / 100)^(−1/4). A bet that begins at step t, before a change, then has
# about t^(−5/4) to start from, so a change is found after a delay that grows with log t alone.
REST_STEPS = 100
REST_DECAY = 0.25


def log_payoffs(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every bet's log f(p), where f ≥ 0 has mean 1 for uniform p: `[steps]` in (0, 1] to `[steps, BETS]`.

    Example:
        >>> np.exp(log_payoffs(np.array([0.001]))).max().round(1)
        np.float64(50.1)
    """
    p = p_values[:, None]
    shares, exponents = (grid.ravel() for grid in np.meshgrid(SHARES, EXPONENTS))
    small = np.log1p(shares * np.expm1(np.log(exponents) + (exponents - 1) * np.log(p)))
    crowded = np.ceil(p * DECILES) == np.arange(1, DECILES + 1)
    return np.concatenate([small, np.log(1 - DECILE_STAKE + DECILE_STAKE * DECILES * crowded)], axis=1)


def initial_log_capital() -> NDArray[np.float64]:
    """Log capital of every bet before the first step, `[BETS]`: what is not at rest, in equal parts.

    Example:
        >>> bool(np.isclose(np.exp(initial_log_capital()).sum() + np.exp(_log_rest(np.array(0))), 1))
        True
    """
    return np.full(BETS, math.log(-math.expm1(_log_rest(np.array(0))) / BETS))


def play(
    log_capital: NDArray[np.float64], payoffs: NDArray[np.float64], step: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bets on a run of p-values: before each, capital leaves rest for the bets in equal parts; then each bet is paid.

    All in logarithms: capital multiplies without bound while a change lasts.

    Args:
        log_capital: of every bet after `step` steps, `[BETS]`.
        payoffs: log payoffs `[steps, BETS]`, at least one step.
        step: how many steps went before.

    Returns:
        the log capital after the run, `[BETS]`, and the log of all capital, that at rest included, after each step.
    """
    t = np.arange(step + 1, step + 1 + len(payoffs))
    log_released = _log_rest(t - 1) + np.log(-np.expm1(_log_rest(t) - _log_rest(t - 1)))
    # A_t = (A_{t-1} + released_t / BETS) f_t, solved for the whole run: A_t = F_t (A_0 + Σ_{s≤t} released_s / BETS / F_{s-1}).
    log_product = payoffs.cumsum(axis=0)
    deposits = (log_released - math.log(BETS))[:, None] - (log_product - payoffs)
    deposits[0] = np.logaddexp(deposits[0], log_capital)
    path = np.logaddexp.accumulate(deposits, axis=0) + log_product
    return path[-1], np.logaddexp(logsumexp(path, axis=1), _log_rest(t))


def _log_rest(t: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of the capital still at rest after t steps."""
    return -REST_DECAY * np.log1p((t + 1) / REST_STEPS)
