"""What each device did at each step of each repeat, and its curve over the steps: time, work, energy, optimum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.results import Missing
from assay.experiments.power.rows import find_gpu_stats, mean_share_by_reason, sensor_fields
from assay.experiments.power.sweep.plan import visits_by_trial
from assay.experiments.reporting import primary_time, run_estimate
from assay.stats.intervals import estimate_median, repeats_interval
from assay.stats.multiple_comparisons import fit_crossed
from assay.stats.sensor_intervals import ProcessReading, estimate_joules, mean_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import Estimate, GpuWindowStats, Record
    from assay.core.values import Scalar
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.experiments.power.sweep.plan import SweepVisit
    from assay.stats.intervals import Samples
    from assay.stats.multiple_comparisons import CrossedDesign
    from assay.store.records import Records


@dataclass(frozen=True)
class SweepReading:
    """One device at one step in one repeat. Null: not measured, or not reported.

    ``samples`` are times of a call in µs, an array for each start of the worker.
    """

    device: str
    point: int
    block: str
    trial: str
    quantity: str
    samples: tuple[Samples, ...]
    calls: int
    timed_s: float
    energy_j: Estimate | None
    energy_missing: Missing | None
    flop: float | None
    bytes_moved: float | None
    power_w: float | None
    held_back: dict[str, float] | None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    utilisation_percent: float | None = None

    @property
    def calls_per_s(self) -> float:
        """Calls in a second of the time in which they followed one another, pauses of a duty included."""
        return self.calls / self.timed_s

    @property
    def energy_per_call_j(self) -> float | None:
        """What the device drew while one call was made, pauses included."""
        return None if self.power_w is None or self.energy_j is None else self.power_w / self.calls_per_s

    @property
    def median_us(self) -> float:
        """The median of its starts' medians."""
        return float(np.median([np.median(start_samples) for start_samples in self.samples]))


def match_records(options: SweepOptions, records: Records) -> list[tuple[SweepVisit, Record]]:
    """Return every record with the visit it is of, in the order they were taken."""
    visit_of_trial = visits_by_trial(options, options.repeat)
    return [(visit_of_trial[record.trial], record) for record in records if record.trial in visit_of_trial]


def read_records(pairs: Iterable[tuple[SweepVisit, Record]], records: Records) -> list[SweepReading]:
    """Return what each device did at each step in each repeat; trials without a result are left out."""
    return [
        reading
        for visit, record in pairs
        if record.status == "ok"
        for device in visit.devices
        if (reading := _build_reading(records, record, visit, device)) is not None
    ]


def _build_reading(records: Records, record: Record, visit: SweepVisit, device: str) -> SweepReading | None:
    quantity = primary_time([record], device)
    series = [s for s in record.series if (s.role, s.quantity) == (device, quantity) and s.n]
    timed_s = sum(s.end_ns - s.start_ns for s in series) / 1e9
    if not series or timed_s <= 0:
        return None
    stats = find_gpu_stats(record, device)
    energy = _device_energy(record, visit, device, stats)
    energy_j = None if isinstance(energy, Missing) else energy
    observed_s = record.during.observed_s if record.during is not None else timed_s
    power_w = stats.power_w if stats is not None else None
    facts = next((facts for e in record.evidence if e.role == device for facts in e.subjects), None)
    return SweepReading(
        device=device,
        point=visit.point,
        block=record.block,
        trial=record.trial,
        quantity=quantity,
        samples=tuple(records.samples(s) for s in series),
        calls=sum(s.n * s.calls_per_sample for s in series),
        timed_s=timed_s,
        energy_j=energy_j,
        energy_missing=energy if isinstance(energy, Missing) else None,
        flop=(facts.flop or None) if facts is not None else None,
        bytes_moved=(facts.bytes_moved or None) if facts is not None else None,
        power_w=energy_j.value / observed_s if energy_j is not None else power_w,
        held_back=stats.throttle_share if stats is not None else None,
        **sensor_fields(stats),
    )


