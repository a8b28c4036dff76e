"""Variance components of a nested design (rack > host > GPU > run > restart > call), and statistics per group.

Sums of squares are computed level by level. For unbalanced designs their expected values are known exactly (Henderson's
first method), and the variances follow from the lowest level up. Each interval includes the uncertainty of all sums of
squares it is based on (generalized pivots: every sum of squares is divided by chi-squared draws): exact where one sum
is enough, close for differences, also where a level has few members. A level whose members are each alone in their
parent cannot be separated from the level above: it is null, and reported as part of that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

DRAWS, SEED = 4000, 11
MAX_LOG_DRAW = 50.0
"""With two clusters a draw may be anywhere; logarithms are limited to this."""


@dataclass(frozen=True)
class VarianceComponent:
    """The variance that one level adds, with its interval and its share of all; nulls where it cannot be estimated."""

    level: str
    members: int
    variance: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    within: str | None = None
    """Where the variance is null: the level that it is part of; null as well where there is no level above."""


@dataclass(frozen=True)
class _ComponentDraws:
    """A component's variance and its draws, not truncated."""

    value: float
    draws: Samples


def estimate_components(
    values: Samples,
    levels: Sequence[tuple[str, Codes]],
    below: tuple[str, Samples, Codes] | None = None,
    *,
    spent: Mapping[str, int] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[VarianceComponent, ...]:
    """Return the variance of each level, the highest first; ``levels`` have a code for each value, nested.

    ``below`` is a level of which only variances are known, such as that of single calls: its name, a variance for each
    of some clusters' parts, and the clusters' codes. ``spent`` are degrees of freedom already used at some levels, such
    as on means that were subtracted from their values.
    """
    nested = [(name, _nested([codes for _, codes in levels[: depth + 1]])) for depth, (name, _) in enumerate(levels)]
    members, gone = {name: int(codes.max()) + 1 for name, codes in nested}, dict(spent or {})
    separable: list[tuple[str, Codes]] = []
    lost = 0
    merged: dict[str, str | None] = {}
    for name, codes in nested:
        above, lost = members[separable[-1][0]] if separable else 1, lost + gone.pop(name, 0)
        if members[name] - lost > above:
            separable.append((name, codes))
            gone[name], lost = lost, 0
        else:
            merged[name] = separable[-1][0] if separable else None
    solved = _solve_components(values, separable, gone, np.random.default_rng(SEED))
    if below is not None:
        solved[below[0]] = _draw_mean_variance(below[1], below[2], np.random.default_rng(SEED + 1))
        members[below[0]] = len(below[1])
    names = [*(name for name, _ in levels), *([below[0]] if below is not None else [])]
    return tuple(_component(name, members[name], solved, merged, confidence) for name in names)


def _nested(parts: Sequence[Codes]) -> Codes:
    """Return codes of a level in which members of different parents are always different."""
    joined = parts[0]
    for part in parts[1:]:
        _, joined = np.unique(joined * (int(part.max()) + 1) + part, return_inverse=True)
    _, joined = np.unique(joined, return_inverse=True)
    return np.asarray(joined, dtype=np.intp).reshape(-1)


def _solve_components(
    values: Samples, levels: Sequence[tuple[str, Codes]], spent: Mapping[str, int], rng: np.random.Generator
) -> dict[str, _ComponentDraws]:
    """Solve the expected sums of squares for the variances, from the lowest level up."""
    design = _NestedDesign(
        values, [codes for _, codes in levels], np.array([float(spent.get(name, 0)) for name, _ in levels])
    )
    variances = _solve_upwards(design.squares, design.share)
    freedom = design.worth(np.maximum(variances, 0.0))
    pivots = design.squares[:, None] * freedom[:, None] / rng.chisquare(freedom[:, None], (len(levels), DRAWS))
    draws = _solve_upwards(pivots, design.share)
    return {name: _ComponentDraws(float(variances[index]), draws[index]) for index, (name, _) in enumerate(levels)}


def _solve_upwards(squares: Samples, share: Samples) -> Samples:
    """Return the variances under which these mean squares are expected."""
    variances = np.zeros_like(squares)
    for index in reversed(range(len(squares))):
        below = np.tensordot(share[index, index + 1 :], variances[index + 1 :], axes=1)
        variances[index] = (squares[index] - below) / share[index, index]
    return variances


class _NestedDesign:
    """Sums of squares of a nested design: mean squares, and the expected contribution of each variance to them."""

    def __init__(self, values: Samples, levels: Sequence[Codes], spent: Samples) -> None:
        self._levels = [np.zeros(len(values), dtype=np.intp), *levels]
        self._sizes = [np.bincount(codes).astype(np.float64) for codes in self._levels]
        centred = values - values.mean()
        totals = [
            float((np.bincount(codes, weights=centred) ** 2 / size).sum())
            for codes, size in zip(self._levels, self._sizes, strict=True)
        ]
        depth = len(self._levels)
        held = np.full((depth, depth), float(len(values)))
        for i in range(depth):
            for j in range(i + 1, depth):
                held[i, j] = float((self._sizes[j] ** 2 / self._sizes[i][self._parents(j, i)]).sum())
        whole = np.diff([float(len(size)) for size in self._sizes])
        self._freedom = whole - spent
        self.squares: Samples = np.diff(totals) / self._freedom
        self.share: Samples = np.diff(held, axis=0)[:, 1:] / whole[:, None]

    def _parents(self, level: int, above: int) -> Codes:
        """Return the parent, at a level above, of each member of a level."""
        parents = np.zeros(len(self._sizes[level]), dtype=np.intp)
        parents[self._levels[level]] = self._levels[above]
        return parents

    def worth(self, variances: Samples) -> Samples:
        """Return the effective degrees of freedom of each mean square: fewer where members differ in size."""
        return np.array([self._worth(level, variances) for level in range(1, len(self._levels))])

    def _worth(self, level: int, variances: Samples) -> float:
        size, own = self._sizes[level], np.full(len(self._sizes[level]), variances[level - 1])
        for lower in range(level + 1, len(self._levels)):
            parents = self._parents(lower, level)
            weight = np.bincount(parents, weights=self._sizes[lower] ** 2, minlength=len(size)) / size**2
            own = own + variances[lower - 1] * weight
        weighed = size * own * (1 - size / self._sizes[level - 1][self._parents(level, level - 1)])
        squares, alone = float((weighed**2).sum()), weighed <= 0
        freedom = float(self._freedom[level - 1])
        if squares == 0:
            return freedom
        return max(1.0, float(weighed.sum()) ** 2 / squares * freedom / float((~alone).sum()))


def _draw_mean_variance(variances: Samples, clusters: Codes, rng: np.random.Generator) -> _ComponentDraws:
    """Return the mean of known variances, and draws of it for other clusters."""
    by_cluster = np.bincount(clusters, weights=variances) / np.bincount(clusters)
    n, mean = len(by_cluster), float(by_cluster.mean())
    if n < 2 or mean == 0:
        return _ComponentDraws(mean, np.full(DRAWS, np.nan if n < 2 else 0.0))
    relative = float(by_cluster.std(ddof=1)) / mean / np.sqrt(n)
    return _ComponentDraws(
        mean, mean * np.exp(np.clip(rng.standard_t(n - 1, DRAWS) * relative, -MAX_LOG_DRAW, MAX_LOG_DRAW))
    )


def _component(
    name: str, members: int, estimates: dict[str, _ComponentDraws], merged: dict[str, str | None], confidence: float
) -> VarianceComponent:
    if name not in estimates:
        return VarianceComponent(name, members, within=merged[name])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    component_draws = estimates[name]
    all_draws = np.sum([np.nan_to_num(np.maximum(component.draws, 0.0)) for component in estimates.values()], axis=0)
    total = sum(max(component.value, 0.0) for component in estimates.values())
    value = max(component_draws.value, 0.0)
    share = value / total if total > 0 else None
    if np.isnan(component_draws.draws).any():
        return VarianceComponent(name, members, variance=value, share=share)
    low, high = np.quantile(np.maximum(component_draws.draws, 0.0), tails)
    ratios = np.divide(np.maximum(component_draws.draws, 0.0), all_draws, out=np.zeros(DRAWS), where=all_draws > 0)
    share_low, share_high = np.quantile(ratios, tails)
    ends = (float(share_low), float(share_high)) if share is not None else (None, None)
    return VarianceComponent(name, members, value, float(low), float(high), share, *ends)


def encode_labels(labels: Iterable[Hashable]) -> tuple[Codes, list[Hashable]]:
    """Return an integer code for each label, and the labels in the order of their first occurrence."""
    code_of: dict[Hashable, int] = {}
    codes = [code_of.setdefault(label, len(code_of)) for label in labels]
    return np.array(codes, dtype=np.intp), list(code_of)


def combine_codes(*parts: Codes) -> Codes:
    """Return an integer code for each combination of codes that occurs."""
    table = np.stack(parts, axis=1)
    _, inverse = np.unique(table, axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.intp).reshape(-1)


def group_means(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the mean of each group; NaN for an empty one."""
    counts = np.bincount(codes, minlength=groups)
    sums = np.bincount(codes, weights=values, minlength=groups)
    result: Samples = np.divide(sums, counts, out=np.full(groups, np.nan), where=counts > 0)
    return result


def group_medians(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the median of each group; NaN for an empty one."""
    ordered = values[np.lexsort((values, codes))]
    counts = np.bincount(codes, minlength=groups)
    starts = np.cumsum(counts) - counts
    result = np.full(groups, np.nan)
    non_empty = counts > 0
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    result[non_empty] = (ordered[low[non_empty]] + ordered[high[non_empty]]) / 2
    return result


def group_variances(values: Samples, codes: Codes, groups: int) -> Samples:
    """Return the variance of each group around its mean (n - 1); NaN for fewer than two values."""
    counts = np.bincount(codes, minlength=groups)
    deviations = values - group_means(values, codes, groups)[codes]
    squares = np.bincount(codes, weights=deviations**2, minlength=groups)
    result: Samples = np.divide(squares, counts - 1, out=np.full(groups, np.nan), where=counts > 1)
    return result
