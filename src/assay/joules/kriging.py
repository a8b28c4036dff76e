"""Least squares with errors that know each other: what is between two readings of a counter, and how sure that is.

Power is a level plus something that strays around it and remembers itself for a while (an Ornstein–Uhlenbeck process).
A counter shows the integral of it at its ticks. Integrals of such a process are Gaussian with a covariance in closed
form, so levels and what lies between ticks have best linear estimates with a variance (universal kriging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

NUGGET = 1e-9
"""Of the mean variance: keeps a covariance of exact readings invertible."""


@dataclass(frozen=True)
class Fit:
    """What least squares found: the coefficients, their covariance, and how likely the data are under the model.

    ``target`` and ``target_variance`` are of what was asked for beside the coefficients; null where nothing was.
    """

    coefficients: Array
    covariance: Array
    log_likelihood: float
    target: float | None = None
    target_variance: float | None = None


@dataclass(frozen=True)
class Target:
    """A linear function of the same process: its part in the columns, its covariance with the data and with itself."""

    columns: Array
    with_data: Array
    variance: float


def integrated(one: Array, other: Array, memory_s: float) -> Array:
    """Return the covariance of ∫₀ᵃ q and ∫₀ᵇ q, for each pair of times in s, where q has unit variance.

    q remembers itself for ``memory_s``: cov(q(x), q(y)) = exp(-|x - y| / memory_s). In s².
    """

    def bent(x: Array) -> Array:
        scaled = np.abs(x) / memory_s
        return scaled + np.exp(-scaled)

    column, row = one[:, None], other[None, :]
    return np.asarray(memory_s**2 * (bent(column) + bent(row) - bent(column - row) - 1.0), dtype=np.float64)


def returning(one: Array, other: Array, length_s: float, memory_s: float) -> Array:
    """Return the covariance of ∫₀ᵃ q and ∫₀ᵇ q as ``integrated`` does, knowing that ∫₀ of the whole length is 0.

    It is what a call's energy strays from a straight line: at its beginning and at its end not at all.
    """
    end = np.array([length_s])
    whole = float(integrated(end, end, memory_s)[0, 0])
    left, right = integrated(one, end, memory_s), integrated(end, other, memory_s)
    return np.asarray(integrated(one, other, memory_s) - left @ right / whole, dtype=np.float64)


def fit(columns: Array, observed: Array, covariance: Array, target: Target | None = None) -> Fit:
    """Return the generalised least squares of ``observed`` on ``columns`` under a covariance.

    The likelihood is the restricted one, which compares covariances with the coefficients left out of account.
    """
    n = len(observed)
    factor = linalg.cho_factor(covariance + NUGGET * np.trace(covariance) / n * np.eye(n), lower=True)
    weighted = np.asarray(linalg.cho_solve(factor, columns), dtype=np.float64)
    precision = columns.T @ weighted
    scale = np.sqrt(np.diag(precision))
    inverse = np.asarray(linalg.pinvh(precision / np.outer(scale, scale)), dtype=np.float64) / np.outer(scale, scale)
    coefficients = inverse @ (weighted.T @ observed)
    rest = observed - columns @ coefficients
    solved = np.asarray(linalg.cho_solve(factor, rest), dtype=np.float64)
    _, determinant = np.linalg.slogdet(precision / np.outer(scale, scale))
    likelihood = -0.5 * float(rest @ solved) - float(np.log(np.diag(factor[0])).sum())
    likelihood -= 0.5 * float(determinant) + float(np.log(scale).sum())
    if target is None:
        return Fit(coefficients, inverse, likelihood)
    value = float(target.columns @ coefficients + target.with_data @ solved)
    weights = np.asarray(linalg.cho_solve(factor, target.with_data), dtype=np.float64)
    open_part = target.columns - columns.T @ weights
    variance = target.variance - float(target.with_data @ weights) + float(open_part @ inverse @ open_part)
    return Fit(coefficients, inverse, likelihood, value, max(0.0, variance))
