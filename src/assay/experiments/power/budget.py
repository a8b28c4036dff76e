"""Choose the power caps that give the most work under a power budget, from measured sweeps. Nothing is ever set here.

Each GPU has a concave curve of calls per second over watts, fitted through the measured steps of its power limit.
What a step costs is its cap, up to the lowest cap that was measured as not binding: one above that changes nothing.
Where none was, or every cap was, it costs no more than the GPU's mean power. Where a GPU draws more than its cap, it
costs what it draws. Curves are not extrapolated beyond the lowest and the highest step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.core.plan import POWER_LIMIT_W
from assay.experiments.power.sweep.curve import MAX_FREE_THROTTLE_SHARE, MIN_LIMIT_SHARE, POWER_CAP_REASON
from assay.stats.concave import ConcaveCurve, allocate_total, fit_concave
from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Origin
    from assay.experiments.power.rows import GpuIdentity, GpuRow, SweepRow


MIN_REPEATS = 2
"""Repeats from which on there is an interval."""


@dataclass(frozen=True)
class RepeatEstimate:
    """A number with its interval over repeats; no ends where nothing was measured twice."""

    value: float
    low: float | None
    high: float | None
    repeats: int


@dataclass(frozen=True)
class GpuShare:
    """What one GPU gets: watts that count, the cap in whole watts, calls a second, and the share of its full rate."""

    curve: PowerCurve
    watts: float
    cap_w: float
    rate: float
    share: float


@dataclass(frozen=True)
class BudgetPlan:
    """Who gets how much. Watts without ``overhead_w`` are the GPUs'; ``needed_w`` is what they take without caps.

    ``equal_w`` is what an equal split gives to each, null where it is below what some GPU was measured at.
    """

    watts: float
    overhead_w: float
    shares: tuple[GpuShare, ...]
    least_w: float
    needed_w: float
    loss: RepeatEstimate
    equal_w: float | None
    against_equal: RepeatEstimate | None

    @property
    def binds(self) -> bool:
        """Whether the budget is less than the GPUs would take."""
        return self.watts - self.overhead_w < self.needed_w - 1e-6

    @property
    def spent_w(self) -> float:
        """The watts that are counted for all GPUs."""
        return sum(share.watts for share in self.shares)

    @property
    def capped_w(self) -> float:
        """What all caps add up to: the GPUs draw no more, whatever they run."""
        return sum(share.cap_w for share in self.shares)


def plan_budget(
    curves: Sequence[PowerCurve], watts: float, overhead_w: float = 0.0, min_share: float | None = None
) -> BudgetPlan:
    """Return the split that gives the most calls a second.

    Raises:
        BadInput: Nothing is left beside the overhead.
        MachineCannot: The budget is below the lowest caps that were measured, or below the least share for each.
    """
    left = watts - overhead_w
    if left <= 0:
        raise BadInput(f"--overhead {overhead_w:g} leaves nothing of --watts {watts:g} for the GPUs.")
    lows = [_min_watts(curve, min_share) for curve in curves]
    watts_per_gpu = allocate_total([curve.fit for curve in curves], left, lows)
    if watts_per_gpu is None:
        least = sum(lows) + overhead_w
        why = "at the lowest caps that were measured"
        if min_share is not None:
            why = f"with at least {100 * min_share:g} % of its full rate for each"
        raise MachineCannot(
            f"{watts:g} W are too few for {len(curves)} GPU{'s'[: len(curves) != 1]}: {why} they take "
            f"{math.ceil(least - 1e-6)} W{f', {overhead_w:g} W of overhead included' if overhead_w else ''}."
        )
    shares = tuple(
        GpuShare(curve, w, curve.cap(w), curve.fit.at(w), curve.fit.at(w) / curve.full)
        for curve, w in zip(curves, watts_per_gpu, strict=True)
    )
    equal_share_w = left / len(curves)
    fair = all(equal_share_w >= curve.fit.low - 1e-9 for curve in curves)
    return BudgetPlan(
        watts=watts,
        overhead_w=overhead_w,
        shares=shares,
        least_w=sum(curve.fit.low for curve in curves) + overhead_w,
        needed_w=sum(curve.fit.top for curve in curves),
        loss=_repeat_estimate(curves, lambda fits: _lost_share(fits, watts_per_gpu), low=0.0),
        equal_w=equal_share_w if fair else None,
        against_equal=_repeat_estimate(curves, lambda fits: _gain_over_equal(fits, watts_per_gpu, equal_share_w))
        if fair
        else None,
    )


def _min_watts(curve: PowerCurve, min_share: float | None) -> float:
    if min_share is None:
        return curve.fit.low
    return curve.fit.reaches(min_share * curve.full) or curve.fit.low


def total_rate(fits: Sequence[ConcaveCurve], watts_per_gpu: Sequence[float]) -> float:
    """Return the calls a second of all."""
    return sum(fit.at(watts) for fit, watts in zip(fits, watts_per_gpu, strict=True))


def _lost_share(fits: Sequence[ConcaveCurve], watts_per_gpu: Sequence[float]) -> float:
    return 1 - total_rate(fits, watts_per_gpu) / sum(fit.y[-1] for fit in fits)


def _gain_over_equal(fits: Sequence[ConcaveCurve], watts_per_gpu: Sequence[float], equal_w: float) -> float:
    return total_rate(fits, watts_per_gpu) / total_rate(fits, [equal_w] * len(fits)) - 1


def _repeat_estimate(
    curves: Sequence[PowerCurve], of: Callable[[Sequence[ConcaveCurve]], float], *, low: float | None = None
) -> RepeatEstimate:
    """Return a number of all curves, with Student's t over what each repeat alone gives."""
    value = of([curve.fit for curve in curves])
    repeats = min(len(curve.repeats) for curve in curves)
    if repeats < MIN_REPEATS:
        return RepeatEstimate(value, None, None, repeats)
    alone = np.array([of([curve.repeats[repeat] for curve in curves]) for repeat in range(repeats)])
    half = t_quantile(CONFIDENCE, repeats - 1) * float(alone.std(ddof=1)) / math.sqrt(repeats)
    bottom = value - half if low is None else max(low, value - half)
    return RepeatEstimate(value, bottom, value + half, repeats)


