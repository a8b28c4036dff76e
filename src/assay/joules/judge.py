"""What the readings of a run of calls say: energy per call, by the best sensor, checked against another."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from assay.joules.course import course_of
from assay.joules.percall import FEWEST_TICKS, energy_per_call
from assay.joules.readings import POWERS
from assay.joules.refusals import Refused
from assay.joules.sights import power_ticks, sights, stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.joules.course import Course, Knot
    from assay.joules.model import PowerModel, SensorModel
    from assay.joules.percall import PerCall
    from assay.joules.readings import Reading
    from assay.joules.sights import Sight, Stream

EDGE_S = 0.02
"""Power takes a while to rise when calls begin, and to fall when they end: as if the lag were off by so much."""
GAIN_SHARE = 0.05
"""How far the sensor itself may be off: NVIDIA's documented accuracy. It cannot be seen from inside."""
MOST_GAPS = 0.1
"""Of the time: power readings may be missing for at most this share. What was drawn meanwhile is not known; it is
taken to be as in the rest, and the share is added to the systematic bound."""
REST_SHARE = 0.25
"""How far the power of a rest may be from what it is taken for."""


@dataclass(frozen=True)
class Judged:
    """Energy per call, and what it rests on.

    Attributes:
        window_s: From the end of the warm-up to the last call's end; ``rests_s`` of it the device rested.
        seen_share: Of the time, by the sensor.
        unseen_share: Of the energy: what power readings that see calls only in part may miss of it.
        crosscheck: What integrated power says over what the counter says; null where only one is to be had.
    """

    per_call: PerCall
    method: str
    coverage: float
    seen_share: float
    unseen_share: float
    crosscheck: float | None
    calls: int
    window_s: float
    rests_s: float

    @property
    def call_s(self) -> float:
        """How long a call took, back to back."""
        return (self.window_s - self.rests_s) / self.calls

    @property
    def power_w(self) -> float:
        """The average power while calls ran."""
        return self.per_call.joules / self.call_s

    @property
    def systematic_j(self) -> float:
        """How far a call's energy may be off that no number of readings shows: gain, unseen time, rests."""
        rests = (self.per_call.rest_w or 0.0) * self.rests_s / self.calls
        return (GAIN_SHARE + self.unseen_share) * abs(self.per_call.joules) + REST_SHARE * rests


def judge(readings: Sequence[Reading], knots: Sequence[Knot], open_ns: int, model: SensorModel) -> Judged:
    """Return the energy per call from the first call that begins after ``open_ns``.

    Raises:
        Refused: The readings do not tell it, and why.
    """
    sensor_stream = stream(readings, model)
    activity = course_of(list(knots), sensor_stream.origin_ns)
    open_s = None if activity.is_empty else activity.first_at_or_after(sensor_stream.at_s(open_ns))
    last_s = 0.0 if activity.is_empty else float(activity.times_s[-1])
    if open_s is None or open_s >= last_s:
        raise Refused("no_calls", "no call ended after the warm-up")
    estimates, refusals = [], []
    for view in sights(sensor_stream, (float(activity.times_s[0]), last_s)):
        try:
            estimates.append(_by(sensor_stream, view, activity, open_s))
        except Refused as refusal:
            refusals.append(refusal)
    if not estimates:
        raise refusals[0]
    return min(estimates, key=lambda one: (one.per_call.error_j + one.systematic_j) / one.per_call.joules)


def _by(of: Stream, sight: Sight, course: Course, open_s: float) -> Judged:
    """Return the energy per call by one sensor."""
    last_s = float(course.times_s[-1])
    gaps = _checked_gaps(sight, open_s, last_s)
    observations = replace(sight.seen, shift_s=math.hypot(sight.seen.shift_s, EDGE_S))
    per_call = energy_per_call(observations, course, open_s)
    if per_call is None:
        raise Refused(
            "too_few_ticks",
            f"too few readings: the sensor ticks every {1e3 * sight.period_s:.3g} ms, "
            f"and at least {FEWEST_TICKS} ticks must fall into the calls",
        )
    if per_call.joules <= 0:
        raise Refused("no_energy", "the sensor shows no energy that calls explain")
    start, end = course.progress(np.array([open_s, last_s]))
    calls, busy_s = round(end - start), course.busy_s(open_s, last_s)
    return Judged(
        per_call=per_call,
        method=sight.method,
        coverage=sight.coverage(open_s, last_s),
        seen_share=sight.seen_share,
        unseen_share=unseen_share(sight.seen_share, sight.period_s, busy_s / calls) + gaps,
        crosscheck=_crosscheck(of, sight, course, per_call, open_s) if sight.is_counter else None,
        calls=calls,
        window_s=last_s - open_s,
        rests_s=last_s - open_s - busy_s,
    )


def unseen_share(seen_share: float, period_s: float, call_s: float) -> float:
    """Return how much of a call's energy a power reading may miss that sees only a share of each period."""
    in_part = min(1.0, call_s / (seen_share * period_s))
    return in_part * (1.0 - seen_share) / 2


def _checked_gaps(sight: Sight, open_s: float, last_s: float) -> float:
    """Return the share of the calls in which power was not read; 0 for a counter, which loses nothing in a gap.

    Raises:
        Refused: It is too much, or the sensor was not read to the end.
    """
    missing_s = sight.unwatched_s(open_s, last_s)
    gaps = 0.0 if sight.is_counter else sight.gap_share(open_s, last_s)
    if missing_s or gaps > MOST_GAPS:
        raise Refused(
            "not_covered",
            f"readings are missing: {sight.method} was not read for "
            f"{max(missing_s, gaps * (last_s - open_s)):.3g} s of the {last_s - open_s:.3g} s of calls",
        )
    return gaps


def _crosscheck(of: Stream, sight: Sight, course: Course, found: PerCall, open_s: float) -> float | None:
    """Return what power readings in the window are over what the calls' energy would make them."""
    for kind in POWERS:
        power_model: PowerModel | None = getattr(of.model, kind)
        ticks = None if power_model is None else power_ticks(of, kind, power_model, sight.ticks, anywhere=True)
        if power_model is None or ticks is None:
            continue
        ends = ticks.times_s - power_model.lag_s
        begins = ends - power_model.window_s
        inside = (begins >= open_s) & (ends <= course.times_s[-1])
        called = course.progress(ends[inside]) - course.progress(begins[inside])
        rested = course.rested_s(ends[inside]) - course.rested_s(begins[inside])
        expected_j = float(found.joules * called.sum() + (found.rest_w or 0.0) * rested.sum())
        if expected_j > 0:
            return float(ticks.values[inside].sum()) * power_model.window_s / expected_j
    return None
