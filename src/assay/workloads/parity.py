"""When a fast path may stand for its reference: how large its errors may be, and what is said where they are larger.

    mean error      at most 2e-4 in float16, and in other dtypes as much more or less as they round more or less;
                    float32 and float64 sum up in the precision they round to, which is allowed for
    largest error   at most twice that of masked attention in the same dtype, on the same inputs

Whether calls give the same bits again is told, and not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Parity

if TYPE_CHECKING:
    from collections.abc import Mapping

EPSILON: Mapping[str, float] = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
"""By which factor neighbouring numbers of a dtype differ from 1."""

MEAN_IN_FLOAT16 = 2e-4
TIMES_DENSE = 2.0
SUMMED = 8.0
"""What sums in the precision of the output add to its rounding."""

LEAST_ROUNDING = 0.1
"""Of epsilon and the size of the output: masked attention of a few keys may happen to be without error."""

REPEATS = 3
"""Calls whose bits are compared with those of the first."""


def mean_limit(dtype: str) -> float:
    """Return how large the mean absolute error of attention in a dtype may be."""
    limit = MEAN_IN_FLOAT16 * EPSILON[dtype] / EPSILON["float16"]
    return limit * SUMMED if dtype in {"float32", "float64"} else limit


def max_limit(dtype: str, dense: float, size: float) -> float:
    """Return how large the largest error may be beside that of masked attention; ``size`` is the output's own."""
    return TIMES_DENSE * max(dense, LEAST_ROUNDING * EPSILON[dtype] * size)


@dataclass(frozen=True)
class Seen:
    """What was seen of a fast path: its errors, over which rows, and whether all of the output is a number."""

    mean_error: float
    max_error: float
    rows_checked: int
    rows: int
    finite: bool = True


def judged(
    seen: Seen,
    *,
    measure: str,
    mean_limit: float,
    max_limit: float,
    dense_max_error: float | None = None,
    deterministic: bool | None = None,
) -> Parity:
    """Return whether errors are within their limits, and if not, why."""
    reasons = []
    if not (seen.finite and math.isfinite(seen.mean_error) and math.isfinite(seen.max_error)):
        reasons = ["its output has a NaN or an infinity"]
    else:
        if seen.mean_error > mean_limit:
            reasons.append(f"its mean error of {seen.mean_error:.3g} is more than {mean_limit:.3g}")
        if seen.max_error > max_limit:
            than = "" if dense_max_error is None else f", {TIMES_DENSE:g} times that of masked attention"
            reasons.append(f"its largest error of {seen.max_error:.3g} is more than {max_limit:.3g}{than}")
    return Parity(
        passed=not reasons,
        reason="; ".join(reasons) or None,
        measure=measure,
        mean_error=_finite(seen.mean_error),
        mean_limit=_finite(mean_limit),
        max_error=_finite(seen.max_error),
        max_limit=_finite(max_limit),
        dense_max_error=None if dense_max_error is None else _finite(dense_max_error),
        deterministic=deterministic,
        rows_checked=seen.rows_checked,
        rows=seen.rows,
    )


def not_checked(measure: str, reason: str) -> Parity:
    """Return that nothing could be compared, and why."""
    return Parity(passed=None, reason=reason, measure=measure)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
