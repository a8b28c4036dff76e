"""All steps of many series, up and down, and which of them stand among so many series.

A series is looked at up to its first step, then from that step on again, until there is none left. Each such stretch
gets the chance that a stable one of its length gives as much evidence. Among a thousand stable series twenty give an
alarm: what is left is controlled by its share of false ones (Benjamini and Hochberg), over all stretches at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from assay.stats.order import median
from assay.stats.steps import ALARM, CONFIRMED_BY, DOWN, HISTORY, REACH, UP, Looked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.stats.steps import Way

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

SHORTEST = HISTORY + CONFIRMED_BY
"""Runs that a series must have to be looked at."""
FALSE_SHARE = 0.05
"""Of the steps that stand, how many may be false."""
TAIL_AT_ALARM, TAIL_FALLS = 0.02, 0.8
"""How often a hundred stable runs give more evidence than the alarm, for one way, and how that falls with more of it.
Simulated series of all kinds of noise lie below this."""
SIMULATED_RUNS = 100
BEGAN_WITHIN = 0.95
LAST = 10
"""Runs at the end of a stretch that say where it is now."""


@dataclass(frozen=True)
class Step:
    """A step of a series; runs are places in it, sizes are logarithms of ratios.

    Attributes:
        way: Up or down.
        first: The first run after the step, as likely as no other; it lies in ``first_low`` to ``first_high``.
        told: The run at which it could be told first.
        size: How far the level moved; in 95 of 100 cases it is in ``low`` to ``high``.
        left: How far the level is from the old one at the end of the stretch: a step that was taken back is near 0.
        evidence: As a logarithm.
        chance: That a stable stretch as long as this gives as much.
        stands: Whether it does among all the series that were looked at.
    """

    way: Way
    first: int
    first_low: int
    first_high: int
    told: int
    size: float
    low: float
    high: float
    left: float
    evidence: float
    chance: float
    stands: bool = False


@dataclass(frozen=True)
class _Stretch:
    """A part of a series that is looked at: which series, and its first run there."""

    series: int
    start: int


def together(series: Sequence[NDArray[np.generic]], fill: float) -> NDArray[np.float64]:
    """Return series of different lengths as rows, the shorter ones filled up."""
    rows = np.full((len(series), max((len(values) for values in series), default=0)), fill)
    for row, values in zip(rows, series, strict=True):
        row[: len(values)] = values
    return rows


def chance(evidence: float, runs: int) -> float:
    """Return the chance that a stable stretch of so many runs gives so much evidence, for steps up or down."""
    one = min(1.0, TAIL_AT_ALARM * float(np.exp(-TAIL_FALLS * (evidence - ALARM))))
    looks = max(runs - SHORTEST + 1, 1) / (SIMULATED_RUNS - SHORTEST + 1)
    return float(-np.expm1(2 * looks * np.log1p(-min(one, 1 - 1e-12))))


def steps(
    logs: Sequence[Samples],
    hosts: Sequence[Places] | None = None,
    kinds: Sequence[int] | None = None,
    *,
    false_share: float = FALSE_SHARE,
) -> list[list[Step]]:
    """Return the steps of each series in order.

    Args:
        logs: Of each series the log times of its runs, all of them finite.
        hosts: Of each series the host of each run, from 0; null: one host.
        kinds: Which series are of one kind; null: all of them.
        false_share: Of the steps that stand, how many may be false.
    """
    names = [np.zeros(len(runs), dtype=np.int64) for runs in logs] if hosts is None else hosts
    of_kind = np.zeros(len(logs), dtype=np.int64) if kinds is None else np.asarray(kinds, dtype=np.int64)
    shifts: list[list[Step]] = [[] for _ in logs]
    quiet: list[float] = []
    left = [_Stretch(index, 0) for index, runs in enumerate(logs) if len(runs) >= SHORTEST]
    while left:
        following: list[_Stretch] = []
        counts = np.array([names[one.series][one.start :].max() for one in left])
        for count in np.unique(counts):
            part = [one for one, its in zip(left, counts, strict=True) if its == count]
            looked = Looked(
                together([logs[one.series][one.start :] for one in part], np.nan),
                together([names[one.series][one.start :] for one in part], 0).astype(np.int64),
                of_kind[[one.series for one in part]],
                ways=(UP, DOWN),
            )
            for row, one in enumerate(part):
                values = logs[one.series][one.start :]
                step = _first_step(looked, row, values)
                if step is None:
                    quiet.append(chance(_most(looked, row), len(values)))
                    continue
                shifts[one.series].append(_moved(step, one.start))
                if len(values) - step.first >= SHORTEST:
                    following.append(_Stretch(one.series, one.start + step.first))
        left = following
    return _standing(shifts, quiet, false_share)


def _most(looked: Looked, row: int) -> float:
    return max(float(evidence.log_odds[row].max()) for evidence in looked.evidence.values())


def _first_step(looked: Looked, row: int, values: Samples) -> Step | None:
    """Return the first step that is told in a stretch, as what came after it shows it; null where none is."""
    alarms = {
        direction: np.flatnonzero(shift_evidence.log_odds[row] > ALARM)
        for direction, shift_evidence in looked.evidence.items()
    }
    detected_at, direction = min(
        ((int(at[0]), direction) for direction, at in alarms.items() if len(at)), default=(-1, UP)
    )
    if detected_at < 0:
        return None
    shift_evidence = looked.evidence[direction]
    best = detected_at + int(np.argmax(shift_evidence.log_odds[row, detected_at : detected_at + REACH]))
    first, size, error = (
        int(shift_evidence.first[row, best]),
        float(shift_evidence.size[row, best]),
        float(shift_evidence.error[row, best]),
    )
    firsts, likely = looked.beginnings(row, direction, best)
    low, high = _within(firsts, likely)
    end = values[first:][-LAST:]
    evidence = float(shift_evidence.log_odds[row, best])
    return Step(
        way=direction,
        first=first,
        first_low=min(low, first),
        first_high=max(high, first),
        told=detected_at,
        size=size,
        low=size - 1.96 * error,
        high=size + 1.96 * error,
        left=median(end) - median(values[max(0, first - HISTORY) : first]),
        evidence=evidence,
        chance=chance(evidence, len(values)),
    )


def _within(firsts: Places, likely: Samples) -> tuple[int, int]:
    """Return between which runs a step began, most likely: the fewest that hold nearly all of it."""
    order = np.argsort(-likely, kind="stable")
    needed = int(np.searchsorted(np.cumsum(likely[order]), BEGAN_WITHIN)) + 1
    chosen = firsts[order[:needed]]
    return int(chosen.min()), int(chosen.max())


def _moved(step: Step, by: int) -> Step:
    runs = {name: getattr(step, name) + by for name in ("first", "first_low", "first_high", "told")}
    return replace(step, **runs)


def _standing(found: list[list[Step]], quiet: list[float], false_share: float) -> list[list[Step]]:
    """Say of each step whether it stands among all stretches that were looked at."""
    chances = [step.chance for steps in found for step in steps]
    if not chances:
        return found
    adjusted = iter(stats.false_discovery_control([*chances, *quiet])[: len(chances)])
    return [[replace(step, stands=bool(next(adjusted) <= false_share)) for step in steps] for steps in found]
