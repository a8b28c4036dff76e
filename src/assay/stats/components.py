"""Where variance comes from: a nested design (rack > host > GPU > run > restart > call) taken apart, with intervals.

Sums of squares are taken level by level. For designs that are not balanced their expected values are known exactly
(Henderson's first method), and the variances follow from the lowest level up. Each interval carries the chance of all
sums of squares it rests on (generalised pivots: every sum of squares is divided by chi-squared draws): exact where one
sum is enough, close to it for differences, also where a level has few members. A level whose members are each alone in
what they belong to cannot be told from the level above: it is null, and said to be part of that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

DRAWS, SEED = 4000, 11
FAR = 50.0
"""Of two clusters a draw may lie anywhere; a logarithm this large says so."""


@dataclass(frozen=True)
class Component:
    """The variance that one level adds, with its interval and its share of all; nulls where it cannot be told."""

    level: str
    members: int
    variance: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    within: str | None = None
    """Where it is null: the level that it is part of; null there too where there is nothing above it."""


@dataclass(frozen=True)
class _Drawn:
    """A component's variance and its draws, none truncated."""

    value: float
    draws: Samples


def components(
    values: Samples,
    levels: Sequence[tuple[str, Codes]],
    below: tuple[str, Samples, Codes] | None = None,
    *,
    spent: Mapping[str, int] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[Component, ...]:
    """Return the variance of each level, the highest first; ``levels`` have a code for each value, nested.

    ``below`` is a level of which only variances are known, as that of single calls: its name, a variance for each of
    some clusters' parts, and the clusters' codes. ``spent`` are degrees of freedom of levels that are gone already, as
    on means that were taken out of their values.
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
    solved = _solved(values, separable, gone, np.random.default_rng(SEED))
    if below is not None:
        solved[below[0]] = _of_variances(below[1], below[2], np.random.default_rng(SEED + 1))
        members[below[0]] = len(below[1])
    names = [*(name for name, _ in levels), *([below[0]] if below is not None else [])]
    return tuple(_component(name, members[name], solved, merged, confidence) for name in names)


def _nested(parts: Sequence[Codes]) -> Codes:
    """Return codes of a level under which members of different parents are never the same."""
    joined = parts[0]
    for part in parts[1:]:
        _, joined = np.unique(joined * (int(part.max()) + 1) + part, return_inverse=True)
    _, joined = np.unique(joined, return_inverse=True)
    return np.asarray(joined, dtype=np.intp).reshape(-1)


def _solved(
    values: Samples, kept: Sequence[tuple[str, Codes]], spent: Mapping[str, int], chance: np.random.Generator
) -> dict[str, _Drawn]:
    """Solve the expected sums of squares for the variances, from the lowest level up."""
    design = _Design(values, [codes for _, codes in kept], np.array([float(spent.get(name, 0)) for name, _ in kept]))
    variances = _upwards(design.squares, design.share)
    freedom = design.worth(np.maximum(variances, 0.0))
    pivots = design.squares[:, None] * freedom[:, None] / chance.chisquare(freedom[:, None], (len(kept), DRAWS))
    draws = _upwards(pivots, design.share)
    return {name: _Drawn(float(variances[index]), draws[index]) for index, (name, _) in enumerate(kept)}


def _upwards(squares: Samples, share: Samples) -> Samples:
    """Return the variances that mean squares are expected to come from."""
    variances = np.zeros_like(squares)
    for index in reversed(range(len(squares))):
        below = np.tensordot(share[index, index + 1 :], variances[index + 1 :], axes=1)
        variances[index] = (squares[index] - below) / share[index, index]
    return variances


class _Design:
    """Sums of squares of a nested design: mean squares, and what of each variance they are expected to hold."""

    def __init__(self, values: Samples, kept: Sequence[Codes], spent: Samples) -> None:
        self._levels = [np.zeros(len(values), dtype=np.intp), *kept]
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
        """Return to which member of a level above each member of a level belongs."""
        parents = np.zeros(len(self._sizes[level]), dtype=np.intp)
        parents[self._levels[level]] = self._levels[above]
        return parents

    def worth(self, variances: Samples) -> Samples:
        """Return how many degrees of freedom each mean square is worth: fewer where members differ in size."""
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


def _of_variances(variances: Samples, clusters: Codes, chance: np.random.Generator) -> _Drawn:
    """Return the mean of known variances, and how else it could have come out with other clusters."""
    by_cluster = np.bincount(clusters, weights=variances) / np.bincount(clusters)
    n, mean = len(by_cluster), float(by_cluster.mean())
    if n < 2 or mean == 0:
        return _Drawn(mean, np.full(DRAWS, np.nan if n < 2 else 0.0))
    relative = float(by_cluster.std(ddof=1)) / mean / np.sqrt(n)
    return _Drawn(mean, mean * np.exp(np.clip(chance.standard_t(n - 1, DRAWS) * relative, -FAR, FAR)))


def _component(
    name: str, members: int, found: dict[str, _Drawn], merged: dict[str, str | None], confidence: float
) -> Component:
    if name not in found:
        return Component(name, members, within=merged[name])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    one = found[name]
    all_draws = np.sum([np.nan_to_num(np.maximum(component.draws, 0.0)) for component in found.values()], axis=0)
    total = sum(max(component.value, 0.0) for component in found.values())
    value = max(one.value, 0.0)
    share = value / total if total > 0 else None
    if np.isnan(one.draws).any():
        return Component(name, members, variance=value, share=share)
    low, high = np.quantile(np.maximum(one.draws, 0.0), tails)
    ratios = np.divide(np.maximum(one.draws, 0.0), all_draws, out=np.zeros(DRAWS), where=all_draws > 0)
    share_low, share_high = np.quantile(ratios, tails)
    ends = (float(share_low), float(share_high)) if share is not None else (None, None)
    return Component(name, members, value, float(low), float(high), share, *ends)
