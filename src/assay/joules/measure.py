"""``assay.energy``: measure the energy of one call in joules, with its statistical and systematic error.

How long to rest, to warm up and to measure follows from the sensor model and the duration of a call:

rest    │ warm-up        │ measured: rounds of calls, between them rests of random length where calls are long
────────┼────────────────┼──────────────────────────────────────────────────────────────▶ time
idle_w    lag is over      the window; its start is random relative to the sensor's ticks
"""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.errors import MachineCannot
from assay.core.format import format_count, format_percent, format_time
from assay.core.results import Estimate, Origin
from assay.core.values import Value
from assay.joules import devices
from assay.joules.observations import EnergyRefused
from assay.joules.per_call import MIN_TICKS_IN_CALLS, REST_SHARE, estimate_call_energy, unseen_energy_share
from assay.joules.readings import CallBoundary, MeterReading
from assay.joules.sensor_model import SensorModel
from assay.joules.window_energy import format_energy_estimate, format_evidence, joules_estimate
from assay.timing.options import LIMIT_S, TIMES, resolve_options
from assay.timing.setup import attribute_errors, bind_call
from assay.timing.wall import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.joules.devices import CallLoad, EnergyDevice
    from assay.joules.per_call import CallEnergyEstimate
    from assay.joules.readings import ReadingSampler
    from assay.timing.options import TimingOptions
    from assay.timing.setup import BoundCall


EnergyStopReason = Literal["precise enough", "budget spent"]


