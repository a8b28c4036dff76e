"""Thresholds for counts from simulations, such that a test fails by chance once in a thousand at most."""

from __future__ import annotations

from scipy import stats


def at_most(rate: float, repeats: int) -> int:
    """Return the count that a true rate exceeds in fewer than one of a thousand simulations."""
    return int(stats.binom.ppf(0.999, repeats, rate))


def at_least(rate: float, repeats: int) -> int:
    """Return the count that a true rate falls short of in fewer than one of a thousand simulations."""
    return int(stats.binom.ppf(0.001, repeats, rate))
