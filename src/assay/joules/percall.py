"""Energy per call, from a counter's ticks (or power readings) and the moments between calls.

The energy until a moment is

    so much for each second of rest + so much for each call that has ended + the part of the call under way + strays

and the sensor shows it at its ticks. Nothing need begin or end at a tick: what is unknown is how a call spends its
energy between its beginning and its end. That is the same for every call, and at both ends it is known. So ticks that
fall on the same place of different calls differ by whole calls, also where calls repeat at the sensor's own period.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from assay.joules.kriging import Target, fit, integrated, returning
from assay.joules.observations import covariance, thinned
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.course import Course
    from assay.joules.kriging import Fit
    from assay.joules.observations import Observations

    Array = NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST_TICKS = 4
"""In the measured part, below which nothing is said."""
TOLD = 0.2
"""The power of a pause is told when it is known to this share."""
LEAST_ERROR = 0.002
"""Nothing is claimed to be known better than this share: ticks are placed on the host's clock by a model."""
SWING = 1.4
"""How far power may swing within a call, over what it is above rest on average: a burst of a third of its time."""
SWINGS_PER_CALL = 6.0
NEAR, MOST = 4, 64
"""Observations used on each side of where calls begin and end, and of all others."""
DRIFTS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
MEMORIES_S = (0.03, 0.1, 0.3)
"""How far power may stray from call to call, as a share of it, and for how long; the data choose among them."""
JITTERS = (0.0, 0.01, 0.03, 0.1)
"""How far ticks may be from where they were placed, as a share of their spacing; likewise."""


@dataclass(frozen=True)
class PerCall:
    """Energy per call in J with the half-width of its 95 % interval; powers of rest in W, null where none was seen.

    The half-width has two parts: how far the sensor leaves open what was spent, and how far another window as long
    might spend another amount, as power strays.

    Attributes:
        idle_w: Before the first call.
        pause_w: In the rests after it; null also where these were too short to tell it.
        ticks: How many observations lie in the measured part.
        drift: How far power strayed beside what calls explain, as a share of it.
    """

    joules: float
    error_j: float
    idle_w: float | None
    idle_error_w: float | None
    pause_w: float | None
    ticks: int
    drift: float

    @property
    def rest_w(self) -> float | None:
        """The power of a rest among calls: as it was seen there, or else before them."""
        return self.pause_w if self.pause_w is not None else self.idle_w


def energy_per_call(seen: Observations, course: Course, open_s: float) -> PerCall | None:
    """Return the energy of the calls from ``open_s`` on; null where too few observations lie among them.

    Calls before ``open_s`` are warming up: they have an energy of their own.
    """
    if course.is_empty:
        return None
    last_s = float(course.times_s[-1])
    inside = int(np.sum((seen.times_s > open_s) & (seen.times_s <= last_s)))
    if inside < FEWEST_TICKS:
        return None
    seen = thinned(seen, (float(course.times_s[0]), open_s, last_s), NEAR, MOST)
    columns = _Columns.of(seen, course, open_s)
    calls = _Calls.of(seen, course, open_s, columns)
    drift_fit = calls.most_likely(columns)
    reach = quantile(CONFIDENCE, max(2, inside - 2))
    idle, pause = columns.told(drift_fit.fit, "idle"), columns.told(drift_fit.fit, "pause")
    measured_j, joules = np.sqrt(drift_fit.fit.target_variance or 0.0), drift_fit.fit.target or 0.0
    sampled_j = calls.strays_j(drift_fit)
    return PerCall(
        joules=joules,
        error_j=float(np.hypot(reach * np.hypot(measured_j, sampled_j), LEAST_ERROR * joules)),
        idle_w=idle[0] if idle else None,
        idle_error_w=reach * idle[1] if idle else None,
        pause_w=pause[0] if pause and reach * pause[1] <= TOLD * abs(pause[0]) else None,
        ticks=inside,
        drift=drift_fit.drift,
    )


@dataclass(frozen=True)
class _Columns:
    """What the energy is a sum of, as the observations show it; what they do not show is left out."""

    names: tuple[str, ...]
    values: Array

    @classmethod
    def of(cls, seen: Observations, course: Course, open_s: float) -> _Columns:
        t = seen.points_s
        rested, before = course.rested_s(t), course.rested_s(np.minimum(t, course.times_s[0]))
        done, warm = course.progress(t), course.progress(np.minimum(t, open_s))
        parts = {"idle": before, "pause": rested - before, "warm": warm, "calls": done - warm}
        shown = {"start": seen.operator @ np.ones(len(t)), **{n: seen.operator @ part for n, part in parts.items()}}
        counts = bool(np.any(shown["start"]))  # a counter begins anywhere, a power reading does not
        visible = {n: c for n, c in shown.items() if (n == "start" and counts) or _shows(c, counts=counts)}
        return cls(tuple(visible), np.stack(list(visible.values()), axis=1))

    def told(self, found: Fit, name: str) -> tuple[float, float] | None:
        """Return a coefficient and its standard error; null where there was nothing to see of it."""
        if name not in self.names:
            return None
        index = self.names.index(name)
        return float(found.coefficients[index]), float(np.sqrt(max(0.0, found.covariance[index, index])))