def _device_energy(record: Record, visit: SweepVisit, device: str, stats: GpuWindowStats | None) -> Estimate | Missing:
    """Return the energy of a device while it was timed, or why there is none."""
    if device.startswith("cuda"):
        no_sensor = Missing(code="no_sensor", detail="no sensor of this GPU was read")
        return no_sensor if stats is None else stats.energy or stats.energy_missing or no_sensor
    if len(visit.devices) > 1:
        detail = "groups of cores that are timed at once share the processor's counters"
        return Missing(code="shared_counters", detail=detail)
    if record.energy is None or record.energy_window == "whole_trial":
        return record.energy_missing or Missing(code="not_watched", detail="no monitor watched")
    return record.energy


WorkUnit = Literal["call", "FLOP", "byte", "item"]


def unit_of_work(options: SweepOptions, readings: Sequence[SweepReading]) -> WorkUnit | None:
    """Return in what the work of different steps can be compared; null where their calls do different things.

    Items are those of a batch. Work is floating-point operations where all calls tell theirs, else bytes.
    """
    if options.knob not in {"size", "batch"}:
        return "call"
    if readings and all(reading.flop for reading in readings):
        return "FLOP"
    if readings and all(reading.bytes_moved for reading in readings):
        return "byte"
    return "item" if options.knob == "batch" else None


def work_per_call(options: SweepOptions, reading: SweepReading, unit: WorkUnit) -> float:
    """Return how much work one call is, in that unit."""
    if unit == "FLOP" and reading.flop:
        return reading.flop
    if unit == "byte" and reading.bytes_moved:
        return reading.bytes_moved
    return float(str(options.points[reading.point].setting)) if unit == "item" else 1.0


SMOOTHING_WINDOW = 5
"""Steps that a curve is smoothed over: a parabola through each step and its neighbours."""
MIN_STEPS_TO_SMOOTH = 4


@dataclass(frozen=True)
class Optimum:
    """The lowest step by its place, and the places of all that cannot be told from it, itself among them.

    ``is_clear`` says that it is known to within one step, and another is surely worse; ``chance`` that the repeats show
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
    """Return where a quantity is lowest; null where it was never measured. Settings that are words have no neighbours.

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
    cap, least = float(str(step.setting)), options.minimum_effect
    if options.knob == "power_limit_w":
        return _power_limit_binding(step, cap, least)
    return _clock_binding(step, as_found, cap, least)