class Energy(Value):
    """The energy of one call, made back to back with others.

    ``joules`` has the statistical interval; ``systematic_j`` is the additional error of sensor and method, which
    repeating does not reveal. The two are kept apart.
    """

    name: str
    device: str
    joules: Estimate = Field(description="Of one call; idle power is in it unless ``net``.")
    net: bool = Field(description="Whether idle power was subtracted.")
    systematic_j: float = Field(description="Error of a call's energy, in either direction, besides the interval.")
    power_w: float = Field(description="Average while calls ran, idle power included.")
    call_us: float = Field(description="From one call's end to the next one's, back to back.")
    calls: int = Field(description="In the window.")
    window_s: float
    rests_s: float = Field(description="Part of the window in which the device rested; corrected for.")
    idle_w: float | None = Field(description="Before the first call, with everything loaded. Null: not observed.")
    coverage: float = Field(description="The share of the window that the sensor's ticks cover.")
    method: str
    crosscheck: float | None = Field(description="Integrated power over the counter; null where only one is available.")
    ticks: int = Field(description="Of the sensor, in the window.")
    precision_wanted: float
    precision_reached: float = Field(description="Half the interval over the value.")
    stopped: EnergyStopReason
    sensor: SensorModel
    took_s: float
    origin: Origin = "real"
    notes: tuple[str, ...] = ()
    readings: tuple[MeterReading, ...] = Field(
        default=(), exclude=True, repr=False, description="Every reading in order, on the host's monotonic clock."
    )
    boundaries: tuple[CallBoundary, ...] = Field(
        default=(), exclude=True, repr=False, description="Moments between calls, and how many had ended by then."
    )
    open_ns: int = Field(default=0, exclude=True, repr=False, description="When the warm-up was over.")

    def __str__(self) -> str:
        """Return the energy per call as a few lines of text."""
        idle = "idle power was not seen" if self.idle_w is None else f"{self.idle_w:.0f} W idle"
        subtracted = "" if self.idle_w is None else ", subtracted" if self.net else ", not subtracted"
        running = f"{self.power_w:.0f} W while it runs back to back, {format_time(self.call_us)} a call"
        calls = f"{format_count(self.calls, 'call')} in {self.window_s:.2g} s"
        target = f"±{format_percent(self.precision_wanted)}"
        reached = "reached" if self.stopped == "precise enough" else "not reached"
        lines = [
            f"{self.name} on {self.device}: {format_energy_estimate(self.joules, self.systematic_j)} a call",
            f"  {running}; {idle}{subtracted}",
            f"  by {self.method}: {calls}, {format_evidence(self.ticks, self.coverage, self.crosscheck)}",
            f"  {target} {reached} in {self.took_s:.2g} s",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


IDLE_PERIODS, LEAST_IDLE_S = 4.0, 0.25
FEWEST_PERIODS = MIN_TICKS_IN_CALLS + 2.0
USUAL_PERIODS = 15.0
LEAST_S = 1.0
"""Minimum window: power varies with clocks and temperature, which a window averages out, however fast the sensor."""
PERIODS_AT = 0.5
"""Number of periods, divided by the precision: fifty for ±1 %."""
ROUND_PERIODS, LEAST_ROUND_S = 4.0, 0.2
LONG_CALL = 0.125
"""A call longer than this share of a period has a phase relative to the sensor, which is then varied."""
COLD_SHARE = 0.25
"""If one call takes more than this share of the budget, there is no warm-up."""


@dataclass(frozen=True)
class EnergyPlan:
    """Durations in s.

    Attributes:
        warm_s: Duration of calls before the window opens; null where a call is too long for that.
        dither_s: Longest rest between two rounds; 0: none.
        after_s: Rest at the end, until the last tick is read.
    """

    idle_s: float
    warm_s: float | None
    round_s: float
    measure_s: float
    dither_s: float
    after_s: float


def plan_measurement(
    model: SensorModel, call_s: float, budget_s: float, precision: float, rng: random.Random
) -> EnergyPlan:
    """Return how to spend a budget.

    Without a counter, plan for the power reading that misses least of such calls, among those that the budget is long
    enough for; the result uses whichever gives the narrowest bound in the end.

    Raises:
        MachineCannot: It is too short for every sensor of the device.
    """
    sensors = _usable_sensors(model, call_s)
    fitting = [sensor for sensor in sensors if sensor.needed_s(call_s) <= budget_s or call_s >= budget_s]
    if not fitting:
        nearest = min(sensors, key=lambda sensor: sensor.needed_s(call_s))
        raise MachineCannot(
            f"The sensor ticks every {1e3 * nearest.period_s:.3g} ms: within {budget_s:g} s it cannot tell a call's "
            f"energy; give budget_s={math.ceil(10 * nearest.needed_s(call_s)) / 10:g} or more."
        )
    return fitting[0].planned(call_s, budget_s, precision, rng)


@dataclass(frozen=True)
class _PlannedSensor:
    """A sensor that a measurement may be planned for: its period, settling time and reading time, in s."""

    period_s: float
    settle_s: float
    read_s: float

    @property
    def idle_s(self) -> float:
        return max(LEAST_IDLE_S, IDLE_PERIODS * self.period_s) + self.settle_s

    def after_s(self, call_s: float) -> float:
        return 2 * self.read_s + (self.settle_s + 3 * self.period_s if self._is_long(call_s) else 0.5 * self.period_s)

    def needed_s(self, call_s: float) -> float:
        """Return the minimum budget, for the longest random warm-up."""
        least_s = self.settle_s + FEWEST_PERIODS * self.period_s
        return self.idle_s + self.settle_s + 2 * self.period_s + least_s + self.after_s(call_s)

    def planned(self, call_s: float, budget_s: float, precision: float, rng: random.Random) -> EnergyPlan:
        warm_s = self.settle_s + self.period_s * (1 + rng.random())
        after_s = self.after_s(call_s)
        spare_s = budget_s - self.idle_s - warm_s - after_s
        periods = max(USUAL_PERIODS, PERIODS_AT / precision)
        return EnergyPlan(
            idle_s=self.idle_s,
            warm_s=None if call_s > COLD_SHARE * budget_s else warm_s,
            round_s=max(LEAST_ROUND_S, ROUND_PERIODS * self.period_s),
            measure_s=max(0.0, min(spare_s, self.settle_s + max(LEAST_S, periods * self.period_s))),
            dither_s=self.period_s if self._is_long(call_s) else 0.0,
            after_s=after_s,
        )

    def _is_long(self, call_s: float) -> bool:
        return call_s > LONG_CALL * self.period_s


def _usable_sensors(model: SensorModel, call_s: float) -> list[_PlannedSensor]:
    """Return the counter, or else the power readings, ordered by how little of such calls they miss.

    Raises:
        MachineCannot: There is none.
    """
    counter = model.counter
    if counter is not None:
        return [_PlannedSensor(counter.period_s, max(0.0, counter.lag_s) + counter.period_s, counter.read_s)]
    powers = [power for power in (model.instant, model.usage, model.average) if power is not None]
    if not powers:
        raise MachineCannot("This device shows neither its energy nor a power that is understood.")
    powers.sort(key=lambda power: round(unseen_energy_share(power.seen_share, power.period_s, call_s), 2))
    return [_PlannedSensor(power.period_s, max(0.0, power.lag_s) + power.window_s, power.period_s) for power in powers]


PRECISION = 0.05
BUDGET_S = 3.0
DISAGREEMENT = 0.1
"""If integrated power differs from the counter by more than this share, a note is added."""
POOR_COVERAGE = 0.8


def energy(
    function: Callable[..., object],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    device: str | None = None,
    precision: float = PRECISION,
    budget_s: float = BUDGET_S,
    net: bool = False,
    limit_s: float = LIMIT_S,
    name: str | None = None,
    seed: int | None = None,
) -> Energy:
    """Return the energy of one call of a function in joules, with calls made back to back.

    The device first rests (for its idle power), is warmed up by calls until its sensors have caught up, and is then
    kept busy while its energy counter is read. Short calls are repeated until the window spans enough of the sensor's
    ticks.

    Args:
        function: What to call. It is called repeatedly with the same arguments.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        device: ``cpu``, ``cuda`` or ``cuda:1``; by default the current GPU where PyTorch is loaded and sees one.
        precision: Requested half-width of the statistical interval, as a share: 0.05 is ±5 %.
        budget_s: Approximate upper limit of the duration, without the first calls and without probing a GPU's
            sensors, which is done once per GPU and driver (about 6 s) and stored.
        net: Subtract idle power.
        limit_s: Time limit for a single call.
        name: Name of the function in the result.
        seed: Seed for the random durations of rests and warm-up.

    Raises:
        BadInput: The function or an option is invalid.
        TrialFailed: The function raises, or does not return.
        MachineCannot: There is no such device, or its energy cannot be measured, and why.
    """
    bound = bind_call(function, args, kwargs, name)
    timing_options = resolve_options(
        device=device, cache=None, method="auto", precision=precision, budget_s=budget_s, times=TIMES, limit_s=limit_s
    )
    with contextlib.ExitStack() as stack:
        energy_device = stack.enter_context(devices.open_device(timing_options))
        with attribute_errors(bound.name):
            load = energy_device.prepare_load(bound, timing_options)
            stack.callback(load.close)
            stack.enter_context(gc_paused())
            run = run_measurement(energy_device, load, timing_options, random.Random(seed))  # noqa: S311 - a phase is no secret
    return _build_result(bound, energy_device, load, timing_options, run, net=net)


@dataclass(frozen=True)
class EnergyRun:
    """The measured data, before the result is built."""

    estimate: CallEnergyEstimate
    plan: EnergyPlan
    readings: list[MeterReading]
    boundaries: list[CallBoundary]
    open_ns: int
    took_s: float


def run_measurement(
    energy_device: EnergyDevice, load: CallLoad, timing_options: TimingOptions, rng: random.Random
) -> EnergyRun:
    """Rest, warm up and measure, until the precision is reached or the budget is spent.

    Raises:
        MachineCannot: The readings do not give the energy, and why.
    """
    energy_plan = plan_measurement(
        energy_device.model, load.call_s, timing_options.budget_s, timing_options.precision, rng
    )
    sampler = energy_device.sampler()
    start_ns = energy_device.clock.now_ns()
    end_ns = start_ns + round((timing_options.budget_s - energy_plan.after_s) * 1e9)
    sampler.start()
    try:
        load.rest(energy_plan.idle_s)
        if energy_plan.warm_s is not None:
            load.run(energy_plan.warm_s)
        open_ns = energy_device.clock.now_ns()
        _run_rounds(energy_device, load, energy_plan, min(end_ns, open_ns + round(energy_plan.measure_s * 1e9)), rng)
        estimate = _estimate_now(energy_device, load, sampler, energy_plan, open_ns)
        left_s = (end_ns - energy_device.clock.now_ns()) / 1e9
        if not _is_precise(estimate, timing_options.precision) and left_s > energy_plan.round_s + load.call_s:
            _run_rounds(energy_device, load, energy_plan, end_ns, rng)
            estimate = _estimate_now(energy_device, load, sampler, energy_plan, open_ns)
    finally:
        readings = sampler.stop()
    return EnergyRun(
        estimate, energy_plan, readings, load.boundaries(), open_ns, (energy_device.clock.now_ns() - start_ns) / 1e9
    )


def _run_rounds(
    energy_device: EnergyDevice, load: CallLoad, energy_plan: EnergyPlan, until_ns: int, rng: random.Random
) -> None:
    """Make rounds of calls until a deadline, at least one; with long calls, rest randomly between rounds."""
    while True:
        left_s = (until_ns - energy_device.clock.now_ns()) / 1e9
        load.run(max(0.0, min(energy_plan.round_s, left_s)))
        if energy_device.clock.now_ns() + round(load.call_s * 5e8) >= until_ns:
            return
        if energy_plan.dither_s:
            load.rest(rng.uniform(0.0, energy_plan.dither_s))


def _estimate_now(
    energy_device: EnergyDevice, load: CallLoad, sampler: ReadingSampler, energy_plan: EnergyPlan, open_ns: int
) -> CallEnergyEstimate:
    load.rest(energy_plan.after_s)
    try:
        return estimate_call_energy(sampler.readings(), load.boundaries(), open_ns, energy_device.model)
    except EnergyRefused as refusal:
        raise MachineCannot(f"Joules cannot be told: {refusal}.") from refusal


def _is_precise(estimate: CallEnergyEstimate, precision: float) -> bool:
    return estimate.per_call.error_j <= precision * estimate.per_call.joules


def _build_result(
    bound: BoundCall,
    energy_device: EnergyDevice,
    load: CallLoad,
    timing_options: TimingOptions,
    run: EnergyRun,
    *,
    net: bool,
) -> Energy:
    estimate, per_call = run.estimate, run.estimate.per_call
    gap_s = load.gap_s if per_call.rest_w is not None else None
    waited_j = (per_call.rest_w or 0.0) * (gap_s or 0.0)
    value, error_j = per_call.joules - waited_j, per_call.error_j
    call_s = estimate.call_s - (gap_s or 0.0)
    power_w = value / call_s
    if net:
        if per_call.idle_w is None:
            raise MachineCannot("Idle power was not seen, so it cannot be subtracted; give a longer budget_s.")
        value -= per_call.idle_w * call_s
        error_j = math.hypot(error_j, (per_call.idle_error_w or 0.0) * call_s)
    reached = error_j / abs(value)
    method = f"{estimate.method}, calls against ticks by least squares"
    return Energy(
        name=bound.name,
        device=energy_device.device,
        joules=joules_estimate(value, error_j, method, per_call.ticks),
        net=net,
        systematic_j=estimate.systematic_j + REST_SHARE * waited_j,
        power_w=power_w,
        call_us=call_s * 1e6,
        calls=estimate.calls,
        window_s=estimate.window_s,
        rests_s=estimate.rests_s,
        idle_w=per_call.idle_w,
        coverage=estimate.coverage,
        method=estimate.method,
        crosscheck=estimate.crosscheck,
        ticks=per_call.ticks,
        precision_wanted=timing_options.precision,
        precision_reached=reached,
        stopped="precise enough" if reached <= timing_options.precision else "budget spent",
        sensor=energy_device.model,
        took_s=run.took_s,
        origin=energy_device.origin,
        notes=(*energy_device.notes, *load.notes, *_result_notes(run, load, timing_options, gap_s)),
        readings=tuple(run.readings),
        boundaries=tuple(run.boundaries),
        open_ns=run.open_ns,
    )


def _result_notes(run: EnergyRun, load: CallLoad, timing_options: TimingOptions, gap_s: float | None) -> list[str]:
    """Return notes that a reader needs to interpret the result."""
    notes, estimate = [], run.estimate
    if load.call_s > timing_options.budget_s:
        notes.append("one call takes longer than the whole budget")
    if run.plan.warm_s is None:
        notes.append("the calls were not warmed up: one takes too much of the budget")
    if gap_s:
        notes.append(
            f"the device waited {format_time(gap_s * 1e6)} a call for the host: taken off, at the power of a rest"
        )
    if estimate.crosscheck is not None and abs(estimate.crosscheck - 1) > DISAGREEMENT:
        notes.append(
            f"integrated power says {estimate.crosscheck:.2f} of what the counter does: a call may repeat at the "
            "period of the sensor, which power readings see only a part of; the counter is believed"
        )
    if estimate.method != "counter":
        notes.append(f"there is no energy counter: {estimate.method} sees {estimate.seen_share:.0%} of the time")
    if estimate.coverage < POOR_COVERAGE * estimate.seen_share:
        notes.append(f"readings are missing: the sensor's ticks cover {estimate.coverage:.0%} of the window")
    return notes