def _shows(column: Array, *, counts: bool) -> bool:
    return bool((np.ptp(column) if counts else np.abs(column).max()) > 1e-9)


@dataclass(frozen=True)
class _Found:
    fit: Fit
    drift: float
    memory_s: float


@dataclass(frozen=True)
class _Calls:
    """What is known of the measured calls beforehand, roughly, and the moments that matter.

    Attributes:
        phase_s: How far into its call the device was, at each point.
        level_w: About the power at each point.
        worked_s: For how long calls had run at each point, and at the beginning and the end of the measured ones.
    """

    seen: Observations
    count: float
    call_s: float
    joules: float
    rest_w: float
    phase_s: Array
    level_w: Array
    worked_s: Array

    @classmethod
    def of(cls, seen: Observations, course: Course, open_s: float, columns: _Columns) -> _Calls:
        last_s = float(course.times_s[-1])
        count = float(course.calls[-1] - course.progress(np.array([open_s]))[0])
        call_s = course.busy_s(open_s, last_s) / count
        rough = fit(columns.values, seen.values, np.diag(_roughly(seen)))
        joules = max(0.0, (columns.told(rough, "calls") or (0.0, 0.0))[0])
        rest_w = next((max(0.0, c[0]) for name in ("idle", "pause") if (c := columns.told(rough, name))), 0.0)
        t = np.concatenate([seen.points_s, [open_s, last_s]])
        return cls(
            seen=seen,
            count=count,
            call_s=call_s,
            joules=joules,
            rest_w=rest_w,
            phase_s=np.mod(course.progress(seen.points_s), 1.0) * call_s,
            level_w=np.where(course.is_busy(seen.points_s), joules / call_s, rest_w),
            worked_s=t - course.rested_s(t),
        )

    def most_likely(self, columns: _Columns) -> _Found:
        """Fit with the drift, and the jitter of ticks, under which the data are most likely."""
        power_w = self.joules / self.call_s
        swing = SWING * max(power_w - self.rest_w, power_w / 4)
        within = swing**2 * returning(self.phase_s, self.phase_s, self.call_s, self.call_s / SWINGS_PER_CALL)
        spacing_s = float(np.median(np.diff(np.sort(self.seen.times_s))))
        slope = self.seen.operator @ self.level_w
        jittered = [np.diag((jitter * spacing_s * slope) ** 2) for jitter in JITTERS]
        selected = np.array([float(name == "calls") for name in columns.names])
        best: _Found | None = None
        for drift, memory_s in product(DRIFTS, MEMORIES_S):
            strays = (drift * power_w) ** 2 * integrated(self.worked_s, self.worked_s, memory_s)
            base_covariance = covariance(self.seen, within + strays[:-2, :-2], self.level_w)
            target = self._spent(strays, selected)
            for jitter in jittered:
                fitted = fit(columns.values, self.seen.values, base_covariance + jitter, target)
                if best is None or fitted.log_likelihood > best.fit.log_likelihood:
                    best = _Found(fitted, drift, memory_s)
        assert best is not None  # noqa: S101 - there are several drifts to choose from
        return best

    def strays_j(self, found: _Found) -> float:
        """Return how far the mean of so many calls strays, in J, as a standard deviation.

        What strays within one call is its own: every call does so.
        """
        if found.memory_s < self.call_s:
            return 0.0
        return self.joules * found.drift * float(np.sqrt(2 * found.memory_s / (self.count * self.call_s)))

    def _spent(self, strays: Array, wanted: Array) -> Target:
        """Return what a call spent on average: what is common to all of them, and the mean of how they strayed."""
        with_data = self.seen.operator @ (strays[:-2, -1] - strays[:-2, -2]) / self.count
        own = float(strays[-1, -1] + strays[-2, -2] - 2 * strays[-1, -2]) / self.count**2
        return Target(wanted, with_data, own)


def _roughly(seen: Observations) -> Array:
    return np.maximum(seen.noise**2, (1e-3 * np.ptp(seen.values)) ** 2 + 1e-12)