def budget_frontier(curves: Sequence[PowerCurve], points: int = 40) -> list[tuple[float, float, float | None]]:
    """Return for budgets from the least to what is needed: watts, the share of the full work, and of an equal split."""
    fits = [curve.fit for curve in curves]
    full = sum(fit.y[-1] for fit in fits)
    least, most = sum(fit.low for fit in fits), sum(fit.top for fit in fits)
    rows = []
    for watts in np.linspace(least, most, points if most > least else 1):
        watts_per_gpu = allocate_total(fits, float(watts)) or [fit.low for fit in fits]
        equal_w = float(watts) / len(fits)
        fair = (
            total_rate(fits, [equal_w] * len(fits)) / full if all(equal_w >= fit.low - 1e-9 for fit in fits) else None
        )
        rows.append((float(watts), total_rate(fits, watts_per_gpu) / full, fair))
    return rows


if TYPE_CHECKING:
    Samples = NDArray[np.float64]

AS_FAST = 0.99
"""Of the rate as found: a cap that binds costs more."""


@dataclass(frozen=True)
class BudgetGpu:
    """One GPU and where it sits."""

    uuid: str
    host: str
    slot: int
    model: str

    @classmethod
    def of(cls, row: GpuIdentity) -> BudgetGpu:
        """Return the GPU of a row."""
        return cls(row.uuid, row.host, row.slot, row.model)


@dataclass(frozen=True)
class PowerCurve:
    """Calls a second over watts. ``own`` is false where it is the middle of other GPUs of the model.

    ``repeats`` are the same from each repeat alone; ``caps`` the watts that are set for the watts that are counted;
    ``points`` what was measured.
    """

    card: BudgetGpu
    fit: ConcaveCurve
    repeats: tuple[ConcaveCurve, ...]
    caps: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()
    own: bool = True
    of: int = 1

    @property
    def full(self) -> float:
        """Calls a second without a cap that binds."""
        return self.fit.y[-1]

    def cap(self, watts: float) -> float:
        """Return the cap for so many watts, in whole watts, never below the lowest that was measured."""
        counted, caps = zip(*self.caps, strict=True)
        cap_w = float(np.interp(watts, counted, caps))
        return max(float(np.floor(cap_w + 1e-6)), float(np.ceil(caps[0] - 1e-6)))


