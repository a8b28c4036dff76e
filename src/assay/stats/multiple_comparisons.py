"""Compare several conditions, each measured once per block.

Determines which may be the best, and how each differs from a reference.

Block effects are removed, and the residual scatter is shared by all conditions, so a few blocks of many conditions
determine it well. Simultaneous answers use Dunnett's quantile instead of Student's. A condition may be the best unless
another is significantly better (Hsu's multiple comparisons with the best), so the truly best one is among them 95
times in 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

_NODES = 96
_ESTIMABLE_TOLERANCE = 1e-6
_MAX_QUANTILE = 1e4
"""Upper limit of the search for Dunnett's quantile: with one degree of freedom it is large."""


@dataclass(frozen=True)
class Contrast:
    """The difference of two conditions; ``error`` is its standard error, null where the noise is unknown."""

    value: float
    error: float | None


@dataclass(frozen=True)
class CrossedDesign:
    """Conditions (rows) crossed with blocks (columns), NaN where one was not measured.

    ``effects`` are the conditions with block effects removed, NaN where one was never measured.
    """

    table: Samples
    effects: Samples
    scatter: float | None
    freedom: int
    _inverse: Samples
    _reached: Samples

    @property
    def measured(self) -> list[int]:
        """The conditions that were measured at least once."""
        return [row for row in range(len(self.effects)) if np.isfinite(self.effects[row])]

    def contrast(self, one: int, other: int) -> Contrast | None:
        """Return the difference of two conditions; null where no chain of blocks connects them.

        Their scatter is that of all conditions, or their own where that is larger.
        """
        if one == other:
            return Contrast(0.0, 0.0)
        missed = self._reached[:, one] - self._reached[:, other]
        missed[one] -= 1.0
        missed[other] += 1.0
        if np.abs(missed).max() > _ESTIMABLE_TOLERANCE:
            return None
        value = float(self.effects[one] - self.effects[other])
        if self.scatter is None:
            return Contrast(value, None)
        spread = max(self.scatter, self._own_scatter(one, other))
        factor = self._inverse[one, one] + self._inverse[other, other] - 2 * self._inverse[one, other]
        return Contrast(value, spread * math.sqrt(float(factor)))

    def _own_scatter(self, one: int, other: int) -> float:
        differences = self.table[one] - self.table[other]
        differences = differences[np.isfinite(differences)]
        return float(differences.std(ddof=1)) / math.sqrt(2) if len(differences) > 1 else 0.0

    def may_be_lowest(self, confidence: float = CONFIDENCE) -> list[int]:
        """Return the conditions indistinguishable from the lowest; all of them where the noise is unknown."""
        measured = self.measured
        if self.freedom < 1 or len(measured) < 2:
            return measured
        reach = dunnett_quantile(len(measured) - 1, self.freedom, confidence, two_sided=False)
        return [row for row in measured if not any(self._above(row, other, reach) for other in measured)]

    def _above(self, one: int, other: int, reach: float) -> bool:
        contrast = self.contrast(one, other)
        return (
            contrast is not None
            and contrast.error is not None
            and contrast.value > reach * contrast.error
            and contrast.value > 0
        )

    def against(
        self, reference: int, confidence: float = CONFIDENCE, *, two_sided: bool = True
    ) -> dict[int, tuple[float, float | None, float | None]]:
        """Return how far each other condition lies above a reference, with simultaneous bounds.

        One-sided, the lower bound is as far below as the upper one is above, and only one of them may be used.
        """
        others = [row for row in self.measured if row != reference]
        if not others or reference not in self.measured:
            return {}
        reach = None
        if self.freedom > 0:
            reach = dunnett_quantile(len(others), self.freedom, confidence, two_sided=two_sided)
        differences: dict[int, tuple[float, float | None, float | None]] = {}
        for row in others:
            contrast = self.contrast(row, reference)
            if contrast is None:
                continue
            half = math.nan if reach is None or contrast.error is None else reach * contrast.error
            ends = (None, None) if math.isnan(half) else (contrast.value - half, contrast.value + half)
            differences[row] = (contrast.value, *ends)
        return differences


def fit_crossed(table: Samples) -> CrossedDesign:
    """Fit a table of conditions (rows) by blocks (columns); NaN was not measured."""
    values = np.asarray(table, dtype=np.float64)
    conditions, blocks = values.shape
    rows, columns = np.nonzero(np.isfinite(values))
    design = np.zeros((len(rows), conditions + blocks))
    design[np.arange(len(rows)), rows] = 1.0
    design[np.arange(len(rows)), conditions + columns] = 1.0
    measured = values[rows, columns]
    gram = design.T @ design
    inverse = np.linalg.pinv(gram, hermitian=True)
    solved = inverse @ design.T @ measured
    effects = np.full(conditions, np.nan)
    measured_rows = np.unique(rows)
    typical_block = solved[conditions + np.unique(columns)].mean() if len(rows) else 0.0
    effects[measured_rows] = solved[measured_rows] + typical_block
    freedom = len(rows) - int(np.linalg.matrix_rank(design)) if len(rows) else 0
    residuals = measured - design @ solved
    scatter = math.sqrt(float(residuals @ residuals) / freedom) if freedom > 0 else None
    return CrossedDesign(values, effects, scatter, freedom, inverse, gram @ inverse)


@cache
def dunnett_quantile(others: int, freedom: int, confidence: float = CONFIDENCE, *, two_sided: bool = True) -> float:
    """Return the simultaneous quantile, in standard errors, for differences of several conditions from one more.

    All are measured equally often and share their scatter, known with ``freedom`` degrees of freedom.
    """
    z, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    p, shares = np.polynomial.legendre.leggauss(_NODES)
    scales = np.sqrt(2 * special.gammaincinv(freedom / 2, (p + 1) / 2) / freedom)
    shares = shares / 2

    def covered(reach: float) -> float:
        far = math.sqrt(2) * reach * scales[:, None]
        within = special.ndtr(z[None, :] + far)
        if two_sided:
            within = within - special.ndtr(z[None, :] - far)
        return float(shares @ (within**others) @ weights)

    low, high = 0.0, _MAX_QUANTILE
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if covered(middle) < confidence else (low, middle)
    return (low + high) / 2
