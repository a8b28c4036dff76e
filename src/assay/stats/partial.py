"""Whether two things go together, also when others are held equal: rank correlation with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE
from assay.stats.ranks import FEWEST, ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Association:
    """Spearman's rho over n things, what others were held equal; no interval where n is too small for one."""

    rho: float
    low: float | None
    high: float | None
    n: int


def association(
    first: Samples,
    second: Samples,
    equal: Sequence[Samples] = (),
    *,
    independent: bool = True,
    spent: int = 0,
    confidence: float = CONFIDENCE,
) -> Association | None:
    """Return how two things go together among those of which all is known; null where one of them never changes.

    The interval is Fisher's, with the variance of ranks (Bonett and Wright) and a degree of freedom less for each thing
    that is held ``equal`` and each that was ``spent`` before, as on means taken out. Where what is paired is not
    ``independent``, there is none.
    """
    columns = np.stack([first, second, *equal])
    columns = columns[:, np.isfinite(columns).all(axis=0)]
    n = columns.shape[1]
    if n < 3 + len(equal):
        return None
    ranked = [ranks(column) for column in columns]
    others = np.stack([np.ones(n), *ranked[2:]], axis=1)
    one, other = (column - others @ np.linalg.lstsq(others, column, rcond=None)[0] for column in ranked[:2])
    size = math.sqrt(float(one @ one) * float(other @ other))
    if size <= 1e-9 * n**3:
        return None
    rho = max(-1.0, min(1.0, float(one @ other) / size))
    free = n - spent - len(equal)
    if not independent or free < FEWEST or abs(rho) > 1 - 1e-12:
        return Association(rho, None, None, n)
    reach = float(special.ndtri(0.5 + confidence / 2)) * math.sqrt((1 + rho**2 / 2) / (free - 3))
    middle = math.atanh(rho)
    return Association(rho, math.tanh(middle - reach), math.tanh(middle + reach), n)