@dataclass(frozen=True)
class SweptWork:
    """What was swept: rows of the same work are one set of curves."""

    label: str
    origin: Origin


def select_work(rows: Sequence[SweepRow], workload: str | None) -> tuple[SweptWork, tuple[SweepRow, ...]]:
    """Return the rows of the one piece of work that is meant.

    Raises:
        BadInput: There is no sweep of power limits, none of the work that was asked for, or several.
    """
    caps = [row for row in rows if row.knob == POWER_LIMIT_W and row.calls_per_s > 0]
    if not caps:
        knobs = ", ".join(dict.fromkeys(row.knob for row in rows))
        available = f"these are sweeps of {knobs}" if knobs else "there is no sweep"
        raise BadInput(f"A budget needs `assay power sweep --limits … --apply`; {available}.")
    parts: dict[SweptWork, list[SweepRow]] = defaultdict(list)
    for row in caps:
        parts[_work_of_row(row)].append(row)
    matching = {
        work: own
        for work, own in parts.items()
        if workload is None or work.label == workload or work.label.partition(" ")[0] == workload
    }
    if len(matching) == 1:
        return next((work, tuple(own)) for work, own in matching.items())
    named = "; ".join(f"{work.label} ({work.origin})" for work in (matching or parts))
    if not matching:
        raise BadInput(f"Nothing was swept with --workload {workload}; there is {named}.")
    raise BadInput(f"Several things were swept, and their work does not add up: {named}. Name one with --workload.")


def _work_of_row(row: SweepRow) -> SweptWork:
    params = " ".join(f"{name}={value}" for name, value in row.params.items() if value is not None)
    return SweptWork(f"{row.workload} {params}".strip(), row.origin)


def fit_curves(rows: Sequence[SweepRow], others: Iterable[GpuRow]) -> tuple[tuple[PowerCurve, ...], tuple[str, ...]]:
    """Return a curve for each GPU there is, and in words which GPUs have none."""
    by_gpu: dict[str, list[SweepRow]] = defaultdict(list)
    notes: list[str] = []
    for row in rows:
        by_gpu[row.uuid].append(row)
    curves = {uuid: curve for uuid, own in by_gpu.items() if (curve := _fit_curve(own)) is not None}
    without_curve = [BudgetGpu.of(own[0]) for uuid, own in by_gpu.items() if uuid not in curves]
    uuids = {card.uuid for card in without_curve} | set(curves)
    for other in others:
        if other.uuid not in uuids and other.device.startswith("cuda"):
            uuids.add(other.uuid)
            without_curve.append(BudgetGpu.of(other))
    for card in without_curve:
        peers = [curve for curve in curves.values() if curve.own and curve.card.model == card.model]
        if peers:
            curves[card.uuid] = _median_curve(card, peers)
        else:
            notes.append(f"{card.host} GPU {card.slot} ({card.model}) has no curve, nor has any of its model.")
    ordered = sorted(curves.values(), key=lambda curve: (curve.card.host, curve.card.slot, curve.card.uuid))
    return tuple(ordered), tuple(notes)


def _fit_curve(rows: Sequence[SweepRow]) -> PowerCurve | None:
    """Return a GPU's own curve; null where no step of it has a cap."""
    capped = [row for row in rows if _cap_of_row(row) is not None]
    if not capped:
        return None
    last = max(rows, key=lambda row: row.started_at)
    most = _max_useful_w(rows)
    usable = [row for row in rows if _cap_of_row(row) is not None or row.power_w is not None]
    watts = np.array([_step_cost_w(row, most) for row in usable])
    lowest = float(min(_step_cost_w(row, most) for row in capped))
    inside = watts >= lowest
    rates = np.array([row.calls_per_s for row in usable])
    fit = fit_concave(watts[inside], rates[inside])
    caps = {
        _step_cost_w(row, most): min(cap, max(most, lowest)) for row in capped if (cap := _cap_of_row(row)) is not None
    }
    first = min(cap for row in capped if (cap := _cap_of_row(row)) is not None)
    caps[lowest] = first
    caps.setdefault(fit.x[-1], fit.x[-1])
    points = tuple(zip(watts[inside].tolist(), rates[inside].tolist(), strict=True))
    return PowerCurve(BudgetGpu.of(last), fit, _fit_repeats(usable, watts, lowest), tuple(sorted(caps.items())), points)


