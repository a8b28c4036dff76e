"""Numbers by the group they belong to: counts, means and medians of any number of groups at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]


def coded(labels: Iterable[Hashable]) -> tuple[Codes, list[Hashable]]:
    """Return a number for each label, the same for the same one, and the labels in the order they first came."""
    code_of: dict[Hashable, int] = {}
    codes = [code_of.setdefault(label, len(code_of)) for label in labels]
    return np.array(codes, dtype=np.intp), list(code_of)


def joined(*parts: Codes) -> Codes:
    """Return a number for each combination of codes that occurs."""
    table = np.stack(parts, axis=1)
    _, inverse = np.unique(table, axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.intp).reshape(-1)


def means(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the mean of each group; NaN for an empty one."""
    counts = np.bincount(codes, minlength=groups)
    sums = np.bincount(codes, weights=values, minlength=groups)
    result: Samples = np.divide(sums, counts, out=np.full(groups, np.nan), where=counts > 0)
    return result


def medians(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the median of each group; NaN for an empty one."""
    ordered = values[np.lexsort((values, codes))]
    counts = np.bincount(codes, minlength=groups)
    starts = np.cumsum(counts) - counts
    result = np.full(groups, np.nan)
    there = counts > 0
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    result[there] = (ordered[low[there]] + ordered[high[there]]) / 2
    return result


def variances(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the variance of each group around its mean (n - 1); NaN for fewer than two values."""
    counts = np.bincount(codes, minlength=groups)
    apart = values - means(values, codes, groups)[codes]
    squares = np.bincount(codes, weights=apart**2, minlength=groups)
    result: Samples = np.divide(squares, counts - 1, out=np.full(groups, np.nan), where=counts > 1)
    return result
