"""One device's curve over the steps: time, work, power and energy, the optimum, and which caps bind."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.sweep.readings import match_records, read_records, unit_of_work, work_per_call
from assay.stats.intervals import estimate_median, repeats_interval
from assay.stats.multiple_comparisons import fit_crossed
from assay.stats.sensor_intervals import ProcessReading, estimate_joules, mean_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import Record
    from assay.core.values import Scalar
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.experiments.power.sweep.plan import SweepVisit
    from assay.experiments.power.sweep.readings import Samples, SweepReading, WorkUnit
    from assay.stats.multiple_comparisons import CrossedDesign
    from assay.store.records import Records


SMOOTHING_WINDOW = 5
"""Steps that a curve is smoothed over: a parabola through each step and its neighbours."""
MIN_STEPS_TO_SMOOTH = 4


@dataclass(frozen=True)
class Optimum:
    """The lowest step by its place, and the places of all that cannot be told from it, itself among them.

    ``is_clear`` says that it is known to within one step, and another is surely worse; ``chance`` that the repeats tell
    how far chance goes.
    """

    index: int
    may_be: tuple[int, ...]
    is_clear: bool
    chance: bool
    repeats: int


def find_optimum(
    table: CrossedDesign, settings: Sequence[Scalar], *, smooth: bool, same: Sequence[int] = ()
) -> Optimum | None:
    """Return where a quantity is lowest; null where it was never told. Settings that are words have no neighbours.

    Of the steps that cannot be told from the lowest the one is taken at which the smoothed curve is lowest, where
    the curve is a smooth one. Steps of ``same`` are the same thing under several names, so that it does not matter
    which of them it is.
    """
    measured = table.measured
    if not measured:
        return None
    may_be = table.may_be_lowest()
    levels = smooth_levels(table.effects, settings, measured) if smooth else table.effects
    best = min(may_be, key=lambda row: float(levels[row]))
    ranks = {row: rank for rank, row in enumerate(measured)}
    first = min((ranks[row] for row in same if row in ranks), default=None)
    steps = {row: first if first is not None and row in same else ranks[row] for row in measured}
    reach = 0 if isinstance(settings[best], str) else 1
    near = all(abs(steps[row] - steps[best]) <= reach for row in may_be)
    chance = table.freedom > 0
    repeats = int(np.isfinite(table.table[measured]).any(axis=0).sum())
    worse = any(row not in may_be and steps[row] != steps[best] for row in measured)
    clear = near and worse and chance
    return Optimum(best, tuple(may_be), clear, chance, repeats)


def smooth_levels(levels: Samples, settings: Sequence[Scalar], measured: Sequence[int]) -> Samples:
    """Return the levels of a smooth curve, each read off a parabola through its neighbourhood."""
    result = levels.copy()
    if len(measured) < MIN_STEPS_TO_SMOOTH:
        return result
    x = np.array([float(str(settings[row])) for row in measured])
    width = min(SMOOTHING_WINDOW, len(measured))
    for rank, row in enumerate(measured):
        start = min(max(0, rank - width // 2), len(measured) - width)
        near = np.arange(start, start + width)
        scale = float(np.ptp(x[near])) or 1.0
        fit = np.polynomial.polynomial.polyfit((x[near] - x[rank]) / scale, levels[np.array(measured)[near]], 2)
        result[row] = float(fit[0])
    return result


CapBinding = Literal["binds", "does_not_bind", "unclear"]
"""Whether a cap changes anything; unclear: the measurements do not decide it."""

POWER_CAP_REASON = "power cap"
"""The throttle reason of a limit that binds."""
MAX_FREE_THROTTLE_SHARE, MIN_BOUND_THROTTLE_SHARE = 0.01, 0.05
"""Of the time that the power cap held the clock back: as good as never, and more than now and then."""
MIN_LIMIT_SHARE = 0.99
"""Power above this share of a limit is at the limit."""
MIN_CLOCK_SHARE = 0.985
"""A clock below this share of a locked one was held back by something else."""


def judge_binding(options: SweepOptions, step: SweepStep, as_found: SweepStep) -> CapBinding | None:
    """Return whether a step's cap binds; null for what is no cap."""
    if step.setting is None:
        return None
    cap = float(str(step.setting))
    if options.knob == "power_limit_w":
        return _power_limit_binding(step, cap, options.minimum_effect)
    return _clock_binding(step, as_found, cap, options.minimum_effect)


