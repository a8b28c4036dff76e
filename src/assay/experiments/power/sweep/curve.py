"""One device's curve: time, work, power and energy at each step, over the repeats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.sweep.binding import Binding, binding
from assay.experiments.power.sweep.optimum import Optimum, lowest
from assay.experiments.power.sweep.readings import readings
from assay.experiments.power.sweep.work import unit_of_work, work_per_call
from assay.stats.crossed import crossed
from assay.stats.metered import Draw, joules_of, mean_spread
from assay.stats.resampled import over_repeats
from assay.stats.summary import estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.values import Scalar
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.experiments.power.sweep.readings import Reading, Samples
    from assay.experiments.power.sweep.work import Unit
    from assay.stats.crossed import Crossed
    from assay.store.records import Records


@dataclass(frozen=True)
class Step:
    """One setting on one device. Null: not measured, or not told.

    Ratios are to the GPU as it was found, their intervals hold for all steps together. ``longer_at_most`` is how many
    times longer a call surely takes at most.
    """

    place: int
    setting: Scalar
    readings: tuple[Reading, ...]
    time_us: Estimate
    calls_per_s: Estimate
    energy_j: Estimate | None
    cost_j: Estimate | None
    energy_ratio: Estimate | None = None
    slowdown: Estimate | None = None
    longer_at_most: float | None = None
    binds: Binding | None = None

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
class Curve:
    """All steps of one device in the order of the options, and what they come to; the reference is not a step."""

    device: str
    steps: tuple[Step, ...]
    reference: Step | None
    unit: Unit | None
    best: Optimum | None
    best_delay: Optimum | None

    def at(self, place: int) -> Step:
        """Return the step at a place among the options' points."""
        return next(step for step in (*self.steps, *self.all_reference) if step.place == place)

    @property
    def all_reference(self) -> tuple[Step, ...]:
        """The reference, where there is one."""
        return () if self.reference is None else (self.reference,)

    def within(self, max_slowdown: float) -> Step | None:
        """Return the lowest step that is surely no slower than this; null where none is."""
        surely = [s for s in self.steps if s.longer_at_most is not None and s.longer_at_most <= 1 + max_slowdown]
        return min(surely, key=lambda step: float(str(step.setting)), default=None)

    @property
    def unbound(self) -> tuple[Step, ...]:
        """The caps that do not bind."""
        return tuple(step for step in self.steps if step.binds == "does not bind")


def curves(options: SweepOptions, records: Records) -> tuple[Curve, ...]:
    """Return the curve of each device that was measured, in the order of the options."""
    all_readings = readings(options, records)
    unit = unit_of_work(options, all_readings)
    by_device = {device: [r for r in all_readings if r.device == device] for device in options.devices}
    return tuple(_curve(options, device, several, unit) for device, several in by_device.items() if several)


def _curve(options: SweepOptions, device: str, found: list[Reading], unit: Unit | None) -> Curve:
    longer = _table(options, found, lambda r: 1 / r.calls_per_s)
    energy = _table(options, found, lambda r: r.energy_per_call_j)
    steps = [_step(options, index, several, unit) for index, several in _by_point(found).items()]
    if options.reference is not None:
        steps = _compared(options, steps, longer, energy)
    plain = tuple(step for step in steps if step.place != options.reference)
    cost = _table(options, found, lambda r: _cost(options, r, unit), without=options.reference)
    delay = _table(options, found, _delay_cost, without=options.reference) if options.capped else None
    settings = [point.setting for point in options.points]
    smooth = options.capped
    free = tuple(step.place for step in plain if step.binds == "does not bind")
    return Curve(
        device=device,
        steps=plain,
        reference=next((step for step in steps if step.place == options.reference), None),
        unit=unit,
        best=lowest(cost, settings, smooth=smooth, same=free),
        best_delay=None if delay is None else lowest(delay, settings, smooth=smooth, same=free),
    )


def _cost(options: SweepOptions, reading: Reading, unit: Unit | None) -> float | None:
    """Return the energy of a unit of work, in J; null where it is not told, or work cannot be compared."""
    energy = reading.energy_per_call_j
    return None if energy is None or unit is None else energy / work_per_call(options, reading, unit)