def _power_limit_binding(step: SweepStep, cap_w: float, minimum_effect: float) -> CapBinding:
    """A limit binds where the GPU says so, or draws all of it; it does not where it draws less and is as fast.

    Where the GPU does not tell what held its clock back, the times alone must tell it.
    """
    power_w = step.mean("power_w")
    held = step.power_capped
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
    """One setting on one device. Null: not measured, or not reported.

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

    def held_back(self) -> dict[str, float] | None:
        """Return the share of the time that the clock was held back, by reason; null where it is not reported."""
        reported = [reading.held_back for reading in self.readings if reading.held_back is not None]
        return mean_share_by_reason(reported) if reported else None

    @property
    def power_capped(self) -> float | None:
        """The share of the time that the power cap held the clock back; null where it is not reported."""
        shares = self.held_back()
        return None if shares is None else shares.get(POWER_CAP_REASON, 0.0)


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
        return next(step for step in self.all_steps if step.index == index)

    @property
    def all_steps(self) -> tuple[SweepStep, ...]:
        """The reference, where there is one, and the steps."""
        return (*(() if self.reference is None else (self.reference,)), *self.steps)

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
    """Return what the records say, a curve for each device that was measured, in the order of the options."""
    pairs = tuple(match_records(options, records))
    readings = tuple(read_records(pairs, records))
    unit = unit_of_work(options, readings)
    by_device = {device: [r for r in readings if r.device == device] for device in options.devices}
    curves = tuple(_build_curve(options, device, several, unit) for device, several in by_device.items() if several)
    return SweepStudy(pairs, readings, curves)


def _build_curve(options: SweepOptions, device: str, readings: list[SweepReading], unit: WorkUnit | None) -> SweepCurve:
    by_point: dict[int, list[SweepReading]] = {}
    for reading in sorted(readings, key=lambda r: r.point):
        by_point.setdefault(reading.point, []).append(reading)
    steps = [_build_step(options, index, several, unit) for index, several in by_point.items()]
    if options.reference is not None:
        steps = _compare_to_reference(options, steps, readings)
    plain = tuple(step for step in steps if step.index != options.reference)
    free = tuple(step.index for step in plain if step.binds == "does_not_bind")
    settings = [point.setting for point in options.points]
    swept = [reading for reading in readings if reading.point != options.reference]

    def optimum(value: Callable[[SweepReading], float | None]) -> Optimum | None:
        return find_optimum(_log_table(options, swept, value), settings, smooth=options.capped, same=free)

    return SweepCurve(
        device=device,
        steps=plain,
        reference=next((step for step in steps if step.index == options.reference), None),
        unit=unit,
        best=optimum(lambda r: _work_energy_j(options, r, unit)),
        best_delay=optimum(_energy_delay) if options.capped else None,
    )


def _work_energy_j(options: SweepOptions, reading: SweepReading, unit: WorkUnit | None) -> float | None:
    """Return the energy of a unit of work, in J; null where it is not known, or work cannot be compared."""
    energy = reading.energy_per_call_j
    return None if energy is None or unit is None else energy / work_per_call(options, reading, unit)


def _energy_delay(reading: SweepReading) -> float | None:
    """Return energy times time of a call, in J·s."""
    energy = reading.energy_per_call_j
    return None if energy is None else energy / reading.calls_per_s


def _log_table(
    options: SweepOptions, readings: Sequence[SweepReading], value: Callable[[SweepReading], float | None]
) -> CrossedDesign:
    """Return logarithms of a quantity, steps crossed with repeats."""
    blocks = list(dict.fromkeys(reading.block for reading in readings))
    table = np.full((len(options.points), len(blocks)), np.nan)
    for reading in readings:
        number = value(reading)
        if number is not None and number > 0:
            table[reading.point, blocks.index(reading.block)] = math.log(number)
    return fit_crossed(table)


def _build_step(options: SweepOptions, index: int, readings: list[SweepReading], unit: WorkUnit | None) -> SweepStep:
    return SweepStep(
        index=index,
        setting=options.points[index].setting,
        readings=tuple(readings),
        # Over the repeats, or within the process where there is one.
        time_us=_repeat_estimate([r.median_us for r in readings], "µs")
        if len(readings) > 1
        else estimate_median(readings[0].samples, "µs"),
        calls_per_s=_repeat_estimate([r.calls_per_s for r in readings], "calls/s"),
        energy_j=_joules_estimate([(r, r.energy_per_call_j) for r in readings]),
        cost_j=_joules_estimate([(r, _work_energy_j(options, r, unit)) for r in readings]),
    )


def _joules_estimate(several: Sequence[tuple[SweepReading, float | None]]) -> Estimate | None:
    """Return joules that each repeat gave: how repeats differ (of one, its calls) and the sensor's interval."""
    draws = []
    for reading, value in several:
        if value is not None and value > 0:
            sensor = None if reading.energy_j is None else reading.energy_j.relative_half_width
            samples = np.concatenate(reading.samples)
            draws.append(ProcessReading(value, sensor, len(samples), mean_spread(samples)))
    return estimate_joules(draws) if draws else None


def _repeat_estimate(values: Sequence[float], unit: str) -> Estimate:
    """Return the typical value of the repeats, with Student's interval where there are several."""
    n = len(values)
    if n == 1:
        return run_estimate((float(values[0]), None, None), unit, "of one repeat", 1)
    bounds = repeats_interval(np.asarray(values, dtype=np.float64))
    return run_estimate(bounds, unit, f"geometric mean of {n} repeats, Student's t on their logarithms", n)


def _compare_to_reference(
    options: SweepOptions, steps: list[SweepStep], readings: Sequence[SweepReading]
) -> list[SweepStep]:
    """Return the steps with how each differs from the GPU as it was found, and whether it binds at all."""
    reference = options.reference
    as_found = next((step for step in steps if step.index == reference), None)
    if reference is None or as_found is None:
        return steps
    longer = _log_table(options, readings, lambda r: 1 / r.calls_per_s)
    slower, at_most = longer.against(reference), longer.against(reference, two_sided=False)
    spent = _log_table(options, readings, lambda r: r.energy_per_call_j).against(reference)
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
    low, high = (None if end is None else math.exp(end) for end in ends[1:])
    method = "ratio to as found within repeats; the interval holds for all steps together (Dunnett)"
    return run_estimate((math.exp(ends[0]), low, high), "×", method, n)