def _power_limit_binding(step: SweepStep, cap_w: float, minimum_effect: float) -> CapBinding:
    """A limit binds where the GPU says so, or draws all of it; it does not where it draws less and is as fast.

    Where the GPU does not tell what held its clock back, the times alone must tell it.
    """
    power_w = step.mean("power_w")
    reported = any(reading.held_back is not None for reading in step.readings)
    held = step.held_back().get(POWER_CAP_REASON, 0.0) if reported else None
    at_limit = power_w is not None and power_w >= MIN_LIMIT_SHARE * cap_w
    if held is not None and held > MIN_BOUND_THROTTLE_SHARE:
        return "binds"
    if held is None and at_limit and _is_slower(step, minimum_effect):
        return "binds"
    if power_w is None or at_limit or (held is not None and held > MAX_FREE_THROTTLE_SHARE):
        return "unclear"
    free = _is_as_fast(step, minimum_effect) or (held is not None and not _is_slower(step, minimum_effect))
    return "does_not_bind" if free else "unclear"


def _clock_binding(step: SweepStep, as_found: SweepStep, cap_mhz: float, minimum_effect: float) -> CapBinding:
    """A locked clock binds where the GPU is slower under it and holds it; it does not where it ran no faster anyway."""
    clock, clock_as_found = step.mean("sm_mhz"), as_found.mean("sm_mhz")
    if _is_slower(step, minimum_effect):
        return "unclear" if clock is not None and clock < MIN_CLOCK_SHARE * cap_mhz else "binds"
    free = clock_as_found is not None and clock_as_found <= cap_mhz / MIN_CLOCK_SHARE
    return "does_not_bind" if free and _is_as_fast(step, minimum_effect) else "unclear"


def _is_slower(step: SweepStep, minimum_effect: float) -> bool:
    """Return whether calls surely take longer than on the GPU as it was found; of one repeat its value counts."""
    if step.slowdown is None:
        return False
    least = step.slowdown.value if step.slowdown.low is None else step.slowdown.low
    return least > 1 + minimum_effect


def _is_as_fast(step: SweepStep, minimum_effect: float) -> bool:
    """Return whether calls surely take as long as on the GPU as it was found, within the least effect that matters."""
    if step.slowdown is None:
        return False
    longest = step.slowdown.value if step.longer_at_most is None else step.longer_at_most
    return longest <= 1 + minimum_effect and step.slowdown.value >= 1 - minimum_effect


@dataclass(frozen=True)
class SweepStep:
    """One setting on one device. Null: not measured, or not told.

    Ratios are to the GPU as it was found, their intervals hold for all steps together. ``longer_at_most`` is how many
    times longer a call surely takes at most.
    """

    index: int
    setting: Scalar
    readings: tuple[SweepReading, ...]
    time_us: Estimate
    calls_per_s: Estimate
    energy_j: Estimate | None
    cost_j: Estimate | None
    energy_ratio: Estimate | None = None
    slowdown: Estimate | None = None
    longer_at_most: float | None = None
    binds: CapBinding | None = None

    def mean(self, name: str) -> float | None:
        """Return the mean over the repeats of what a reading has under a name; null where none has it."""
        values = [value for reading in self.readings if (value := getattr(reading, name)) is not None]
        return float(np.mean(values)) if values else None

    def held_back(self) -> dict[str, float]:
        """Return the share of the time that the clock was held back, by reason, over the repeats."""
        reported = [reading.held_back for reading in self.readings if reading.held_back is not None]
        reasons = dict.fromkeys(reason for shares in reported for reason in shares)
        return {reason: float(np.mean([shares.get(reason, 0.0) for shares in reported])) for reason in reasons}