def _max_useful_w(rows: Sequence[SweepRow]) -> float:
    """Return the watts from which on a cap changes nothing.

    That is the lowest cap that was measured as not binding. Where none was, or where all were and a lower one might
    not bind either, it is the most that the GPU drew in the mean of a step, at whose peaks such a cap may bind.
    """
    caps = [cap for row in rows if (cap := _cap_of_row(row)) is not None]
    powers_w = [row.power_w for row in rows if row.power_w is not None]
    full = max(
        (row.calls_per_s for row in rows if _cap_of_row(row) is None), default=max(row.calls_per_s for row in rows)
    )
    not_free = {cap for row in rows if (cap := _cap_of_row(row)) is not None and not _is_not_binding(row, cap, full)}
    free = set(caps) - not_free
    return min(free) if free and min(caps) in not_free else max(powers_w or caps)


def _is_not_binding(row: SweepRow, cap: float, full: float) -> bool:
    """Return whether a step's cap was seen not to bind: less is drawn, nothing held back, and it is as fast."""
    below = row.power_w is not None and row.power_w < MIN_LIMIT_SHARE * cap
    return (
        below
        and row.held_back.get(POWER_CAP_REASON, 0.0) <= MAX_FREE_THROTTLE_SHARE
        and row.calls_per_s >= AS_FAST * full
    )


def _cap_of_row(row: SweepRow) -> float | None:
    setting = row.setting
    return float(setting) if isinstance(setting, int | float) and not isinstance(setting, bool) else None


def _step_cost_w(row: SweepRow, most: float) -> float:
    """Return the watts that a step costs."""
    cap = _cap_of_row(row)
    if cap is None:
        return most
    return max(min(cap, most), row.power_w or 0.0)


def _fit_repeats(rows: Sequence[SweepRow], watts: Samples, lowest: float) -> tuple[ConcaveCurve, ...]:
    """Return a curve from each repeat alone: of every run, the r-th process of each step."""
    parts: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row, counted in zip(rows, watts, strict=True):
        for number, median in enumerate(row.restart_medians_us or (row.median_us,)):
            if median > 0 and counted >= lowest:
                parts[row.run, number].append((float(counted), row.calls_per_s * row.median_us / median))
    whole = max(map(len, parts.values()), default=0)
    complete = [points for points in parts.values() if len(points) == whole]
    if len(complete) < 2:
        return ()
    return tuple(fit_concave(*np.array(points).T) for points in complete)


def _median_curve(card: BudgetGpu, peers: Sequence[PowerCurve]) -> PowerCurve:
    """Return the middle of the curves of a model, as far as all of them reach."""
    number = min(len(peer.repeats) for peer in peers)
    repeats = tuple(_median_fit([peer.repeats[repeat] for peer in peers]) for repeat in range(number))
    fit = _median_fit([peer.fit for peer in peers])
    low, high = max(peer.caps[0][1] for peer in peers), fit.x[-1]
    caps = ((fit.low, low), (high, max(low, high))) if high > fit.low else ((fit.low, low),)
    return PowerCurve(card, fit, repeats, caps, own=False, of=len(peers))


def _median_fit(fits: Sequence[ConcaveCurve]) -> ConcaveCurve:
    low, high = max(fit.low for fit in fits), min(fit.x[-1] for fit in fits)
    if low >= high:
        low = high = float(np.median([fit.x[-1] for fit in fits]))
    inner = {x for fit in fits for x in fit.x if low < x < high}
    knots = np.array(sorted({low, high} | inner))
    heights = np.median([[fit.at(x) for x in knots] for fit in fits], axis=0)
    return fit_concave(knots, heights)