def _delay_cost(reading: Reading) -> float | None:
    """Return energy times time of a call, in J·s."""
    energy = reading.energy_per_call_j
    return None if energy is None else energy / reading.calls_per_s


def _table(
    options: SweepOptions,
    found: Sequence[Reading],
    value: Callable[[Reading], float | None],
    *,
    without: int | None = None,
) -> Crossed:
    """Return logarithms of a quantity, steps crossed with repeats."""
    blocks = list(dict.fromkeys(reading.block for reading in found))
    table = np.full((len(options.points), len(blocks)), np.nan)
    for reading in found:
        number = value(reading)
        if number is not None and number > 0 and reading.point != without:
            table[reading.point, blocks.index(reading.block)] = math.log(number)
    return crossed(table)


def _by_point(found: Iterable[Reading]) -> dict[int, list[Reading]]:
    points: dict[int, list[Reading]] = {}
    for reading in sorted(found, key=lambda r: r.point):
        points.setdefault(reading.point, []).append(reading)
    return points


def _step(options: SweepOptions, place: int, several: list[Reading], unit: Unit | None) -> Step:
    return Step(
        place=place,
        setting=options.points[place].setting,
        readings=tuple(several),
        time_us=_time(several),
        calls_per_s=_over([r.calls_per_s for r in several], "calls/s"),
        energy_j=_energy(several),
        cost_j=_joules([(r, _cost(options, r, unit)) for r in several]),
    )


def _time(several: list[Reading]) -> Estimate:
    """Return the median time of a call, its interval over the repeats, or within the process where there is one."""
    if len(several) == 1:
        return estimate(several[0].samples, "µs")
    return _over([r.median_us for r in several], "µs")


def _energy(several: list[Reading]) -> Estimate | None:
    """Return the energy of a call: how repeats differ (of one, its calls) and the sensor's interval."""
    return _joules([(r, r.energy_per_call_j) for r in several])


def _joules(several: Sequence[tuple[Reading, float | None]]) -> Estimate | None:
    """Return joules that each repeat gave; null where none did."""
    draws = [_draw(reading, value) for reading, value in several if value is not None and value > 0]
    if not draws:
        return None
    return joules_of(draws)


def _draw(reading: Reading, value: float) -> Draw:
    """Return what one repeat gave; how far its calls leave energy open is what they leave open of its time."""
    sensor = None if reading.energy_j is None else reading.energy_j.relative_half_width
    samples = np.concatenate(reading.samples)
    return Draw(value, sensor, len(samples), mean_spread(samples))


def _over(values: Sequence[float], unit: str) -> Estimate:
    """Return the typical value of the repeats, with Student's interval where there are several."""
    array: Samples = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n == 1:
        return Estimate(value=float(array[0]), low=None, high=None, unit=unit, scope="run", method="of one repeat", n=1)
    centre, low, high = over_repeats(array)
    how = f"geometric mean of {n} repeats, Student's t on their logarithms"
    return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=how, n=n)


def _compared(options: SweepOptions, steps: list[Step], longer: Crossed, energy: Crossed) -> list[Step]:
    """Return the steps with how each differs from the GPU as it was found, and whether it binds at all."""
    reference = options.reference
    as_found = next((step for step in steps if step.place == reference), None)
    if reference is None or as_found is None:
        return steps
    slower, at_most = longer.against(reference), longer.against(reference, two_sided=False)
    spent = energy.against(reference)
    result: list[Step] = []
    for step in steps:
        bound = at_most.get(step.place, (0.0, None, None))[2]
        step_with_ratios = replace(
            step,
            slowdown=_ratio(slower.get(step.place), len(step.readings)),
            longer_at_most=None if bound is None else math.exp(bound),
            energy_ratio=_ratio(spent.get(step.place), len(step.readings)),
        )
        result.append(replace(step_with_ratios, binds=binding(options, step_with_ratios, as_found)))
    return result


def _ratio(ends: tuple[float, float | None, float | None] | None, n: int) -> Estimate | None:
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