@dataclass(frozen=True)
class SweepCurve:
    """All steps of one device in the order of the options, and what they come to; the reference is not a step."""

    device: str
    steps: tuple[SweepStep, ...]
    reference: SweepStep | None
    unit: WorkUnit | None
    best: Optimum | None
    best_delay: Optimum | None

    def at(self, index: int) -> SweepStep:
        """Return the step at a place among the options' points."""
        return next(step for step in (*self.steps, *self.all_reference) if step.index == index)

    @property
    def all_reference(self) -> tuple[SweepStep, ...]:
        """The reference, where there is one."""
        return () if self.reference is None else (self.reference,)

    def within(self, max_slowdown: float) -> SweepStep | None:
        """Return the lowest step that is surely no slower than this; null where none is."""
        surely = [s for s in self.steps if s.longer_at_most is not None and s.longer_at_most <= 1 + max_slowdown]
        return min(surely, key=lambda step: float(str(step.setting)), default=None)

    @property
    def unbound(self) -> tuple[SweepStep, ...]:
        """The caps that do not bind."""
        return tuple(step for step in self.steps if step.binds == "does_not_bind")


@dataclass(frozen=True, eq=False)
class SweepStudy:
    """All that the records say: the visit of each record, the readings of those with a result, and the curves."""

    pairs: tuple[tuple[SweepVisit, Record], ...]
    readings: tuple[SweepReading, ...]
    curves: tuple[SweepCurve, ...]


def build_study(options: SweepOptions, records: Records) -> SweepStudy:
    """Return what the records say."""
    pairs = tuple(match_records(options, records))
    readings = tuple(read_records(pairs, records))
    return SweepStudy(pairs, readings, build_curves(options, readings))


def build_curves(options: SweepOptions, all_readings: Sequence[SweepReading]) -> tuple[SweepCurve, ...]:
    """Return the curve of each device that was measured, in the order of the options."""
    unit = unit_of_work(options, all_readings)
    by_device = {device: [r for r in all_readings if r.device == device] for device in options.devices}
    return tuple(_build_curve(options, device, several, unit) for device, several in by_device.items() if several)


def _build_curve(
    options: SweepOptions, device: str, device_readings: list[SweepReading], unit: WorkUnit | None
) -> SweepCurve:
    longer = _log_table(options, device_readings, lambda r: 1 / r.calls_per_s)
    energy = _log_table(options, device_readings, lambda r: r.energy_per_call_j)
    steps = [
        _build_step(options, index, several, unit) for index, several in _readings_by_point(device_readings).items()
    ]
    if options.reference is not None:
        steps = _compare_to_reference(options, steps, longer, energy)
    plain = tuple(step for step in steps if step.index != options.reference)
    cost = _log_table(options, device_readings, lambda r: _work_energy_j(options, r, unit), without=options.reference)
    delay = _log_table(options, device_readings, _energy_delay, without=options.reference) if options.capped else None
    settings = [point.setting for point in options.points]
    smooth = options.capped
    free = tuple(step.index for step in plain if step.binds == "does_not_bind")
    return SweepCurve(
        device=device,
        steps=plain,
        reference=next((step for step in steps if step.index == options.reference), None),
        unit=unit,
        best=find_optimum(cost, settings, smooth=smooth, same=free),
        best_delay=None if delay is None else find_optimum(delay, settings, smooth=smooth, same=free),
    )


def _work_energy_j(options: SweepOptions, reading: SweepReading, unit: WorkUnit | None) -> float | None:
    """Return the energy of a unit of work, in J; null where it is not told, or work cannot be compared."""
    energy = reading.energy_per_call_j
    return None if energy is None or unit is None else energy / work_per_call(options, reading, unit)


def _energy_delay(reading: SweepReading) -> float | None:
    """Return energy times time of a call, in J·s."""
    energy = reading.energy_per_call_j
    return None if energy is None else energy / reading.calls_per_s


def _log_table(
    options: SweepOptions,
    selected: Sequence[SweepReading],
    value: Callable[[SweepReading], float | None],
    *,
    without: int | None = None,
) -> CrossedDesign:
    """Return logarithms of a quantity, steps crossed with repeats."""
    blocks = list(dict.fromkeys(reading.block for reading in selected))
    table = np.full((len(options.points), len(blocks)), np.nan)
    for reading in selected:
        number = value(reading)
        if number is not None and number > 0 and reading.point != without:
            table[reading.point, blocks.index(reading.block)] = math.log(number)
    return fit_crossed(table)


def _readings_by_point(selected: Iterable[SweepReading]) -> dict[int, list[SweepReading]]:
    points: dict[int, list[SweepReading]] = {}
    for reading in sorted(selected, key=lambda r: r.point):
        points.setdefault(reading.point, []).append(reading)
    return points


def _build_step(options: SweepOptions, index: int, several: list[SweepReading], unit: WorkUnit | None) -> SweepStep:
    return SweepStep(
        index=index,
        setting=options.points[index].setting,
        readings=tuple(several),
        time_us=_time_estimate(several),
        calls_per_s=_repeat_estimate([r.calls_per_s for r in several], "calls/s"),
        energy_j=_energy_estimate(several),
        cost_j=_joules_estimate([(r, _work_energy_j(options, r, unit)) for r in several]),
    )


def _time_estimate(several: list[SweepReading]) -> Estimate:
    """Return the median time of a call, its interval over the repeats, or within the process where there is one."""
    if len(several) == 1:
        return estimate_median(several[0].samples, "µs")
    return _repeat_estimate([r.median_us for r in several], "µs")


def _energy_estimate(several: list[SweepReading]) -> Estimate | None:
    """Return the energy of a call: how repeats differ (of one, its calls) and the sensor's interval."""
    return _joules_estimate([(r, r.energy_per_call_j) for r in several])


def _joules_estimate(several: Sequence[tuple[SweepReading, float | None]]) -> Estimate | None:
    """Return joules that each repeat gave; null where none did."""
    draws = [_repeat_draw(reading, value) for reading, value in several if value is not None and value > 0]
    if not draws:
        return None
    return estimate_joules(draws)


def _repeat_draw(reading: SweepReading, value: float) -> ProcessReading:
    """Return what one repeat gave; how far its calls leave energy open is what they leave open of its time."""
    sensor = None if reading.energy_j is None else reading.energy_j.relative_half_width
    samples = np.concatenate(reading.samples)
    return ProcessReading(value, sensor, len(samples), mean_spread(samples))


def _repeat_estimate(values: Sequence[float], unit: str) -> Estimate:
    """Return the typical value of the repeats, with Student's interval where there are several."""
    array: Samples = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n == 1:
        return Estimate(value=float(array[0]), low=None, high=None, unit=unit, scope="run", method="of one repeat", n=1)
    centre, low, high = repeats_interval(array)
    how = f"geometric mean of {n} repeats, Student's t on their logarithms"
    return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=how, n=n)


def _compare_to_reference(
    options: SweepOptions, steps: list[SweepStep], longer: CrossedDesign, energy: CrossedDesign
) -> list[SweepStep]:
    """Return the steps with how each differs from the GPU as it was found, and whether it binds at all."""
    reference = options.reference
    as_found = next((step for step in steps if step.index == reference), None)
    if reference is None or as_found is None:
        return steps
    slower, at_most = longer.against(reference), longer.against(reference, two_sided=False)
    spent = energy.against(reference)
    result: list[SweepStep] = []
    for step in steps:
        bound = at_most.get(step.index, (0.0, None, None))[2]
        step_with_ratios = replace(
            step,
            slowdown=_ratio_estimate(slower.get(step.index), len(step.readings)),
            longer_at_most=None if bound is None else math.exp(bound),
            energy_ratio=_ratio_estimate(spent.get(step.index), len(step.readings)),
        )
        result.append(replace(step_with_ratios, binds=judge_binding(options, step_with_ratios, as_found)))
    return result


def _ratio_estimate(ends: tuple[float, float | None, float | None] | None, n: int) -> Estimate | None:
    if ends is None:
        return None
    value, low, high = ends
    return Estimate(
        value=math.exp(value),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        unit="×",
        scope="run",
        method="ratio to as found within repeats; the interval holds for all steps together (Dunnett)",
        n=n,
    )
